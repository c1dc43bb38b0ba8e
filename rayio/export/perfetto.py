"""A run as a Perfetto trace: native track events, to be opened at ui.perfetto.dev or by ``rayio view``.

A process for each node, a thread for each role; spans of one role that overlap are on lanes beneath. Arrows lead from
the read of a batch to the rank's computation on it (the flow's id is the batch's number plus one). Counters: batches
ready in each queue, bytes in flight on each node, and the accelerator utilisation of all ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    Trace,
    TracePacket,
    TrackDescriptor,
)

from rayio.export import wire
from rayio.export.wire import Field

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]

#: Points of the utilisation's curve.
AU_POINTS = 500

#: Slices that become bytes at a time.
CHUNK = 4096

#: What a slice says besides its name, where it says it: columns with a number, and those with a text.
_NUMBERS = ("rank", "epoch", "step", "attempt", "bytes", "requests", "offset", "thread")
_TEXTS = ("status", "file", "attributes")

#: Fields of TracePacket that are the same in all: the one sequence, and that it needs the names of its first packet.
_SEQUENCE, _NEEDS_NAMES = b"\x50\x01", b"\x68\x02"
_BEGIN, _END, _COUNTER = b"\x48\x01", b"\x48\x02", b"\x48\x04"


@dataclass(frozen=True, slots=True)
class _Track:
    """One lane of one role."""

    node: int
    role: str
    index: str
    lane: int
    #: Number among lanes that share the first four, where spans on it would overlap.
    beside: int

    @property
    def role_of(self) -> tuple[int, str, str]:
        """The role, by its node, kind and index."""
        return self.node, self.role, self.index


def trace(table: pa.Table) -> Iterator[bytes]:
    """The trace of a table of spans, in pieces; two slices on one track never overlap.

    Every span is one slice: its name, and as arguments what its columns say.
    """
    slices = _Slices(table)
    yield slices.head()
    yield from slices.bodies()
    yield from slices.counters()


class _Slices:
    """The spans of a run, sorted by track and time."""

    def __init__(self, table: pa.Table) -> None:
        from rayio.trace.span import COLUMNS

        self.column: dict[str, NDArray[Any]] = {}
        self.text: dict[str, list[str]] = {}
        for name, kind in COLUMNS.items():
            if kind == "text":
                chunk = table[name].unify_dictionaries().combine_chunks()
                chunk = chunk.chunk(0) if hasattr(chunk, "num_chunks") and chunk.num_chunks else chunk
                self.text[name] = chunk.dictionary.to_pylist() if len(table) else []
                self.column[name] = chunk.indices.to_numpy() if len(table) else np.zeros(0, np.int32)
            else:
                self.column[name] = table[name].to_numpy()
        self._sort()
        self.start = self.column["start_ns"].astype(np.int64)
        self.end = self.start + self.column["duration_ns"]
        self.tracks, self.track = self._tracks()
        self.counter_tracks: list[tuple[int, str, str, Ints, NDArray[Any]]] = []

    def _is(self, column: str, *texts: str) -> NDArray[np.bool_]:
        codes = [code for code, text in enumerate(self.text[column]) if text in texts]
        found: NDArray[np.bool_] = np.isin(self.column[column], codes)
        return found

    def _sort(self) -> None:
        """Sort by lane and time; a life, which is around all, has a lane of its own."""
        lane = np.where(self._is("name", "life"), -1, self.column["lane"].astype(np.int64))
        self.column["lane"] = lane
        end = self.column["start_ns"] + self.column["duration_ns"]
        keys = (end, self.column["start_ns"], lane, self.column["index"], self.column["role"], self.column["node"])
        order = np.lexsort(keys)
        self.column = {name: values[order] for name, values in self.column.items()}

    def _tracks(self) -> tuple[list[_Track], Ints]:
        """Number the tracks; where spans of a lane overlap, each goes to the first track that is free."""
        keys = np.stack([self.column[name].astype(np.int64) for name in ("node", "role", "index", "lane")], axis=1)
        lanes: list[_Track] = []
        if not len(keys):
            return lanes, np.zeros(0, np.int64)
        edges = np.flatnonzero(np.concatenate([[True], (np.diff(keys, axis=0) != 0).any(axis=1), [True]]))
        track = np.empty(len(keys), np.int64)
        for begin, until in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            node, role, index, lane = keys[begin].tolist()
            beside = _beside(self.start[begin:until], self.end[begin:until])
            track[begin:until] = beside + len(lanes)
            lanes += [
                _Track(node, self.text["role"][role], self.text["index"][index], lane, number)
                for number in range(int(beside.max()) + 1)
            ]
        order = np.argsort(track, kind="stable")
        self.column = {name: values[order] for name, values in self.column.items()}
        self.start, self.end = self.start[order], self.end[order]
        return lanes, track[order]

    def head(self) -> bytes:
        """The packets that name everything: texts by number, processes, threads, lanes, counters."""
        first = TracePacket(trusted_packet_sequence_id=1, sequence_flags=1, first_packet_on_sequence=True)
        for iid, text in enumerate(self.text["name"], 1):
            first.interned_data.event_names.add(iid=iid, name=text)
        for iid, text in enumerate((*_NUMBERS, *_TEXTS), 1):
            first.interned_data.debug_annotation_names.add(iid=iid, name=text)
        whole = Trace(packet=[first])

        def described(**fields: Any) -> TrackDescriptor:
            packet = whole.packet.add(trusted_packet_sequence_id=1)
            packet.track_descriptor.MergeFrom(TrackDescriptor(**fields))
            return packet.track_descriptor

        for node in sorted({track.node for track in self.tracks}):
            process = described(uuid=_process(node)).process
            process.pid, process.process_name = node + 2, f"node {node}" if node >= 0 else "the run"
        mains = {
            track.role_of: number for number, track in enumerate(self.tracks) if (track.lane, track.beside) == (0, 0)
        }
        threads: dict[tuple[int, str, str], int] = {}
        for number, track in enumerate(self.tracks):
            if track.role_of not in threads:  # its main lane is the thread's own track, so that it has its name
                uuid = _uuid(mains.get(track.role_of, len(self.tracks) + len(threads)))
                threads[track.role_of] = uuid
                thread = described(uuid=uuid).thread
                thread.pid, thread.tid, thread.thread_name = track.node + 2, 1000 + len(threads), _actor(track)
            if mains.get(track.role_of) != number:
                described(uuid=_uuid(number), parent_uuid=threads[track.role_of], name=_lane(track))
        for number, (node, name, unit, _, _) in enumerate(self._counted()):
            counter = CounterDescriptor(unit_name=unit)
            described(uuid=_counter(number), parent_uuid=_process(node), name=name, counter=counter)
        return bytes(whole.SerializeToString())

    def bodies(self) -> Iterator[bytes]:
        """The slices, a chunk at a time: the beginning and the end of each."""
        texts = {name: wire.Texts([wire.text(b"\x32", text) for text in self.text[name]]) for name in _TEXTS}
        flows, ends_flow = self._flows()
        for begin in range(0, len(self.track), CHUNK):
            rows = slice(begin, begin + CHUNK)
            number = len(self.track[rows])
            uuid = wire.varint(b"\x58", _uuid(self.track[rows]))
            event = [
                *self._arguments(rows, texts),
                wire.constant(number, _BEGIN),
                wire.varint(b"\x50", self.column["name"][rows] + 1),
                uuid,
                wire.fixed(b"\xf9\x02", flows[rows], (flows[rows] > 0) & ~ends_flow[rows]),
                wire.fixed(b"\x81\x03", flows[rows], (flows[rows] > 0) & ends_flow[rows]),
            ]
            slice_ = [*_packet(self.start[rows], event), *_packet(self.end[rows], [wire.constant(number, _END), uuid])]
            yield wire.written(slice_)[0]

    def _arguments(self, rows: slice, texts: dict[str, wire.Texts]) -> list[Field]:
        fields: list[Field] = []
        for iid, name in enumerate((*_NUMBERS, *_TEXTS), 1):
            values = self.column[name][rows]
            if name in _TEXTS:
                quiet = [code for code, text in enumerate(self.text[name]) if text in ("", "ok")]
                present = ~np.isin(values, quiet)
            else:
                present = values >= (0 if name in ("rank", "epoch", "step", "offset") else 1)
            if not present.any():
                continue
            key = wire.constant(len(values), b"\x08" + wire.number(iid))
            value = texts[name].of(values) if name in _TEXTS else wire.varint(b"\x20", np.maximum(values, 0))
            fields += wire.message(b"\x22", [key, value], present)
        return fields

    def _flows(self) -> tuple[Ints, NDArray[np.bool_]]:
        """The flow that each slice has, 0 for none, and whether it ends there: a batch, read and computed on."""
        batch = self.column["batch"].astype(np.int64)
        flows = np.zeros(len(batch), np.int64)
        reads = self._is("name", "read") & (batch >= 0)
        flows[reads] = batch[reads] + 1
        waits = self._is("name", "data_wait", "eval_data_wait")
        computes = np.flatnonzero(self._is("name", "compute", "eval_compute"))
        at, taken = batch[waits], self.column["link"].astype(np.int64)[waits]
        order = np.argsort(at, kind="stable")
        if len(at):
            place = np.minimum(np.searchsorted(at[order], batch[computes]), len(at) - 1)
            found = (at[order][place] == batch[computes]) & np.isin(taken[order][place], batch[reads])
            flows[computes[found]] = taken[order][place][found] + 1
        ends = np.zeros(len(batch), bool)
        ends[computes] = True
        return flows, ends

    def counters(self) -> Iterator[bytes]:
        """The points of every counter."""
        for number, (_, _, _, times, values) in enumerate(self._counted()):
            uuid = wire.constant(len(times), b"\x58" + wire.number(_counter(number)))
            if values.dtype.kind == "f":
                value = wire.fixed(b"\xe1\x02", values.astype(np.float64))
            else:
                value = wire.varint(b"\xf0\x01", np.maximum(values, 0))
            yield wire.written(_packet(times, [wire.constant(len(times), _COUNTER), uuid, value]))[0]

    def _counted(self) -> list[tuple[int, str, str, Ints, NDArray[Any]]]:
        """Work out each counter: its node, name, unit, times and values."""
        if self.counter_tracks:
            return self.counter_tracks
        found = []
        leases = np.flatnonzero(self._is("name", "lease"))
        waits = np.flatnonzero(self._is("name", "data_wait", "eval_data_wait"))
        ready, taken = self.column["batch"][leases], self.column["link"][waits]
        leases, waits = leases[np.isin(ready, taken)], waits[np.isin(taken, ready)]
        rows = np.concatenate([leases, waits])
        sign = np.repeat([1, -1], [len(leases), len(waits)])
        nbytes = np.zeros(len(rows), np.int64)
        if len(waits):
            order = np.argsort(self.column["link"][waits], kind="stable")
            of = np.concatenate([self.column["batch"][leases], self.column["link"][waits]])
            nearest = np.searchsorted(self.column["link"][waits][order], of)
            nbytes = self.column["bytes"][waits][order][np.minimum(nearest, len(waits) - 1)]
        rank, node = self.column["rank"][rows], self.column["node"][rows]
        for name, unit, group, weight in (
            ("batches ready, rank {}", "batches", rank, sign),
            ("bytes in flight", "bytes", node, sign * nbytes),
        ):
            for one in np.unique(group).tolist():
                of_group = group == one
                times = self.end[rows[of_group]]
                order = np.lexsort((-weight[of_group], times))
                values = np.cumsum(weight[of_group][order])
                at = int(node[of_group][0])
                found.append((at, name.format(one), unit, times[order], values))
        found += self._utilisation()
        self.counter_tracks = found
        return found

    def _utilisation(self) -> list[tuple[int, str, str, Ints, NDArray[Any]]]:
        """The share of the time that ranks compute, in percent, over equal parts of the run."""
        rows = self._is("name", "compute") & self._is("role", "rank")
        lives = self._is("role", "rank") & (self.column["lane"] == 0)
        if not rows.any():
            return []
        begin, until = int(self.start[lives].min()), int(self.end[lives].max())
        edges = np.linspace(begin, until, min(AU_POINTS, max(2, int(rows.sum()))) + 1).astype(np.int64)
        edges = np.unique(edges)
        if len(edges) < 2:
            return []
        busy = np.diff(_before(self.start[rows], self.end[rows], edges))
        ranks = len(np.unique(self.column["rank"][rows]))
        node = int(self.column["node"][lives].min())
        return [(node, "AU, all ranks", "%", edges[:-1], 100 * busy / (np.diff(edges) * ranks))]


def _before(starts: Ints, ends: Ints, times: Ints) -> NDArray[np.float64]:
    """How many nanoseconds of these intervals together lie before each time."""
    total = np.zeros(len(times))
    for edges, sign in ((np.sort(starts), 1), (np.sort(ends), -1)):
        sums = np.concatenate([[0], np.cumsum(edges.astype(np.float64) - float(times[0]))])
        count = np.searchsorted(edges, times, "right")
        total += sign * (count * (times - times[0]).astype(np.float64) - sums[count])
    return total


def _beside(starts: Ints, ends: Ints) -> Ints:
    """Number spans, sorted by start, so that those of one number do not overlap, with as few numbers as can be."""
    latest = np.maximum.accumulate(ends)
    if not (starts[1:] < latest[:-1]).any():
        return np.zeros(len(starts), np.int64)
    numbers, busy, free, used = [], [], [], 0  # type: list[int], list[tuple[int, int]], list[int], int
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            number = heapq.heappop(free)
        else:
            number, used = used, used + 1
        heapq.heappush(busy, (end, number))
        numbers.append(number)
    return np.array(numbers, np.int64)


def _packet(times: Ints, event: list[Field]) -> list[Field]:
    """Wrap track events as packets of a trace."""
    head = [wire.varint(b"\x40", times), wire.constant(len(times), _SEQUENCE)]
    return wire.message(b"\x0a", [*head, *wire.message(b"\x5a", event), wire.constant(len(times), _NEEDS_NAMES)])


def _uuid(number: Any) -> Any:
    return number + (1 << 20)


def _process(node: int) -> int:
    return node + 2


def _counter(number: int) -> int:
    return (1 << 40) + number


def _actor(track: _Track) -> str:
    return f"{track.role} {track.index}".strip()


def _lane(track: _Track) -> str:
    name = f"{_actor(track)}, {'life' if track.lane < 0 else f'lane {track.lane}'}"
    return name if not track.beside else f"{name}, {track.beside + 1}"
