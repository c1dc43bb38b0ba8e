"""The memory of batches that a reader has returned, until nobody looks at them any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayio.model.queue import Delivery


class LentBatches:
    """Batches by the call that returned them; only the caller knows when they are no longer looked at.

    A method of an actor has returned before Ray copies what it returned. Who has the answer to a call knows that Ray
    is done, and says so with its next call; of batches in shared memory, once their rank is done. What is never heard
    of again is not used again, and freed with this.
    """

    def __init__(self) -> None:
        self._by_turn: dict[int, Sequence[Delivery]] = {}
        #: Who calls: a process that is started in the place of one that was killed has a higher number.
        self._caller = 0

    def stored(self, caller: int, turns: Iterable[int]) -> list[Delivery]:
        """Learn from ``caller`` which earlier calls' batches are done; give those of which it will not be said."""
        forgotten: list[Delivery] = []
        if caller > self._caller:  # it knows nothing of these
            forgotten = [batch for batches in self._by_turn.values() for batch in batches]
            self._by_turn.clear()
            self._caller = caller
        if caller == self._caller:  # not what was still on its way from one that was killed
            for known in turns:
                for batch in self._by_turn.pop(known, ()):
                    batch.done()
        return forgotten

    def keep(self, caller: int, turn: int, batches: Sequence[Delivery]) -> bool:
        """Hold the batches that the call ``turn`` returns; say no where its caller is not there any more."""
        if caller != self._caller:
            return False
        self._by_turn[turn] = batches
        return True
