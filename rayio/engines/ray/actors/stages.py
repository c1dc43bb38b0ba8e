"""Stages on Ray: an actor that starts the processes of all stages, and one for each process, which ends with it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.actors.deaths import first_line
from rayio.engines.ray.actors.servers import Server
from rayio.engines.ray.actors.shells import MAX_CONCURRENCY, WATCH, Host
from rayio.engines.ray.transport.remote import plain
from rayio.errors import RayioError, RunError
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.kernel import WallKernel
from rayio.model.standing import silence
from rayio.model.workflow import CONDUCTOR, ROLE, Conductor, Progress, StageTally

#: Actors of a run that have an end, and those that only report their CPU time.
LIVING, SPENDING = ("rank-", CONDUCTOR), ("barrier", CONDUCTOR, "collector")


class StageProcess(Host):
    """One process of a stage. A repeated call after a restart reads and writes the same files again."""

    async def run(self) -> tuple[StageTally, int, ProcessCpu | None]:
        """Run the process to its end; return its tally, the number of its spans and its CPU time."""
        self.begin()
        ((stage, number),) = self.birth.members
        tally = await self.wiring.stage_process(stage, number)
        return tally, *(await self.flush())


class StagesActor(Server):
    """The conductor of all stages: it starts an actor for each process in its time, and ends it afterwards."""

    def __init__(self, birth: Birth, group: PlacementGroup, progress: Progress) -> None:
        super().__init__(birth)
        self.group = group
        #: Spans of ended processes, and their CPU time.
        self._sent = 0
        self._cpu_of: list[ProcessCpu] = []
        self._cpu = Stopwatch(CONDUCTOR, children=lambda: self._cpu_of)
        self.progress = progress
        self._collector.stages.remote(progress)
        self._offset = birth.anchor.here().ns
        #: The attempt of the run, as far as this actor knows, and what carries out its stages.
        self._attempt = 0
        self._running: asyncio.Future[None] | None = None
        self._is_over = asyncio.Event()

    async def run(self) -> list[StageTally]:
        """Run all stages to their end, or until they are halted; return the tally of each."""
        self._cpu.begin()
        attempt, kernel = self._attempt, WallKernel(self._offset)
        conductor = Conductor(self.birth.plan.workflow, kernel, self._process, self.progress)
        self._running = asyncio.ensure_future(conductor.run())
        self._is_over.clear()
        try:
            await self._running
        except asyncio.CancelledError:
            if attempt == self._attempt:
                raise
        finally:
            await kernel.cancel()
            self._is_over.set()
        return self.progress.tallies

    async def halt(self) -> None:
        """End the running processes: a failure ended the attempt, and they begin again with the next one."""
        self._attempt += 1
        if self._running is not None:
            self._running.cancel()
            await self._is_over.wait()

    async def spent(self) -> tuple[int, ProcessCpu | None]:
        """Return the number of spans of ended processes, and the CPU time of all."""
        await self._unawaited.sent()
        return self._sent, self._cpu.read()

    async def _process(self, stage: int, number: int) -> StageTally:
        """Run a process in a new actor.

        Raises:
            RayioError: it failed, or does nothing for longer than ``cluster.stall_deadline``.
        """
        plan = self.birth.plan
        name = f"{ROLE}-{plan.workflow.stages[stage].name}-{number}"
        handle = self._actor(name, stage, number)
        try:
            tally, sent, cpu = await self._end_of(name, handle)
        except RayioError:
            raise
        except RayError as error:
            cause = plain(error)
            raise cause if isinstance(cause, RayioError) else RunError(f"{name} failed: {first_line(cause)}") from None
        finally:
            ray.kill(handle)
        self._sent += sent
        self._cpu_of += [] if cpu is None else [cpu]
        self._collector.staged.remote(stage, number, tally, self.progress.began)
        return tally

    def _actor(self, name: str, stage: int, number: int) -> Any:
        birth, plan = self.birth, self.birth.plan
        node = plan.workflow.node(number)
        own = Birth(
            name=name, node=node, members=((stage, number),), plan=plan, root=birth.root, anchor=birth.anchor,
            namespace=birth.namespace,
        )  # fmt: skip
        where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
        remote: Any = ray.remote(concurrency_groups={WATCH: 1})(StageProcess)
        return remote.options(
            name=f"{name}.{self._attempt}" if self._attempt else name, namespace=birth.namespace, num_cpus=0,
            scheduling_strategy=where, max_restarts=-1, max_task_retries=-1, max_concurrency=MAX_CONCURRENCY,
        ).remote(own)  # fmt: skip

    async def _end_of(self, name: str, handle: Any) -> tuple[StageTally, int, ProcessCpu | None]:
        """Wait for the end of a process, and ask now and then what it does."""
        cluster = self.birth.plan.cluster
        running, begun = asyncio.ensure_future(handle.run.remote()), time.monotonic()
        running.add_done_callback(_seen)
        look = min(5.0, cluster.stall_deadline / 4)
        heard = begun
        while not (await asyncio.wait({running}, timeout=look))[0]:
            answer = asyncio.ensure_future(handle.standing.remote())
            answer.add_done_callback(_seen)
            await asyncio.wait({answer, running}, timeout=look, return_when=asyncio.FIRST_COMPLETED)
            now = self._offset + time.perf_counter_ns()
            if answer.done() and (longest := silence(answer.result(), now)) is not None:
                heard = time.monotonic() - longest.seconds
                story = longest.story
            else:
                story = f"{name} does not answer"
            patience = max(cluster.stall_deadline, cluster.start_deadline if heard == begun else 0.0)
            if time.monotonic() - heard >= patience:
                raise RunError(
                    f"no progress for {time.monotonic() - heard:.0f} s (cluster.stall_deadline="
                    f"{cluster.stall_deadline:g} s): {story}"
                )
        ended: tuple[StageTally, int, ProcessCpu | None] = running.result()
        return ended


def _seen(call: asyncio.Future[Any]) -> None:
    """Look at the error of a call that nobody awaits any more: asyncio prints the others."""
    if not call.cancelled():
        call.exception()
