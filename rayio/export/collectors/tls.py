"""TLS to a collector: the files that the variables name, and what went wrong in words that say what to do."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from rayio import regular
from rayio.errors import ExportError

#: Seconds for a connection that only finds out what is wrong, and as many for what the server says of the client.
LOOK_SECONDS = 2.0


class Named(NamedTuple):
    """What a variable says, such as the name of a file."""

    variable: str
    value: str

    def __str__(self) -> str:
        """Show both, as they are set."""
        return f"{self.variable}={self.value}"


class Files(NamedTuple):
    """The files that the variables name, all in PEM form."""

    #: The authorities that sign servers' certificates; None: those that the machine trusts.
    certificate: Named | None = None
    #: What the client shows of itself; one without a key has it in the same file.
    client_certificate: Named | None = None
    client_key: Named | None = None


class Trouble(NamedTuple):
    """What is wrong, in words; and whether it will be so the next time too."""

    why: str
    is_sure: bool = True


_SPEAKS = Trouble("TLS: the server speaks it; write https:// for it")

#: What OpenSSL calls an answer that is not TLS.
_NOT_TLS = (
    "wrong version number", "unknown protocol", "http request", "record layer failure", "packet length too long",
)  # fmt: skip

#: Alerts by which a server misses a client's certificate, and by which it does not like one.
_OF_CLIENTS = ("certificate required", "handshake failure", "bad certificate")
_OF_GIVEN = (
    "unknown ca", "certificate unknown", "certificate expired", "certificate revoked", "unsupported certificate",
    "access denied", "decrypt error",
)  # fmt: skip

#: Numbers of OpenSSL for what is wrong with a certificate.
_NOT_YET, _EXPIRED = 9, 10
_OTHER_HOST = (62, 63, 64)


def context(files: Files) -> ssl.SSLContext:
    """Load the files as Python has them; done once before anything is sent, it is also their check.

    Raises:
        ExportError: a file that is missing or holds something else; the variable is named.
    """
    certificate, client, key = files
    for file in filter(None, files):
        try:
            regular.check(file.value)
            with Path(file.value).open("rb"):
                pass
        except OSError as error:
            raise ExportError(f"{file}: cannot be read, {error.strerror}") from None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate is None:
        made.load_default_certs()
    else:
        try:
            made.load_verify_locations(certificate.value)
        except (ssl.SSLError, ValueError):
            raise ExportError(f"{certificate}: no certificate in PEM form in this file") from None
    if key is not None and client is None:
        other = key.variable.replace("CLIENT_KEY", "CLIENT_CERTIFICATE")
        raise ExportError(f"{key}: the certificate to this key is missing; set {other} too")
    if client is not None:
        _load(made, client, key)
    return made


def _load(made: ssl.SSLContext, client: Named, key: Named | None) -> None:
    def locked() -> str:
        raise PermissionError

    try:
        made.load_cert_chain(client.value, key.value if key else None, password=locked)
    except PermissionError:
        raise ExportError(f"{key or client}: the key has a password; write it to a file without one") from None
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ExportError(f"{key or client}: this key does not belong to the certificate {client}") from None
        both = f"{client}, {key}" if key else f"{client} (no _CLIENT_KEY is set, so it must hold the key too)"
        raise ExportError(f"{both}: not a certificate and its key in PEM form") from None


def causes(error: BaseException) -> list[BaseException]:
    """An error and all that it wraps, from the outside in."""
    found = [error]
    for one in found:
        inner = (getattr(one, "reason", None), one.__cause__, one.__context__, *one.args)
        found += [other for other in inner if isinstance(other, BaseException) and other not in found]
    return found


def failure(error: BaseException) -> ssl.SSLError | None:
    """Find what TLS said in what a library raised, if it was TLS that failed."""
    return next((one for one in causes(error) if isinstance(one, ssl.SSLError)), None)


def diagnosis(error: ssl.SSLError, host: str, files: Files) -> Trouble | None:
    """Say what is wrong and what to do about it; None for a connection that only broke, which may go well again."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    return Trouble(f"TLS: {_words(error, host, files)}")


def _words(error: ssl.SSLError, host: str, files: Files) -> str:
    given, client = files.certificate, files.client_certificate
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_HOST:
            return (
                f"the server's certificate is not for {host}; use a name that it is for, or give the server "
                "one for this name"
            )
        if error.verify_code == _EXPIRED:
            return "the server's certificate has expired; it must be renewed there"
        if error.verify_code == _NOT_YET:
            return "the server's certificate is not valid yet; compare the clocks of both machines"
        if given is None:
            return (
                f"{error.verify_message}: the server's certificate is signed by nobody whom this machine trusts; "
                "set OTEL_EXPORTER_OTLP_CERTIFICATE to the authority's file"
            )
        return (
            f"{error.verify_message}: the server's certificate is not signed by the authority in {given}; "
            "name the file of the one that signed it"
        )
    reason = (error.reason or "").replace("_", " ").lower()
    if reason in _NOT_TLS:
        return "the server does not speak it; write http:// for a plain connection"
    if "alert" in reason:
        word = reason.rpartition("alert ")[2]
        if word in _OF_CLIENTS or (client is not None and word in _OF_GIVEN):
            return f"{_refused(files)} ({word})"
        return f"the server refuses the connection ({word})"
    return reason or str(error)


def _refused(files: Files) -> str:
    if client := files.client_certificate:
        return f"the server does not accept {client}; name a certificate that it knows"
    return (
        "the server wants a certificate of the client; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
        "OTEL_EXPORTER_OTLP_CLIENT_KEY"
    )


def probe(host: str, port: int, files: Files, seconds: float, *, is_plain: bool) -> Trouble | None:
    """Say why a connection broke off without a word, where TLS is why: try its handshake once, and send nothing.

    Libraries say only that the connection was closed: a server of TLS hangs up on what is plain, and it refuses a
    client without a certificate when the client believes the handshake to be over.
    """
    made = context(files)
    if is_plain:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), min(LOOK_SECONDS, seconds)) as plain,
            made.wrap_socket(plain, server_hostname=host) as secure,
        ):
            if is_plain:
                return _SPEAKS
            try:
                is_over = not secure.recv(1)
            except (ssl.SSLEOFError, ConnectionError):
                is_over = True
            # Some servers hang up without saying that it is for the certificate, but so does one that goes down.
            return Trouble(f"TLS: hung up after the handshake: perhaps {_refused(files)}", False) if is_over else None
    except ssl.SSLError as error:
        if is_plain:  # TLS of another kind than ours, or none
            return _SPEAKS if "ALERT" in (error.reason or "") else None
        return diagnosis(error, host, files)
    except OSError:
        return None
