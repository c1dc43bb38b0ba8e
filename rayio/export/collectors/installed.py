"""Exporters that are installed for OpenTelemetry's SDK."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from rayio.errors import ExportError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

#: The group of entry points of exporters of spans.
GROUP = "opentelemetry_traces_exporter"
#: The standard variable for the names of exporters.
VARIABLE = "OTEL_TRACES_EXPORTER"


def installed_exporters() -> dict[str, EntryPoint]:
    """Return the entry points of the installed exporters by name; the first of equal names, as in the SDK."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, point)
    return dict(sorted(points.items()))


def names_of(given: str | None) -> tuple[str, ...]:
    """Return the names of exporters, separated by commas, in ``given`` or else in the standard variable.

    Raises:
        ExportError: no name, or one that is not installed.
    """
    points = installed_exporters()
    text = os.environ.get(VARIABLE, "") if given is None else given
    names = tuple(name for part in text.split(",") if (name := part.strip()) and name != "none")
    if not names:
        raise ExportError(f"no exporter; give --exporter NAME, or set {VARIABLE}; installed: {', '.join(points)}")
    if unknown := [name for name in names if name not in points]:
        raise ExportError(
            f"no exporter named {unknown[0][:80]!r}; installed: {', '.join(points)}; install the package of another, "
            "such as opentelemetry-exporter-zipkin-json"
        )
    return names


def whose(name: str) -> str:
    """Return an exporter's name for messages, with its package unless the SDK has it."""
    point = installed_exporters()[name]
    if point.dist is None or point.dist.name == "opentelemetry-sdk":
        return name
    return f"{name} of package {point.dist.name} {point.dist.version}"


def make(name: str) -> SpanExporter:
    """Return a new exporter; its own settings are environment variables, which it reads itself.

    Raises:
        ExportError: its package cannot be imported, or refuses its settings.
    """
    try:
        exporter: SpanExporter = installed_exporters()[name].load()()
    except Exception as error:  # another package's code may raise anything
        raise ExportError(f"exporter {whose(name)} cannot be used: {reason(error)}") from error
    return exporter


def reason(error: BaseException) -> str:
    """Return an error of another package in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
