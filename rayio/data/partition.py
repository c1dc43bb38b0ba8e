"""Partitions: pure maps from positions of an epoch's order to ranks, each computed without the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import kinds
from rayio.registry import Registry


class Partition(NamedTuple):
    """A rule that gives each position in ``[0, num_samples)`` to exactly one rank, or to every rank if ``shared``.

    The shares of any two ranks differ by at most one.
    """

    #: ``(num_samples, world_size, rank)`` to the rank's number of positions.
    share: Callable[[int, int, int], int]
    #: ``(num_samples, world_size, rank, local)`` to positions, for places ``0 <= local < share``; shape of ``local``.
    positions: Callable[[int, int, int, NDArray[np.int64]], NDArray[np.int64]]
    shared: bool = False


def contiguous_share(num_samples: int, world_size: int, rank: int) -> int:
    """Return the number of positions from ``num_samples * rank // world_size`` to the next rank's first one."""
    return num_samples * (rank + 1) // world_size - num_samples * rank // world_size


def contiguous_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions such that each rank has one contiguous run."""
    return local + num_samples * rank // world_size


def strided_share(num_samples: int, world_size: int, rank: int) -> int:
    """Return the number of ``rank, rank + world_size, …`` below ``num_samples``."""
    return (num_samples - rank + world_size - 1) // world_size


def strided_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions dealt out in turn, as torch's DistributedSampler does."""
    return local * world_size + rank


def replicated_share(num_samples: int, world_size: int, rank: int) -> int:
    """Return ``num_samples``: every rank has all positions."""
    return num_samples


def replicated_positions(num_samples: int, world_size: int, rank: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole order for every rank: at each step all ranks read the same samples."""
    return local


CONTIGUOUS = Partition(contiguous_share, contiguous_positions)
STRIDED = Partition(strided_share, strided_positions)
REPLICATED = Partition(replicated_share, replicated_positions, shared=True)

PARTITIONS: Registry[Partition] = kinds.PARTITIONS
