"""The memory of batches that a reader returned, kept while it is in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayio.model.queue import Delivery


class LentBatches:
    """Returned batches by call, kept until the caller reports that they are done.

    Ray copies what a method returned after it ended. The caller acknowledges a reply with its next call; batches in
    shared memory once their rank is done. Unacknowledged batches are never reused, and freed with this object.
    """

    def __init__(self) -> None:
        self._by_turn: dict[int, Sequence[Delivery]] = {}
        #: The calling process; one started in place of a killed one has a higher number.
        self._caller = 0

    def stored(self, caller: int, turns: Iterable[int]) -> list[Delivery]:
        """Record batches of a caller's earlier calls as done; return those that will never be acknowledged."""
        forgotten: list[Delivery] = []
        if caller > self._caller:  # it does not know these calls
            forgotten = [batch for batches in self._by_turn.values() for batch in batches]
            self._by_turn.clear()
            self._caller = caller
        if caller == self._caller:  # not a late message of a killed process
            for known in turns:
                for batch in self._by_turn.pop(known, ()):
                    batch.done()
        return forgotten

    def keep(self, caller: int, turn: int, batches: Sequence[Delivery]) -> bool:
        """Keep the batches that the call ``turn`` returns; return False if its caller is gone."""
        if caller != self._caller:
            return False
        self._by_turn[turn] = batches
        return True
