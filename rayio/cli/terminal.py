"""Progress on standard error: a changing line on a terminal, elsewhere a line every 5 s."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayio.cli.output import raw
from rayio.cli.remaining import Remaining, words
from rayio.records.printed import escaped
from rayio.reporter import Reporter
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from rayio.records.answers import GeneratedDataset
    from rayio.records.running import Live

#: Seconds between two progress lines when the output is not a terminal.
PLAIN_SECONDS = 5.0
#: Columns of the turning sign before the progress on a terminal.
SPINNER = 2


@dataclass
class Detail:
    """How much a command tells besides its results: the options -v and -q, of this process."""

    is_verbose: bool = False
    is_quiet: bool = False
    #: Start of the command.
    began: float = field(default_factory=time.monotonic)

    def restart(self) -> None:
        """Begin a command: neither option is given yet."""
        self.is_verbose = self.is_quiet = False
        self.began = time.monotonic()


detail = Detail()


class Terminal(Reporter):
    """A receiver of progress that prints on standard error."""

    def __init__(self) -> None:
        self._console: Console | None = None
        self._status: Status | None = None
        self._printed = self._began = time.monotonic()
        self._looked = -PLAIN_SECONDS
        self._remaining = Remaining()
        #: Datasets that are finished.
        self.datasets: list[GeneratedDataset] = []

    def say(self, text: str) -> None:
        """Print a message, but not with -q."""
        if not detail.is_quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._print(f"warning: {text}")

    def failed(self, text: str) -> None:
        """Print where the records of a failed command are."""
        self._print(text)

    def _print(self, text: str) -> None:
        self.done()
        since = f"{time.monotonic() - detail.began:6.1f} s  " if detail.is_verbose else ""
        print(f"rayio: {since}{text}", file=sys.stderr, flush=True)

    def live(self, text: str, share: float | None = None) -> None:
        """Show progress, with an estimate of the remaining time."""
        now = time.monotonic()
        left = None if share is None else self._remaining.at(now, share)
        if detail.is_quiet:
            return
        if not sys.stderr.isatty():
            if now - self._printed >= PLAIN_SECONDS:
                self._printed = now
                line = fitted(text, left, None)
                print(f"rayio: {now - self._began:.0f} s  {line}", file=sys.stderr, flush=True)
            return
        from rich.text import Text

        if self._status is None or self._console is None:
            from rich.console import Console

            self._console = Console(file=raw(sys.stderr))
            self._status = self._console.status("")
            self._status.start()
        self._status.update(Text(fitted(escaped(text), left, self._console.width - SPINNER), no_wrap=True))

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
        self._remaining.restart()
        if self._status is not None:
            self._status.stop()
            self._status = None


def fitted(text: str, seconds: float | None, width: int | None) -> str:
    """Return a line of progress, with the remaining time if it is known, in at most ``width`` characters.

    The last parts of the text are left out first, then the remaining time.

    >>> fitted("3/9 runs · AU 0.9 · 3 MiB/s", 90, 38)
    '3/9 runs · AU 0.9 · about 1:30 left'
    """
    left = [] if seconds is None else [words(seconds)]
    parts = text.split(" · ")
    if width is None:
        return " · ".join([*parts, *left])
    while len(parts) > 1 and len(" · ".join([*parts, *left])) > width:
        parts.pop()
    for shown in ([*parts, *left], parts):
        if len(line := " · ".join(shown)) <= width:
            return line
    return f"{parts[0][: max(width - 1, 0)]}…"
