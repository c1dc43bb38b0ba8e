"""The virtual engine: every role in this process, on the virtual clock (``rayio.engines.virtual.clock``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from rayio.engines.in_process import InProcess
from rayio.engines.recording import Recording, bounded, threads_note
from rayio.engines.virtual.clock import VirtualKernel
from rayio.kinds import LOADERS
from rayio.model.engine import Outcome, Site, Watch
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.processors import cores_of
from rayio.signals import cancelling, hold
from rayio.trace.recorder import Recorder

if TYPE_CHECKING:
    import pyarrow as pa

#: The kind of loader on the virtual clock, for every plan.
MODELLED = "actors"


def simulate(plan: Plan, recorder: Recorder, tallies: list[Tally], watch: Callable[[], None] | None = None) -> None:
    """Run a plan on the virtual clock, with consumption in ``tallies`` (one per rank). Storage is always modelled.

    ``watch`` is called about once a second of wall time.
    """
    kernel = VirtualKernel(watch)
    recorder.pid = 0
    with cancelling(kernel.cancel):
        cores = cores_of(kernel, plan.cluster, plan.costs.cpu)
        roles = InProcess(
            plan, kernel, recorder, tallies, costs=plan.costs, loader=LOADERS[MODELLED], cores=cores, clock=kernel,
        )  # fmt: skip
        kernel.run(roles.run())
        hold()


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
        self.outcome.notes += threads_note(plan, "virtual")
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
        simulate(self.plan, recording.recorder, self.outcome.tallies, lambda: watch(recording.look(), None))

    def close(self) -> None:
        """See ``rayio.model.engine.Engine``."""
        self._recording.close()
