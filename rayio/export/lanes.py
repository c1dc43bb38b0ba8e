"""The tracks of a Perfetto trace: their spans, names and order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio.trace.span import FOREIGN_LANE, REQUESTS

Ints = NDArray[np.int64]

#: Roles in their order; others come last.
ROLES = ("rank", "queue", "reader", "checkpoint_writer", "barrier", "storage", "network", "pool", "cache", "layer")

#: Names of the spans on each additional lane of a role, in the order of the lanes.
_HOLDS: dict[str, tuple[str, ...]] = {
    "checkpoints": ("snapshot", "checkpoint_wait", "broadcast", "drain"),
    "evaluation": ("eval_data_wait", "eval_compute"),
    "loading": ("read", "decode"),
    "leases": ("lease",),
    "transfers": ("transfer",),
    "copies": ("pin",),
    "samples": ("sample",),
    "requests": REQUESTS,
    "retries": ("retry",),
    "delays": ("delay",),
    "lost": ("lost",),
    "more": (),
    "other libraries": (),
}

#: Contents of a lane by number; the main lane has no name.
HOLDS = ("", *_HOLDS)

_OF_NAME = {name: HOLDS.index(what) for what, names in _HOLDS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a role, without overlapping slices."""

    node: int
    role: str
    index: str
    holds: int
    #: Number among rows with equal fields above, needed for overlapping spans.
    parallel: int

    @property
    def role_of(self) -> tuple[int, str, str]:
        """The role, by its node, kind and index."""
        return self.node, self.role, self.index

    @property
    def actor(self) -> str:
        """The name of the role."""
        return f"{self.role} {self.index}".strip()

    @property
    def name(self) -> str:
        """The name of an additional row."""
        number = f" {self.parallel + 1}" if self.parallel else ""
        return f"{self.actor}, {HOLDS[self.holds] or 'at the same time'}{number}"

    @property
    def order(self) -> tuple[bool, int, int, tuple[tuple[int, str], ...], int, int]:
        """The sort key: by node (the run's own last), role, index, and contents."""
        role = ROLES.index(self.role) if self.role in ROLES else len(ROLES)
        index = tuple((int(part), "") if part.isdecimal() else (1 << 62, part) for part in self.index.split("-"))
        return self.node < 0, self.node, role, index, self.holds, self.parallel


def contents(names: list[str], name: Ints, lane: Ints) -> Ints:
    """Return the contents of each span's lane as indices in :data:`HOLDS`; ``name`` has indices in ``names``."""
    of_name = np.array([_OF_NAME.get(text, HOLDS.index("more")) for text in names] or [0], np.int64)
    own = np.where(lane == 0, 0, of_name[name])
    return np.where(lane >= FOREIGN_LANE, HOLDS.index("other libraries"), own)


def parallel(starts: Ints, ends: Ints) -> Ints:
    """Return the fewest row numbers so that spans (sorted by start) with equal numbers do not overlap."""
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
