"""Spans as OTLP requests: rayio's own straight from columns, those of other libraries by the official classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rayio import __version__
from rayio.export import wire
from rayio.export.collectors.sending import Request
from rayio.export.spans import KINDS, SCHEMA_URL, Origin, Spans
from rayio.export.wire import Field

#: Spans in one request, and its bytes before compression: collectors refuse more than 4 MB.
REQUEST_SPANS = 8192
REQUEST_BYTES = 2_000_000

#: Rows that become bytes at a time; few, so that they stay in the processor's cache.
_CHUNK = 4096

_SCOPE = wire.delimited(b"\x0a", InstrumentationScope(name="rayio", version=__version__).SerializeToString())
#: The field ``schema_url``, of ResourceSpans and of ScopeSpans.
_SCHEMA = wire.delimited(b"\x1a", SCHEMA_URL.encode())


class _Segment(NamedTuple):
    """Spans of one resource and scope, each a field of a ScopeSpans message."""

    resource: bytes
    scope: bytes
    content: bytes
    spans: int
    made: int


def requests(spans: Spans, origin: Origin, max_bytes: int = REQUEST_BYTES) -> Iterator[Request]:
    """All spans as bodies of ``ExportTraceServiceRequest``; each below ``max_bytes`` unless one span is larger."""
    body: list[bytes] = []
    size = count = made = 0
    for segment in _segments(spans, origin, max_bytes):
        schema = _SCHEMA if segment.scope is _SCOPE else b""  # another library's names are its own
        scope_spans = wire.delimited(b"\x12", segment.scope + segment.content + schema)
        content = wire.delimited(b"\x0a", segment.resource + scope_spans + _SCHEMA)
        if body and (size + len(content) > max_bytes or count + made + segment.spans + segment.made > REQUEST_SPANS):
            yield Request(b"".join(body), count, made)
            body, size, count, made = [], 0, 0, 0
        body.append(content)
        size += len(content)
        count += segment.spans
        made += segment.made
    if body:
        yield Request(b"".join(body), count, made)


def _segments(spans: Spans, origin: Origin, max_bytes: int) -> Iterator[_Segment]:
    resources = [
        wire.delimited(b"\x0a", ResourceMessage(attributes=_attributes(one.attributes(origin))).SerializeToString())
        for one in spans.resources
    ]
    # Spans of one name have the same attributes: side by side they make no bytes that are then left out.
    order = np.lexsort((spans.resource, spans.name.codes, spans.foreign >= 0))
    own = spans.take(order[: np.count_nonzero(spans.foreign < 0)])
    names = wire.Texts([wire.text(b"\x2a", text) for text in spans.name.texts])
    texts = {name: wire.Texts([_text(name, text) for text in said.texts]) for name, said in spans.texts.items()}
    for begin in range(0, len(own), _CHUNK):
        chunk = own.take(slice(begin, begin + _CHUNK))
        content, lengths = wire.written(_fields(chunk, names, texts))
        ends, changes = np.cumsum(lengths), np.flatnonzero(np.diff(chunk.resource, append=-1)) + 1
        first, at = 0, 0
        while first < len(chunk):
            same = changes[np.searchsorted(changes, first, "right")]
            room = np.searchsorted(ends, at + max_bytes - 10_000, "right")
            last = int(max(first + 1, min(same, room)))
            until = int(ends[last - 1])
            made = int(np.count_nonzero(chunk.is_made[first:last]))
            yield _Segment(
                resources[chunk.resource[first]], _SCOPE, content[at:until], last - first - made, made
            )  # fmt: skip
            first, at = last, until
    for row in np.flatnonzero(spans.foreign >= 0).tolist():
        told = spans.told[spans.foreign[row]]
        scope = InstrumentationScope(**told.get("scope", {}))
        content = wire.delimited(b"\x12", _foreign(spans, row, told).SerializeToString())
        yield _Segment(
            resources[spans.resource[row]], wire.delimited(b"\x0a", scope.SerializeToString()), content, 1, 0
        )  # fmt: skip


def _fields(spans: Spans, names: wire.Texts, texts: Mapping[str, wire.Texts]) -> list[Field]:
    """The fields of a Span message, in the order of their numbers."""
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
    for name, said in spans.texts.items():
        if (present := said.codes >= 0).any():
            fields.append(texts[name].of(np.maximum(said.codes, 0), present))
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
    """The field of an attribute that is a text."""
    return wire.delimited(b"\x4a", KeyValue(key=name, value=AnyValue(string_value=text)).SerializeToString())


def _big_endian(ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The bytes of ids, 8 a word, as they are written."""
    return ids.astype(">u8").view(np.uint8).reshape(len(ids), -1)


def _foreign(spans: Spans, row: int, told: Mapping[str, Any]) -> Span:
    """The message of a span of another library: all that it said."""
    status = told.get("status", {})
    parent = int(spans.parent[row])
    return Span(
        trace_id=bytes.fromhex(told["trace"]),
        span_id=bytes.fromhex(told["span"]),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=spans.name.texts[spans.name.codes[row]],
        kind=KINDS[told["kind"]],  # type: ignore[arg-type]
        start_time_unix_nano=int(spans.start[row]),
        end_time_unix_nano=int(spans.end[row]),
        attributes=_attributes(told.get("attributes", {})),
        events=[
            Span.Event(
                time_unix_nano=event["time_ns"], name=event["name"], attributes=_attributes(event.get("attributes", {}))
            )
            for event in told.get("events", ())
        ],
        links=[
            Span.Link(
                trace_id=bytes.fromhex(link["trace"]),
                span_id=bytes.fromhex(link["span"]),
                attributes=_attributes(link.get("attributes", {})),
            )
            for link in told.get("links", ())
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


def _attributes(said: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in said.items()]


def _value(value: Any) -> AnyValue:
    """A value of JSON as OTLP has it; a whole number of more than 64 bits is text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return AnyValue(array_value=ArrayValue(values=[_value(one) for one in value]))
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=_attributes(value)))
    return AnyValue() if value is None else AnyValue(string_value=str(value))
