"""Where a collector is and how it is spoken to: what the command line says, and the standard variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rayio.errors import ExportError


@dataclass(frozen=True)
class Settings:
    """What the standard variables ``OTEL_EXPORTER_OTLP_*`` say; those of ``_TRACES_`` come first."""

    headers: dict[str, str]
    seconds: float
    is_compressed: bool
    certificate: str | None
    client_certificate: str | None
    client_key: str | None
    is_insecure: bool | None

    @classmethod
    def of(cls, variables: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables; the timeout is in seconds (10), as in OpenTelemetry's own Python exporter.

        Raises:
            ExportError: a value that cannot be; a header's value is never shown.
        """
        timeout, compression = _said(variables, "TIMEOUT"), _said(variables, "COMPRESSION")
        try:
            seconds = float(timeout or 10)
            if not 0 < seconds < float("inf"):
                raise ValueError
        except ValueError:
            raise ExportError(f"OTEL_EXPORTER_OTLP_TIMEOUT={timeout}: give seconds above 0") from None
        if (compression or "gzip") not in ("gzip", "none"):
            raise ExportError(f"OTEL_EXPORTER_OTLP_COMPRESSION={compression}: gzip or none")
        files = [_said(variables, name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")]
        for path in files:
            if path and not Path(path).is_file():
                raise ExportError(f"OTEL_EXPORTER_OTLP_*: no certificate or key at {path}")
        insecure = _said(variables, "INSECURE")
        certificate, client_certificate, client_key = files
        return cls(
            headers=_headers(_said(variables, "HEADERS") or ""),
            seconds=seconds,
            is_compressed=compression != "none",
            certificate=certificate,
            client_certificate=client_certificate,
            client_key=client_key,
            is_insecure=None if insecure is None else insecure.lower() == "true",
        )


def _said(variables: Mapping[str, str], name: str) -> str | None:
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        if value := variables.get(prefix + name, "").strip():
            return value
    return None


def _headers(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ExportError("OTEL_EXPORTER_OTLP_HEADERS: an entry is not name=value; separate entries by commas")
        found[unquote(name.strip()).lower()] = unquote(value.strip())
    return found


def endpoint(given: str | None, *, grpc: bool, variables: Mapping[str, str] = os.environ) -> str:
    """Give where to send: what was given (for HTTP, ``/v1/traces`` is added to a bare host), else the variables.

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
    """Give a URL without the user and password in it."""
    return (
        url.partition("//")[0] + "//" + url.rpartition("@")[2] if "@" in url and "//" in url else url.rpartition("@")[2]
    )
