"""An exporter for OpenTelemetry's SDK that writes spans into a run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from rayio.errors import RayioError
from rayio.trace.otel.foreign import Event, Link, describe, plain, signed
from rayio.trace.parts import Parts
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide
from rayio.trace.run_directory import INFO, RunDirectory
from rayio.trace.span import FOREIGN_LANE


class RunDirectoryExporter(SpanExporter):
    """An exporter that writes spans into ``path``, a new or existing run directory; the SDK's ids stay.

    The role is the resource's ``service.name``, the index its ``service.instance.id`` or the process id.

        provider.add_span_processor(BatchSpanProcessor(RunDirectoryExporter("runs/mine")))

    Raises:
        StorageError: the path contains something else, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        if RunDirectory(path).holds(INFO):
            self.directory = RunDirectory.open(path)
        else:
            self.directory = RunDirectory.create(path, {"engine": "opentelemetry"})
        self._recorder = Recorder()
        self._parts = Parts(self.directory, stem=f"sdk-{os.getpid()}")
        self._lock = Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Record ended spans; they are on disk at the latest after :meth:`force_flush` or :meth:`shutdown`."""
        with self._lock:
            for span in spans:
                self._recorder.add_wide(self._wide(span))
            try:
                self._parts.keep(self._recorder.drain())
            except RayioError:
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write the buffered spans; return True on success."""
        with self._lock:
            try:
                self._parts.write()
            except RayioError:
                return False
        return True

    def shutdown(self) -> None:
        """Write the buffered spans."""
        self.force_flush()

    def _wide(self, span: ReadableSpan) -> Wide:
        context, parent, scope = span.get_span_context(), span.parent, span.instrumentation_scope
        resource = span.resource.attributes
        role, index = resource.get("service.name", "process"), resource.get("service.instance.id", os.getpid())
        parent_id = parent.span_id if parent is not None else 0
        start = span.start_time or 0
        attributes = describe(
            trace=context.trace_id if context else 0,
            span=context.span_id if context else 0,
            kind=span.kind.name.lower(),
            scope=scope.name if scope else "",
            version=scope.version if scope else None,
            parent=parent_id,
            attributes=span.attributes,
            events=[Event(e.name, e.timestamp, e.attributes) for e in span.events],
            links=[Link(link.context.trace_id, link.context.span_id, link.attributes) for link in span.links],
            status=span.status.status_code.name.lower(),
            description=span.status.description,
        )
        return Wide(
            self._recorder.register(str(role), str(index), 0), plain(span.name), start,
            max(span.end_time or start, start), FOREIGN_LANE, (-1, -1, -1, 0), signed(parent_id),
            "error" if span.status.status_code is StatusCode.ERROR else "ok", 0, attributes,
        )  # fmt: skip
