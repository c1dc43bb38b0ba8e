"""Where a collector is and how it is spoken to: what the command line says, and the standard variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from rayio.errors import ExportError
from rayio.export.collectors import tls
from rayio.export.collectors.tls import Named


@dataclass(frozen=True)
class Settings:
    """What the standard variables ``OTEL_EXPORTER_OTLP_*`` say; those of ``_TRACES_`` come first."""

    headers: dict[str, str]
    seconds: float
    is_compressed: bool
    files: tls.Files
    is_insecure: bool | None

    @classmethod
    def of(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; the timeout is in seconds (10), as in OpenTelemetry's own Python exporter.

        Raises:
            ExportError: a value that cannot be, or a file that is no certificate; a header's value is never shown.
        """
        timeout, compression = _variable(variables, "TIMEOUT"), _variable(variables, "COMPRESSION")
        insecure, headers = _variable(variables, "INSECURE"), _variable(variables, "HEADERS")
        try:
            seconds = float(timeout.value if timeout else 10)
            if not 0 < seconds < float("inf"):
                raise ValueError
        except ValueError:
            raise ExportError(f"{timeout}: give seconds above 0") from None
        if compression and compression.value not in ("gzip", "none"):
            raise ExportError(f"{compression}: gzip or none")
        if insecure and insecure.value.lower() not in ("true", "false"):
            raise ExportError(f"{insecure}: true or false")
        found = cls(
            headers=_headers(*headers) if headers else {},
            seconds=seconds,
            is_compressed=compression is None or compression.value != "none",
            files=tls.Files(
                certificate=_variable(variables, "CERTIFICATE"),
                client_certificate=_variable(variables, "CLIENT_CERTIFICATE"),
                client_key=_variable(variables, "CLIENT_KEY"),
            ),
            is_insecure=insecure.value.lower() == "true" if insecure else None,
        )
        tls.context(found.files)
        return found


def _variable(variables: Mapping[str, str], name: str) -> Named | None:
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        if value := variables.get(prefix + name, "").strip():
            return Named(prefix + name, value)
    return None


def _headers(variable: str, text: str) -> dict[str, str]:
    """Read headers; what neither HTTP nor gRPC could send is refused here, for their own words show the value."""
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = unquote(name.strip()).lower(), unquote(value.strip())
        if not equals or not name:
            raise ExportError(f"{variable}: an entry is not name=value; separate entries by commas")
        if not re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ExportError(f"{variable}: a header's name has letters, digits and -_. only, one of them has others")
        if not re.fullmatch(r"[ -~]*", value):
            raise ExportError(f"{variable}: the value of {name} has characters that are not printable ASCII")
        found[name] = value
    return found


def endpoint(given: str | None, *, grpc: bool, variables: Mapping[str, str] = os.environ) -> str:
    """Where to send: what was given (for HTTP, ``/v1/traces`` is added to a bare host), else the variables.

    Raises:
        ExportError: neither says it, or it is no URL.
    """
    option = "--grpc" if grpc else "--otlp"
    url = given or ""
    is_whole = False
    if not url:
        url = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
        is_whole = bool(url)
        url = url or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    if not url:
        example = "localhost:4317" if grpc else "http://localhost:4318"
        raise ExportError(f"{option}: say where, such as {option} {example}, or set OTEL_EXPORTER_OTLP_ENDPOINT")
    if grpc and "://" not in url:
        url = f"//{url}"
    try:
        parts = urlsplit(url)
        fits = bool(parts.hostname) and parts.scheme in (("", "http", "https") if grpc else ("http", "https"))
        fits = fits and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits:
        form = "localhost:4317, http://… or https://…" if grpc else "http://localhost:4318 or https://…"
        raise ExportError(f"{option} {shown(url)}: not the address of a collector; write {form}")
    if grpc:
        return url.removeprefix("//")
    if not is_whole and not parts.path.rstrip("/").endswith("/v1/traces"):
        url = f"{url.rstrip('/')}/v1/traces"
    return url


def shown(url: str) -> str:
    """A URL without the user and password in it."""
    return (
        url.partition("//")[0] + "//" + url.rpartition("@")[2] if "@" in url and "//" in url else url.rpartition("@")[2]
    )
