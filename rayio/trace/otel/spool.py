"""A folder through which processes of a run pass their spans to a process with a recorder.

A writer appends each ended span as a line of JSON to a separate file, unbuffered: a killed one loses nothing, and it
needs no thread, exit hook or Arrow. Users of a folder hold a lock on a file in it: files and folders without locks are
abandoned.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rayio.files import replacing
from rayio.trace.otel.provider import NOWHERE, Target
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide

#: Size at which a writer starts another file; files are removed once read.
FILE_BYTES = 4 << 20
#: Prefix of spools in the folder for temporary files; suffix of files whose lock shows use.
PREFIX, HELD = "rayio-spool-", ".held"


class Spool(NamedTuple):
    """The parameters of a writer: the run and the reading process."""

    folder: str
    run: str
    actor: str
    #: The difference from ``perf_counter_ns`` to the run's time; processes of a host share it.
    anchor: int

    def target(self) -> Target:
        """Return the destination of this writer's spans; the time distinguishes reused process numbers."""
        stem = f"{os.getpid()}-{time.perf_counter_ns()}"
        sink = _Lines(Path(self.folder), stem)
        return Target(sink, 0, self.now, self.run, f"{self.actor}/process-{stem}")

    def now(self) -> int:
        """Return the run's time in ns since the Unix epoch."""
        return self.anchor + time.perf_counter_ns()


class _Lines:
    """A sink of a writer's spans."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._files = self._room = 0
        self._file: int | None = None
        self._lock = threading.Lock()

    def add_wide(self, span: Wide) -> None:
        """Write a span; a span that cannot be written is lost, and the process continues."""
        with suppress(OSError, TypeError, ValueError):
            extra = span.attributes if isinstance(span.attributes, str) else span.attributes()
            times = int(span.start_ns), int(span.end_ns)
            line = json.dumps([span.name, *times, span.lane, span.parent, span.status, span.thread, extra]).encode()
            with self._lock:
                if self._room <= 0:
                    self._begin()
                assert self._file is not None
                self._room -= os.write(self._file, line + b"\n")

    def _begin(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._file = held(self._folder / f"{self._stem}-{self._files}.jsonl")
        self._files, self._room = self._files + 1, FILE_BYTES


class Intake:
    """A reader that records the spans of a spool's processes, each line once.

    ``positions`` is a file with the read position of each file, for another process to continue. It is written before
    lines are recorded: after a kill in between they are lost, never repeated.
    """

    def __init__(self, folder: Path, recorder: Recorder, node: int, positions: Path | None = None) -> None:
        self.folder = folder
        self._recorder, self._node, self._positions = recorder, node, positions
        #: Bytes read of each present file.
        self._read: dict[str, int] = {}
        if positions is not None:
            with suppress(OSError, ValueError):  # first reader
                self._read = json.loads(positions.read_text())

    def collect(self) -> None:
        """Record new lines, and remove files without a writer."""
        news: list[tuple[str, list[bytes]]] = []
        over: list[Path] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError):  # another process removes files
                is_over = not is_held(path)  # tested before reading, because lines may follow
                if lines := self._lines(path):
                    news.append((path.name.partition("-")[0], lines))
                if is_over:
                    over.append(path)
        if news and self._positions is not None:
            with suppress(OSError), replacing(self._positions, self._positions.with_suffix(".new")) as partial:
                partial.write_text(json.dumps(self._read))
        for pid, lines in news:
            self._record(pid, lines)
        for path in over:
            with suppress(OSError):
                path.unlink()
            self._read.pop(path.name, None)

    def _lines(self, path: Path) -> list[bytes]:
        before = self._read.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(before)
            lines, end, _ = file.read().rpartition(b"\n")
        self._read[path.name] = before + len(lines) + len(end)
        return lines.splitlines()

    def _record(self, pid: str, lines: list[bytes]) -> None:
        writer = self._recorder.register("process", pid, self._node)
        for line in lines:
            with suppress(ValueError):  # truncated on a full disk
                name, start, stop, lane, parent, status, thread, attributes = json.loads(line)
                span = Wide(writer, name, start, stop, lane, NOWHERE, parent, status, thread, attributes, int(pid))
                self._recorder.add_wide(span)


def held(path: Path) -> int:
    """Create a file that this process and its forks lock while they live; the lock precedes the name."""
    partial = path.with_suffix(".new")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    partial.rename(path)
    return file


def is_held(path: Path) -> bool:
    """Return True while a process that locks this file lives."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def sweep() -> None:
    """Remove the spools of killed processes; one without any locked file is still being created."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or concurrently removed
            users = [path for path in folder.iterdir() if path.suffix in (HELD, ".jsonl")]
            if users and not any(map(is_held, users)):
                shutil.rmtree(folder, ignore_errors=True)
