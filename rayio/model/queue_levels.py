"""What prefetch queues hold at the moment, and what ranks have got: for who looks at a run while it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rayio.model.ledger import Tally
from rayio.model.prefetch import PrefetchQueue


class Levels(NamedTuple):
    """Levels of some queues and ranks; those of a run are the sum over its processes."""

    #: Queues that were looked at; without one the five numbers after it say nothing.
    queues: int = 0
    ready: int = 0
    leased: int = 0
    in_flight_bytes: int = 0
    readers: int = 0
    busy_readers: int = 0
    #: Samples and bytes that ranks got, those of evaluations too; ``ranks`` is how many were asked.
    ranks: int = 0
    samples: int = 0


def levels_of(queues: Iterable[PrefetchQueue], tallies: Iterable[Tally] = ()) -> Levels:
    """Look at queues and tallies; nothing waits for it.

    The readers of a rank are those of its queue for training: the one for evaluations has the same.
    """
    found = [
        Levels(
            1, len(state.ready), len(state.leased), _bytes(queue), *_readers(queue)
        )
        for queue in queues
        for state in (queue.state,)
    ]  # fmt: skip
    found += [Levels(ranks=1, samples=tally.samples) for tally in tallies]
    return together(found)


def together(levels: Iterable[Levels]) -> Levels:
    """Sum levels.

    >>> together([Levels(1, 2), Levels(1, 3)])[:2]
    (2, 5)
    """
    columns = [*zip(*levels, strict=True)]
    return Levels(*map(sum, columns))


def _bytes(queue: PrefetchQueue) -> int:
    """Bytes that are leased or ready; the state counts them only where they are bounded."""
    state = queue.state
    if state.spec.max_bytes is not None:
        return state.bytes_in_flight
    leased = sum(state.step_bytes(state.epoch, step) for step in state.leased)
    return leased + sum(delivery.nbytes for delivery in state.ready.values())


def _readers(queue: PrefetchQueue) -> tuple[int, int]:
    """The readers of a queue, and those of them that have a lease."""
    if queue.env.name.endswith("-eval"):
        return 0, len({lease.worker for lease in queue.under_way})
    return queue.state.workers, len({lease.worker for lease in queue.under_way})
