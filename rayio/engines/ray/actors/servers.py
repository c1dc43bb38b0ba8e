"""The actors that serve all others and record no spans: barrier, modelled network, storage devices, caches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from rayio.engines.ray.actors.birth import Birth, address
from rayio.engines.ray.actors.shells import FLUSH_SECONDS
from rayio.engines.ray.transport.lines import Address, Exchange
from rayio.model.barrier import Barrier
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.kernel import WallKernel
from rayio.model.network import Network
from rayio.model.node_cache import NodeCache
from rayio.place import Where
from rayio.storage.layers.cached import Who
from rayio.storage.layers.throttle import Gate, State
from rayio.storage.model import Device


class Server:
    """Tells the collector of its birth, and regularly that it lives: nothing else would say since when it is dead."""

    def __init__(self, birth: Birth) -> None:
        self.birth = birth
        self._collector = birth.find("collector")
        kind, _, _ = birth.name.partition("-")
        self._cpu = Stopwatch(kind)
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._collector.born.remote(birth.name, birth.node, os.getpid(), None, restarted)
        threading.Thread(target=self._beat, daemon=True).start()
        self.exchange: Exchange | None = None

    async def listen(self) -> Address:
        """Say where this actor takes calls of others on its host."""
        return address(self.birth.plan, self.exchange)

    def _beat(self) -> None:
        while True:
            time.sleep(FLUSH_SECONDS)
            self._collector.alive.remote(self.birth.name)

    def spent(self) -> tuple[int, ProcessCpu | None]:
        """Answer as a role's ``flush`` does: it has sent no spans, and this is what its work took of processors."""
        return 0, self._cpu.read()

    def told(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {"name": self.birth.name, "pid": os.getpid(), "ray_node": ray.get_runtime_context().get_node_id()}


class BarrierActor(Server):
    """The barrier of all ranks."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.barrier = Barrier(WallKernel(), birth.plan.parties, birth.plan.meets)
        self.exchange = Exchange({"announce": self.announce})

    async def ready(self) -> dict[str, Any]:
        """Answer when the actor has started."""
        return self.told()

    async def announce(self, arrivals: list[tuple[Where, int]]) -> int:
        """Note the deadlines of ranks at one step; answer with the latest once every party has announced its own."""
        self._cpu.begin()
        latest = [self.barrier.announce(at.rank, at.epoch, at.step, at.attempt, deadline) for at, deadline in arrivals]
        return max([int(await one) for one in latest])


class NetworkServer(Server):
    """The modelled network between emulated nodes: the single arbiter of what is on its way when.

    One that is started again knows nothing of what was on its way: that was sent already.
    """

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        assert birth.plan.network is not None
        self.network = Network(birth.plan.network)
        self.exchange = Exchange({"send": self.send})

    async def ready(self) -> dict[str, Any]:
        """Answer when the actor has started."""
        return self.told()

    async def send(self, now: int, source: int, target: int, nbytes: int) -> int:
        """See ``rayio.model.network.Network.send``."""
        self._cpu.begin()
        return self.network.send(now, source, target, nbytes)


class DeviceServer(Server):
    """A modelled device: the single arbiter of who is served when."""

    def __init__(self, birth: Birth, device: Device) -> None:
        super().__init__(birth)
        self.device = device

    async def ready(self) -> dict[str, Any]:
        """Answer when the actor has started."""
        return self.told()

    async def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int, free_at: int) -> tuple[int, int]:
        """See ``rayio.storage.model.Device.reserve``; answer with the device's ``free_at`` too.

        Whoever asks says what it was last told of that: a device that was started again knows its backlog from there.
        """
        self.device.learn(free_at)
        return self.device.reserve(arrival, num_requests, nbytes, alone), self.device.free_at


class StorageServer(DeviceServer):
    """One device of the modelled storage; the first of them admits requests to all."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth, Device(birth.plan.device))
        throttle = birth.plan.device.throttle
        self.gate = None if throttle is None else Gate(throttle)
        self.exchange = Exchange({"reserve": self.reserve, "admit": self.admit})

    async def admit(self, now: int, kind: int, prefix: int, state: State) -> tuple[bool, State]:
        """See ``rayio.storage.layers.throttle.Gate.admit``; answer with what the prefix's bucket then knows.

        Whoever asks says what it was last told of that, as for ``reserve``.
        """
        assert self.gate is not None
        bucket = self.gate.bucket(kind, prefix)
        bucket.learn(State(*state))
        return bucket.admit(now), bucket.state


class CacheServer(DeviceServer):
    """The modelled cache of one node, which all its readers share; one that is started again begins empty."""

    def __init__(self, birth: Birth) -> None:
        assert birth.plan.cache_bytes is not None
        self.cache = NodeCache(WallKernel(), birth.plan.cache_bytes)
        super().__init__(birth, self.cache.device)
        self.exchange = Exchange(
            {"reserve": self.reserve, "look": self.look, "came": self.came, "arrived": self.arrived}
        )

    async def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """See ``rayio.model.node_cache.NodeCache.look``."""
        return self.cache.look(who, keys, sizes)

    async def came(self, who: Who, keys: Sequence[int]) -> None:
        """See ``rayio.model.node_cache.NodeCache.came``."""
        self.cache.came(who, keys)

    async def arrived(self, keys: Sequence[int]) -> None:
        """See ``rayio.model.node_cache.NodeCache.arrived``."""
        await self.cache.arrived(keys)

    async def clear(self) -> None:
        """Begin empty: the node has gone, and another one may come under its number."""
        self.cache.clear()
