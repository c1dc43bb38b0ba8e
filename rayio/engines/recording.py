"""What the engines of this process do alike around their roles: bound memory, and store the spans as they come."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from rayio.errors import StorageError
from rayio.model.engine import Outcome, Site
from rayio.model.plan import IN_FLIGHT_SHARE, Plan
from rayio.signals import uninterrupted
from rayio.trace.arrow import empty_table
from rayio.trace.parts import Parts
from rayio.trace.progress import Progress
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import to_ipc


class Recording:
    """The recorder of this process, emptied into the run directory while the roles live."""

    def __init__(self, plan: Plan, site: Site, outcome: Outcome) -> None:
        self.recorder = Recorder(resolution_ns=plan.trace.resolution_ns)
        self.outcome = outcome
        self.progress = Progress()
        self.parts = Parts(site.directory)
        to_ipc(empty_table())  # loads Arrow now: in the middle of a run it would stop every role's clock

    def look(self) -> Mapping[str, Any]:
        """Store what was recorded since the last look; give the sums so far."""
        with uninterrupted():
            table = self.recorder.drain()
            if table is not None:
                self.progress.add(table)
                with suppress(StorageError):  # what cannot be written now is held, and written or told of at the end
                    self.parts.keep(table)
        return self.progress.snapshot()

    def close(self) -> None:
        """Store the rest.

        Raises:
            StorageError: it could not be written; ``outcome.unstored`` has it.
        """
        self.outcome.recorded = self.recorder.recorded
        try:
            self.parts.keep(self.recorder.drain())
            self.parts.write(is_last=True)
        except StorageError:
            self.outcome.unstored = self.parts.held()
            raise


def bounded(plan: Plan) -> Plan:
    """Replace ``loader.max_bytes_in_flight: auto`` in the plan by a share of the memory that is free now."""
    if not plan.payload:
        return plan
    free = psutil.virtual_memory().available // plan.cluster.nodes
    return replace(plan, auto_bytes_in_flight=int(IN_FLIGHT_SHARE * free))


def threads_note(plan: Plan, engine: str) -> list[str]:
    """Say that ``loader.worker: thread`` changes nothing where all roles share a process."""
    if plan.loader.worker != "thread":
        return []
    return [f"loader.worker=thread: is for Ray; on the {engine} engine all roles share one process"]
