"""The timeline: slices of work on tracks; few enough for a page, whatever the run's length.

A short run is there whole. A long run is there coarsely, each slice showing what its track did most, with some windows
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Occupied
from rayio.analyze.part import Part
from rayio.analyze.timeline import PHASES, Ints, Lives, StepsInSlices, integers, is_text, texts
from rayio.report.bins import Bins
from rayio.report.figures import typical_step
from rayio.trace.arrow import plain, rows
from rayio.trace.order import distinct, groups_by, sums_by

if TYPE_CHECKING:
    import pyarrow as pa

#: Roles on the timeline, in the order of their tracks, and the names of the tracks.
ROLES = {"rank": "rank", "reader": "reader", "queue": "queue", "checkpoint_writer": "writer"}

KINDS = (
    *PHASES, "restart", "read", "decode", "put", "overshoot", "memory_bound", "write", "fsync", "lost",
    "eval_data_wait", "eval_compute", "snapshot", "checkpoint_wait", "broadcast", "load", "verify", "serialise",
    "deserialise",
)  # fmt: skip

#: Ranks that have tracks, and tracks in all.
MOST_RANKS, MOST_TRACKS = 8, 40
#: Most slices of all tracks together: of a whole run, and of a window of a longer one.
MOST_SLICES, WINDOW_SLICES = 24_000, 4_000
ASKED = "as asked for"
#: Phases that interrupt a rank's training.
_PAUSES = ("checkpoint", "evaluate")
COARSE = 300
SHOWN_STEPS = 8


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices on tracks, by track and time; ``kind`` is a position in :data:`KINDS`."""

    track: Ints
    start: Ints
    end: Ints
    kind: Ints
    epoch: Ints
    step: Ints

    def within(self, begin: int, end: int) -> Slices:
        """Return those in a stretch, if only in part; they are not cut."""
        return self.at((self.end > begin) & (self.start < end))

    def at(self, chosen: NDArray[Any]) -> Slices:
        """Return some of them."""
        return Slices(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Tracks:
    """The timeline of a run. ``levels`` are stretches with their slices, the first one the whole run.

    ``windows`` are suggestions of stretches to look at: a name, a begin and an end in ns; ``ranks`` are those shown.
    """

    names: list[str]
    levels: list[tuple[int, int, Slices]]
    is_coarse: bool
    windows: list[tuple[str, int, int]]
    ranks: Ints
    num_ranks: int


class Drawn:
    """The ranks, the windows and the slices of a run's timeline.

    ``wanted`` is a requested stretch (ns): it comes first among the windows.
    """

    columns = ("name", "role", "index", "lane", "rank", "epoch", "step", "start_ns", "duration_ns")

    def __init__(self, lives: Lives, steps: StepsInSlices, wanted: tuple[int, int] | None = None) -> None:
        self.lives, self.wanted = lives, wanted
        self.ranks = shown_ranks(lives, steps)
        self.windows = suggested(lives, steps, self.ranks) if len(lives.rank) else []
        if wanted is not None:
            self.windows.insert(0, (ASKED, *wanted))
        self._seen: list[_Seen] = []
        self._writers: list[pa.Table] = []

    def of(self, part: Part) -> tuple[_Seen, pa.Table]:
        """Return the slices of these ranks and their workers, lost time, and the spans of all writers."""
        spans = part.spans.select(self.columns)
        is_writer = is_text(spans, "role", "checkpoint_writer")
        chosen = (np.isin(plain(spans["rank"]), self.ranks) | is_text(spans, "name", "lost")) & ~is_writer
        return self._drawn(rows(spans, chosen)), rows(spans, is_writer)

    def add(self, sums: tuple[_Seen, pa.Table]) -> None:
        """Add those of a slice."""
        seen, writers = sums
        self._seen.append(seen)
        if len(writers) or not self._writers:
            self._writers.append(writers)

    def _drawn(self, spans: pa.Table) -> _Seen:
        tracks, slices = _slices(spans, self.ranks)
        begin, end = self._stretch()
        spent = _spent(slices, len(tracks), Bins.over(begin, end, COARSE))
        number = np.bincount(slices.track, minlength=len(tracks))
        is_whole = np.cumsum(number)[slices.track] <= MOST_SLICES  # beyond that, the whole is coarse
        if not is_whole.all():
            for _, low, high in self.windows:
                is_whole |= (slices.end > low) & (slices.start < high)
            slices = slices.at(is_whole)
        return _Seen(tracks, number, spent, slices)

    def _stretch(self) -> tuple[int, int]:
        begin = int(self.lives.begin.min()) if len(self.lives.rank) else 0
        return begin, int(self.lives.end.max(initial=begin))

    def result(self, most: int = MOST_SLICES) -> Tracks | None:
        """Return the timeline; None without anything to show."""
        import pyarrow as pa

        if not len(self.lives.rank):
            return None
        writers = self._drawn(pa.concat_tables(self._writers).unify_dictionaries())
        seen = _Seen.together([*self._seen, writers])
        if not seen.number.sum():
            return None
        names, slices = [_title(*track) for track in seen.tracks], seen.slices
        begin, end = self._stretch()
        ranks, windows, number = self.ranks, [*self.windows], len(self.lives.rank)
        if seen.number.sum() <= most:
            return Tracks(names, [(begin, end, slices)], False, windows, ranks, number)
        levels = [(begin, end, _coarse(seen.spent, Bins.over(begin, end, COARSE), end))]
        for at, (name, low, high) in enumerate(windows):
            inside = slices.within(low, high)
            while len(inside.track) > (most if name == ASKED else WINDOW_SLICES) and high - low > 1:
                high = low + (high - low) // 2
                inside = inside.within(low, high)
            is_less = name == ASKED and high < windows[at][2]
            windows[at] = (name + ", its beginning" if is_less else name, low, high)
            levels.append((low, high, inside))
        return Tracks(names, levels, True, windows, ranks, number)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The slices of some tracks, each a role and an index, in the order in which they are shown.

    ``number`` is how many slices each had, ``spent`` its time (ns) by kind in each of :data:`COARSE` bins; if there are
    many slices, ``slices`` has only those near the windows.
    """

    tracks: list[tuple[int, str]]
    number: Ints
    spent: NDArray[np.int64]
    slices: Slices

    @classmethod
    def together(cls, parts: Sequence[_Seen]) -> _Seen:
        every = [track for part in parts for track in part.tracks]
        order = np.array(sorted(range(len(every)), key=lambda at: _sorting(*every[at]))[:MOST_TRACKS], np.int64)
        place = np.full(len(every), -1)
        place[order] = np.arange(len(order))
        before = np.cumsum([0, *(len(part.tracks) for part in parts)])
        track = np.concatenate([place[part.slices.track + first] for part, first in zip(parts, before, strict=False)])
        slices = Slices(
            track,
            *(np.concatenate([getattr(part.slices, name) for part in parts]) for name in Slices.__slots__[1:]),
        )
        return cls(
            [every[at] for at in order],
            np.concatenate([part.number for part in parts])[order],
            np.concatenate([part.spent for part in parts])[order],
            slices.at(np.argsort(track, kind="stable")[np.count_nonzero(track < 0) :]),
        )


def shown_ranks(lives: Lives, steps: StepsInSlices, most: int = MOST_RANKS) -> Ints:
    """Return the ranks to show: all, or those whose own steps take longest, and the first ones."""
    if len(lives.rank) <= most:
        return lives.rank
    own = np.zeros(len(lives.rank), np.int64)
    for some in steps.by_slice():
        own += sums_by(some.life, some.duration - some.parts["sync"], len(own))
    slowest = np.lexsort((np.arange(len(own)), -own))[: most // 2]
    others = np.setdiff1d(np.arange(len(own)), slowest)[: most - len(slowest)]
    chosen: Ints = lives.rank[np.sort(np.concatenate([slowest, others]))]
    return chosen


def suggested(lives: Lives, steps: StepsInSlices, ranks: Ints) -> list[tuple[str, int, int]]:
    """Return stretches worth a look: typical steps, the longest one, the first ones, a checkpoint, the last ones."""
    begin, end = int(lives.begin.min()), int(lives.end.max())
    if not steps.number:
        return []
    length = max(min(SHOWN_STEPS * int(typical_step(steps)), end - begin), 1)
    first = min(int(some.start.min()) for some in steps.by_slice() if some.number)
    shown = {name: [np.zeros(0, np.int64)] for name in ("start", "end", "saving", "step", *_PAUSES)}
    for some in steps.by_slice():
        chosen = np.flatnonzero(np.isin(lives.rank[some.life], ranks))
        for name, column in shown.items():
            column.append((some.parts[name] if name in _PAUSES else getattr(some, name))[chosen])
    columns = {name: np.concatenate(column) for name, column in shown.items()}
    start, over, saving = (columns[name] for name in ("start", "end", "saving"))

    def around(name: str, middle: int) -> tuple[str, int, int]:
        low = min(max(middle - length // 2, begin), max(end - length, begin))
        return (name, low, min(low + length, end))

    longest = (over - start).argmax()
    is_rare = (columns["step"] == 0) | (columns["checkpoint"] > 0) | (columns["evaluate"] > 0)
    windows = [around("typical steps", _middle(np.sort(start), start[is_rare], over[is_rare], length))]
    if length < end - begin:
        span = int(over[longest] - start[longest])
        low = max(int(start[longest]) - max(span // 4, length // 2), begin)
        windows.append(("the longest step", low, min(low + span + max(span // 2, length), end)))
        windows.append(around("the first steps", first + length // 2 - length // 8))
        for name, title in (("checkpoint", "a checkpoint"), ("evaluate", "an evaluation")):
            paused = np.flatnonzero(columns[name] > 0)
            if len(paused):
                pause = paused[len(paused) // 2]
                low = max(int(saving[pause]) - length // 3, begin)
                high = max(int(over[pause]) + length // 3, low + length)
                windows.append((title, low, min(high, end)))
        windows.append(around("the last steps", end))
    return windows


def _middle(start: Ints, rare: Ints, over: Ints, length: int) -> int:
    """Return the begin of the step next to the middle of a run that has no rare step within ``length`` of it.

    Rare are the first steps of epochs and those with a checkpoint or an evaluation; they begin at ``rare`` and end at
    ``over``. Where they are everywhere it is the middle step. ``start`` is sorted.
    """
    order = np.argsort(np.abs(np.arange(len(start)) - len(start) // 2), kind="stable")
    are_far = np.searchsorted(np.sort(over), start - length) == np.searchsorted(np.sort(rare), start + length)
    likely = order[are_far[order]]
    return int(start[likely[0] if len(likely) else order[0]])


def _slices(spans: pa.Table, ranks: Ints) -> tuple[list[tuple[int, str]], Slices]:
    """Return slices of these ranks, their workers and all writers; work inside a rank's wait has a second track."""
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
    first_of = np.zeros(int(track.max(initial=-1)) + 1, np.int64)  # a span of each track
    first_of[track] = np.arange(len(track))
    named = [
        (kind_of, texts_of[number])
        for kind_of, number in zip(code[first_of].tolist(), index[first_of].tolist(), strict=True)
    ]
    sorting, shown = [_sorting(*name) for name in named], {*ranks.tolist()}
    wanted = [at for at, place in enumerate(sorting) if place[0] or place[1] in shown]
    order = sorted(wanted, key=sorting.__getitem__)[:MOST_TRACKS]
    place = np.full(len(named), -1)
    place[order] = np.arange(len(order))
    track = place[track]
    kept = np.flatnonzero(track >= 0)
    chosen, track = chosen[kept], track[kept]
    start = integers(spans, "start_ns")[chosen]
    end = start + integers(spans, "duration_ns")[chosen]
    cut = Occupied.of(track, start, end, np.arange(len(chosen)))
    is_long = cut.end > cut.start
    at = cut.kind[is_long]
    return [named[at] for at in order], Slices(
        cut.group[is_long], cut.start[is_long], cut.end[is_long], kind[chosen][at],
        integers(spans, "epoch")[chosen][at], integers(spans, "step")[chosen][at],
    )  # fmt: skip


def _indices(spans: pa.Table, chosen: Ints) -> tuple[Ints, list[str]]:
    column = spans.column("index")
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    codes: list[NDArray[Any]] = [plain(chunk.indices) for chunk in column.chunks]
    return (np.concatenate(codes) if codes else np.empty(0)).astype(np.int64)[chosen], words


def _sorting(code: int, index: str) -> tuple[int, ...]:
    role = [*ROLES][code // 2]
    numbers = [int(part) if part.isdigit() else 1 << 20 for part in index.split("-")]
    return (role == "checkpoint_writer", numbers[0], code, *numbers[1:])


def _title(code: int, index: str) -> str:
    return f"{ROLES[[*ROLES][code // 2]]} {index}" + (" inside" if code % 2 else "")


def _spent(slices: Slices, number: int, bins: Bins) -> NDArray[np.int64]:
    row = slices.track * len(KINDS) + slices.kind
    spent = bins.covered(row, number * len(KINDS), slices.start, slices.end)
    return spent.reshape(number, len(KINDS), bins.number)


def _coarse(spent: NDArray[np.int64], bins: Bins, end: int) -> Slices:
    """Return for each track and bin the kind that took most of it; equal bins in a row become one slice."""
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


def packed(timeline: Tracks) -> dict[str, Any]:
    """Return a timeline as plain numbers for a page: times in whole us from the run's begin.

    Each track's slices follow one another, each as gap since the one before it, length, kind, epoch and step.
    """
    origin = timeline.levels[0][0]
    used = sorted({int(code) for _, _, slices in timeline.levels for code in distinct(slices.kind)})
    number = {code: place for place, code in enumerate(used)}

    def micro(moment: int) -> int:
        return (moment - origin) // 1000

    levels = []
    for begin, end, slices in timeline.levels:
        rows: list[list[int]] = [[] for _ in timeline.names]
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
        "tracks": timeline.names,
        "kinds": [KINDS[code] for code in used],
        "coarse": timeline.is_coarse,
        "windows": [{"name": name, "from": micro(low), "to": micro(high)} for name, low, high in timeline.windows],
        "levels": levels,
    }
