"""The queue of a rank that a failure kills at a step."""

from __future__ import annotations

from collections.abc import Callable

from rayio.model.env import QueuePort
from rayio.model.plan import Plan
from rayio.model.plan_parts import Doom
from rayio.model.queue import Delivery
from rayio.place import Where


class DoomedQueue:
    """A rank's end of its queue, for a rank that dies at a step of this attempt."""

    def __init__(self, queue: QueuePort, plan: Plan, doom: Doom, die: Callable[[Doom], None]) -> None:
        self.queue, self.doom, self.die = queue, doom, die
        self.epochs = len(plan.steps)

    async def get(self, at: Where) -> Delivery:
        """Return the next batch, or die; evaluations have later epochs."""
        if self.doom[1:3] <= (at.epoch, at.step) and at.epoch < self.epochs:
            self.die(self.doom)
        return await self.queue.get(at)
