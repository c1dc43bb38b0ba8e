"""The timeline: who did what when, as slices on tracks; few enough to put in a page, whatever the run's length.

A short run is there whole. Of a long one the whole is there coarsely, each slice saying what its track did most, and
some windows of it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Occupied
from rayio.analyze.part import Part
from rayio.analyze.timeline import PHASES, Ints, Lives, Steps, integers, is_text, texts
from rayio.report.bins import Bins
from rayio.trace.arrow import numbers, plain
from rayio.trace.order import groups_by

if TYPE_CHECKING:
    import pyarrow as pa

#: Roles on the timeline, in the order of their tracks, and what their tracks are called.
ROLES = {"rank": "rank", "reader": "reader", "queue": "queue", "checkpoint_writer": "writer"}

#: What slices may be: a track shows one at a time.
KINDS = (
    *PHASES, "restart", "read", "decode", "put", "overshoot", "memory_bound", "write", "fsync", "lost",
    "eval_data_wait", "eval_compute", "snapshot", "checkpoint_wait",
)  # fmt: skip

#: Ranks that have tracks, and tracks in all.
MOST_RANKS, MOST_TRACKS = 8, 40
#: Slices of all tracks together: of a run that is there whole, and of a window of a longer one.
MOST_SLICES, WINDOW_SLICES = 24_000, 4_000
#: Name of the window that the reader asked for.
ASKED = "as asked for"
#: Bins of the coarse whole.
COARSE = 300
#: Steps that a suggested window shows.
SHOWN_STEPS = 8


@dataclass(frozen=True, slots=True)
class Slices:
    """What lay on tracks, by track and time; ``kind`` is a position in :data:`KINDS`."""

    track: Ints
    start: Ints
    end: Ints
    kind: Ints
    epoch: Ints
    step: Ints

    def within(self, begin: int, end: int) -> Slices:
        """Select those that lie in a stretch, if only in part; they are not cut."""
        held = (self.end > begin) & (self.start < end)
        return Slices(*(getattr(self, name)[held] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Tracks:
    """The timeline of a run. ``levels`` are stretches with their slices, the first one the whole run.

    ``windows`` are suggestions of what to look at: a name, a begin and an end in ns; ``ranks`` are those shown.
    """

    names: list[str]
    levels: list[tuple[int, int, Slices]]
    is_coarse: bool
    windows: list[tuple[str, int, int]]
    ranks: Ints
    num_ranks: int


class Drawn:
    """The ranks, the windows and the slices of a run's timeline.

    ``wanted`` is a stretch (ns) that the reader asked for: it comes first among the windows.
    """

    columns = ("name", "role", "index", "lane", "rank", "epoch", "step", "start_ns", "duration_ns")

    def __init__(self, lives: Lives, steps: Steps, wanted: tuple[int, int] | None = None) -> None:
        self.lives, self.steps, self.wanted = lives, steps, wanted
        self.ranks = shown_ranks(lives, steps)
        self._spans: list[pa.Table] = []

    def of(self, part: Part) -> pa.Table:
        """What these ranks, their workers and all writers did in a slice, and what was lost."""
        spans = part.spans.select(self.columns)
        others = is_text(spans, "role", "checkpoint_writer") | is_text(spans, "name", "lost")
        chosen = np.flatnonzero(np.isin(plain(spans["rank"]), self.ranks) | others)
        return spans if len(chosen) == len(spans) else spans.take(numbers(chosen))

    def add(self, found: pa.Table) -> None:
        """Keep those of a slice."""
        if len(found) or not self._spans:
            self._spans.append(found)

    def found(self, most: int = MOST_SLICES) -> Tracks | None:
        """Choose what is shown; None without anything to show."""
        import pyarrow as pa

        lives, steps, ranks = self.lives, self.steps, self.ranks
        if not len(lives.rank):
            return None
        names, slices = _slices(pa.concat_tables(self._spans).unify_dictionaries(), ranks)
        if not len(slices.track):
            return None
        begin, end = int(lives.begin.min()), int(lives.end.max())
        windows = suggested(lives, steps, ranks)
        if self.wanted is not None:
            windows.insert(0, (ASKED, *self.wanted))
        is_coarse = len(slices.track) > most
        if not is_coarse:
            return Tracks(names, [(begin, end, slices)], False, windows, ranks, len(lives.rank))
        levels = [(begin, end, _coarse(slices, len(names), begin, end))]
        for number, (name, low, high) in enumerate(windows):
            inside = slices.within(low, high)
            while len(inside.track) > (most if name == ASKED else WINDOW_SLICES) and high - low > 1:
                high = low + (high - low) // 2
                inside = inside.within(low, high)
            is_less = name == ASKED and high < windows[number][2]
            windows[number] = (name + ", its beginning" if is_less else name, low, high)
            levels.append((low, high, inside))
        return Tracks(names, levels, True, windows, ranks, len(lives.rank))


def shown_ranks(lives: Lives, steps: Steps, most: int = MOST_RANKS) -> Ints:
    """Choose ranks: all, or of many those that take longest for a step of their own, and the first ones."""
    if len(lives.rank) <= most:
        return lives.rank
    own = np.zeros(len(lives.rank), np.int64)
    np.add.at(own, steps.life, steps.duration - steps.parts["sync"])
    slowest = np.lexsort((np.arange(len(own)), -own))[: most // 2]
    others = np.setdiff1d(np.arange(len(own)), slowest)[: most - len(slowest)]
    chosen: Ints = lives.rank[np.sort(np.concatenate([slowest, others]))]
    return chosen


def suggested(lives: Lives, steps: Steps, ranks: Ints) -> list[tuple[str, int, int]]:
    """Name stretches worth a look: typical steps, the longest one, the first ones, a checkpoint, the last ones."""
    begin, end = int(lives.begin.min()), int(lives.end.max())
    if not steps.number:
        return []
    length = max(min(SHOWN_STEPS * int(np.median(steps.duration)), end - begin), 1)
    shown = np.flatnonzero(np.isin(lives.rank[steps.life], ranks))

    def around(name: str, middle: int) -> tuple[str, int, int]:
        low = min(max(middle - length // 2, begin), max(end - length, begin))
        return (name, low, min(low + length, end))

    middle = shown[np.argsort(steps.start[shown])[len(shown) // 2]]
    longest = shown[steps.duration[shown].argmax()]
    found = [around("typical steps", int(steps.start[middle]))]
    if length < end - begin:
        span = int(steps.duration[longest])
        low = max(int(steps.start[longest]) - max(span // 4, length // 2), begin)
        found.append(("the longest step", low, min(low + span + max(span // 2, length), end)))
        found.append(around("the first steps", int(steps.start.min()) + length // 2 - length // 8))
        for name, title in (("checkpoint", "a checkpoint"), ("evaluate", "an evaluation")):
            paused = shown[steps.parts[name][shown] > 0]
            if len(paused):
                one = paused[len(paused) // 2]
                low = max(int(steps.saving[one]) - length // 3, begin)
                high = max(int(steps.end[one]) + length // 3, low + length)
                found.append((title, low, min(high, end)))
        found.append(around("the last steps", end))
    return found


def _slices(spans: pa.Table, ranks: Ints) -> tuple[list[str], Slices]:
    """Take what these ranks, their workers and all writers did; a rank may do things inside a wait: a second track."""
    kind = texts(spans, "name", KINDS).astype(np.int64)
    role, lane = texts(spans, "role", (*ROLES,)).astype(np.int64), integers(spans, "lane")
    rank = integers(spans, "rank")
    on_track = (lane == 0) | ((role == 0) & (lane == 1)) | (kind == KINDS.index("lost"))
    is_writer = role == [*ROLES].index("checkpoint_writer")
    is_lost = kind == KINDS.index("lost")  # a killed role's: its rank is in no column
    chosen = np.flatnonzero((kind >= 0) & (role >= 0) & on_track & (np.isin(rank, ranks) | is_writer | is_lost))
    index, texts_of = _indices(spans, chosen)
    inner = (role[chosen] == 0) & (lane[chosen] == 1)
    code = role[chosen] * 2 + inner
    track = groups_by(code, index)
    one = np.zeros(int(track.max(initial=-1)) + 1, np.int64)  # a span of each track
    one[track] = np.arange(len(track))
    named = [
        (kind_of, texts_of[number]) for kind_of, number in zip(code[one].tolist(), index[one].tolist(), strict=True)
    ]
    sorting, shown = [_sorting(*name) for name in named], {*ranks.tolist()}
    wanted = [at for at, place in enumerate(sorting) if place[0] or place[1] in shown]
    order = sorted(wanted, key=sorting.__getitem__)[:MOST_TRACKS]
    place = np.full(len(named), -1)
    place[order] = np.arange(len(order))
    names = [_title(*named[at]) for at in order]
    track = place[track]
    kept = np.flatnonzero(track >= 0)
    chosen, track = chosen[kept], track[kept]
    start = integers(spans, "start_ns")[chosen]
    end = start + integers(spans, "duration_ns")[chosen]
    cut = Occupied.of(track, start, end, np.arange(len(chosen)))
    is_long = cut.end > cut.start
    at = cut.kind[is_long]
    return names, Slices(
        cut.group[is_long], cut.start[is_long], cut.end[is_long], kind[chosen][at],
        integers(spans, "epoch")[chosen][at], integers(spans, "step")[chosen][at],
    )  # fmt: skip


def _indices(spans: pa.Table, chosen: Ints) -> tuple[Ints, list[str]]:
    column = spans.column("index")
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    codes: list[NDArray[Any]] = [plain(chunk.indices) for chunk in column.chunks]
    return (np.concatenate(codes) if codes else np.empty(0)).astype(np.int64)[chosen], words


def _sorting(code: int, index: str) -> tuple[int, ...]:
    """Order tracks by rank, a rank before its workers; writers come last."""
    role = [*ROLES][code // 2]
    numbers = [int(part) if part.isdigit() else 1 << 20 for part in index.split("-")]
    return (role == "checkpoint_writer", numbers[0], code, *numbers[1:])


def _title(code: int, index: str) -> str:
    return f"{ROLES[[*ROLES][code // 2]]} {index}" + (" inside" if code % 2 else "")


def _coarse(slices: Slices, number: int, begin: int, end: int) -> Slices:
    """Say for each track and bin what it did most; bins in a row that say the same become one slice."""
    bins = Bins.over(begin, end, COARSE)
    row = slices.track * len(KINDS) + slices.kind
    spent = bins.covered(row, number * len(KINDS), slices.start, slices.end).reshape(number, len(KINDS), -1)
    idle = bins.width - spent.sum(axis=1)
    most = np.where(spent.max(axis=1) >= idle, spent.argmax(axis=1), -1)
    change = np.ones_like(most, dtype=bool)
    change[:, 1:] = most[:, 1:] != most[:, :-1]
    track, first = np.nonzero(change)
    edges = np.append(first, bins.number)
    until = np.where(np.append(track[1:] == track[:-1], False), edges[1:], bins.number)
    kind = most[track, first]
    held = kind >= 0
    track, first, until, kind = track[held], first[held], until[held], kind[held]
    none = np.full(len(track), -1)
    over = np.minimum(bins.begin + until * bins.width, end)
    return Slices(track, bins.begin + first * bins.width, over, kind, none, none)


def packed(found: Tracks) -> dict[str, Any]:
    """A timeline as plain numbers for a page: times in whole us from the run's begin.

    Of every track the slices follow one another, each as gap since the one before it, length, kind, epoch and step.
    """
    origin = found.levels[0][0]
    used = sorted({int(code) for _, _, slices in found.levels for code in np.unique(slices.kind)})
    number = {code: place for place, code in enumerate(used)}

    def micro(moment: int) -> int:
        return (moment - origin) // 1000

    levels = []
    for begin, end, slices in found.levels:
        rows: list[list[int]] = [[] for _ in found.names]
        start, over = (slices.start - origin) // 1000, (slices.end - origin) // 1000
        same = np.zeros(len(start), np.bool_)
        same[1:] = slices.track[1:] == slices.track[:-1]
        before = np.where(same, np.roll(over, 1), 0)
        table = np.stack([start - before, over - start, slices.kind, slices.epoch, slices.step], axis=1).tolist()
        for track, row in zip(slices.track.tolist(), table, strict=True):
            row[2] = number[row[2]]
            rows[track] += row
        levels.append({"from": micro(begin), "to": micro(end), "rows": rows})
    return {
        "tracks": found.names,
        "kinds": [KINDS[code] for code in used],
        "coarse": found.is_coarse,
        "windows": [{"name": name, "from": micro(low), "to": micro(high)} for name, low, high in found.windows],
        "levels": levels,
    }
