"""``loader.pin_memory``: the thread of a loader that copies batches into page-locked memory, as PyTorch's does.

PyTorch's DataLoader has one such thread for each iterator (``torch/utils/data/_utils/pin_memory.py``). It takes batches
as workers finish them, copies one after another, and hands them to the rank. A batch counts in the window until the
rank has it, so the thread overlaps with compute and with reads. With ``num_workers: 0`` the rank copies by itself.
"""

from __future__ import annotations

from rayio.model.env import Env
from rayio.model.kernel import Future
from rayio.model.queue import Delivery
from rayio.place import Where
from rayio.trace.span import SPANS


class PinThread:
    """The copies of a rank's queue, in order of arrival; ``bandwidth`` is in bytes per second."""

    def __init__(self, env: Env, rank: int, bandwidth: float) -> None:
        self.env = env
        self.rank = rank
        self.bandwidth = bandwidth
        self.lane = SPANS["pin"].lanes[env.role]
        #: When the last copy ends (ns); on modelled cores, its future.
        self._ends = 0
        self._last: Future | None = None

    async def pin(self, delivery: Delivery, landed: int | None = None) -> int:
        """Wait until a batch that ``landed`` at its queue (ns, by default now) is copied, after those before it.

        Return the end of the copy (ns).
        """
        env, kernel = self.env, self.env.kernel
        landed = kernel.now() if landed is None else landed
        seconds = delivery.nbytes / self.bandwidth
        if env.cores is None:
            end = self._ends = max(landed, self._ends) + round(seconds * 1e9)
            await kernel.sleep_until(end)
        else:  # the copy is work of the rank's process
            before, mine = self._last, kernel.future(f"{env.name} to pin a batch")
            self._last = mine
            if before is not None:
                await before
            await env.cores.work(seconds)
            end = kernel.now()
            mine.set_result(None)
        at = Where(self.rank, delivery.epoch, delivery.step, delivery.attempt)
        env.span("pin", landed, end, at, self.lane, delivery.nbytes)
        return end


def pin_thread(env: Env, rank: int, bandwidth: float | None) -> PinThread | None:
    """Return the thread that copies the batches of a rank's queue; None without a bandwidth."""
    return None if bandwidth is None else PinThread(env, rank, bandwidth)
