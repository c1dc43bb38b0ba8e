"""TLS to a collector: certificate files from variables, and errors with their remedies."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from rayio.errors import ExportError
from rayio.files import check_regular

#: Seconds for the connection of a diagnosis, and for the server's reaction to the client's certificate.
LOOK_SECONDS = 2.0


class Named(NamedTuple):
    """A variable and its value, such as the name of a file."""

    variable: str
    value: str

    def __str__(self) -> str:
        """Return ``variable=value``."""
        return f"{self.variable}={self.value}"


class Files(NamedTuple):
    """Files named by variables, in PEM form."""

    #: Authorities that sign servers' certificates; None for those that the machine trusts.
    certificate: Named | None = None
    #: The client's certificate; without ``client_key``, its file has the key too.
    client_certificate: Named | None = None
    client_key: Named | None = None


class Trouble(NamedTuple):
    """A problem in words; ``is_sure`` if retrying cannot help."""

    why: str
    is_sure: bool = True


_NEEDS_TLS = Trouble("the server requires TLS; write https://")

#: OpenSSL's names for an answer that is not TLS.
_NOT_TLS = (
    "wrong version number", "unknown protocol", "http request", "record layer failure", "packet length too long",
)  # fmt: skip

#: Alerts of a server about a missing client certificate, and about an unaccepted one.
_OF_CLIENTS = ("certificate required", "handshake failure", "bad certificate")
_OF_GIVEN = (
    "unknown ca", "certificate unknown", "certificate expired", "certificate revoked", "unsupported certificate",
    "access denied", "decrypt error",
)  # fmt: skip

#: OpenSSL's numbers of certificate errors.
_NOT_YET, _EXPIRED = 9, 10
_OTHER_HOST = (62, 63, 64)


def context(files: Files) -> ssl.SSLContext:
    """Return a TLS context with the files loaded, which also checks them.

    Raises:
        ExportError: a file is missing or invalid.
    """
    certificate, client, key = files
    for file in filter(None, files):
        try:
            check_regular(file.value)
            with Path(file.value).open("rb"):
                pass
        except OSError as error:
            raise ExportError(f"{file}: cannot be read: {error.strerror}") from None
    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate is None:
        tls_context.load_default_certs()
    else:
        try:
            tls_context.load_verify_locations(certificate.value)
        except (ssl.SSLError, ValueError):
            raise ExportError(f"{certificate}: the file has no certificate in PEM form") from None
    if key is not None and client is None:
        other = key.variable.replace("CLIENT_KEY", "CLIENT_CERTIFICATE")
        raise ExportError(f"{key}: the key's certificate is missing; set {other} too")
    if client is not None:
        _load(tls_context, client, key)
    return tls_context


def _load(tls_context: ssl.SSLContext, client: Named, key: Named | None) -> None:
    def locked() -> str:
        raise PermissionError

    try:
        tls_context.load_cert_chain(client.value, key.value if key else None, password=locked)
    except PermissionError:
        raise ExportError(f"{key or client}: the key has a password; write it to a file without one") from None
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ExportError(f"{key or client}: the key does not match the certificate {client}") from None
        both = f"{client}, {key}" if key else f"{client} (without _CLIENT_KEY, it must hold the key too)"
        raise ExportError(f"{both}: not a certificate and its key in PEM form") from None


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and all errors that it wraps, from the outside in."""
    chain = [error]
    for link in chain:
        inner = (getattr(link, "reason", None), link.__cause__, link.__context__, *link.args)
        chain += [other for other in inner if isinstance(other, BaseException) and other not in chain]
    return chain


def failure(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error in an error of a library; None without one."""
    return next((cause for cause in causes(error) if isinstance(cause, ssl.SSLError)), None)


def diagnosis(error: ssl.SSLError, host: str, files: Files) -> Trouble | None:
    """Return the problem and its remedy; None for a broken connection, which may work again."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    return Trouble(f"TLS: {_words(error, host, files)}")


def _words(error: ssl.SSLError, host: str, files: Files) -> str:
    given, client = files.certificate, files.client_certificate
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_HOST:
            return (
                f"the server's certificate is not valid for {host}; use a name of the certificate, or give the "
                "server a certificate for this name"
            )
        if error.verify_code == _EXPIRED:
            return "the server's certificate has expired; renew it on the server"
        if error.verify_code == _NOT_YET:
            return "the server's certificate is not valid yet; compare the clocks of both machines"
        if given is None:
            return (
                f"{error.verify_message}: this machine does not trust the signer of the server's certificate; "
                "set OTEL_EXPORTER_OTLP_CERTIFICATE to the authority's file"
            )
        return (
            f"{error.verify_message}: the server's certificate is not signed by the authority in {given}; "
            "give the file of its authority"
        )
    reason = (error.reason or "").replace("_", " ").lower()
    if reason in _NOT_TLS:
        return "the server does not use it; write http:// for a plain connection"
    if "alert" in reason:
        word = reason.rpartition("alert ")[2]
        if word in _OF_CLIENTS or (client is not None and word in _OF_GIVEN):
            return f"{_refused(files)} ({word})"
        return f"the server refuses the connection ({word})"
    return reason or str(error)


def _refused(files: Files) -> str:
    if client := files.client_certificate:
        return f"the server does not accept {client}; give a certificate that it accepts"
    return (
        "the server requires a client certificate; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
        "OTEL_EXPORTER_OTLP_CLIENT_KEY"
    )


def probe(host: str, port: int, files: Files, seconds: float, *, is_plain: bool) -> Trouble | None:
    """Return the TLS problem of a broken connection, found by one handshake without data; None if TLS works.

    Libraries only report a closed connection: a TLS server closes plain ones, and refuses a client without a
    certificate after the client's part of the handshake.
    """
    tls_context = context(files)
    if is_plain:
        tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), min(LOOK_SECONDS, seconds)) as plain,
            tls_context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            if is_plain:
                return _NEEDS_TLS
            try:
                is_over = not secure.recv(1)
            except (ssl.SSLEOFError, ConnectionError):
                is_over = True
            # a server may close because of the certificate, or because it is stopping
            return Trouble(f"TLS: closed after the handshake: perhaps {_refused(files)}", False) if is_over else None
    except ssl.SSLError as error:
        if is_plain:  # another version of TLS, or none
            return _NEEDS_TLS if "ALERT" in (error.reason or "") else None
        return diagnosis(error, host, files)
    except OSError:
        return None
