"""Exporters for OpenTelemetry's SDK, as a vendor's package installs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Memory(InMemorySpanExporter):
    """The SDK's exporter into memory; the last one made is kept."""

    last: ClassVar[Memory]

    def __init__(self) -> None:
        super().__init__()
        Memory.last = self
        self.sizes: list[int] = []
        self.is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        return super().export(spans)

    def shutdown(self) -> None:
        super().shutdown()
        self.is_shut = True


class _Nothing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


class Raising(_Nothing):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ValueError("no such\ntenant")


class Refusing(_Nothing):
    """Takes one batch, and then none; the reason is in the log, as the SDK's exporters do."""

    def __init__(self) -> None:
        self.tries = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.tries += 1
        if self.tries == 1:
            return SpanExportResult.SUCCESS
        logging.getLogger("vendor.exporter").error("Failed to export batch code: %s", 503)
        return SpanExportResult.FAILURE


class Unflushed(_Nothing):
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return False


class Unclosed(_Nothing):
    def shutdown(self) -> None:
        raise OSError("lost at the end")


class Unmade(_Nothing):
    def __init__(self) -> None:
        raise RuntimeError("VENDOR_TOKEN is not set")


class Cautious(_Nothing):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        logging.getLogger("vendor").warning("the quota is nearly used")
        return SpanExportResult.SUCCESS


#: Entry points of the package, whose metadata :func:`installed` writes.
POINTS = {
    "memory": "Memory", "raising": "Raising", "refusing": "Refusing", "unflushed": "Unflushed", "unclosed": "Unclosed",
    "unmade": "Unmade", "warning": "Cautious", "gone": "NoSuchThing",
}  # fmt: skip


@contextmanager
def installed(folder: Path) -> Iterator[Any]:
    """Install these exporters for a while."""
    metadata = folder / "vendor" / "vendor_exporter-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-exporter\nVersion: 2.0\n")
    lines = "".join(f"{name} = sdk_exporters:{thing}\n" for name, thing in POINTS.items())
    (metadata / "entry_points.txt").write_text(f"[opentelemetry_traces_exporter]\n{lines}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(metadata.parent))
        yield patch
