"""The tracks of a Perfetto trace: which spans share one, what it is called, and in which order tracks are shown."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio.trace.span import FOREIGN_LANE, REQUESTS

Ints = NDArray[np.int64]

#: Roles in the order in which they are shown; others come after these.
ROLES = ("rank", "queue", "reader", "checkpoint_writer", "barrier", "storage", "network", "pool", "cache", "layer")

#: What a lane beside a role's main one holds, in the order in which they are shown, with the names of its spans.
_HOLDS: dict[str, tuple[str, ...]] = {
    "checkpoints": ("snapshot", "checkpoint_wait"),
    "evaluation": ("eval_data_wait", "eval_compute"),
    "loading": ("read", "decode"),
    "leases": ("lease",),
    "transfers": ("transfer",),
    "samples": ("sample",),
    "requests": REQUESTS,
    "retries": ("retry",),
    "delays": ("delay",),
    "lost": ("lost",),
    "more": (),
    "other libraries": (),
}

#: What each kind of lane holds, by its number; the role's main lane needs no word.
HOLDS = ("", *_HOLDS)

_OF_NAME = {name: HOLDS.index(what) for what, names in _HOLDS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Track:
    """One row of a role on which nothing overlaps."""

    node: int
    role: str
    index: str
    #: Place in :data:`HOLDS`.
    holds: int
    #: Number among rows that share the first four, where spans would overlap on one.
    beside: int

    @property
    def role_of(self) -> tuple[int, str, str]:
        """The role, by its node, kind and index."""
        return self.node, self.role, self.index

    @property
    def actor(self) -> str:
        """What the role is called."""
        return f"{self.role} {self.index}".strip()

    @property
    def name(self) -> str:
        """What a row beneath the role's own is called: what it holds, numbered where that overlaps."""
        number = f" {self.beside + 1}" if self.beside else ""
        return f"{self.actor}, {HOLDS[self.holds] or 'at the same time'}{number}"

    @property
    def place(self) -> tuple[bool, int, int, tuple[tuple[int, str], ...], int, int]:
        """Where it is shown: by node (the run's own last), role, index as numbers, and what it holds."""
        role = ROLES.index(self.role) if self.role in ROLES else len(ROLES)
        index = tuple((int(part), "") if part.isdecimal() else (1 << 62, part) for part in self.index.split("-"))
        return self.node < 0, self.node, role, index, self.holds, self.beside


def held(names: list[str], name: Ints, lane: Ints) -> Ints:
    """What the lane of each span holds, as places in :data:`HOLDS`; ``name`` are numbers of ``names``."""
    of_name = np.array([_OF_NAME.get(text, HOLDS.index("more")) for text in names] or [0], np.int64)
    found = np.where(lane == 0, 0, of_name[name])
    return np.where(lane >= FOREIGN_LANE, HOLDS.index("other libraries"), found)


def beside(starts: Ints, ends: Ints) -> Ints:
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
