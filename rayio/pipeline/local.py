"""The local engine: every role in this process, on the wall clock; storage is real, or a model."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rayio.pipeline.engine import Outcome, Site, Watch
from rayio.pipeline.in_process import InProcess
from rayio.pipeline.kernel import WallKernel
from rayio.pipeline.ledger import Tally
from rayio.pipeline.plan import Plan
from rayio.pipeline.recording import Recording, bounded, threads_note
from rayio.pipeline.wiring import check_loader
from rayio.trace.recorder import Recorder


def run(
    plan: Plan,
    recorder: Recorder,
    root: str | Path,
    tallies: list[Tally],
    watch: Callable[[], None] | None = None,
    run_id: str = "local",
) -> None:
    """Run a plan in this process on the wall clock; ``root`` is what relative paths of the scenario start from.

    ``watch`` is called about once a second. The scenario's ``costs`` are not spent: this process has its own.
    """
    from rayio.otel import children  # here, for a simulation has no other libraries
    from rayio.otel.provider import Target, capture

    async def main() -> None:
        loader = plan.loader
        wanted = max(1, loader.num_workers) * plan.world_size * loader.io_depth + plan.num_writers
        kernel = WallKernel(threads=min(wanted, 4 * (os.cpu_count() or 1) + 32))
        provider = offspring = None

        async def watching() -> None:
            while True:
                await asyncio.sleep(1.0)
                if offspring is not None:
                    offspring.collect()
                if watch is not None:
                    watch()

        asyncio.get_running_loop().set_exception_handler(_unless_interrupted)
        kernel.spawn(watching(), "watch")
        if plan.trace.captures:
            writer = recorder.register("process", str(os.getpid()), 0)
            provider = capture(Target(recorder, writer, kernel.now, run_id, f"process-{os.getpid()}"))
            offspring = children.follow(provider, recorder, 0, kernel.anchor)
        try:
            await InProcess(plan, kernel, recorder, tallies, root).run()
        finally:
            if offspring is not None:
                offspring.close()
            if provider is not None:
                provider.target = None
            await kernel.cancel()

    asyncio.run(main())


def _unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report a task's error that nobody asked for, but not the interrupt that ended the run and was raised as such."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


class LocalEngine:
    """Runs a plan in this process, in real time."""

    is_virtual: ClassVar[bool] = False

    def __init__(self, plan: Plan, site: Site) -> None:
        self.plan = bounded(plan)
        self.site = site
        self.outcome = Outcome.of(plan)
        self.outcome.notes += threads_note(plan, "local")
        self._recording = Recording(plan, site, self.outcome)

    def prepare(self) -> None:
        """See ``rayio.pipeline.engine.Engine``: there is nothing to reach."""
        check_loader(self.plan)

    def run(self, watch: Watch) -> None:
        """See ``rayio.pipeline.engine.Engine``."""
        recording, began = self._recording, time.monotonic()

        def look() -> None:
            watch(recording.look(), time.monotonic() - began)

        run(self.plan, recording.recorder, self.site.root, self.outcome.tallies, look, self.site.run_id)

    def close(self) -> None:
        """See ``rayio.pipeline.engine.Engine``."""
        self._recording.close()
