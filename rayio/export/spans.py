"""Spans in OpenTelemetry's terms, as columns: the source of every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Unsigned = NDArray[np.uint64]

#: ``service.name`` of each role, with a prefix because few viewers show the namespace.
SERVICES = {
    "reader": "rayio-reader", "queue": "rayio-prefetch-queue", "rank": "rayio-trainer",
    "checkpoint_writer": "rayio-checkpoint-writer", "barrier": "rayio-barrier", "storage": "rayio-storage",
    "network": "rayio-network", "pool": "rayio-reader-pool", "cache": "rayio-cache",
    "layer": "rayio-layer",
}  # fmt: skip

#: The version of OpenTelemetry's semantic conventions used for attributes.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.40.0"

#: Kinds of spans with OTLP's numbers.
KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}

#: More spans than this in one trace make viewers slow.
MANY_SPANS = 2000


@dataclass(frozen=True, slots=True)
class Origin:
    """The run of spans, as named in their resources."""

    #: Name of the run.
    run: str
    #: Version of rayio; empty for a run of another program.
    version: str = ""
    #: Host of nodes missing in ``hosts``; empty if unknown.
    host: str = ""
    #: Host of each emulated node's roles.
    hosts: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, info: Mapping[str, Any]) -> Origin:
        """Return the origin in the content of ``run.json``; missing or damaged parts are left out."""
        machines = {node["id"]: node["host"] for node in _entries(info, "nodes", id=str, host=str)}
        actors = _entries(info, "actors", node=int, ray_node=str)
        hosts = {actor["node"]: machines[actor["ray_node"]] for actor in actors if actor["ray_node"] in machines}
        only = next(iter(machines.values()), "") if len({*machines.values()}) == 1 else ""
        is_ours = info.get("engine") != "dlio"
        return cls(name, _text(info, "rayio") if is_ours else "", only or _text(info, "host"), hosts)


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key)
    return value if isinstance(value, str) else ""


def _entries(info: Mapping[str, Any], key: str, **kinds: type) -> list[Mapping[str, Any]]:
    """Return the entries of a list that have these keys with these types."""
    entries = info.get(key)
    return [
        entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, Mapping) and all(type(entry.get(name)) is kind for name, kind in kinds.items())
    ]


@dataclass(frozen=True, slots=True)
class Resource:
    """The recorder of a span."""

    role: str
    index: str
    node: int
    pid: int

    @property
    def actor(self) -> str:
        """The actor's name in Ray; for another SDK, the instance's id."""
        return f"{self.role}-{self.index}" if self.role in SERVICES else self.index

    def attributes(self, origin: Origin) -> dict[str, str | int]:
        """Return the resource's attributes by OpenTelemetry's names, without unknown ones."""
        is_ours = self.role in SERVICES
        values: dict[str, str | int] = {
            "service.name": SERVICES.get(self.role, self.role),
            "service.namespace": "rayio",
            "service.instance.id": self.actor,
            "service.version": origin.version if is_ours else "",
            "host.name": origin.hosts.get(self.node, origin.host),
            "rayio.run": origin.run,
        }
        values = {name: value for name, value in values.items() if value != ""}
        if is_ours and origin.version:
            sdk = {"name": "rayio.trace.otel", "language": "python", "version": origin.version}
            values |= {f"telemetry.sdk.{name}": value for name, value in sdk.items()}
        values |= {"rayio.node": self.node} if self.node >= 0 else {}
        return values | ({"process.pid": self.pid} if self.pid > 0 else {})


class Texts(NamedTuple):
    """A text attribute of many spans: the distinct texts, and each span's index in them (-1: none)."""

    texts: list[str]
    codes: NDArray[np.int32]


@dataclass(frozen=True)
class Spans:
    """Spans in columns of equal length: those of rayio's table first, then added roots."""

    name: Texts
    #: Upper and lower half of the trace's id, shape (spans, 2).
    trace: Unsigned
    span: Unsigned
    #: 0 for a root.
    parent: Unsigned
    kind: NDArray[np.int8]
    start: Ints
    end: Ints
    #: The linked span: the halves of its trace's id, and its id, 0 for no link.
    link_trace: Unsigned
    link: Unsigned
    resource: NDArray[np.int32]
    resources: list[Resource]
    status: Texts
    #: Attributes with whole numbers (-1 for none), and with texts.
    numbers: dict[str, Ints]
    texts: dict[str, Texts]
    #: Index in ``foreign_spans`` of another library's span, -1 for rayio's spans.
    foreign: NDArray[np.int32]
    foreign_spans: list[dict[str, Any]]
    #: True for added roots and ranks, which no actor recorded.
    is_added: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.span)

    def take(self, rows: NDArray[Any] | slice) -> Spans:
        """Return spans by their indices, a mask or a slice."""
        columns = ("trace", "span", "parent", "kind", "start", "end", "link_trace", "link", "resource")
        some: dict[str, Any] = {name: getattr(self, name)[rows] for name in (*columns, "foreign", "is_added")}
        return replace(
            self,
            **some,
            name=Texts(self.name.texts, self.name.codes[rows]),
            status=Texts(self.status.texts, self.status.codes[rows]),
            numbers={name: values[rows] for name, values in self.numbers.items()},
            texts={name: Texts(column.texts, column.codes[rows]) for name, column in self.texts.items()},
        )

    def messages(self, operation: str, queue: Texts) -> Spans:
        """Return the spans with OpenTelemetry's attributes of messages, for spans with a queue."""
        codes = np.where(queue.codes >= 0, 0, -1).astype(np.int32)
        texts = {
            "messaging.system": Texts(["rayio"], codes),
            "messaging.operation.name": Texts([operation], codes),
            "messaging.operation.type": Texts([operation], codes),
            "messaging.destination.name": queue,
        }
        return replace(self, texts=self.texts | texts)

    @property
    def trace_sizes(self) -> Ints:
        """The number of spans of each trace."""
        return np.unique(self.trace.view("u8,u8"), return_counts=True)[1]


def numbered(texts: list[str]) -> Texts:
    """Return texts as an attribute, numbered in order of appearance."""
    codes: dict[str, int] = {}
    numbers = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)
    return Texts([*codes], numbers)


def halves(ids: list[int]) -> Unsigned:
    """Return the upper and lower halves of 128-bit ids, shape (ids, 2)."""
    mask = (1 << 64) - 1
    return np.array([(id_ >> 64, id_ & mask) for id_ in ids], np.uint64).reshape(len(ids), 2)


def group_numbers(*columns: NDArray[Any]) -> Ints:
    """Return a number for each row, equal for equal combinations of values in these columns."""
    whole, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values = column.astype(np.int64)
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if high - low >= 1 << 20:  # too wide to use directly
            values = np.unique(values, return_inverse=True)[1]
            low, high = 0, int(values.max())
        if size * (high - low + 1) >= 1 << 63:
            whole = np.unique(whole, return_inverse=True)[1]
            size = int(whole.max()) + 1
        whole, size = whole * (high - low + 1) + (values - low), size * (high - low + 1)
    return whole


def joined(parts: list[Spans]) -> Spans:
    """Return the concatenation of spans with common resources and foreign spans."""
    lengths = [len(part) for part in parts]
    columns = (
        "trace",
        "span",
        "parent",
        "kind",
        "start",
        "end",
        "link_trace",
        "link",
        "resource",
        "foreign",
        "is_added",
    )

    def texts(columns: list[Texts | None]) -> Texts:
        names: dict[str, int] = {}
        codes = []
        for column, length in zip(columns, lengths, strict=True):
            if column is None:
                codes.append(np.full(length, -1, np.int32))
                continue
            map_ = np.array([names.setdefault(text, len(names)) for text in column.texts] + [-1], np.int32)
            codes.append(map_[column.codes])
        return Texts([*names], np.concatenate(codes))

    numbers = {name: None for part in parts for name in part.numbers}
    named = {name: None for part in parts for name in part.texts}
    whole: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
    return replace(
        parts[0],
        **whole,
        name=texts([part.name for part in parts]),
        status=texts([part.status for part in parts]),
        numbers={
            name: np.concatenate(
                [part.numbers.get(name, np.full(length, -1)) for part, length in zip(parts, lengths, strict=True)]
            )
            for name in numbers
        },
        texts={name: texts([part.texts.get(name) for part in parts]) for name in named},
    )
