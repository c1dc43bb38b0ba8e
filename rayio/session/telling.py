"""How far a run is, told while it goes: to the reporter, and in ``live.json`` of a run directory on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rayio.analyze.watching import Watched
from rayio.errors import StorageError
from rayio.records.running import STARTING, Live
from rayio.reporter import Reporter
from rayio.trace.clocks import boot_id
from rayio.trace.live_file import remove_live, write_live
from rayio.trace.run_directory import RunDirectory


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Telling:
    """Tells of one run from its begin to its end."""

    def __init__(
        self, directory: RunDirectory, reporter: Reporter, *, scenario: str, engine: str, ranks: int, planned_steps: int
    ) -> None:
        self.directory = directory
        self.reporter = reporter
        begun = Live(
            state=STARTING, run=directory.name, scenario=scenario, engine=engine, started=now(), updated=now(),
            pid=os.getpid(), boot_id=boot_id(), ranks=ranks, planned_steps=planned_steps, time={}, waits={},
        )  # fmt: skip
        self._watched = Watched(begun)

    @property
    def live(self) -> Live:
        """What was told last."""
        return self._watched.live

    def begin(self) -> None:
        """Tell that the run begins."""
        self._tell(self.live)

    def look(self, progress: Mapping[str, Any], seconds: float) -> None:
        """Tell how far it is."""
        self._tell(self._watched.look(progress, seconds, now()))

    def end(self) -> None:
        """Take away what the result takes the place of."""
        remove_live(self.directory)

    def _tell(self, live: Live) -> None:
        self.reporter.looked(live)
        with suppress(StorageError):  # a full disk is told of where it costs spans
            write_live(self.directory, live)
