"""Spans -> the data of a report's figures: sums by bin of time, counts by length, one number per rank and bin.

Everything is arrays of at most a few thousand numbers, however long the run was; nothing here depends on HTML.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Lookup, pick
from rayio.analyze.part import Part
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import PHASES, Ints, Lives, Steps, StepsInSlices, integers, is_text, texts
from rayio.analyze.window import Window, settled
from rayio.report.bins import Bins
from rayio.trace.arrow import plain
from rayio.trace.order import distinct
from rayio.trace.slices import Slices

Floats = NDArray[np.float64]

#: Phases of a figure over time.
DRAWN = (*PHASES, "restart")
#: Bins of a figure over time; a bin is never shorter than two steps, unless there would be fewer than the least.
MOST_BINS, LEAST_BINS = 120, 8
BARS = 48
#: Rows of the heat map; of more ranks, neighbours share a row and the highest of them is shown.
ROWS = 64


def time_bins(lives: Lives, steps: StepsInSlices) -> Bins:
    """Return the bins of a run's figures: as fine as whole steps allow."""
    begin, end = int(lives.begin.min()), int(lives.end.max())
    typical = typical_step(steps) if steps.number else 1.0
    wanted = int((end - begin) / max(2 * typical, 1))
    return Bins.over(begin, end, min(max(wanted, LEAST_BINS), MOST_BINS))


@dataclass(frozen=True, slots=True)
class OverTime:
    """The ranks' time by phase and bin, in ns of all ranks together, and the number of consumed samples.

    ``split`` has an array for each phase, for ``restart`` (from the end of an attempt to the next) and for ``other``;
    they sum to ``alive``. A step's samples are spread evenly
    over the step, so that bins that are not whole steps do not flicker.
    """

    bins: Bins
    split: dict[str, Ints]
    alive: Ints
    samples: Floats

    @property
    def au(self) -> Floats:
        """Return compute over the time of the ranks that were alive, by bin; NaN where none was."""
        return np.where(self.alive > 0, self.split["compute"] / np.maximum(self.alive, 1), np.nan)

    @property
    def rate(self) -> Floats:
        """Return samples per second, by bin."""
        return self.samples / (self.bins.width / 1e9)


class Split:
    """The ranks' time by phase, summed up by bin."""

    columns = ("name", "role", "lane", "rank", "attempt", "start_ns", "duration_ns")

    def __init__(self, lives: Lives, steps: StepsInSlices, shape: RunShape, bins: Bins) -> None:
        self.lives, self.steps, self.shape, self.bins = lives, steps, shape, bins
        self._spent = np.zeros((len(DRAWN), bins.number), np.int64)

    def of(self, part: Part) -> Ints:
        """Return the phases of the ranks of a slice."""
        spans = part.spans
        is_phase = is_text(spans, "role", "rank") & is_text(spans, "name", *PHASES)
        mine = np.flatnonzero(is_phase & (plain(spans.column("lane")) == 0))
        phase, start, over = texts(spans, "name", PHASES, mine).astype(np.int64), part.begin[mine], part.over[mine]
        ended, begun = _between_attempts(integers(spans, "rank", mine), integers(spans, "attempt", mine), start, over)
        phase = np.append(phase, np.full(len(ended), DRAWN.index("restart")))
        return self.bins.covered(phase, len(DRAWN), np.append(start, ended), np.append(over, begun))

    def add(self, spent: Ints) -> None:
        """Add those of a slice."""
        self._spent += spent

    def result(self) -> OverTime:
        """Return the sums of all slices."""
        lives, bins = self.lives, self.bins
        alive = bins.covered(np.zeros(len(lives.rank), np.int64), 1, lives.begin, lives.end)[0]
        split = dict(zip(DRAWN, self._spent, strict=True)) | {"other": alive - self._spent.sum(axis=0)}
        samples = np.zeros((len(lives.rank), bins.number))
        for steps in self.steps.by_slice():
            samples += Spread(bins, steps, len(lives.rank)).of(self.shape.samples(lives.rank[steps.life], steps.step))
        return OverTime(bins, split, alive, samples.sum(axis=0))


def _between_attempts(rank: Ints, attempt: Ints, start: Ints, over: Ints) -> tuple[Ints, Ints]:
    """Return the times from the last span of an attempt of a rank to the first one of its next: begins and ends."""
    if not attempt.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lives, life = np.unique((rank << 32) | attempt, return_inverse=True)
    begins, ends = np.full(len(lives), np.iinfo(np.int64).max), np.zeros(len(lives), np.int64)
    np.minimum.at(begins, life, start)
    np.maximum.at(ends, life, over)
    after = np.flatnonzero(lives[1:] >> 32 == lives[:-1] >> 32)
    return ends[after], np.maximum(begins[after + 1], ends[after])


@dataclass(frozen=True, slots=True)
class Queues:
    """Batches under way, by bin: ns × batches of all queues together, being read and ready; ``queues`` counts them."""

    bins: Bins
    reading: Ints
    ready: Ints
    queues: int

    def depth(self, spent: Ints) -> Floats:
        """Return the mean number of batches per queue, by bin."""
        return spent / (self.bins.width * self.queues)


class Depths:
    """Every batch from its lease to when its rank had it, summed up by bin.

    A batch that no rank took is ready until the last rank's end, as is one whose rank broke off; in an attempt that
    another followed, until the end of that attempt.
    """

    columns = ("name", "rank", "epoch", "step", "link", "attempt", "start_ns", "duration_ns")

    def __init__(self, slices: Slices, lives: Lives, bins: Bins) -> None:
        self.lives, self.bins = lives, bins
        self._are_there = "lease" in slices.names
        self._reading, self._ready = (np.zeros(bins.number, np.int64) for _ in range(2))
        self._number = 0

    def of(self, part: Part) -> tuple[Ints, Ints, int]:
        """Return the batches of a slice by bin, and the number of its queues."""
        spans, bins, leases, begin, over = part.spans, self.bins, part.leases, part.begin, part.over
        waits = np.flatnonzero(is_text(spans, "name", "data_wait", "eval_data_wait"))
        taken = part.places.of_links(waits, integers(spans, "link", waits))
        at = Lookup(taken, over[waits]).find(part.places.of(leases))
        attempt = integers(spans, "attempt").astype(np.int64)
        ends = np.zeros(int(attempt.max(initial=0)) + 1, np.int64)
        np.maximum.at(ends, attempt, over)
        ends[-1] = int(self.lives.end.max(initial=int(over.max(initial=0))))
        last = ends[attempt[leases]]
        had = np.maximum(pick(over[waits], at, last), over[leases])
        none = np.zeros(len(leases), np.int64)
        reading = bins.covered(none, 1, begin[leases], over[leases])[0]
        ready = bins.covered(none, 1, over[leases], had)[0]
        return reading, ready, len(distinct(integers(spans, "rank", leases)))

    def add(self, sums: tuple[Ints, Ints, int]) -> None:
        """Add those of a slice."""
        reading, ready, number = sums
        self._reading += reading
        self._ready += ready
        self._number += number

    def result(self) -> Queues | None:
        """Return the sums of all slices; None without spans of queues."""
        return Queues(self.bins, self._reading, self._ready, max(self._number, 1)) if self._are_there else None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges (seconds, one more than counts); a length on an edge counts above it, the last one below.

    ``beyond`` are longer than the last edge: few, and so long that the others would be a single bar.
    """

    edges: Floats
    counts: Ints
    is_log: bool
    beyond: int


def histogram(durations: Ints, bars: int = BARS) -> Histogram | None:
    """Return lengths (ns) counted in bars, of equal ratio when they differ more than eightfold; None without any."""
    if not len(durations):
        return None
    low = max(int(durations.min()), 1)
    middle, rare = np.percentile(durations, [50, 99])
    far = int(middle + max(4 * (rare - middle), 0.1 * middle))
    longest = max(int(durations.max()), low)
    high = longest if longest <= 1.5 * far else max(far, low)
    is_log = high > 8 * low
    if high == low:
        low, high, bars = int(low * 0.9), int(low * 1.1) + 1, 9
    edges = np.geomspace(low, high, bars + 1) if is_log else np.linspace(low, high, bars + 1)
    edges[0], edges[-1] = low, high
    near = durations[durations <= edges[-1]]
    at = np.clip(np.searchsorted(edges, near, side="right") - 1, 0, bars - 1)
    return Histogram(edges / 1e9, np.bincount(at, minlength=bars), is_log, len(durations) - len(near))


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One number per row and bin, NaN where it is unknown; a row has the ranks ``ranks[row]``, first to last."""

    bins: Bins
    ranks: list[tuple[int, int]]
    #: Time of a step without the wait for other ranks, over that of the (lower) median rank in the same bin.
    pace: Floats
    data_wait: Floats
    sync: Floats


def heat_map(lives: Lives, steps: StepsInSlices, bins: Bins, rows: int = ROWS) -> HeatMap | None:
    """Return the pace and waits of each rank by bin; None with fewer than two ranks, or without steps."""
    ranks = len(lives.rank)
    if ranks < 2 or not steps.number:
        return None
    lasted = np.zeros((ranks, bins.number), np.int64)
    own, number, waited, synced = (np.zeros((ranks, bins.number)) for _ in range(4))
    for some in steps.by_slice():
        lasted += bins.covered(some.life, ranks, some.start, some.end)
        spread = Spread(bins, some, ranks)
        own += spread.of(some.duration - some.parts["sync"])
        number += spread.of(np.ones(some.number, np.int64))
        waited += spread.of(some.parts["data_wait"])
        synced += spread.of(some.parts["sync"])
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(number > 0, own / number, np.nan)
        held = np.sort(each, axis=0)  # NaN last
        middle = (np.maximum((~np.isnan(each)).sum(axis=0), 1) - 1) // 2
        typical = held[middle, np.arange(bins.number)]
        pace = np.where(typical > 0, each / typical, np.nan)
        shares = [np.where(lasted > 0, spent / lasted, np.nan) for spent in (waited, synced)]
    tall = -(-ranks // rows)
    groups = [(low, min(low + tall, ranks)) for low in range(0, ranks, tall)]
    together = [_highest(values, groups) for values in (pace, *shares)]
    named = [(int(lives.rank[low]), int(lives.rank[high - 1])) for low, high in groups]
    return HeatMap(bins, named, *together)


class Spread:
    """Steps by rank and bin, each spread evenly over its own length."""

    def __init__(self, bins: Bins, steps: Steps, rows: int) -> None:
        self.shape = (rows, bins.number)
        self.length = np.maximum(steps.duration, 1)
        first, last = bins.of(steps.start), bins.of(np.maximum(steps.end - 1, steps.start))
        #: By number of bins beyond the first: the steps that reach it, their cells, and for how long (ns).
        self.reaching: list[tuple[Ints, Ints, Ints]] = []
        for offset in range(int((last - first).max(initial=0)) + 1):
            chosen = np.flatnonzero(first + offset <= last)
            at = first[chosen] + offset
            low = bins.begin + at * bins.width
            part = np.minimum(steps.end[chosen], low + bins.width) - np.maximum(steps.start[chosen], low)
            self.reaching.append((chosen, steps.life[chosen] * bins.number + at, np.maximum(part, 1)))

    def of(self, amount: Ints) -> Floats:
        """Return amounts of steps by rank and bin."""
        summed: Floats = np.zeros(self.shape[0] * self.shape[1])
        for number, (chosen, cells, part) in enumerate(self.reaching):
            shares = amount[chosen] * part / self.length[chosen]
            if number:
                np.add.at(summed, cells, shares)
            else:  # every step: the same sums in a fraction of the time
                summed += np.bincount(cells, shares, len(summed))
        return summed.reshape(self.shape)


def _highest(values: Floats, groups: list[tuple[int, int]]) -> Floats:
    filled = np.where(np.isnan(values), -np.inf, values)
    rows = np.stack([filled[low:high].max(axis=0) for low, high in groups])
    return np.where(np.isneginf(rows), np.nan, rows)


def step_times(steps: StepsInSlices, window: Window | None, shape: RunShape) -> Ints:
    """Return the lengths of the whole steps in the window, or of all steps without one; see :func:`settled`."""
    lengths = []
    for some in steps.by_slice():
        longer, _ = settled(some, window, shape)
        lengths.append(longer.duration[window.whole(longer)] if window else longer.duration)
    return np.concatenate(lengths)


def typical_step(steps: StepsInSlices) -> float:
    """Return the median length of a step, in ns."""
    return float(np.median(np.concatenate([some.duration for some in steps.by_slice()]), overwrite_input=True))
