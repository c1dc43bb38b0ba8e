"""A folder through which processes of a run hand their spans to one that has a recorder.

A writer puts each span that ends as a line of JSON into a file of its own. Nothing is held back: one that is killed
loses nothing, and it needs no thread, no exit hook and no Arrow. Whoever uses a folder holds a lock on a file in it: a
file or a folder whose locks are free is nobody's any more.
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

#: A writer begins another file when one has this many bytes; those that were read are removed.
FILE_BYTES = 4 << 20
#: What folders of spools are called, in the folder for temporary files; files that say that theirs is in use.
PREFIX, HELD = "rayio-spool-", ".held"


class Spool(NamedTuple):
    """What a writer has to know of the run, and of the process that reads."""

    folder: str
    run: str
    actor: str
    #: What to add to ``perf_counter_ns``, which a host's processes share.
    anchor: int

    def target(self) -> Target:
        """Where the spans of this process, a writer, go; the time keeps apart those with the same number."""
        stem = f"{os.getpid()}-{time.perf_counter_ns()}"
        sink = _Lines(Path(self.folder), stem)
        return Target(sink, 0, self.now, self.run, f"{self.actor}/process-{stem}")

    def now(self) -> int:
        """The run's time, in ns since the Unix epoch."""
        return self.anchor + time.perf_counter_ns()


class _Lines:
    """Takes a writer's spans."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._files = self._room = 0
        self._file: int | None = None
        self._lock = threading.Lock()

    def add_wide(self, span: Wide) -> None:
        """Write a span; one that cannot be written is lost, for the process's own work goes on."""
        with suppress(OSError, TypeError, ValueError):
            said = span.attributes if isinstance(span.attributes, str) else span.attributes()
            times = int(span.start_ns), int(span.end_ns)
            line = json.dumps([span.name, *times, span.lane, span.parent, span.status, span.thread, said]).encode()
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
    """Records what the processes of a spool have written, each line once.

    Where ``positions`` is given, it says how far each file has been read, so that another process can go on. It is
    written before the lines are recorded: who is killed in between has lost them, and nobody has them twice.
    """

    def __init__(self, folder: Path, recorder: Recorder, node: int, positions: Path | None = None) -> None:
        self.folder = folder
        self._recorder, self._node, self._positions = recorder, node, positions
        #: Bytes taken in of each file that is there.
        self._read: dict[str, int] = {}
        if positions is not None:
            with suppress(OSError, ValueError):  # nobody has read before
                self._read = json.loads(positions.read_text())

    def collect(self) -> None:
        """Record what was written since the last time, and remove the files that nobody writes any more."""
        news: list[tuple[str, list[bytes]]] = []
        over: list[Path] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError):  # somebody cleans up behind us
                is_over = not is_held(path)  # before it is read, lest lines come in between
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
            with suppress(ValueError):  # cut short where the disk was full
                name, start, stop, lane, parent, status, thread, said = json.loads(line)
                span = Wide(writer, name, start, stop, lane, NOWHERE, parent, status, thread, said, int(pid))
                self._recorder.add_wide(span)


def held(path: Path) -> int:
    """Make a file that this process, and its forks, hold as long as they live; it has its name once it is held."""
    partial = path.with_suffix(".new")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    partial.rename(path)
    return file


def is_held(path: Path) -> bool:
    """Say whether a process that holds this file lives."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def sweep() -> None:
    """Remove the spools of processes that were killed; one in which no file was ever held is only being made."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or another sweeps
            users = [path for path in folder.iterdir() if path.suffix in (HELD, ".jsonl")]
            if users and not any(map(is_held, users)):
                shutil.rmtree(folder, ignore_errors=True)
