"""Traces: spans in columns, and the run directory that stores them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return ``RunDirectoryExporter``, which was here in version 0.1; it is now in ``rayio.trace.otel``."""
    if name == "RunDirectoryExporter":
        return import_module("rayio.trace.otel").RunDirectoryExporter
    raise AttributeError(f"module 'rayio.trace' has no attribute {name!r}")
