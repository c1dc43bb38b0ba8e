"""The virtual engine: every role in this process, on the virtual clock (``rayio.engines.virtual.clock``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from rayio.engines.in_process import InProcess
from rayio.engines.recording import Recording, bounded, on_ray_only
from rayio.engines.virtual.clock import VirtualKernel
from rayio.kinds import LOADERS
from rayio.model.attempts import Attempts, DeadError, Death
from rayio.model.engine import Outcome, Site, Watch
from rayio.model.ledger import Tally
from rayio.model.marks import Saved
from rayio.model.plan import Plan
from rayio.model.processors import cores_of
from rayio.scenario.failures import BREAKING, ENDING
from rayio.signals import cancelling, hold
from rayio.trace.recorder import Recorder

if TYPE_CHECKING:
    import pyarrow as pa

#: The kind of loader on the virtual clock, for every plan.
MODELLED = "actors"


class Doomsday:
    """An errand that ends the attempt at the time of a death."""

    def __init__(self, kernel: VirtualKernel, death: Death) -> None:
        self.kernel, self.death = kernel, death

    def send(self, value: None, /) -> int | None:
        """Sleep until the death, then raise DeadError."""
        if self.kernel.time < self.death.at:
            return self.death.at
        raise DeadError(self.death)


def simulate(plan: Plan, recorder: Recorder, tallies: list[Tally], watch: Callable[[], None] | None = None) -> Attempts:
    """Run a plan on the virtual clock, with consumption in ``tallies`` (one per rank). Storage is always modelled.

    ``watch`` is called about once a second of wall time. The answer has the restarts after ``failures``.
    """
    recorder.pid = 0
    attempts, failures = Attempts(plan, tallies, Saved(plan.world_size), kinds=(*ENDING, *BREAKING)), plan.failures
    watched = time.monotonic()
    while (death := _attempt(attempts, recorder, watch)) is not None:
        assert failures is not None
        detected = death.at + round(failures.detect * 1e9)
        attempts.restart(death, detected, detected + round(failures.restart * 1e9))
        if watch is not None and time.monotonic() - watched > 1.0:
            watch()
            watched = time.monotonic()
    return attempts


def _attempt(attempts: Attempts, recorder: Recorder, watch: Callable[[], None] | None) -> Death | None:
    """Run an attempt on a clock that begins with it; return the death that ended it, if one did."""
    kernel, plan = VirtualKernel(watch), attempts.plan
    kernel.time = attempts.begin
    if (death := attempts.next_death()) is not None:
        kernel.start(Doomsday(kernel, death))
    with cancelling(kernel.cancel):
        roles = InProcess(
            plan, kernel, recorder, attempts.tallies, costs=plan.costs, loader=LOADERS[MODELLED],
            cores=cores_of(kernel, plan.cluster, plan.costs.cpu), clock=kernel,
            saved=None if plan.failures is None else attempts.saved, stages=attempts.stages,
        )  # fmt: skip
        try:
            kernel.run(roles.run())
        except DeadError as error:
            attempts.record_begin(recorder)
            return error.death
        hold()
    return None


def spans_of(plan: Plan) -> pa.Table:
    """Return the spans of a plan run on the virtual clock; tracing is on even if the plan's level is none."""
    recorder = Recorder()
    simulate(plan, recorder, plan.tallies())
    spans = recorder.drain()
    assert spans is not None
    return spans


class VirtualEngine:
    """An engine that runs a plan on the virtual clock."""

    is_virtual: ClassVar[bool] = True

    def __init__(self, plan: Plan, site: Site) -> None:
        self.plan = bounded(plan)
        self.outcome = Outcome.of(plan)
        self.outcome.notes += on_ray_only(plan, "virtual")
        if (kind := plan.loader.kind) != MODELLED:
            self.outcome.notes.append(
                f"loader.kind={kind}: the virtual clock models loaders as kind {MODELLED}: with the same workers, "
                f"window and order, but without the overhead of {kind}"
            )
        self._recording = Recording(plan, site, self.outcome)

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """See ``rayio.model.engine.Engine``; nothing to share."""
        return nullcontext()

    def prepare(self) -> None:
        """See ``rayio.model.engine.Engine``; nothing to do."""

    def run(self, watch: Watch) -> None:
        """See ``rayio.model.engine.Engine``."""
        recording = self._recording
        attempts = simulate(self.plan, recording.recorder, self.outcome.tallies, lambda: watch(recording.look(), None))
        self.outcome.restarts, self.outcome.stages = attempts.restarts, attempts.stages.tallies
        self.outcome.notes += attempts.notes()

    def close(self) -> None:
        """See ``rayio.model.engine.Engine``."""
        self._recording.close()
