"""OpenTelemetry's API over the recorder: spans of any instrumented library in this process join those of the run.

:func:`capture` installs a :class:`TracerProvider`, unless the user has set one. Ids are derived: a span without a
parent that begins while a role reads a batch is in the trace of that batch.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util._decorator import _agnosticcontextmanager

from rayio.trace.ids import span_id, trace_id
from rayio.trace.otel.foreign import HERE, Event, Here, Link, describe, plain, signed
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide
from rayio.trace.span import FOREIGN_LANE

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
#: Lanes of threads: the column has 16 bits.
_LANES = 1 << 14
#: The place of a span outside batches.
NOWHERE = (-1, -1, -1, 0)


@dataclass
class Target:
    """The destination of this process's spans."""

    recorder: Recorder
    #: The number (see ``Recorder.register``) of the role of spans that belong to no other.
    writer: int
    #: Returns the time in ns since the Unix epoch.
    now: Callable[[], int]
    #: The run and the actor from which ids are derived; one actor for each process, across restarts.
    run: str
    actor: str
    _sequence: Iterator[int] = field(default_factory=count)
    _threads: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new_span_id(self) -> int:
        """Return the next span's id."""
        return span_id(self.run, self.actor, next(self._sequence))

    def new_trace_id(self, here: Here | None, root: int) -> int:
        """Return the trace id of the batch being read; outside batches the process's, ending in the root's id."""
        if here is not None:
            rank, epoch, step, _ = here.place
            return trace_id(self.run, "batch", rank, epoch, step)
        return trace_id(self.run, "process", self.actor) >> 64 << 64 | root

    def lane(self, thread: int) -> int:
        """Return the lane of a thread; lanes repeat if a process has had more threads than lanes."""
        with self._lock:
            return FOREIGN_LANE + self._threads.setdefault(thread, len(self._threads) % _LANES)


class TracerProvider(trace.TracerProvider):
    """A provider of tracers that record into the current run; without a run, and in forks, they record nothing."""

    def __init__(self, target: Target | None = None) -> None:
        self.target = target
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.target = None  # nobody empties the recorder that a fork inherits

    def get_tracer(
        self, instrumenting_module_name: str, instrumenting_library_version: str | None = None, *_: Any, **__: Any
    ) -> Tracer:
        """Return the tracer of a library."""
        return Tracer(self, instrumenting_module_name, instrumenting_library_version)


class Tracer(trace.Tracer):
    """A factory of one library's spans."""

    def __init__(self, provider: TracerProvider, name: str, version: str | None) -> None:
        self.provider = provider
        self.name = name
        self.version = version

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """Return a new span under the current one, or under that of ``context``; times in ns since the Unix epoch."""
        parent = trace.get_current_span(context).get_span_context()
        target = self.provider.target
        if target is None:
            return trace.NonRecordingSpan(parent)
        start = target.now() if start_time is None else start_time
        reports = (record_exception, set_status_on_exception)
        return Span(target, self, name, parent, kind, attributes, links or (), start, reports)

    @_agnosticcontextmanager
    def start_as_current_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[trace.Span]:
        """Start a span and make it current within the block."""
        span = self.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )
        with trace.use_span(
            span,
            end_on_exit=end_on_exit,
            record_exception=record_exception,
            set_status_on_exception=set_status_on_exception,
        ) as current:
            yield current


class Span(trace.Span):
    """A span in progress; it is recorded when it ends."""

    def __init__(
        self,
        target: Target,
        tracer: Tracer,
        name: str,
        parent: SpanContext,
        kind: SpanKind,
        attributes: Mapping[str, Any] | None,
        links: Any,
        start: int,
        reports: tuple[bool, bool],
    ) -> None:
        self._target = target
        self._tracer = tracer
        self._is_over = False
        self._status = StatusCode.UNSET
        self._description: str | None = None
        self._here = HERE.get()
        self.name = name
        self.kind = kind
        self._parent = parent.span_id if parent.is_valid else 0
        own = target.new_span_id()
        trace_ = parent.trace_id if parent.is_valid else target.new_trace_id(self._here, own)
        self._context = SpanContext(trace_, own, False, _SAMPLED)
        self._attributes = dict(attributes) if attributes else {}
        self._events: list[Event] = []
        self._links: list[Link] = []
        for link in links:
            self.add_link(link.context, link.attributes)
        self._start = start
        self._reports = reports
        self._thread = threading.get_native_id()

    def get_span_context(self) -> SpanContext:
        """Return the ids by which others refer to this span."""
        return self._context

    def is_recording(self) -> bool:
        """Return True until the span ends."""
        return not self._is_over

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute."""
        if not self._is_over:
            self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes."""
        if not self._is_over:
            self._attributes.update(attributes)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        """Add an event, now or at ``timestamp`` (ns)."""
        if not self._is_over:
            when = self._target.now() if timestamp is None else timestamp
            self._events.append(Event(name, when, dict(attributes) if attributes else None))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        """Link another span; links without valid ids are dropped."""
        if not self._is_over and context.is_valid:
            self._links.append(Link(context.trace_id, context.span_id, attributes))

    def update_name(self, name: str) -> None:
        """Change the name."""
        if not self._is_over:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the outcome; OK is final, and only errors have a description."""
        if isinstance(status, Status):
            code, description = status.status_code, status.description
        else:
            code = status
        if self._is_over or self._status is StatusCode.OK or code is StatusCode.UNSET:
            return
        self._status = code
        self._description = description if code is StatusCode.ERROR else None

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception event with OpenTelemetry's name and attributes."""
        kind = type(exception)
        fields = {
            "exception.type": ("" if kind.__module__ == "builtins" else f"{kind.__module__}.") + kind.__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }  # fmt: skip
        self.add_event("exception", {**fields, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Record the span; further calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        target, here = self._target, self._here
        end = target.now() if end_time is None else end_time
        is_error = self._status is StatusCode.ERROR
        attributes = partial(
            describe, trace=self._context.trace_id, span=self._context.span_id, kind=self.kind.name.lower(),
            scope=self._tracer.name, version=self._tracer.version, parent=self._parent, attributes=self._attributes,
            events=self._events, links=self._links, status=self._status.name.lower(), description=self._description,
        )  # fmt: skip
        target.recorder.add_wide(
            Wide(
                here.writer if here is not None else target.writer, plain(self.name), self._start,
                max(end, self._start), target.lane(self._thread), here.place if here is not None else NOWHERE,
                signed(self._parent), "error" if is_error else "ok", self._thread, attributes,
            )
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """Record an exception that left the block, then end."""
        if isinstance(error, Exception) and not self._is_over:
            records, sets_status = self._reports
            if records:
                self.record_exception(error)
            if sets_status:
                self.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self.end()


def capture(target: Target) -> TracerProvider | None:
    """Record the spans of this process's libraries; None if the user has set another provider."""
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        current.target = target
        return current
    if not isinstance(current, trace.ProxyTracerProvider):
        return None
    ours = TracerProvider(target)
    trace.set_tracer_provider(ours)
    return ours
