"""Spans as text: OTLP JSON with a request per line, and CSV with a span per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.export.spans import SCHEMA_URL, Origin, Spans
from rayio.trace.span import COLUMNS
from rayio.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans per line of OTLP JSON.
LINE_SPANS = 1000
#: Rows of CSV written at a time.
CSV_ROWS = 1 << 16

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_STATUS = {"ok": 1, "error": 2}


def json_lines(spans: Spans, origin: Origin) -> Iterator[bytes]:
    """Iterate over lines, each an ``ExportTraceServiceRequest`` in OTLP's JSON with spans of one resource."""
    own, schema = {"name": "rayio", "version": __version__}, f',"schemaUrl":{_encode(SCHEMA_URL)}'
    order = np.lexsort((spans.start, spans.resource))
    resource = spans.resource[order]
    edges = (
        np.flatnonzero(np.concatenate([[True], np.diff(resource) != 0, [True]]))
        if len(order)
        else np.zeros(1, np.int64)
    )
    for begin, until in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        about = _attributes(spans.resources[resource[begin]].attributes(origin))
        for first in range(begin, until, LINE_SPANS):
            scopes: dict[str, list[str]] = {}
            for scope, text in _objects(spans.take(order[first : min(until, first + LINE_SPANS)]), own):
                scopes.setdefault(scope, []).append(text)
            scope_spans = ",".join(
                f'{{"scope":{scope},"spans":[{",".join(all_)}]{schema if scope == _encode(own) else ""}}}'
                for scope, all_ in scopes.items()
            )
            resource_ = f'{{"resource":{{"attributes":{_encode(about)}}},"scopeSpans":[{scope_spans}]{schema}}}'
            line = f'{{"resourceSpans":[{resource_}]}}\n'
            yield line.encode("utf-8", "replace")


def _objects(spans: Spans, own: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    trace, span, parent = _hex(spans.trace), _hex(spans.span), _hex(spans.parent)
    link_trace, link = _hex(spans.link_trace), _hex(spans.link)
    names = [_encode(text) for text in spans.name.texts]
    attributes = _attribute_texts(spans)
    scope = _encode(own)
    rows = zip(spans.name.codes.tolist(), spans.kind.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True)
    has_parent, has_link = spans.parent.tolist(), spans.link.tolist()
    foreign, status = spans.foreign.tolist(), spans.status.codes.tolist()
    for row, (name, kind, start, end) in enumerate(rows):
        head = (
            f'{{"traceId":"{trace[row]}","spanId":"{span[row]}"'
            + (f',"parentSpanId":"{parent[row]}"' if has_parent[row] else "")
            + f',"name":{names[name]},"kind":{kind},"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}"'
        )
        if foreign[row] >= 0:
            original = spans.foreign_spans[foreign[row]]
            yield _encode(original.get("scope", {})), head + _rest(original) + "}"
            continue
        text = spans.status.texts[status[row]]
        yield (
            scope,
            head
            + (f',"attributes":[{",".join(filter(None, attributes[row]))}]')
            + (f',"links":[{{"traceId":"{link_trace[row]}","spanId":"{link[row]}"}}]' if has_link[row] else "")
            + (f',"status":{{"message":"{text}","code":2}}' if text != "ok" else "")
            + "}",
        )


def _attribute_texts(spans: Spans) -> list[tuple[str, ...]]:
    columns: list[list[str]] = []
    for name, values in spans.numbers.items():
        if (values >= 0).any():
            head = f'{{"key":"{name}","value":{{"intValue":"'
            columns.append([f'{head}{value}"}}}}' if value >= 0 else "" for value in values.tolist()])
    for name, column in spans.texts.items():
        if (column.codes >= 0).any():
            used = np.unique(column.codes)
            texts = {code: _encode(_attributes({name: column.texts[code]})[0]) for code in used.tolist() if code >= 0}
            columns.append([texts.get(code, "") for code in column.codes.tolist()])
    return list(zip(*columns, strict=True)) if columns else [()] * len(spans)


def _rest(original: Mapping[str, Any]) -> str:
    """Return the fields of another library's span besides its name and times."""
    rest: dict[str, Any] = {}
    if "attributes" in original:
        rest["attributes"] = _attributes(original["attributes"])
    if "events" in original:
        rest["events"] = [
            {"timeUnixNano": str(event["time_ns"]), "name": event["name"], **_more(event)}
            for event in original["events"]
        ]
    if "links" in original:
        rest["links"] = [
            {"traceId": link["trace"], "spanId": link["span"], **_more(link)} for link in original["links"]
        ]
    if "status" in original:
        status = original["status"]
        message = {"message": status["description"]} if status.get("description") else {}
        rest["status"] = {**message, "code": _STATUS.get(status["code"], 0)}
    return f",{_encode(rest)[1:-1]}" if rest else ""


def _more(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"attributes": _attributes(part["attributes"])} if part.get("attributes") else {}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """Return a value for OTLP's JSON, where a whole number is text, because it may have 64 bits."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value)}}
    return {} if value is None else {"stringValue": str(value)}


def _hex(ids: NDArray[np.uint64]) -> list[str]:
    width = 8 * (ids.shape[1] if ids.ndim == 2 else 1)
    raw = ids.astype(">u8").tobytes().hex()
    return [raw[begin : begin + 2 * width] for begin in range(0, len(raw), 2 * width)]


def csv(table: pa.Table, spans: Spans) -> Iterator[bytes]:
    """Iterate over a table's CSV: its columns, then ``trace_id``, ``span_id``, ``parent_id``.

    ``spans`` are made of the table: their first rows are its rows. Added roots are left out.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow

    for begin in range(0, max(1, len(table)), CSV_ROWS):
        part = table.slice(begin, CSV_ROWS)
        rows = np.arange(begin, begin + len(part))
        some = spans.take(rows)
        ids = {"trace_id": some.trace, "span_id": some.span, "parent_id": some.parent}
        columns = {name: part[name].cast("string") if kind == "text" else part[name] for name, kind in COLUMNS.items()}
        columns |= {name: pa.array(_hex(values), pa.string()) for name, values in ids.items()}
        sink = pa.BufferOutputStream()
        arrow.write_csv(pa.table(columns), sink, arrow.WriteOptions(include_header=begin == 0))
        yield sink.getvalue().to_pybytes()
