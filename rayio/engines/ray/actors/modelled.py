"""Access of actors to modelled storage devices, shared state of layers, and the run's resume file, in other actors."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ray.exceptions import RayError

from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.transport.lines import Line
from rayio.storage.layers.layer import Ask, Layer
from rayio.storage.model import CalledDevice


class ReachesModelled:
    """The connections of an actor to modelled devices and books; see ``rayio.model.wiring.Devices``."""

    birth: Birth
    collector: Any

    def line(self, handle: Any) -> Line:
        """Return a connection to another actor."""
        raise NotImplementedError

    def arbiter(self, device: int) -> CalledDevice:
        """Return a modelled storage device."""
        return CalledDevice(self._ask(f"storage-{device}"))

    def shared(self, layer: Layer, node: int) -> Any:
        """Return the shared state of a layer."""
        name = layer.actor(self.birth.plan.state_of_node(node))
        reached = self.__dict__.setdefault("_reached", {})
        if name not in reached:
            reached[name] = layer.reach(self._ask(name))
        return reached[name]

    async def book(self, number: int, is_needed: bool) -> Collection[int] | None:
        """Have the collector name a checkpoint in the run's resume file."""
        try:
            named: Collection[int] | None = await self.collector.booked.remote(number, is_needed)
        except RayError:  # the collector is gone, and the run ends
            return None
        return named

    def _ask(self, name: str) -> Ask:
        return partial(self.line(self.birth.find(name)).ask, "call")
