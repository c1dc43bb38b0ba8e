"""The planned deliveries of ranks in an epoch: counts, and the digest of all sample ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rayio import seeds
from rayio.data.sampler import Sampler, digests

#: Samples whose digests are computed together, because numpy costs per call.
TOGETHER = 1 << 16


class Planned(NamedTuple):
    """The planned deliveries of a rank in an epoch; the digest is the sum of its steps' digests mod 2**64."""

    steps: int
    samples: int
    digest: int


def planned(sampler: Sampler, epoch: int, rank: int, step: int = 0) -> Planned:
    """Return counts and digest of a rank's epoch from a step on; computed in blocks, without the sampler's cache."""
    digest, many = 0, max(1, TOGETHER // sampler.batch_size)
    num_steps, edges = sampler.steps(epoch, rank), {step}
    for short in sampler.short(epoch, rank):
        edges |= {short, short + 1}
    edges |= {*range(step, num_steps, many), num_steps}
    for first, last in pairwise(sorted(edge for edge in edges if step <= edge <= num_steps)):
        steps = np.arange(first, last, dtype=np.int64)
        ids = sampler.ids(epoch, rank, first, len(steps))
        digest += int(np.sum(digests(epoch, rank, steps, ids), dtype=np.uint64))
    return Planned(*sampler.left(epoch, rank, step), digest & seeds.MASK)


def planned_of(sampler: Sampler, epoch: int, ranks: Sequence[int], step: int = 0) -> Iterator[Planned]:
    """Yield :func:`planned` of each rank; short epochs of several ranks are computed together.

    >>> from rayio.data.layout import Layout
    >>> from rayio.schema.distribution import Constant
    >>> sampler = Sampler(Layout(100, 4, Constant(value=99), 1), batch_size=4, world_size=3, seed=2)
    >>> [*planned_of(sampler, 0, range(3), 5)] == [planned(sampler, 0, rank, 5) for rank in range(3)]
    True
    """
    num_steps = sampler.steps(epoch, ranks[0]) - step if ranks and sampler.has_even_steps else 0
    together = TOGETHER // (num_steps * sampler.batch_size) if num_steps > 0 else 1
    if together < 2:
        yield from (planned(sampler, epoch, rank, step) for rank in ranks)
        return
    steps = np.arange(step, step + num_steps, dtype=np.int64)
    for begin in range(0, len(ranks), together):
        some = ranks[begin : begin + together]
        for rank, ids in zip(some, sampler.ids_of(epoch, some, step, num_steps), strict=True):
            digest = int(np.sum(digests(epoch, rank, steps, ids), dtype=np.uint64))
            yield Planned(*sampler.left(epoch, rank, step), digest)
