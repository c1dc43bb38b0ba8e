"""Levels of prefetch queues and consumption of ranks, for live views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rayio.model.ledger import Tally
from rayio.model.prefetch import PrefetchQueue


class Levels(NamedTuple):
    """Levels of some queues and ranks; those of a run are the sum over its processes."""

    #: Number of queues; without one the five numbers after it are meaningless.
    queues: int = 0
    ready: int = 0
    leased: int = 0
    in_flight_bytes: int = 0
    readers: int = 0
    busy_readers: int = 0
    #: Samples and bytes that ranks got, with evaluations; ``ranks`` is the number of ranks.
    ranks: int = 0
    samples: int = 0


def levels_of(queues: Iterable[PrefetchQueue], tallies: Iterable[Tally] = ()) -> Levels:
    """Return the levels of queues and tallies, without waiting.

    Readers are counted once, for the training queue: the evaluation queue shares them.
    """
    levels = [
        Levels(
            1, len(state.ready), len(state.leased), _bytes(queue), *_readers(queue)
        )
        for queue in queues
        for state in (queue.state,)
    ]  # fmt: skip
    levels += [Levels(ranks=1, samples=tally.samples) for tally in tallies]
    return together(levels)


def together(levels: Iterable[Levels]) -> Levels:
    """Return the sum of levels.

    >>> together([Levels(1, 2), Levels(1, 3)])[:2]
    (2, 5)
    """
    columns = [*zip(*levels, strict=True)]
    return Levels(*map(sum, columns))


def _bytes(queue: PrefetchQueue) -> int:
    """Return the bytes leased or ready; the state counts them only if they are bounded."""
    state = queue.state
    if state.spec.max_bytes is not None:
        return state.bytes_in_flight
    leased = sum(state.step_bytes(state.epoch, step) for step in state.leased)
    return leased + sum(delivery.nbytes for delivery in state.ready.values())


def _readers(queue: PrefetchQueue) -> tuple[int, int]:
    """Return the number of a queue's readers, and of those with a lease."""
    if queue.env.name.endswith("-eval"):
        return 0, len({lease.worker for lease in queue.under_way})
    return queue.state.workers, len({lease.worker for lease in queue.under_way})
