"""What is modelled, as actors reach it: storage devices, caches of nodes and the network are other actors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.transport.lines import Line
from rayio.storage.layers.cached import Who
from rayio.storage.layers.throttle import State


class RemoteNetwork:
    """The modelled network in another actor."""

    def __init__(self, line: Line) -> None:
        self.line = line

    async def send(self, now: int, source: int, target: int, nbytes: int) -> int:
        """See ``rayio.model.network.Network.send``."""
        return int(await self.line.ask("send", now, source, target, nbytes))


class RemoteArbiter:
    """A modelled device in another actor; that of the first one admits requests to all of them too."""

    def __init__(self, line: Line) -> None:
        self.line = line
        #: What was last heard of each bucket (``Gate``), by kind and prefix.
        self._buckets: dict[tuple[int, int], State] = {}
        #: What was last heard of the device's backlog (``Device.free_at``): all who use it remember it for the device.
        self._free_at = 0

    async def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """See ``rayio.storage.model.Device.reserve``."""
        answer = await self.line.ask("reserve", arrival, num_requests, nbytes, alone, self._free_at)
        served, free_at = answer
        self._free_at = max(self._free_at, int(free_at))
        return int(served)

    async def admit(self, now: int, kind: int, prefix: int) -> bool:
        """See ``rayio.storage.layers.throttle.Gate.admit``."""
        told = self._buckets.get((kind, prefix), State())
        is_admitted, state = await self.line.ask("admit", now, kind, prefix, told)
        heard = State(*state)
        if heard.at >= self._buckets.get((kind, prefix), told).at:
            self._buckets[kind, prefix] = heard
        return bool(is_admitted)


class RemoteCache(RemoteArbiter):
    """The modelled cache of a node in another actor; see ``rayio.storage.layers.cached.Cache``."""

    async def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Say of each sample whether it is there; ``who`` reads those that are missing."""
        found: list[int] = await self.line.ask("look", who, keys, sizes)
        return found

    async def came(self, who: Who, keys: Sequence[int]) -> None:
        """Say that ``who`` has read samples that were missing."""
        await self.line.ask("came", who, keys)

    async def arrived(self, keys: Sequence[int]) -> None:
        """Return once nobody is reading any of these samples."""
        await self.line.ask("arrived", keys)


class ReachesModelled:
    """The ways of an actor to what is modelled; see ``rayio.model.wiring.Devices``."""

    birth: Birth

    def line(self, handle: Any) -> Line:
        """The way to another actor."""
        raise NotImplementedError

    def arbiter(self, device: int) -> RemoteArbiter:
        """Reach a modelled storage device."""
        return RemoteArbiter(self.line(self.birth.find(f"storage-{device}")))

    @cached_property
    def _network(self) -> RemoteNetwork:
        return RemoteNetwork(self.line(self.birth.find("network")))

    def network(self) -> RemoteNetwork:
        """Reach the modelled network between nodes."""
        return self._network

    def gate(self) -> RemoteArbiter:
        """Reach what admits requests: the first device."""
        return self.arbiter(0)

    def cache(self, node: int) -> RemoteCache:
        """Reach the modelled cache of a node."""
        return RemoteCache(self.line(self.birth.find(f"cache-{self.birth.plan.cache_of_node(node)}")))
