"""Which positions of an epoch's order belong to which rank: pure maps, computed for any rank without the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import kinds
from rayio.registry import Registry


class Partition(NamedTuple):
    """A rule that gives each position in ``[0, num_samples)`` to exactly one rank, or to every rank if ``shared``.

    Shares of any two ranks differ by at most one. ``positions`` maps places within a rank's share, ``0 <= local <
    share``, to positions of the epoch's order.
    """

    #: ``(num_samples, world_size, rank)`` to the number of positions this rank has.
    share: Callable[[int, int, int], int]
    #: ``(num_samples, world_size, rank, local)`` to positions, of the shape of ``local``.
    positions: Callable[[int, int, int, NDArray[np.int64]], NDArray[np.int64]]
    #: Whether every rank has all positions, in place of a share of its own.
    shared: bool = False


def contiguous_share(num_samples: int, world_size: int, rank: int) -> int:
    """Count the positions between this rank's edges, ``num_samples * rank // world_size`` and the next rank's."""
    return num_samples * (rank + 1) // world_size - num_samples * rank // world_size


def contiguous_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign each rank one run of positions."""
    return local + num_samples * rank // world_size


def strided_share(num_samples: int, world_size: int, rank: int) -> int:
    """Count ``rank, rank + world_size, …`` below ``num_samples``; the first ranks have one more when it is uneven."""
    return (num_samples - rank + world_size - 1) // world_size


def strided_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deal positions out in turn, as torch's DistributedSampler does."""
    return local * world_size + rank


def replicated_share(num_samples: int, world_size: int, rank: int) -> int:
    """Count all positions: every rank has them."""
    return num_samples


def replicated_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign every rank the whole order: at each step all ranks read the same samples."""
    return local


CONTIGUOUS = Partition(contiguous_share, contiguous_positions)
STRIDED = Partition(strided_share, strided_positions)
REPLICATED = Partition(replicated_share, replicated_positions, shared=True)

PARTITIONS: Registry[Partition] = kinds.PARTITIONS
