"""What each stage of the workers can deliver beside what the ranks need: service, no queueing where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.intervals import Lookup
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import KINDS, Places, WorkDone
from rayio.analyze.stalls import Attribution
from rayio.analyze.timeline import Ints, integers, texts
from rayio.analyze.window import Window, find_window
from rayio.results.explained import StorageLimit
from rayio.trace.arrow import plain

if TYPE_CHECKING:
    import pyarrow as pa

#: Times the need above which a capacity is no number worth saying.
PLENTY = 100

#: What rows are that are no stage of a batch.
WORK_OF_STAGES = {
    "storage": "what all readers share",
    "worker": "all stages, one after the other",
    "writer": "checkpoint files",
}


def capacities(spans: pa.Table, charged: Attribution, shape: RunShape, readers: int) -> dict[str, Any]:
    """Say what each stage of the workers could deliver, and what the ranks ask for, in batches per second.

    ``readers`` is how many the run had; where it had none, ranks read themselves and are the workers. A stage's
    capacity is that of all workers if they did nothing else; the row ``worker`` is of all stages one after the other,
    which is what they do. Utilisation is the busy time in the window, per worker.
    """
    spans = spans.unify_dictionaries()
    steps = charged.steps
    workers = readers or shape.world_size
    window = find_window(charged.lives, steps, shape)[0] or _everything(steps.start, steps.end)
    leases = np.flatnonzero(texts(spans, "name", ("lease",)) == 0)
    places = Places(spans)
    ready = (integers(spans, "start_ns") + integers(spans, "duration_ns"))[leases]
    work = WorkDone.of(spans, places, Lookup(places.of(leases), ready), ready)
    # Service times are of the batches that were begun in the window, busy times of all that went on in it.
    did = work.did
    _, batch = np.unique(work.place, return_inverse=True)
    begun = np.full(int(batch.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, batch, did.start)
    inside = window.holds(begun)[batch] & (work.place >= 0)
    number = len(np.unique(batch[inside]))
    length = did.end - did.start
    busy = np.maximum(np.minimum(did.end, window.end) - np.maximum(did.start, window.begin), 0)
    computed = steps.parts["compute"][window.whole(steps)]
    demand = len(charged.lives.rank) / (float(computed.mean()) / 1e9) if len(computed) and computed.any() else None
    rows = []
    for stage in (*dict.fromkeys(KINDS), "worker"):
        mine = np.isin(did.kind, [code for code, name in enumerate(KINDS) if stage in (name, "worker")])
        if work_ns := int(length[mine & inside].sum()):
            rows.append(_capacity(stage, work_ns / number, int(busy[mine].sum()), workers, window))
    if row := _writers(spans, window):
        rows.append(row)
    return {
        "demand": demand,
        "delivered": int(window.holds(steps.arrived).sum()) / window.seconds,
        "has_readers": readers > 0,
        "stages": rows,
    }


def _everything(start: Ints, end: Ints) -> Window:
    begin = int(start.min(initial=np.iinfo(np.int64).max)) if len(start) else 0
    return Window(begin, max(int(end.max(initial=0)), begin + 1))


def _capacity(stage: str, service_ns: float, busy_ns: int, parallelism: int, window: Window) -> dict[str, Any]:
    return {
        "stage": stage,
        "service_seconds": service_ns / 1e9,
        "parallelism": parallelism,
        "capacity": parallelism / service_ns * 1e9,
        "utilisation": busy_ns / 1e9 / (parallelism * window.seconds),
    }


def _writers(spans: pa.Table, window: Window) -> dict[str, Any] | None:
    """What checkpoint writers can do and did, per file; None when they wrote nothing."""
    name = texts(spans, "name", ("write", "fsync"))
    is_write = (name >= 0) & (texts(spans, "role", ("checkpoint_writer",)) == 0) & (integers(spans, "lane") == 0)
    chosen = np.flatnonzero(is_write & window.holds(integers(spans, "start_ns")))
    files = int((name[chosen] == 0).sum())
    if not files:
        return None
    codes = np.concatenate([plain(chunk.indices) for chunk in spans.column("index").chunks])
    busy = int(integers(spans, "duration_ns")[chosen].sum())
    return _capacity("writer", busy / files, busy, len(np.unique(codes[chosen])), window) if busy else None


def without_queueing(capacity: Mapping[str, Any], limit: StorageLimit) -> dict[str, Any]:
    """Say what stages can do on storage whose limits are known, whatever queueing there was at the device.

    ``read`` is then what readers take on an idle device, ``storage`` what all of them share, and ``worker`` the least
    of that and of its own work.
    """
    rows, alone = [], limit.alone_seconds
    measured = next((row["service_seconds"] for row in capacity["stages"] if row["stage"] == "read"), 0.0)
    for row in capacity["stages"]:
        if row["stage"] not in ("read", "worker") or not measured:
            rows.append(row)
            continue
        service = row["service_seconds"] - measured + alone
        can_do = row["parallelism"] / service if service > 0 else row["capacity"]
        if row["stage"] == "worker" and limit.shared_gives is not None:
            can_do = min(can_do, limit.shared_gives)
        rows.append(row | {"service_seconds": service, "capacity": can_do})
        if row["stage"] == "read" and limit.shared_gives is not None:
            rows.append(
                {
                    "stage": "storage",
                    "service_seconds": limit.systems / limit.shared_gives,
                    "parallelism": limit.systems,
                    "capacity": limit.shared_gives,
                    "utilisation": min(capacity["delivered"] / limit.shared_gives, 1.0),
                }
            )
    return {**capacity, "stages": rows, "storage": limit.as_json()}


def can_do(capacity: float, demand: float | None) -> str:
    """Write a capacity; one that is many times the need is said to be that.

    >>> can_do(5.868, 24.8), can_do(18_400_493, 500)
    ('5.87', '> 50,000')
    """
    return rate(capacity) if demand is None or capacity <= PLENTY * demand else f"> {rate(PLENTY * demand)}"


def rate(number: float) -> str:
    """Write a number per second with three digits that count."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
