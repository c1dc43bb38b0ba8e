"""Actors without spans that serve all others: barrier, modelled storage devices, shared state of layers."""

from __future__ import annotations

import os
import signal
import threading
import time
from inspect import isawaitable
from typing import Any

import ray

from rayio.engines.ray.actors.birth import Birth, address
from rayio.engines.ray.actors.shells import FLUSH_SECONDS
from rayio.engines.ray.actors.unawaited import Unawaited
from rayio.engines.ray.transport.lines import Address, Exchange
from rayio.model.barrier import Barrier, BarrierState
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.kernel import WallKernel
from rayio.place import Where
from rayio.storage.model import Device


class Server:
    """The common part of these actors: it reports birth and life to the collector, which so notices a death."""

    def __init__(self, birth: Birth) -> None:
        self.birth = birth
        self._collector = birth.find("collector")
        kind, _, _ = birth.name.partition("-")
        self._cpu = Stopwatch(kind)
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._collector.born.remote(birth.name, birth.node, os.getpid(), None, restarted)
        threading.Thread(target=self._beat, daemon=True).start()
        self.exchange: Exchange | None = None
        self._unawaited = Unawaited(self._collector, birth.name)

    async def ready(self) -> dict[str, Any]:
        """Return the actor's entry of run.json, once it has started."""
        self._unawaited.listen()
        return {"name": self.birth.name, "pid": os.getpid(), "ray_node": ray.get_runtime_context().get_node_id()}

    async def listen(self) -> Address:
        """Return this actor's address for calls from its host; it may be a restarted actor's first call."""
        self._unawaited.listen()
        return address(self.birth.plan, self.exchange)

    def _beat(self) -> None:
        while True:
            time.sleep(FLUSH_SECONDS)
            self._collector.alive.remote(self.birth.name)

    async def spent(self) -> tuple[int, ProcessCpu | None]:
        """Return the CPU time of its work, as a role's ``flush`` does; it has sent no spans."""
        await self._unawaited.sent()
        return 0, self._cpu.read()

    async def die(self, pid: int) -> None:
        """End this process as a failure does, if it is the named one: a repeated call may reach its successor."""
        if pid == os.getpid():
            os.kill(pid, signal.SIGKILL)


class BarrierActor(Server):
    """The barrier of all ranks."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.barrier = Barrier(WallKernel(), BarrierState.of(birth.plan.meetings, birth.plan.meets))
        self.exchange = Exchange({"announce": self.announce})

    async def announce(self, arrivals: list[tuple[Where, int]]) -> Any:
        """Record deadlines of ranks at one step; return the latest once every party has announced its own."""
        self._cpu.begin()
        latest = [self.barrier.announce(at.rank, at.epoch, at.step, at.attempt, deadline) for at, deadline in arrivals]
        return max([await deadline for deadline in latest])


class Holder(Server):
    """An actor with shared state, whose methods it calls for others."""

    def __init__(self, birth: Birth, state: Any) -> None:
        super().__init__(birth)
        self.state = state
        self.exchange = Exchange({"call": self.call})

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the state by name."""
        self._cpu.begin()
        answer = getattr(self.state, method)(*arguments)
        return await answer if isawaitable(answer) else answer


class StorageServer(Holder):
    """One device of the modelled storage, which decides when each call is served."""

    def __init__(self, birth: Birth) -> None:
        ((number,),) = birth.members
        super().__init__(birth, Device(birth.plan.devices[number]))


class LayerServer(Holder):
    """The state shared by users of a layer, of one node or all. After a restart it begins afresh."""

    def __init__(self, birth: Birth) -> None:
        ((place, _),) = birth.members
        super().__init__(birth, birth.plan.layers[place].state(WallKernel()))
