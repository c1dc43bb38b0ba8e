"""What is modelled, as actors reach it: storage devices and what layers share are other actors."""

from __future__ import annotations

from functools import partial
from typing import Any

from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.transport.lines import Line
from rayio.storage.layers.layer import Ask, Layer
from rayio.storage.model import CalledDevice


class ReachesModelled:
    """The ways of an actor to what is modelled; see ``rayio.model.wiring.Devices``."""

    birth: Birth

    def line(self, handle: Any) -> Line:
        """The way to another actor."""
        raise NotImplementedError

    def arbiter(self, device: int) -> CalledDevice:
        """Reach a modelled storage device."""
        return CalledDevice(self._ask(f"storage-{device}"))

    def shared(self, layer: Layer, node: int) -> Any:
        """Reach what users of a layer share."""
        name = layer.actor(self.birth.plan.state_of_node(node))
        reached = self.__dict__.setdefault("_reached", {})
        if name not in reached:
            reached[name] = layer.reach(self._ask(name))
        return reached[name]

    def _ask(self, name: str) -> Ask:
        return partial(self.line(self.birth.find(name)).ask, "call")
