"""The actors that serve all others and record no spans: barrier, modelled storage devices, what layers share."""

from __future__ import annotations

import os
import threading
import time
from inspect import isawaitable
from typing import Any

import ray

from rayio.engines.ray.actors.birth import Birth, address
from rayio.engines.ray.actors.shells import FLUSH_SECONDS
from rayio.engines.ray.transport.lines import Address, Exchange
from rayio.model.barrier import Barrier
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.kernel import WallKernel
from rayio.place import Where
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


class Holder(Server):
    """An actor that holds what others share, and calls its methods for them."""

    def __init__(self, birth: Birth, state: Any) -> None:
        super().__init__(birth)
        self.state = state
        self.exchange = Exchange({"call": self.call})

    async def ready(self) -> dict[str, Any]:
        """Answer when the actor has started."""
        return self.told()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the state by its name."""
        self._cpu.begin()
        answer = getattr(self.state, method)(*arguments)
        return await answer if isawaitable(answer) else answer


class StorageServer(Holder):
    """One device of the modelled storage: the single arbiter of who is served when."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth, Device(birth.plan.device))


class LayerServer(Holder):
    """What users of a layer share: those of one node, or all. One that is started again begins anew."""

    def __init__(self, birth: Birth) -> None:
        ((place, _),) = birth.members
        super().__init__(birth, birth.plan.layers[place].state(WallKernel()))
