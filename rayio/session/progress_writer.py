"""Progress during a run: to the reporter, and to ``live.json`` of a run directory on this machine."""

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
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class ProgressWriter:
    """A writer of one run's progress."""

    def __init__(
        self,
        directory: RunDirectory,
        reporter: Reporter,
        *,
        scenario: str,
        engine: str,
        ranks: int,
        planned_steps: int,
        ranks_of_sample: int = 1,
    ) -> None:
        self.directory = directory
        self.reporter = reporter
        begun = Live(
            state=STARTING, run=directory.name, scenario=scenario, engine=engine, started=now(), updated=now(),
            pid=os.getpid(), boot_id=boot_id(), ranks=ranks, planned_steps=planned_steps, time={}, waits={},
            ranks_of_sample=ranks_of_sample,
        )  # fmt: skip
        self._watched = Watched(begun)

    @property
    def live(self) -> Live:
        """The last progress."""
        return self._watched.live

    def begin(self) -> None:
        """Write that the run starts."""
        self._write(self.live)

    def look(self, progress: Mapping[str, Any], seconds: float) -> None:
        """Write the run's progress after ``seconds``."""
        self._write(self._watched.look(progress, seconds, now()))

    def end(self) -> None:
        """Remove ``live.json``, which the result replaces."""
        remove_live(self.directory)

    def _write(self, live: Live) -> None:
        self.reporter.progress(live)
        with suppress(StorageError):  # a full disk is reported when spans are lost
            write_live(self.directory, live)
