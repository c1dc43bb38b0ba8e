"""TLS to a collector: certificate files from variables, checked before anything is sent."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from rayio.errors import ExportError
from rayio.files import check_regular


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
