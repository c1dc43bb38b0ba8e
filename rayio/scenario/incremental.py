"""``checkpoint.incremental``: a full checkpoint now and then, and between them only what changed since the last one.

The idea is that of Check-N-Run (Eisenman et al., NSDI 2022): most of an embedding table does not change between two
checkpoints. A restore reads the newest full checkpoint, and each increment since.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from rayio.place import MAX_STEPS
from rayio.schema.fields import Reads, RefusedError, Section, whole


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise RefusedError("must be a number greater than 0 and less than 1, such as 0.1")
    return float(value)


_SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


def changed(num_bytes: int, fraction: float) -> int:
    """Return the bytes of an increment of a state of ``num_bytes``, rounded up; a ``fraction`` of 1 is all of it."""
    return num_bytes if fraction == 1 else math.ceil(num_bytes * Fraction(str(fraction)))


class Incremental(Section):
    """Checkpoints of which most have only a part of the state.

    >>> saved = Incremental(fraction=0.1, full_every=4)
    >>> [saved.is_full(number) for number in range(5)], saved.chain(6), saved.changed(105)
    ([True, False, False, False, True], (4, 5, 6), 11)
    """

    fraction: Annotated[float, Reads(_share, _SHARE)] = Field(
        description="Share of each file's state that changes from one checkpoint to the next; an increment has it."
    )
    full_every: Annotated[int, whole(2, MAX_STEPS)] = Field(
        description="The first of every n checkpoints has the whole state. The others are increments since the one "
        "before."
    )

    def is_full(self, number: int) -> bool:
        """Return True if the checkpoint of this number, from 0, has the whole state."""
        return number % self.full_every == 0

    def chain(self, number: int) -> tuple[int, ...]:
        """Return the checkpoints that a restore of one reads: the newest full one, and each increment since."""
        return (*range(number - number % self.full_every, number + 1),)

    def longer(self, chain: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Return the chain of the checkpoint after the one with ``chain``, which is empty before the first one."""
        return (*chain, number) if 0 < len(chain) < self.full_every else (number,)

    def changed(self, num_bytes: int) -> int:
        """Return the bytes of an increment of a state of ``num_bytes``, rounded up."""
        return changed(num_bytes, self.fraction)

    def number_full(self, checkpoints: int) -> int:
        """Return how many of the first checkpoints are full."""
        return -(-checkpoints // self.full_every)

    def most_kept(self, checkpoints: int, keep: int, full: int, increment: int) -> int:
        """Return the most bytes that checkpoints take while ``keep`` of them stay, with all that those need.

        ``full`` and ``increment`` are the bytes of each kind. A checkpoint that is being written counts.
        """
        most = 0
        for newest in range(min(checkpoints, keep + 2 * self.full_every)):
            first = self.chain(max(0, newest - keep))[0]  # the one before is complete, the newest is written
            fulls = self.number_full(newest + 1) - self.number_full(first)
            most = max(most, fulls * full + (newest + 1 - first - fulls) * increment)
        return most
