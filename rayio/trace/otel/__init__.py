"""Spans of other libraries, recorded through OpenTelemetry's API: in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayio.trace.otel.exporter import RunDirectoryExporter

__all__ = ["RunDirectoryExporter"]


def __getattr__(name: str) -> Any:
    """Import the exporter, and with it OpenTelemetry's SDK, at first use."""
    if name == "RunDirectoryExporter":
        from rayio.trace.otel.exporter import RunDirectoryExporter

        return RunDirectoryExporter
    raise AttributeError(f"module 'rayio.trace.otel' has no attribute {name!r}")
