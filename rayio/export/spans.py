"""Spans as OpenTelemetry has them, in columns: what every format is written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Unsigned = NDArray[np.uint64]

#: ``service.name`` of each role: viewers list services of all programs side by side, and few show a namespace.
SERVICES = {
    "reader": "rayio-reader", "queue": "rayio-prefetch-queue", "rank": "rayio-trainer",
    "checkpoint_writer": "rayio-checkpoint-writer", "barrier": "rayio-barrier", "storage": "rayio-storage",
    "network": "rayio-network", "pool": "rayio-reader-pool", "cache": "rayio-cache",
    "layer": "rayio-layer",
}  # fmt: skip

#: The version of OpenTelemetry's semantic conventions whose names our attributes have.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.40.0"

#: Kinds of spans, by the numbers that OTLP gives them.
KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}

#: More spans than this in one trace make viewers slow.
MANY_SPANS = 2000


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that spans are of, as their resources name it."""

    #: Name of the run.
    run: str
    #: Version of the rayio that ran it; empty where another program did.
    version: str = ""
    #: Host of every node that ``hosts`` does not have; empty where nobody knows.
    host: str = ""
    #: Host that each emulated node's roles were on.
    hosts: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, info: Mapping[str, Any]) -> Origin:
        """The origin that ``run.json`` tells of; what is missing in it or damaged is left out."""
        machines = {one["id"]: one["host"] for one in _entries(info, "nodes", id=str, host=str)}
        actors = _entries(info, "actors", node=int, ray_node=str)
        hosts = {actor["node"]: machines[actor["ray_node"]] for actor in actors if actor["ray_node"] in machines}
        only = next(iter(machines.values()), "") if len({*machines.values()}) == 1 else ""
        is_ours = info.get("engine") != "dlio"
        return cls(name, _text(info, "rayio") if is_ours else "", only or _text(info, "host"), hosts)


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key)
    return value if isinstance(value, str) else ""


def _entries(info: Mapping[str, Any], key: str, **kinds: type) -> list[Mapping[str, Any]]:
    """The entries of a list that have these keys, of these types."""
    found = info.get(key)
    return [
        entry
        for entry in (found if isinstance(found, list) else ())
        if isinstance(entry, Mapping) and all(type(entry.get(name)) is kind for name, kind in kinds.items())
    ]


@dataclass(frozen=True, slots=True)
class Resource:
    """Who recorded a span."""

    role: str
    index: str
    node: int
    pid: int

    @property
    def actor(self) -> str:
        """Name the actor as Ray knows it; what another SDK recorded has the instance's own id."""
        return f"{self.role}-{self.index}" if self.role in SERVICES else self.index

    def attributes(self, origin: Origin) -> dict[str, str | int]:
        """The resource's attributes, by OpenTelemetry's names; what a run cannot know of itself is left out."""
        is_ours = self.role in SERVICES
        said: dict[str, str | int] = {
            "service.name": SERVICES.get(self.role, self.role),
            "service.namespace": "rayio",
            "service.instance.id": self.actor,
            "service.version": origin.version if is_ours else "",
            "host.name": origin.hosts.get(self.node, origin.host),
            "rayio.run": origin.run,
        }
        said = {name: value for name, value in said.items() if value != ""}
        if is_ours and origin.version:
            sdk = {"name": "rayio.trace.otel", "language": "python", "version": origin.version}
            said |= {f"telemetry.sdk.{name}": value for name, value in sdk.items()}
        said |= {"rayio.node": self.node} if self.node >= 0 else {}
        return said | ({"process.pid": self.pid} if self.pid > 0 else {})


class Texts(NamedTuple):
    """A text attribute of many spans: its different texts, and for each span the number of its own; -1: it has none."""

    texts: list[str]
    codes: NDArray[np.int32]


@dataclass(frozen=True)
class Spans:
    """Spans in columns, all of one length; those of rayio's table first, then roots that were made for them."""

    name: Texts
    #: Shape (spans, 2): the upper and the lower half of the trace's id.
    trace: Unsigned
    span: Unsigned
    #: 0 for a root.
    parent: Unsigned
    kind: NDArray[np.int8]
    start: Ints
    end: Ints
    #: The span linked to: the halves of its trace's id, and its own id, 0 for no link.
    link_trace: Unsigned
    link: Unsigned
    resource: NDArray[np.int32]
    resources: list[Resource]
    status: Texts
    #: Attributes that are whole numbers, -1 where a span does not say them; and texts.
    numbers: dict[str, Ints]
    texts: dict[str, Texts]
    #: Place in ``told`` of what a span of another library says of itself, -1 for rayio's own.
    foreign: NDArray[np.int32]
    told: list[dict[str, Any]]
    #: Roots and ranks, which no actor recorded.
    is_made: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.span)

    def take(self, rows: NDArray[Any] | slice) -> Spans:
        """Select spans by their places, by a mask, or from one place to another."""
        columns = ("trace", "span", "parent", "kind", "start", "end", "link_trace", "link", "resource")
        some: dict[str, Any] = {name: getattr(self, name)[rows] for name in (*columns, "foreign", "is_made")}
        return replace(
            self,
            **some,
            name=Texts(self.name.texts, self.name.codes[rows]),
            status=Texts(self.status.texts, self.status.codes[rows]),
            numbers={name: values[rows] for name, values in self.numbers.items()},
            texts={name: Texts(said.texts, said.codes[rows]) for name, said in self.texts.items()},
        )

    def messages(self, operation: str, queue: Texts) -> Spans:
        """Add the attributes of messages to the spans for which a queue is named: each is of one message."""
        one = np.where(queue.codes >= 0, 0, -1).astype(np.int32)
        texts = {
            "messaging.system": Texts(["rayio"], one),
            "messaging.operation.name": Texts([operation], one),
            "messaging.operation.type": Texts([operation], one),
            "messaging.destination.name": queue,
        }
        return replace(self, texts=self.texts | texts)

    @property
    def trace_sizes(self) -> Ints:
        """How many spans each trace has."""
        return np.unique(self.trace.view("u8,u8"), return_counts=True)[1]


def numbered(texts: list[str]) -> Texts:
    """Number texts in order of appearance."""
    codes: dict[str, int] = {}
    numbers = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)
    return Texts([*codes], numbers)


def halves(ids: list[int]) -> Unsigned:
    """Split 128-bit ids into upper and lower halves, shape (ids, 2)."""
    mask = (1 << 64) - 1
    return np.array([(one >> 64, one & mask) for one in ids], np.uint64).reshape(len(ids), 2)


def group_numbers(*columns: NDArray[Any]) -> Ints:
    """Number the combinations of values in these columns, so that equal numbers are equal combinations."""
    whole, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values = column.astype(np.int64)
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if high - low >= 1 << 20:  # too far apart to be numbers of their own
            values = np.unique(values, return_inverse=True)[1]
            low, high = 0, int(values.max())
        if size * (high - low + 1) >= 1 << 63:
            whole = np.unique(whole, return_inverse=True)[1]
            size = int(whole.max()) + 1
        whole, size = whole * (high - low + 1) + (values - low), size * (high - low + 1)
    return whole


def joined(parts: list[Spans]) -> Spans:
    """Put spans one after the other; they have their resources and what is told in common."""
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
        "is_made",
    )

    def texts(said: list[Texts | None]) -> Texts:
        names: dict[str, int] = {}
        codes = []
        for one, length in zip(said, lengths, strict=True):
            if one is None:
                codes.append(np.full(length, -1, np.int32))
                continue
            map_ = np.array([names.setdefault(text, len(names)) for text in one.texts] + [-1], np.int32)
            codes.append(map_[one.codes])
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
