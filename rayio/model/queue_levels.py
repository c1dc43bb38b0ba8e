"""The current levels of prefetch queues and ranks, for live displays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rayio.model.ledger import Tally
from rayio.model.prefetch import PrefetchQueue


class Levels(NamedTuple):
    """The levels of some queues and ranks; a run's levels are the sum over its processes."""

    #: Number of queues; with 0, the five numbers after it mean nothing.
    queues: int = 0
    ready: int = 0
    leased: int = 0
    in_flight_bytes: int = 0
    readers: int = 0
    busy_readers: int = 0
    #: Number of ranks, and the samples that they got, with evaluations.
    ranks: int = 0
    samples: int = 0


def levels_of(queues: Iterable[PrefetchQueue], tallies: Iterable[Tally] = ()) -> Levels:
    """Return the levels of queues and tallies.

    The workers of a rank are those of its queue for training: the queue for evaluations has the same ones.
    """
    parts = [
        Levels(
            1, len(state.ready), len(state.leased), _bytes(queue), *_readers(queue)
        )
        for queue in queues
        for state in (queue.state,)
    ]  # fmt: skip
    parts += [Levels(ranks=1, samples=tally.samples) for tally in tallies]
    return together(parts)


def together(levels: Iterable[Levels]) -> Levels:
    """Sum levels.

    >>> together([Levels(1, 2), Levels(1, 3)])[:2]
    (2, 5)
    """
    columns = [*zip(*levels, strict=True)]
    return Levels(*map(sum, columns))


def _bytes(queue: PrefetchQueue) -> int:
    """Return the bytes that are leased or ready; the state counts them only if they are bounded."""
    state = queue.state
    if state.spec.max_bytes is not None:
        return state.bytes_in_flight
    leased = sum(state.step_bytes(state.epoch, step) for step in state.leased)
    return leased + sum(delivery.nbytes for delivery in state.ready.values())


def _readers(queue: PrefetchQueue) -> tuple[int, int]:
    """Return the workers of a queue, and those with a lease."""
    if queue.env.name.endswith("-eval"):
        return 0, len({lease.worker for lease in queue.under_way})
    return queue.state.workers, len({lease.worker for lease in queue.under_way})
