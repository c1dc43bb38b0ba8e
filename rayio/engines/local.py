"""The local engine: every role in this process, on the wall clock; storage is real, or a model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

from rayio.engines.in_process import InProcess
from rayio.engines.recording import Recording, bounded, on_ray_only
from rayio.model import sighting
from rayio.model.attempts import Attempts, DeadError, Death, Resumed
from rayio.model.engine import Outcome, Site, Watch
from rayio.model.kernel import WallKernel
from rayio.model.ledger import Tally
from rayio.model.marks import Mark, Saved
from rayio.model.plan import Plan
from rayio.model.prefetch import PrefetchQueue
from rayio.model.queue_levels import levels_of
from rayio.model.standing import Vigil, silence
from rayio.model.wiring import check_loader, files_of, stalls_of
from rayio.reporter import SILENT
from rayio.scenario.failures import ENDING
from rayio.signals import cancelling, hold
from rayio.trace.recorder import Recorder

#: The kind of failure that kills this process.
DRIVER = "driver"


def run(
    plan: Plan,
    recorder: Recorder,
    root: str | Path,
    tallies: list[Tally],
    watch: Callable[[], None] | None = None,
    run_id: str = "local",
    say: Callable[[str], None] = SILENT.say,
    queues: list[PrefetchQueue] | None = None,
    attempts: Attempts | None = None,
    earlier: Resumed | None = None,
) -> list[str]:
    """Run a plan in this process on the wall clock; ``root`` is the base of the scenario's relative paths.

    ``watch`` is called about once a second. The scenario's ``costs`` are not added: this process has real overheads.
    Notes go to ``say`` and are returned. ``queues`` receives the prefetch queues. ``attempts`` has the restarts,
    ``earlier`` is the part of a run that broke off before.

    Raises:
        RunError: silence beyond the deadline, or a failure that the run does not survive.
        Exception: the first one of a task that nobody awaits.
    """
    from rayio.trace.otel.provider import Target, capture  # here, because simulations have no other libraries

    vigil, failures = Vigil(plan.cluster.stall_deadline, say, stalls_of(plan)), plan.failures

    lost: list[Exception] = []

    def unawaited(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep the error of a task that nobody awaits; report others, except the interrupt that ended the run."""
        if isinstance(error := context.get("exception"), Exception):
            lost.append(error)
        elif not isinstance(error, KeyboardInterrupt):
            loop.default_exception_handler(context)

    async def main() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        with cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
            await live()
            hold()

    lives = attempts or Attempts(plan, tallies, Saved(plan.world_size), kinds=(*ENDING, DRIVER))

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(unawaited)
        wanted = max(1, plan.loader.num_workers) * plan.world_size * plan.loader.working_threads
        has_tier = plan.checkpointing is not None and plan.checkpointing.burst is not None
        wanted += plan.num_writers * (1 + has_tier) + plan.workflow.most_at_once
        threads = min(wanted, 4 * (os.cpu_count() or 1) + 32)
        kernel = WallKernel(punctual=True, threads=threads)
        lives.start(kernel.now(), earlier)
        while (death := await attempt(kernel)) is not None:
            say(f"{death.name} died: emulated here by the end of all ranks (failures)")
            await asyncio.sleep(failures.detect if failures else 0.0)
            detected = kernel.now()
            lives.check(death)
            await asyncio.sleep(failures.restart if failures else 0.0)
            lives.restart(death, detected, kernel.now())
            kernel = WallKernel(kernel.anchor, punctual=True, threads=threads)

    async def attempt(kernel: WallKernel) -> Death | None:
        provider = None

        async def watching() -> None:
            looked = time.monotonic()
            while True:
                await asyncio.sleep(min(1.0, vigil.look_seconds))
                if watch is not None:
                    watch()
                if (now := time.monotonic()) - looked >= vigil.look_seconds:
                    looked = now
                    vigil.hear(silence(process.wiring.standing(), kernel.now(), files=files_of(plan)))

        async def dying(death: Death) -> None:
            await kernel.sleep_until(death.at)
            if death.kind == DRIVER:
                os.kill(os.getpid(), signal.SIGKILL)
            raise DeadError(death)

        if plan.trace.captures:
            writer = recorder.register("process", str(os.getpid()), 0)
            provider = capture(Target(recorder, writer, kernel.now, run_id, f"process-{os.getpid()}"))
        process = InProcess(
            lives.plan, kernel, recorder, tallies, root, saved=lives.saved, run_id=run_id, stages=lives.stages
        )
        if queues is not None:
            queues.clear()
            process.wiring.queues = queues
        tasks = [kernel.spawn(process.run(), "roles"), kernel.spawn(watching(), "watch")]
        if (death := lives.next_death()) is not None:
            tasks.append(kernel.spawn(dying(death), "failure"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in reversed(tasks):  # an error of the watch or a failure, before the end of the roles
                if task.done():
                    task.result()
        except DeadError as error:
            lives.record_begin(recorder)
            with suppress(TimeoutError):  # a rank's death ends no writer: what is durable becomes complete
                async with asyncio.timeout(plan.cluster.stall_deadline):
                    await process.completed()
            return error.death
        finally:
            if provider is not None:
                provider.target = None
            await kernel.cancel()
        return None

    try:
        with _beside_a_running_loop():
            asyncio.run(main())
    except asyncio.CancelledError:  # by a signal only
        raise KeyboardInterrupt from None
    if lost:
        raise lost[0]
    return vigil.notes


@contextmanager
def _beside_a_running_loop() -> Iterator[None]:
    """Allow another loop in a thread whose loop is running, such as a notebook's, which stands still meanwhile."""
    try:
        outer = asyncio.get_running_loop()
    except RuntimeError:  # there is none
        yield
        return
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.set_event_loop(outer)
        asyncio._set_running_loop(outer)


class LocalEngine:
    """An engine that runs a plan in this process, in real time."""

    is_virtual: ClassVar[bool] = False

    def __init__(self, plan: Plan, site: Site) -> None:
        self.plan = bounded(plan, (DRIVER,))
        self.site = site
        self.outcome = Outcome.of(plan)
        self.outcome.notes += on_ray_only(plan, "local")
        if (nodes := plan.cluster.all_nodes) > 1:
            self.outcome.notes.append(
                f"{nodes} nodes are emulated in one process: only in the model does each have a separate network "
                "interface (cluster.nic_bandwidth) and storage device (storage.model)"
            )
        self._recording = Recording(plan, site, self.outcome)

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """See ``rayio.model.engine.Engine``; nothing to share."""
        return nullcontext()

    def prepare(self) -> None:
        """See ``rayio.model.engine.Engine``; nothing to do."""
        check_loader(self.plan)

    def run(self, watch: Watch) -> None:
        """See ``rayio.model.engine.Engine``."""
        recording, began, queues = self._recording, time.monotonic(), list[PrefetchQueue]()

        def look() -> None:
            recording.keeper.remember(attempts.restarts)
            levels = levels_of(queues, outcome.tallies)
            watch({**recording.look(), "levels": levels}, time.monotonic() - began)

        plan, site, outcome = self.plan, self.site, self.outcome
        if not plan.modelled:
            outcome.meet([sighting.look(plan, site.root)], plan, site)

        def keep(mark: Mark) -> None:
            recording.keeper.keep(mark)
            recording.look()  # now, not within a second: the run may be killed before

        saved = Saved(plan.world_size, keep, recording.book)
        attempts = Attempts(plan, outcome.tallies, saved, kinds=(*ENDING, DRIVER))
        recording.keeper.stages = attempts.stages
        try:
            outcome.notes += run(
                plan, recording.recorder, site.root, outcome.tallies, look, site.run_id, site.reporter.say, queues,
                attempts, site.resumed,
            )  # fmt: skip
            outcome.notes += attempts.notes()
        finally:
            outcome.restarts, outcome.stages = attempts.restarts, attempts.stages.tallies
            recording.keeper.remember(attempts.restarts)
            if not plan.modelled:
                outcome.after = [sighting.look(plan, site.root)]

    def close(self) -> None:
        """See ``rayio.model.engine.Engine``."""
        self._recording.close()
