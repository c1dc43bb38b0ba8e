"""Spans as OTLP requests: rayio's spans directly from columns, other libraries' spans by the official classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rayio.export import wire
from rayio.export.collectors.sending import Request
from rayio.export.spans import KINDS, SCHEMA_URL, Origin, Spans
from rayio.export.wire import Field
from rayio.version import __version__

#: The most spans and bytes (uncompressed) of a request: collectors refuse more than 4 MB.
REQUEST_SPANS = 8192
REQUEST_BYTES = 2_000_000

#: Rows encoded at a time; few, to fit in the processor's cache.
_CHUNK = 4096

_SCOPE = wire.delimited(b"\x0a", InstrumentationScope(name="rayio", version=__version__).SerializeToString())
#: The field ``schema_url``, of ResourceSpans and of ScopeSpans.
_SCHEMA = wire.delimited(b"\x1a", SCHEMA_URL.encode())


class _Segment(NamedTuple):
    """Spans of one resource and scope, each as a field of a ScopeSpans message."""

    resource: bytes
    scope: bytes
    content: bytes
    spans: int
    added: int


def requests(spans: Spans, origin: Origin, max_bytes: int = REQUEST_BYTES) -> Iterator[Request]:
    """Iterate over bodies of ``ExportTraceServiceRequest``, each below ``max_bytes`` unless one span is larger."""
    body: list[bytes] = []
    size = count = added = 0
    for segment in _segments(spans, origin, max_bytes):
        schema = _SCHEMA if segment.scope is _SCOPE else b""  # another library has its own names
        scope_spans = wire.delimited(b"\x12", segment.scope + segment.content + schema)
        content = wire.delimited(b"\x0a", segment.resource + scope_spans + _SCHEMA)
        number = count + added + segment.spans + segment.added
        if body and (size + len(content) > max_bytes or number > REQUEST_SPANS):
            yield Request(b"".join(body), count, added)
            body, size, count, added = [], 0, 0, 0
        body.append(content)
        size += len(content)
        count += segment.spans
        added += segment.added
    if body:
        yield Request(b"".join(body), count, added)


def _segments(spans: Spans, origin: Origin, max_bytes: int) -> Iterator[_Segment]:
    resources = [
        wire.delimited(b"\x0a", ResourceMessage(attributes=_attributes(each.attributes(origin))).SerializeToString())
        for each in spans.resources
    ]
    # spans of one name have the same attributes: sorted by name, few bytes are made in vain
    order = np.lexsort((spans.resource, spans.name.codes, spans.foreign >= 0))
    own = spans.take(order[: np.count_nonzero(spans.foreign < 0)])
    names = wire.Texts([wire.text(b"\x2a", text) for text in spans.name.texts])
    texts = {name: wire.Texts([_text(name, text) for text in column.texts]) for name, column in spans.texts.items()}
    statuses = np.array([len(text) for text in own.status.texts], np.int64)
    widths = names.sizes(own.name.codes) + statuses[own.status.codes]
    for name, column in own.texts.items():
        if column.texts:
            widths = widths + texts[name].sizes(np.maximum(column.codes, 0))
    for rows in wire.parts(widths, _CHUNK):
        chunk = own.take(rows)
        content, lengths = wire.written(_fields(chunk, names, texts))
        ends, changes = np.cumsum(lengths), np.flatnonzero(np.diff(chunk.resource, append=-1)) + 1
        first, offset = 0, 0
        while first < len(chunk):
            same = changes[np.searchsorted(changes, first, "right")]
            room = np.searchsorted(ends, offset + max_bytes - 10_000, "right")
            last = int(max(first + 1, min(same, room)))
            until = int(ends[last - 1])
            added = int(np.count_nonzero(chunk.is_added[first:last]))
            yield _Segment(
                resources[chunk.resource[first]], _SCOPE, content[offset:until], last - first - added, added
            )  # fmt: skip
            first, offset = last, until
    for row in np.flatnonzero(spans.foreign >= 0).tolist():
        original = spans.foreign_spans[spans.foreign[row]]
        scope = InstrumentationScope(**original.get("scope", {}))
        content = wire.delimited(b"\x12", _foreign(spans, row, original).SerializeToString())
        yield _Segment(
            resources[spans.resource[row]], wire.delimited(b"\x0a", scope.SerializeToString()), content, 1, 0
        )  # fmt: skip


def _fields(spans: Spans, names: wire.Texts, texts: Mapping[str, wire.Texts]) -> list[Field]:
    number = len(spans)
    fields = [
        wire.raw(b"\x0a\x10", _big_endian(spans.trace)),
        wire.raw(b"\x12\x08", _big_endian(spans.span)),
        wire.raw(b"\x22\x08", _big_endian(spans.parent), spans.parent > 0),
        names.of(spans.name.codes),
        wire.varint(b"\x30", spans.kind),
        wire.fixed(b"\x39", spans.start, spans.start > 0),
        wire.fixed(b"\x41", spans.end, spans.end > 0),
    ]
    for name, values in spans.numbers.items():
        if (present := values >= 0).any():
            key = wire.constant(number, wire.delimited(b"\x0a", name.encode()))
            value = wire.message(b"\x12", [wire.varint(b"\x18", np.maximum(values, 0))])
            fields += wire.message(b"\x4a", [key, *value], present)
    for name, column in spans.texts.items():
        if (present := column.codes >= 0).any():
            fields.append(texts[name].of(np.maximum(column.codes, 0), present))
    if (linked := spans.link > 0).any():
        link = [wire.raw(b"\x0a\x10", _big_endian(spans.link_trace)), wire.raw(b"\x12\x08", _big_endian(spans.link))]
        fields += wire.message(b"\x6a", link, linked)
    is_ok = np.array([text == "ok" for text in spans.status.texts])[spans.status.codes]
    if not is_ok.all():
        texts_of_status = wire.Texts([wire.text(b"\x12", text) for text in spans.status.texts])
        error = [texts_of_status.of(spans.status.codes), wire.constant(number, b"\x18\x02")]
        fields += wire.message(b"\x7a", error, ~is_ok)
    return wire.message(b"\x12", fields)


def _text(name: str, text: str) -> bytes:
    return wire.delimited(b"\x4a", KeyValue(key=name, value=AnyValue(string_value=text)).SerializeToString())


def _big_endian(ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return ids.astype(">u8").view(np.uint8).reshape(len(ids), -1)


def _foreign(spans: Spans, row: int, original: Mapping[str, Any]) -> Span:
    """Return the message of another library's span, with all its content."""
    status = original.get("status", {})
    parent = int(spans.parent[row])
    return Span(
        trace_id=bytes.fromhex(original["trace"]),
        span_id=bytes.fromhex(original["span"]),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=spans.name.texts[spans.name.codes[row]],
        kind=KINDS[original["kind"]],  # type: ignore[arg-type]
        start_time_unix_nano=int(spans.start[row]),
        end_time_unix_nano=int(spans.end[row]),
        attributes=_attributes(original.get("attributes", {})),
        events=[
            Span.Event(
                time_unix_nano=event["time_ns"], name=event["name"], attributes=_attributes(event.get("attributes", {}))
            )
            for event in original.get("events", ())
        ],
        links=[
            Span.Link(
                trace_id=bytes.fromhex(link["trace"]),
                span_id=bytes.fromhex(link["span"]),
                attributes=_attributes(link.get("attributes", {})),
            )
            for link in original.get("links", ())
        ],
        status=Status(
            code={"ok": Status.STATUS_CODE_OK, "error": Status.STATUS_CODE_ERROR}.get(
                status.get("code"), Status.STATUS_CODE_UNSET
            ),
            message=status.get("description", ""),
        )
        if status
        else None,
    )


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: Any) -> AnyValue:
    """Return a value of JSON for OTLP; a whole number of more than 64 bits becomes text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=_attributes(value)))
    return AnyValue() if value is None else AnyValue(string_value=str(value))
