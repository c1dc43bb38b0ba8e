"""The place of work in a run (rank, epoch, step), and batch numbers made of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Where(NamedTuple):
    """A place in a run; -1 for a part that does not apply."""

    rank: int = -1
    epoch: int = -1
    step: int = -1
    attempt: int = 0


class Start(NamedTuple):
    """Where a run begins, or begins again: the first step that its ranks take, and the number of this attempt."""

    epoch: int = 0
    step: int = 0
    attempt: int = 0

    def first_step(self, epoch: int) -> int:
        """Return the first step of an epoch that the run has."""
        return self.step if epoch == self.epoch else 0


class Taken(NamedTuple):
    """The steps of an epoch that a rank has taken: every one below ``low``, and ``extra`` that came early."""

    epoch: int = -1
    low: int = 0
    extra: tuple[int, ...] = ()

    def add(self, epoch: int, step: int) -> Taken:
        """Return the steps with one more, of the same epoch or the next one."""
        low, extra = (self.low, self.extra) if epoch == self.epoch else (0, ())
        if step != low:
            return Taken(epoch, low, tuple(sorted((*extra, step))))
        low += 1
        while extra and extra[0] == low:
            low, extra = low + 1, extra[1:]
        return Taken(epoch, low, extra)


#: No step.
NOTHING_TAKEN = Taken()

#: The start of a run that nothing precedes.
BEGINNING = Start()

#: Limits of a plan: a batch number holds rank, epoch and step in 62 bits.
MAX_RANKS = 1 << 20
MAX_EPOCHS = 1 << 12
MAX_STEPS = 1 << 30

_CHECKPOINT = re.compile(r"epoch-([0-9]{4,})-step-([0-9]{8,})")


def batch_id(rank: int, epoch: int, step: int) -> int:
    """Return a batch's number, ``rank << 42 | epoch << 30 | step``."""
    return rank << 42 | epoch << 30 | step


def checkpoint_folder(epoch: int, step: int) -> str:
    """Return the folder name of the checkpoint after a step."""
    return f"epoch-{epoch:04d}-step-{step:08d}"


def checkpoint_place(folder: str) -> tuple[int, int] | None:
    """Return the epoch and the step of a folder named by :func:`checkpoint_folder`; None for another name."""
    parts = _CHECKPOINT.fullmatch(folder)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def batch_ids(rank: NDArray[np.int32], epoch: NDArray[np.int32], step: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the batches' numbers (see :func:`batch_id`), -1 where rank, epoch or step is negative."""
    ids: NDArray[np.int64] = rank.astype("int64")
    for below, bits in ((epoch, 12), (step, 30)):  # in place: columns are large
        ids <<= bits
        ids |= below
    if (is_missing := (rank | epoch | step) < 0).any():
        ids[is_missing] = -1
    return ids


def batch_parts(batch: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rank, epoch and step of batch numbers."""
    return batch >> 42, batch >> 30 & 0xFFF, batch & 0x3FFFFFFF
