"""Progress on standard error: a changing line on a terminal, elsewhere a line every 5 s."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from rayio.reporter import Reporter
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from rayio.records.answers import GeneratedDataset
    from rayio.records.running import Live

#: Seconds between two progress lines when the output is not a terminal.
PLAIN_SECONDS = 5.0
#: Seconds before the remaining time is estimated.
FIRST_SECONDS = 1.0


class Terminal(Reporter):
    """A receiver of progress that prints on standard error."""

    def __init__(self) -> None:
        self._console: Console | None = None
        self._status: Status | None = None
        self._printed = self._began = time.monotonic()
        self._looked = -PLAIN_SECONDS
        #: Start of the current part of the command, and the share done by then.
        self._since: tuple[float, float] | None = None
        #: Datasets that are finished.
        self.datasets: list[GeneratedDataset] = []

    def say(self, text: str) -> None:
        """Print a line."""
        self.done()
        print(f"rayio: {text}", file=sys.stderr, flush=True)

    def live(self, text: str, share: float | None = None) -> None:
        """Show progress, with an estimate of the remaining time."""
        now = time.monotonic()
        if share is not None:
            if self._since is None or share < self._since[1]:
                self._since = now, share
            text += left(now - self._since[0], self._since[1], share)
        if not sys.stderr.isatty():
            if now - self._printed >= PLAIN_SECONDS:
                self._printed = now
                print(f"rayio: {now - self._began:.0f} s  {text}", file=sys.stderr, flush=True)
            return
        if self._status is None:
            from rich.console import Console

            self._console = Console(stderr=True)
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)

    def progress(self, live: Live) -> None:
        """Print a run's progress every 5 s, for ``rayio top`` of its job."""
        from rayio.records.running import LIVE_LINE, LIVE_VARIABLE

        now = time.monotonic()
        if os.environ.get(LIVE_VARIABLE) and now - self._looked >= PLAIN_SECONDS:
            self._looked = now
            print(f"{LIVE_LINE}{json.dumps(live.as_json(), allow_nan=False)}", file=sys.stderr, flush=True)

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Show the progress of generating a dataset."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        self.live(
            f"generating: {files}/{of_files} files · {format_bytes(nbytes)} of about {format_bytes(of_bytes)} · "
            f"{format_bytes(nbytes / seconds)}/s",
            files / of_files if of_files else None,
        )

    def generated(self, path: str, written: tuple[int, int], reused: tuple[int, int]) -> None:
        """Record the finished dataset."""
        from rayio.records.answers import GeneratedDataset

        self.datasets.append(
            GeneratedDataset(
                path=path,
                written_files=written[0],
                written_bytes=written[1],
                reused_files=reused[0],
                reused_bytes=reused[1],
            )
        )

    def done(self) -> None:
        """Remove the changing line; the next part is timed from its start."""
        self._since = None
        if self._status is not None:
            self._status.stop()
            self._status = None


def left(gone: float, before: float, share: float) -> str:
    """Return text on the remaining time, at the pace of the last ``gone`` seconds.

    ``before`` is the share done before them, ``share`` the share done now (0 to 1).

    >>> left(30.0, 0.0, 0.25), left(30.0, 0.5, 0.75), left(0.2, 0.0, 0.25), left(9.0, 0.3, 0.3)
    (' · about 1:30 left', ' · about 0:30 left', '', '')
    """
    if gone < FIRST_SECONDS or not before < share <= 1:
        return ""
    minutes, seconds = divmod(round(gone / (share - before) * (1 - share)), 60)
    hours, minutes = divmod(minutes, 60)
    return f" · about {hours}:{minutes:02d}:{seconds:02d} left" if hours else f" · about {minutes}:{seconds:02d} left"
