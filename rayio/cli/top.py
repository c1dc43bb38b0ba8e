"""The command top."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson
from rayio.cli.fitting import columns, fit
from rayio.cli.grouped import LOOK
from rayio.cli.jobs import VARIABLES, Dashboard, dashboard
from rayio.cli.output import end_with_reader, only_json, print_json, raw
from rayio.records.printed import escaped

if TYPE_CHECKING:
    from rayio.records.running import Live

#: Seconds between two reads of a run directory, and of a job.
RUN_SECONDS, JOB_SECONDS = 1.0, 3.0
#: Seconds between two lines when the output is not a terminal.
LINE_SECONDS = 5.0

#: Control sequences: enter and leave the alternate screen, go to its upper left corner, clear the rest of a line.
_ENTER, _LEAVE, _HOME, _REST = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[K\n"


def top(
    what: Annotated[
        str,
        typer.Argument(help="A run directory, or a job's id.", metavar="RUN|JOB", autocompletion=completion.runs),
    ],
    address: Dashboard = None,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's progress: AU, throughput, queues, workers.

    It ends with the run, or with q. When the output is not a terminal, it prints a line every 5 seconds; with --json,
    the line is JSON.

    Example:  rayio top runs/four
    """
    end_with_reader()
    with only_json(as_json):
        look, seconds = _looking(what, address)
        live = look()
    if once or _is_over(live):
        _print(live, as_json=as_json)
    elif as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _lines(live, look, seconds, as_json=as_json)
    else:
        _print(_screen(live, look, seconds), as_json=False)


def add_to(app: typer.Typer) -> None:
    """Register this command."""
    app.command(rich_help_panel=LOOK)(top)


def _looking(what: str, address: str | None) -> tuple[Callable[[], Live], float]:
    """Return a function that reads the progress of a run or job, and the seconds between two calls."""
    from rayio.session.progress import look

    if Path(what).exists() or "/" in what or (address is None and not any(map(os.environ.get, VARIABLES))):
        if not Path(what).exists() and "/" not in what:
            raise typer.BadParameter(
                f"{what} is not a run directory here; for a job, give its cluster: --address http://HEAD:8265"
            )
        return lambda: look(what), RUN_SECONDS
    from rayio.engines.ray.cluster.jobs import Jobs
    from rayio.remote.jobs import job_progress

    jobs = Jobs(dashboard(address))
    return lambda: job_progress.look(jobs, what), JOB_SECONDS


def _is_over(live: Live) -> bool:
    from rayio.records.running import GONE, OVER

    return live.state in (OVER, GONE)


def _print(live: Live, *, as_json: bool) -> None:
    from rayio.report.text.progress import block

    if as_json:
        print_json(live)
    else:
        print(fit(block(live), columns()), flush=True)


def _lines(live: Live, look: Callable[[], Live], seconds: float, *, as_json: bool) -> None:
    """Print a line every 5 s until the run is over."""
    from rayio.report.text.progress import line

    printed = float("-inf")
    while True:
        if _is_over(live) or time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            print(json.dumps(live.as_json(), ensure_ascii=False) if as_json else line(live), flush=True)
        if _is_over(live):
            return
        select.select([], [], [], seconds)
        live = look()


def _screen(live: Live, look: Callable[[], Live], seconds: float) -> Live:
    """Show the run on the whole terminal until it is over or q is pressed; return the last progress."""
    from rayio.report.text.progress import block

    with _keys() as pressed:
        while True:
            text = escaped(fit(block(live), columns()))
            raw(sys.stdout).write(_HOME + text.replace("\n", _REST) + _REST + "\x1b[J\n  q: end" + "\x1b[K")
            sys.stdout.flush()
            if _is_over(live) or pressed(seconds):
                return live
            live = look()


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Switch to the alternate screen and yield a function that returns True if q is pressed within some seconds."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> bool:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and select.select([terminal], [], [], left)[0]:
            key = os.read(terminal, 1)
            if key in (b"q", b"Q", b""):
                return True
        return False

    try:
        tty.setcbreak(terminal)
        raw(sys.stdout).write(_ENTER)
        yield pressed
    finally:
        with suppress(OSError):
            raw(sys.stdout).write(_LEAVE)
            sys.stdout.flush()
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
