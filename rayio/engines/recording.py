"""The common part of the in-process engines: a bound on memory, and storage of spans during the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from rayio.errors import ScenarioError, StorageError
from rayio.model.engine import Outcome, Site
from rayio.model.plan import IN_FLIGHT_SHARE, Plan
from rayio.model.resuming import Keeper
from rayio.scenario.failures import BREAKING
from rayio.signals import uninterrupted
from rayio.trace.arrow import empty_table, to_ipc
from rayio.trace.parts import Parts
from rayio.trace.progress import Progress
from rayio.trace.recorder import Recorder


class Recording:
    """The recorder of this process; its spans go to the run directory during the run."""

    def __init__(self, plan: Plan, site: Site, outcome: Outcome) -> None:
        self.recorder = Recorder(resolution_ns=plan.trace.resolution_ns)
        self.outcome = outcome
        self.progress = Progress()
        self.parts = Parts(site.directory)
        self.keeper = Keeper(site.directory, plan.world_size)
        to_ipc(empty_table())  # imports Arrow now: during the run that would stop every role's clock

    def book(self, number: int, is_needed: bool) -> Collection[int] | None:
        """Have the resume file name a checkpoint; see ``rayio.model.attempts.Book``."""
        if self.keeper.must_write(number, is_needed=is_needed):
            self.look(is_due=True)
        return None if self.keeper.is_failing else self.keeper.named

    def look(self, *, is_due: bool = False) -> Mapping[str, Any]:
        """Store new spans, and with ``is_due`` the resume file too; return the sums so far."""
        with uninterrupted():
            table, is_due = self.recorder.drain(), is_due or self.keeper.is_due
            with suppress(StorageError):  # unwritten spans are kept, and written or reported at the end
                if table is not None:
                    self.progress.add(table)
                    self.parts.keep(table)
                if is_due:
                    self.keeper.write(self.parts.write)
        return self.progress.snapshot()

    def close(self) -> None:
        """Store the remaining spans.

        Raises:
            StorageError: they cannot be written; ``outcome.unstored`` has them.
        """
        self.outcome.recorded = self.recorder.recorded
        try:
            self.parts.keep(self.recorder.drain())
            self.parts.write(is_last=True)
            if self.keeper.is_new:
                self.keeper.write()
        except StorageError:
            self.outcome.unstored = self.parts.held()
            raise


def bounded(plan: Plan, kinds: Sequence[str] = BREAKING) -> Plan:
    """Return the plan with ``loader.max_bytes_in_flight: auto`` replaced by a share of free memory.

    ``kinds`` are those of failures that this engine carries out besides ranks and nodes; the default is the model's.

    Raises:
        ScenarioError: what workers keep of files does not fit, or a failure is possible on Ray only.
    """
    for line in () if plan.failures is None else plan.failures.killed_on_ray_only(*kinds):
        raise ScenarioError(line)
    if plan.modelled and not plan.payload:
        return plan
    free = psutil.virtual_memory().available // plan.cluster.nodes
    plan.check_memory(free)
    if not plan.payload:
        return plan
    return replace(plan, auto_bytes_in_flight=int(IN_FLIGHT_SHARE * free))


def on_ray_only(plan: Plan, engine: str) -> list[str]:
    """Return a note for each key that changes nothing if all roles share a process."""
    notes = []
    if plan.loader.worker == "thread":
        notes.append(f"loader.worker=thread: applies to Ray only; on the {engine} engine all roles share one process")
    if plan.failures is not None and plan.failures.rejoin:
        notes.append(f"failures.rejoin: applies to Ray only; on the {engine} engine failures.restart replaces a node")
    return notes
