"""What happened: spans in columns, and the run directory that keeps them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Find ``RunDirectoryExporter`` where version 0.1 had it; it is in ``rayio.trace.otel`` now."""
    if name == "RunDirectoryExporter":
        return import_module("rayio.trace.otel").RunDirectoryExporter
    raise AttributeError(f"module 'rayio.trace' has no attribute {name!r}")
