"""Spans of other libraries, recorded through OpenTelemetry's API: in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayio.trace.otel.exporter import RunDirectoryExporter

__all__ = ["RunDirectoryExporter"]


def __getattr__(name: str) -> Any:
    """Import the exporter, and with it OpenTelemetry's SDK, at first use."""
    if name == "RunDirectoryExporter":
        try:
            from rayio.trace.otel.exporter import RunDirectoryExporter
        except ModuleNotFoundError as error:
            raise ImportError(f"RunDirectoryExporter needs {error.name}: pip install 'rayio[otel]'") from None
        return RunDirectoryExporter
    raise AttributeError(f"module 'rayio.trace.otel' has no attribute {name!r}")
