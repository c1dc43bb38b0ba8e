"""The order of calls at a worker: Ray starts the calls of an async actor in their order of arrival."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Seconds that an idle worker waits for an earlier call after a later one has arrived. Calls overtake each other by
#: some
#: milliseconds. An earlier call that never arrives was answered before this worker's process was killed and restarted.
PATIENCE_SECONDS = 0.1


class Turns:
    """A gate that admits the calls of one worker one at a time, in the order of their numbers.

    Without it a worker sometimes reads its second batch first, and a rank waits a whole read longer for its first. Only
    the time of calls is ordered: a missing or repeated number costs at most the patience.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        #: One more than the number of the latest admitted call.
        self._next = 0
        self._is_busy = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._giving_up: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def of(self, turn: int) -> AsyncIterator[None]:
        """Wait until earlier calls are served; later calls wait within the block."""
        if self._is_busy or turn > self._next:
            let_in = asyncio.get_running_loop().create_future()
            self._arrivals += 1
            heapq.heappush(self._waiting, (turn, self._arrivals, let_in))
            self._look()
            try:
                await let_in
            except asyncio.CancelledError:
                if let_in.done() and not let_in.cancelled():
                    self._leave()
                raise
        else:
            self._enter(turn)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, turn: int) -> None:
        self._is_busy = True
        self._next = turn + 1
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _leave(self) -> None:
        self._is_busy = False
        self._look()

    def _look(self, *, gave_up: bool = False) -> None:
        """Admit the first waiting call if it is next, or after the patience for an earlier one."""
        while self._waiting and self._waiting[0][2].done():  # cancelled while it waited
            heapq.heappop(self._waiting)
        if self._is_busy or not self._waiting:
            return
        if self._waiting[0][0] <= self._next or gave_up:
            turn, _, let_in = heapq.heappop(self._waiting)
            self._enter(turn)
            let_in.set_result(None)
        elif self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(self.patience_seconds, self._give_up)

    def _give_up(self) -> None:
        self._giving_up = None
        self._look(gave_up=True)
