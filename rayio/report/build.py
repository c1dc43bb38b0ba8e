"""A run directory -> its report.html."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rayio import storage
from rayio.errors import RayioError, StorageError
from rayio.report.content import Content
from rayio.report.page import page
from rayio.reporter import SILENT, Reporter
from rayio.storage.address import is_path, join, last_part, parent, path_of, shown
from rayio.storage.stores.opening import with_option
from rayio.trace.run_directory import RunDirectory
from rayio.units import parse_seconds

NAME = "report.html"


class UnwrittenError(StorageError):
    """A report could not be written; the run itself is unchanged."""


def report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    window: tuple[float, float] | None = None,
    simulate: bool | None = None,
) -> Path:
    """Write the report of a run as an HTML file on this machine and return its path; see :func:`write`."""
    directory = RunDirectory.open(path)
    target = path_of(out) if out is not None else directory.path / NAME
    write(directory, target, window=window, simulate=simulate)
    return target


def write(
    directory: RunDirectory,
    out: str | Path | None = None,
    *,
    window: tuple[float, float] | None = None,
    simulate: bool | None = None,
    reporter: Reporter = SILENT,
) -> str:
    """Write the report of a run as an HTML file; return its address, by default ``report.html`` in the run directory.

    ``window`` is a stretch of the run, in seconds since its begin, that the timeline shows exactly. ``simulate``
    replays the run on the virtual clock, to show what would help; None does so where that takes a second or two.

    Raises:
        StorageError: no run is there, it cannot be read, or nothing of it can be shown any more and a report is there.
        UnwrittenError: the file cannot be written.
        ScenarioError: the run was over before the window begins.
    """
    target = str(out) if out is not None else join(directory.address, NAME)
    if out is not None and is_path(target) and os.path.isdir(path_of(target)):  # noqa: PTH112 (a name that no file can have is none)
        raise StorageError(f"--out {target} is a folder; name a file, such as {join(target, NAME)}")
    content = Content.of(directory, window, simulate, reporter)
    store = directory.store if out is None else storage.open(parent(target))
    trace = None if content.result is None else content.result.trace
    is_lost = bool(directory.lost_files or (trace is not None and trace.stored))
    if content.is_empty and is_lost and store.size(last_part(target)) is not None:
        raise StorageError(f"{target} stays as it is, there is nothing to show in its place: {content.trouble[-1]}")
    html = page(content).encode()
    try:
        if out is not None:
            store.prepare("writing there")
        store.write(last_part(target), lambda file: file.write(html), doing="writing the report")
    except StorageError as error:
        raise UnwrittenError(str(with_option(error, "cannot write", "--out"))) from None
    return target


def attempt(
    run: str | Path | RunDirectory,
    reporter: Reporter,
    out: str | Path | None = None,
    *,
    is_asked: bool = False,
    **how: Any,
) -> str | None:
    """Write a report (see :func:`write`) and print its address; return None where it cannot be written.

    A failure in the run directory is only printed: a run is complete without its page. It is an error where ``out`` or
    a window is given, or where nothing can be shown of a run whose report was requested (``is_asked``).

    Raises:
        RayioError: a file, a window or the report itself was requested, and cannot be written.
    """
    try:
        directory = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
        written = write(directory, out, reporter=reporter, **how)
        reporter.done()
        reporter.say(f"report: {shown(written)}")
        return written
    except RayioError as error:
        is_unread = is_asked and not isinstance(error, UnwrittenError)
        if out is not None or how.get("window") is not None or is_unread:
            raise
        reporter.failed(f"no report: {error}")
    except Exception as error:
        reporter.failed(f"no report, our fault: {type(error).__name__}: {error}")
    finally:
        reporter.done()
    return None


def stretch(text: str) -> tuple[float, float]:
    """Return a stretch of time in seconds: ``12s..15s``.

    Raises:
        ValueError: one sentence about what is wrong.
    """
    first, dots, last = text.partition("..")
    if not dots:
        raise ValueError(f"{text!r} is not FROM..TO, such as 12s..15s")
    begin, end = parse_seconds(first.strip()), parse_seconds(last.strip())
    if begin >= end:
        raise ValueError(f"{text!r} ends before it begins; write FROM..TO, such as 12s..15s")
    return begin, end
