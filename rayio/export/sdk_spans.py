"""Spans as objects of OpenTelemetry's SDK, in batches, and their export."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rayio.errors import ExportError
from rayio.export.collectors.installed import reason
from rayio.export.collectors.sending import Sent
from rayio.export.exporting import Chosen
from rayio.export.spans import SCHEMA_URL, Origin, Spans, Unsigned
from rayio.version import __version__

#: The standard variable for the largest batch, and its default.
BATCH_VARIABLE = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
BATCH_SPANS = 512
#: Time for an exporter to flush its buffer at the end, in ms.
FLUSH_MS = 30_000

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_CODES = {"ok": StatusCode.OK, "error": StatusCode.ERROR}


def batch_size() -> int:
    """Return the most spans of a batch, by the standard variable.

    Raises:
        ExportError: the variable is not a whole number from 1 on.
    """
    text = os.environ.get(BATCH_VARIABLE, "").strip()
    if not text:
        return BATCH_SPANS
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ExportError(f"{BATCH_VARIABLE}={text[:80]}: not a whole number from 1 on")
    return int(text)


def send(chosen: Chosen, exporter: SpanExporter) -> Sent:
    """Hand the selected spans to an exporter until it fails, and shut it down; return counts, failures included.

    ``why`` is the reason of a failure, or else the first warning that the exporter logged.
    """
    sent, total = Sent(), len(chosen.spans)
    every = total - int(np.count_nonzero(chosen.spans.is_added))
    with _logged() as messages:
        for spans, added in batches(chosen.spans, chosen.origin, batch_size()):
            chosen.reporter.live(f"export: {sent.spans:,} of {total:,} spans sent", sent.spans / total)
            if why := _failure(exporter.export, spans):
                sent.why, sent.unsent = why, every - sent.spans
                break
            sent.requests += 1
            sent.spans += len(spans) - added
            sent.added += added
        flushing = "" if sent.why else _failure(exporter.force_flush, FLUSH_MS)
        closing = _failure(exporter.shutdown)
        if not sent.why and (why := flushing or closing):  # any span can be one that the exporter still buffered
            sent = Sent(unsent=every, why=why)
    logged = messages[0] if messages else ""
    sent.why = f"{sent.why}: {logged}" if sent.why and logged else sent.why or logged
    return sent


def _failure(call: Callable[..., Any], *arguments: Any) -> str:
    """Return why a call of an exporter failed; empty if it did not."""
    try:
        answer = call(*arguments)
    except Exception as error:  # another package's code may raise anything
        return reason(error)
    if answer is SpanExportResult.FAILURE:
        return "FAILURE"
    return "its buffer could not be flushed" if answer is False else ""


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect the distinct warnings and errors that libraries log, which otherwise appear on standard error."""
    messages: dict[str, None] = {}

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raised = record.exc_info[1] if record.exc_info else None
            text = " ".join(record.getMessage().split())[:300]
            if len(messages) < 100:
                messages[f"{text} ({reason(raised)})" if raised else text] = None

    root, collector, texts = logging.getLogger(), Collector(logging.WARNING), list[str]()
    before = root.handlers[:]
    root.handlers[:] = [collector]
    try:
        yield texts
    finally:
        root.handlers[:] = before
        texts += messages


def batches(spans: Spans, origin: Origin, size: int) -> Iterator[tuple[list[ReadableSpan], int]]:
    """Iterate over batches of at most ``size`` spans, in the order of their ends, each with its number of added roots.

    Only one batch of objects is in memory.
    """
    resources = [Resource(each.attributes(origin), SCHEMA_URL) for each in spans.resources]
    order = np.argsort(spans.end, kind="stable")
    for begin in range(0, len(order), size):
        some = spans.take(order[begin : begin + size])
        yield list(_objects(some, resources)), int(np.count_nonzero(some.is_added))


def _objects(spans: Spans, resources: Sequence[Resource]) -> Iterator[ReadableSpan]:
    own = InstrumentationScope("rayio", __version__, SCHEMA_URL)
    trace, link_trace = _whole(spans.trace), _whole(spans.link_trace)
    numbers = [(name, column.tolist()) for name, column in spans.numbers.items()]
    texts = [(name, column.texts, column.codes.tolist()) for name, column in spans.texts.items()]
    span, parent, link, kind = (column.tolist() for column in (spans.span, spans.parent, spans.link, spans.kind))
    start, end, resource = spans.start.tolist(), spans.end.tolist(), spans.resource.tolist()
    names, statuses = spans.name.codes.tolist(), spans.status.codes.tolist()
    for row, foreign in enumerate(spans.foreign.tolist()):
        status = spans.status.texts[statuses[row]]
        rest: dict[str, Any] = {
            "attributes": {name: values[row] for name, values in numbers if values[row] >= 0}
            | {name: words[codes[row]] for name, words, codes in texts if codes[row] >= 0},
            "links": [Link(_context(link_trace[row], link[row]))] if link[row] else [],
            "status": Status() if status == "ok" else Status(StatusCode.ERROR, status),
            "instrumentation_scope": own,
        }
        yield ReadableSpan(
            name=spans.name.texts[names[row]],
            context=_context(trace[row], span[row]),
            parent=_context(trace[row], parent[row]) if parent[row] else None,
            resource=resources[resource[row]],
            kind=SpanKind(kind[row] - 1),
            start_time=start[row],
            end_time=end[row],
            **(rest if foreign < 0 else _rest(spans.foreign_spans[foreign])),
        )


def _rest(original: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another library's span has besides its ids, name and times."""
    status, scope = original.get("status", {}), original.get("scope", {})
    code = _CODES.get(status.get("code"), StatusCode.UNSET)
    return {
        "attributes": _attributes(original),
        "events": [Event(event["name"], _attributes(event), event["time_ns"]) for event in original.get("events", ())],
        "links": [
            Link(_context(int(link["trace"], 16), int(link["span"], 16)), _attributes(link))
            for link in original.get("links", ())
        ],
        "status": Status(code, status.get("description") if code is StatusCode.ERROR else None),
        "instrumentation_scope": InstrumentationScope(scope.get("name", ""), scope.get("version")),
    }


def _attributes(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(value) for key, value in part.get("attributes", {}).items()}


def _value(value: Any) -> Any:
    """Return a value of JSON for the SDK; a whole number of more than 64 bits becomes text, as in OTLP."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_value(item) for item in value)
    return {key: _value(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)


def _whole(halves: Unsigned) -> list[int]:
    return [(high << 64) | low for high, low in halves.tolist()]
