"""Settings of a collector: from the command line and OpenTelemetry's standard variables."""

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
    """Settings from the variables ``OTEL_EXPORTER_OTLP_*``; those of ``_TRACES_`` come first."""

    headers: dict[str, str]
    seconds: float
    is_compressed: bool
    files: tls.Files
    is_insecure: bool | None

    @classmethod
    def of(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of the variables; the timeout is in seconds, as in OpenTelemetry's Python exporter.

        Raises:
            ExportError: an invalid value or certificate; the message never shows a header's value.
        """
        timeout, compression = _variable(variables, "TIMEOUT"), _variable(variables, "COMPRESSION")
        insecure, headers = _variable(variables, "INSECURE"), _variable(variables, "HEADERS")
        try:
            seconds = float(timeout.value if timeout else 10)
            if not 0 < seconds < float("inf"):
                raise ValueError
        except ValueError:
            raise ExportError(f"{timeout}: must be seconds above 0") from None
        if compression and compression.value not in ("gzip", "none"):
            raise ExportError(f"{compression}: must be gzip or none")
        if insecure and insecure.value.lower() not in ("true", "false"):
            raise ExportError(f"{insecure}: must be true or false")
        settings = cls(
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
        tls.context(settings.files)
        return settings


def _variable(variables: Mapping[str, str], name: str) -> Named | None:
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        if value := variables.get(prefix + name, "").strip():
            return Named(prefix + name, value)
    return None


def _headers(variable: str, text: str) -> dict[str, str]:
    """Return the headers; invalid ones are refused here because errors of HTTP or gRPC would show the value."""
    headers = {}
    for part in filter(None, (entry.strip() for entry in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = unquote(name.strip()).lower(), unquote(value.strip())
        if not equals or not name:
            raise ExportError(f"{variable}: an entry is not name=value; write name=value,name=value")
        if not re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ExportError(f"{variable}: a header's name is invalid; use letters, digits and -_. only")
        if not re.fullmatch(r"[ -~]*", value):
            raise ExportError(f"{variable}: the value of {name} is invalid; use printable ASCII only")
        headers[name] = value
    return headers


def endpoint(given: str | None, *, grpc: bool, variables: Mapping[str, str] = os.environ) -> str:
    """Return the collector's address: as given (for HTTP, ``/v1/traces`` is added), else from the variables.

    Raises:
        ExportError: there is none, or it is not a URL.
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
        raise ExportError(f"{option}: no address; write {option} {example}, or set OTEL_EXPORTER_OTLP_ENDPOINT")
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
        raise ExportError(f"{option} {shown(url.removeprefix('//'))}: not the address of a collector; write {form}")
    if grpc:
        return url.removeprefix("//")
    if not is_whole and not parts.path.rstrip("/").endswith("/v1/traces"):
        url = f"{url.rstrip('/')}/v1/traces"
    return url


def shown(url: str) -> str:
    """Return a URL without its user and password."""
    return (
        url.partition("//")[0] + "//" + url.rpartition("@")[2] if "@" in url and "//" in url else url.rpartition("@")[2]
    )
