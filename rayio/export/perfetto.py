"""A run as a Perfetto trace, for ui.perfetto.dev or ``rayio view``.

Each node is a process, each role a thread (ranks first) with named lanes below (see :mod:`rayio.export.lanes`). Arrows
lead from the read of a batch to the computation on it (the flow's id is the batch's number plus one). Counters show the
batches ready in each queue, the bytes in flight on each node, and the accelerator utilisation of all ranks.

Some spans have no slice: a life is the description of its role's track, ``overshoot`` an argument of the slice before
it, and spans of no duration are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    Trace,
    TracePacket,
    TrackDescriptor,
)

from rayio.export import lanes, wire
from rayio.export.lanes import Track
from rayio.export.wire import Field
from rayio.trace.arrow import plain

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]

#: Points of the utilisation's curve.
AU_POINTS = 500

CHUNK = 4096

#: Columns that become arguments of a slice: numbers and texts.
_NUMBERS = ("rank", "epoch", "step", "attempt", "bytes", "requests", "offset", "thread", "overshoot_ns")
_TEXTS = ("status", "file", "attributes")

#: Equal fields of every TracePacket: its sequence, and the flag that it needs the names of the first packet.
_SEQUENCE, _NEEDS_NAMES = b"\x50\x01", b"\x68\x02"
_EXPLICIT = TrackDescriptor.ChildTracksOrdering.Value("EXPLICIT")
_BEGIN, _END, _COUNTER = b"\x48\x01", b"\x48\x02", b"\x48\x04"


#: The root track's descriptor: processes and threads are shown by their ranks. It is in bytes because older packages
#: lack its fields; viewers without them sort threads by number, which is the same order.
_ROOT = b"\x08\x00\x98\x01\x01\xa0\x01\x01"


def trace(table: pa.Table) -> Iterator[bytes]:
    """Iterate over the pieces of the trace of a table of spans; slices on a track never overlap."""
    return Slices(table).pieces()


class Slices:
    """The slices of a run, sorted by track and time: each is a span, with its columns as arguments."""

    def __init__(self, table: pa.Table) -> None:
        from rayio.trace.span import COLUMNS

        self.column: dict[str, NDArray[Any]] = {}
        self.text: dict[str, list[str]] = {}
        for name, kind in COLUMNS.items():
            if kind == "text":
                chunk = table[name].unify_dictionaries().combine_chunks()
                chunk = chunk.chunk(0) if hasattr(chunk, "num_chunks") and chunk.num_chunks else chunk
                self.text[name] = chunk.dictionary.to_pylist() if len(table) else []
                self.column[name] = plain(chunk.indices) if len(table) else np.zeros(0, np.int32)
            else:
                self.column[name] = plain(table[name])
        self._sort()
        self.counted = self._counted()
        self.lives = self._lives()
        self.flows, self.ends_flow = self._flows()
        self._keep(self._drawn())
        self.tracks, self.track = self._tracks()

    def __len__(self) -> int:
        return len(self.track)

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the pieces of the trace."""
        yield self.head()
        yield from self.bodies()
        yield from self.counters()

    def _is(self, column: str, *texts: str) -> NDArray[np.bool_]:
        codes = [code for code, text in enumerate(self.text[column]) if text in texts]
        mask: NDArray[np.bool_] = np.isin(self.column[column], codes)
        return mask

    def _sort(self) -> None:
        self.column["holds"] = lanes.contents(self.text["name"], self.column["name"], self.column["lane"])
        self.column["overshoot_ns"] = np.zeros(len(self.column["name"]), np.int64)
        self.start = self.column["start_ns"].astype(np.int64)
        self.end = self.start + self.column["duration_ns"]
        self.flows, self.ends_flow = np.zeros(len(self.start), np.int64), np.zeros(len(self.start), bool)
        keys = (self.column[name] for name in ("holds", "index", "role", "node"))
        self._keep(np.lexsort((self.end, self.start, *keys)))

    def _keep(self, rows: NDArray[Any]) -> None:
        self.column = {name: values[rows] for name, values in self.column.items()}
        self.start, self.end = self.start[rows], self.end[rows]
        self.flows, self.ends_flow = self.flows[rows], self.ends_flow[rows]

    def _lives(self) -> dict[tuple[int, str, str], list[str]]:
        lives: dict[tuple[int, str, str], list[str]] = {}
        for row in np.flatnonzero(self._is("name", "life")).tolist():
            node, attempt = int(self.column["node"][row]), int(self.column["attempt"][row])
            role, index, status = (self.text[name][self.column[name][row]] for name in ("role", "index", "status"))
            since, until = (int(edges[row] - self.start.min()) / 1e9 for edges in (self.start, self.end))
            text = f"life from {since:.6f} s to {until:.6f} s" + (f", attempt {attempt}" if attempt else "")
            lives.setdefault((node, role, index), []).append(text + (f", {status}" if status != "ok" else ""))
        return lives

    def _drawn(self) -> NDArray[np.bool_]:
        """Return a mask of the spans with a slice; overhead becomes an argument of the slice before it."""
        late = self._is("name", "overshoot")
        follows = np.zeros(len(late), bool)
        follows[1:] = late[1:] & ~late[:-1] & (self.start[1:] == self.end[:-1])
        for name in ("node", "role", "index", "holds"):
            follows[1:] &= self.column[name][1:] == self.column[name][:-1]
        rows = np.flatnonzero(follows)
        self.column["overshoot_ns"][rows - 1] = self.end[rows] - self.start[rows]
        is_quiet = (self.end == self.start) & (self.flows == 0) & (self.column["overshoot_ns"] == 0)
        is_quiet &= self._is("status", "ok") & (self.column["holds"] != lanes.HOLDS.index("other libraries"))
        drawn: NDArray[np.bool_] = ~follows & ~is_quiet & ~self._is("name", "life")
        return drawn

    def _tracks(self) -> tuple[list[Track], Ints]:
        """Return the tracks in their order, and each span's track; overlapping spans get parallel tracks."""
        keys = np.stack([self.column[name].astype(np.int64) for name in ("node", "role", "index", "holds")], axis=1)
        tracks: list[Track] = []
        if not len(keys):
            return tracks, np.zeros(0, np.int64)
        edges = np.flatnonzero(np.concatenate([[True], (np.diff(keys, axis=0) != 0).any(axis=1), [True]]))
        track = np.empty(len(keys), np.int64)
        for begin, until in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            node, role, index, holds = keys[begin].tolist()
            parallel = lanes.parallel(self.start[begin:until], self.end[begin:until])
            track[begin:until] = parallel + len(tracks)
            tracks += [
                Track(node, self.text["role"][role], self.text["index"][index], holds, number)
                for number in range(int(parallel.max()) + 1)
            ]
        shown = sorted(range(len(tracks)), key=lambda number: tracks[number].order)
        position = np.empty(len(tracks), np.int64)
        position[shown] = np.arange(len(tracks))
        track = position[track]
        order = np.argsort(track, kind="stable")
        self._keep(order)
        return [tracks[number] for number in shown], track[order]

    def head(self) -> bytes:
        """Return the packets with all names: texts by number, processes, threads, lanes, counters."""
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

        whole.packet.add(trusted_packet_sequence_id=1).track_descriptor.MergeFromString(_ROOT)
        nodes = {track.node for track in self.tracks} | {node for node, *_ in self.counted}
        for rank, node in enumerate(sorted(nodes, key=lambda node: (node < 0, node))):
            process = described(uuid=_process(node), child_ordering=_EXPLICIT, sibling_order_rank=rank).process
            process.pid, process.process_name = node + 2, f"node {node}" if node >= 0 else "the run"
        threads: dict[tuple[int, str, str], int] = {}
        for number, track in enumerate(self.tracks):
            if track.role_of in threads:
                uuid = threads[track.role_of]
                described(uuid=_uuid(number), parent_uuid=uuid, name=track.name, sibling_order_rank=number)
                continue
            threads[track.role_of] = _uuid(number)  # the first lane is the thread's track, and never empty
            own = described(uuid=_uuid(number), child_ordering=_EXPLICIT, sibling_order_rank=number)
            own.thread.pid, own.thread.tid, own.thread.thread_name = track.node + 2, 999 + len(threads), track.actor
            if description := "; ".join(self.lives.get(track.role_of, ())):
                own.description = description
        for number, (node, name, unit, _, _) in enumerate(self.counted):
            counter = CounterDescriptor(unit_name=unit)
            described(
                uuid=_counter(number), parent_uuid=_process(node), name=name, counter=counter, sibling_order_rank=number
            )  # fmt: skip
        return bytes(whole.SerializeToString())

    def bodies(self) -> Iterator[bytes]:
        """Iterate over the slices in chunks: the begin and end events of each."""
        texts = {name: wire.Texts([wire.text(b"\x32", text) for text in self.text[name]]) for name in _TEXTS}
        flows, ends_flow = self.flows, self.ends_flow
        widths = np.zeros(len(self.track), np.int64)
        for name, table in texts.items():
            widths += table.sizes(self.column[name])
        for rows in wire.parts(widths, CHUNK):
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
        """Return each slice's flow (a batch, read and computed on; 0 for none), and a mask of flows that end there."""
        batch = self.column["batch"].astype(np.int64)
        flows = np.zeros(len(batch), np.int64)
        reads = self._is("name", "read") & (batch >= 0)
        flows[reads] = batch[reads] + 1
        waits = self._is("name", "data_wait", "eval_data_wait")
        computes = np.flatnonzero(self._is("name", "compute", "eval_compute"))
        waiting, taken = batch[waits], self.column["link"].astype(np.int64)[waits]
        order = np.argsort(waiting, kind="stable")
        if len(waiting):
            index = np.minimum(np.searchsorted(waiting[order], batch[computes]), len(waiting) - 1)
            has_flow = (waiting[order][index] == batch[computes]) & np.isin(taken[order][index], batch[reads])
            flows[computes[has_flow]] = taken[order][index][has_flow] + 1
        ends = np.zeros(len(batch), bool)
        ends[computes] = True
        return flows, ends

    def counters(self) -> Iterator[bytes]:
        """Iterate over the points of every counter."""
        for number, (_, _, _, times, values) in enumerate(self.counted):
            uuid = wire.constant(len(times), b"\x58" + wire.number(_counter(number)))
            if values.dtype.kind == "f":
                value = wire.fixed(b"\xe1\x02", values.astype(np.float64))
            else:
                value = wire.varint(b"\xf0\x01", np.maximum(values, 0))
            yield wire.written(_packet(times, [wire.constant(len(times), _COUNTER), uuid, value]))[0]

    def _counted(self) -> list[tuple[int, str, str, Ints, NDArray[Any]]]:
        """Return each counter: node, name, unit, times and values."""
        counters = self._utilisation()
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
            for key in np.unique(group).tolist():
                of_group = group == key
                times = self.end[rows[of_group]]
                order = np.lexsort((-weight[of_group], times))
                values = np.cumsum(weight[of_group][order])
                counters.append((int(node[of_group][0]), name.format(key), unit, times[order], values))
        return counters

    def _utilisation(self) -> list[tuple[int, str, str, Ints, NDArray[Any]]]:
        """Return the share of time in which ranks compute, in percent, over equal parts of the run."""
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
    total = np.zeros(len(times))
    for edges, sign in ((np.sort(starts), 1), (np.sort(ends), -1)):
        sums = np.concatenate([[0], np.cumsum(edges.astype(np.float64) - float(times[0]))])
        count = np.searchsorted(edges, times, "right")
        total += sign * (count * (times - times[0]).astype(np.float64) - sums[count])
    return total


def _packet(times: Ints, event: list[Field]) -> list[Field]:
    head = [wire.varint(b"\x40", times), wire.constant(len(times), _SEQUENCE)]
    return wire.message(b"\x0a", [*head, *wire.message(b"\x5a", event), wire.constant(len(times), _NEEDS_NAMES)])


def _uuid(number: Any) -> Any:
    return number + (1 << 20)


def _process(node: int) -> int:
    return node + 2


def _counter(number: int) -> int:
    return (1 << 40) + number
