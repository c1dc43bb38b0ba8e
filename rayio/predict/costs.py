"""The costs of an engine's messages and wake-ups in a run: the gaps between its spans.

Each cost is read where nothing hides it: a lease's way to its reader where that reader was idle, its cost for the
reader where the next lease was there already, the way to the rank where the rank was waiting, the cost of taking a
batch where the batch was ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.rounds import PREPARING
from rayio.analyze.timeline import Ints, Steps, integers, is_text, texts
from rayio.predict.observe import Batches
from rayio.scenario.meetings import ALL, Meetings
from rayio.scenario.model import Costs
from rayio.units import RATE

if TYPE_CHECKING:
    import pyarrow as pa

#: Fewer samples than this give a median instead of a mean.
FEW = 20
#: Share of the slowest messages that is left out of bytes per second.
SLOWEST = 0.02
#: The share of the shortest ends of steps that found a processor free.
SHORTEST = 0.02
#: A slope of time over bytes counts when it is so many times its own uncertainty.
CERTAIN = 4.0
#: The barrier's answer is hidden where the time for it is so many times what steps take on top.
HIDDEN = 3.0


def typical(values: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Return the mean, which adds up to the run's time; for few values the median, for none 0; never negative."""
    if len(values) == 0:
        return 0.0
    return max(0.0, float(np.median(values) if len(values) < FEW else values.mean()))


def shortest(values: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Return what the shortest values show; for none 0; never negative."""
    return max(0.0, float(np.quantile(values, SHORTEST))) if len(values) else 0.0


def waited(batches: Batches) -> NDArray[np.bool_]:
    """Return which batches a rank requested before their reader was done: only those show the whole way to the rank."""
    return batches.requested < batches.done


def costs(
    batches: Batches,
    steps: Steps,
    warm: int,
    *,
    payload: bool,
    backlog: bool,
    meetings: Meetings | None,
    is_busy: bool = False,
) -> Costs:
    """Return the costs of a run; ``warm`` (ns) is when it had warmed up.

    Batches before that count only where none follow. ``payload``: bytes travelled. ``backlog``: leases could wait at
    their readers (without that, ``put`` is part of ``take``). ``meetings`` are the steps after which ranks
    meet, and how long they stay together; None without. ``is_busy``: processors were busy, so most ends of steps wait
    for one; then the shortest ends show the cost.
    """
    usual = shortest if is_busy else typical
    way, size = _after(warm, batches, waited(batches), batches.had - batches.done, batches.nbytes)
    slope = _slope(size, way) if payload else 0.0
    way = way - slope * size
    arrival = typical(way)

    idle = batches.freed + round(arrival) <= batches.granted
    (lease,) = _after(warm, batches, idle, batches.began - batches.granted)
    # The first leases wait for their workers to start: where no later one was seen, only the way back is known.
    message = typical(lease) if (idle & (batches.granted >= warm)).any() else min(typical(lease), arrival)

    waiting = backlog & (batches.freed >= 0) & (batches.granted + round(2 * message) <= batches.freed)
    (put,) = _after(warm, batches, waiting, batches.began - batches.freed)
    busy = min(typical(put), arrival)

    longest = 2 * arrival + slope * batches.nbytes  # messages are late at times
    ready = batches.done + longest <= batches.requested
    (taken,) = _after(warm, batches, ready, batches.had - batches.requested)
    receive = min(typical(taken), arrival - busy)

    barrier, late = 0.0, usual(_on_top(steps)[steps.start >= warm])
    if meetings is not None and meetings.every:
        barrier, late = _meeting(steps, warm, meetings, usual)
    return Costs(
        lease=_seconds(message),
        put=_seconds(busy),
        take=_seconds(arrival - busy - receive),
        receive=_seconds(receive),
        transfer_bandwidth=_rate(slope),
        barrier=_seconds(barrier),
        step=_seconds(late),
    )


def _rate(slope: float) -> float | None:
    return 1e9 / slope if slope * RATE.most >= 1e9 else None


def _seconds(ns: float) -> float:
    return round(ns) / 1e9


def _after(warm: int, batches: Batches, chosen: NDArray[np.bool_], *values: Ints) -> list[Ints]:
    """Return the chosen values of batches begun once the run was warm; all chosen ones when there are none."""
    late = chosen & (batches.granted >= warm)
    picked = late if late.any() else chosen
    return [value[picked] for value in values]


def _slope(size: Ints, way: Ints) -> float:
    """Return nanoseconds per byte by least squares without the slowest; 0 when sizes or times are too alike."""
    if len(way) < FEW:
        return 0.0
    kept = way <= np.quantile(way, 1 - SLOWEST)
    x, y = size[kept].astype(np.float64), way[kept].astype(np.float64)
    spread = x - x.mean()
    squares = float((spread**2).sum())
    if squares <= 0 or x.std() < 0.01 * x.mean():
        return 0.0
    slope = float((spread * y).sum()) / squares
    rest = y - y.mean() - slope * spread
    uncertainty = float(np.sqrt((rest**2).sum() / max(1, len(x) - 2) / squares))
    return slope if slope > CERTAIN * uncertainty else 0.0


def _meeting(
    steps: Steps, warm: int, meetings: Meetings, usual: Callable[[Ints], float] = typical
) -> tuple[float, float]:
    """Return the time of the barrier's answer, 0 where the compute hides it, and a step's time on top (ns).

    The answer is sent when the last rank has announced itself, at the start of its compute, and is needed when the
    latest rank is done: the room between the two is the time that it has.
    """
    top = _on_top(steps)
    meets = meetings.groups(steps.life, steps.epoch, steps.step) == ALL
    kept = meets & (steps.start >= warm)
    kept = kept if kept.any() else meets
    _, group = np.unique(steps.epoch << 32 | steps.step, return_inverse=True)
    announced, due = (np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min) for _ in range(2))
    begun = steps.arrived + sum(steps.parts[name] for name in PREPARING)
    np.maximum.at(announced, group, begun)
    np.maximum.at(due, group, begun + steps.parts["compute"])
    room = (due - announced)[group] + round(meetings.seconds * 1e9)
    late = usual(top[kept])
    if typical(room[kept]) >= HIDDEN * late:
        return 0.0, late
    return usual((room + top)[kept]), 0.0


def _on_top(steps: Steps) -> Ints:
    top: Ints = steps.duration - sum(steps.parts.values())
    return top


#: Spans of writers that save a checkpoint.
SAVING = ("write", "fsync", "serialise")


def is_full(spans: pa.Table, increment_share: float) -> NDArray[np.bool_]:
    """Return which spans are those of full checkpoints, by the bytes that writers wrote of each.

    The first checkpoint of a run is full, and increments have ``increment_share`` of its state.
    """
    key = np.stack([integers(spans, column) for column in ("attempt", "epoch", "step")])
    _, of = np.unique(key, axis=1, return_inverse=True)
    of = of.reshape(-1)
    is_write = is_text(spans, "name", "write") & is_text(spans, "role", "checkpoint_writer")
    written = np.bincount(of, np.where(is_write, integers(spans, "bytes"), 0))
    full: NDArray[np.bool_] = (written > written.max(initial=0) * (1 + increment_share) / 2)[of]
    return full


def checkpoint_ns(spans: pa.Table) -> Ints:
    """Return how long each checkpoint held its rank, or for asynchronous ones was written, in ns."""
    name, role = texts(spans, "name", ("checkpoint", "snapshot", *SAVING)), texts(spans, "role", ("rank",))
    begin, length = integers(spans, "start_ns"), integers(spans, "duration_ns")
    if not (name == 1).any():
        held: Ints = length[(name == 0) & (role == 0)]
        return held
    written = np.flatnonzero((name >= 2) & (integers(spans, "lane") == 0))
    place = np.stack([integers(spans, "epoch")[written], integers(spans, "step")[written]])
    _, of = np.unique(place, axis=1, return_inverse=True)
    first, last = np.full(of.max(initial=-1) + 1, np.iinfo(np.int64).max), np.zeros(of.max(initial=-1) + 1, np.int64)
    np.minimum.at(first, of.reshape(-1), begin[written])
    np.maximum.at(last, of.reshape(-1), (begin + length)[written])
    return last - first
