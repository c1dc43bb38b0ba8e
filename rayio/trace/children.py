"""Processes that start during a run: spans of instrumented libraries in them join those of the run.

A child writes each span that ends as a line of JSON into a file of its own in the spool, a folder of the process that
started it, which takes the lines in. Nothing is held back: a child that is killed loses nothing, and it needs no
thread, no exit hook and no Arrow. Forks spool by themselves, other children through OpenTelemetry's own entry point
(``opentelemetry_tracer_provider``) and two environment variables. Whoever writes a file holds a lock on it: a file or
a folder whose lock is free is nobody's any more.
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
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from opentelemetry import trace

from rayio.trace.foreign import HERE
from rayio.trace.otel import NOWHERE, Target, TracerProvider
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide

#: A child begins another file when one has this many bytes; those that were read are removed.
FILE_BYTES = 4 << 20
#: What folders of spools are called, in the folder for temporary files.
PREFIX = "rayio-spool-"
#: Where OpenTelemetry's API looks for the provider of a new process, by which name and group it finds ours, and what
#: ours finds there.
PROVIDER, NAME, GROUP, SPOOL = "OTEL_PYTHON_TRACER_PROVIDER", "rayio", "opentelemetry_tracer_provider", "RAYIO_SPOOL"


class Spool(NamedTuple):
    """What a child has to know of the run, and of the process that started it."""

    folder: str
    run: str
    actor: str
    #: What to add to ``perf_counter_ns``, which a host's processes share.
    anchor: int

    def target(self) -> Target:
        """Give where the spans of this process, a child, go; the time keeps apart children with the same number."""
        stem = f"{os.getpid()}-{time.perf_counter_ns()}"
        sink = _Lines(Path(self.folder), stem)
        return Target(sink, 0, self.now, self.run, f"{self.actor}/process-{stem}")

    def now(self) -> int:
        """Give the run's time, in ns since the Unix epoch."""
        return self.anchor + time.perf_counter_ns()


class _Lines:
    """Takes a child's spans."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._files = self._room = 0
        self._file: int | None = None
        self._lock = threading.Lock()

    def add_wide(self, span: Wide) -> None:
        """Write a span; one that cannot be written is lost, for the child's own work goes on."""
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
        self._file = _held(self._folder / f"{self._stem}-{self._files}.jsonl")
        self._files, self._room = self._files + 1, FILE_BYTES


class Children:
    """The parent's side: has the processes that it starts spool what they record, and takes it in."""

    def __init__(self, provider: TracerProvider, target: Target, recorder: Recorder, node: int, anchor: int) -> None:
        global _joined
        self._recorder, self._node, self._pid = recorder, node, os.getpid()
        #: Bytes taken in of each file that is there.
        self._read: dict[str, int] = {}
        self._before: dict[str, str | None] = {}
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owner: int | None = _held(self.folder / "owner")
        spool = Spool(str(self.folder), target.run, target.actor, anchor)
        if os.environ.get(PROVIDER, NAME) == NAME and _is_installed():
            self._before = {name: os.environ.get(name) for name in (PROVIDER, SPOOL)}
            os.environ.update({PROVIDER: NAME, SPOOL: json.dumps(spool)})
        _joined = provider, spool

    def collect(self) -> None:
        """Record what the children have written since the last time."""
        if self._owner is None or os.getpid() != self._pid:  # closed; or a fork that came back to the parent's code
            return
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError):  # somebody cleans up behind us
                self._take(path)

    def _take(self, path: Path) -> None:
        is_over = not _is_held(path)  # before it is read, lest lines come in between
        before = self._read.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(before)
            lines, end, _ = file.read().rpartition(b"\n")
        self._read[path.name] = before + len(lines) + len(end)
        pid = int(path.name.partition("-")[0])
        writer = self._recorder.register("process", str(pid), self._node)
        for line in lines.splitlines():
            with suppress(ValueError):  # cut short where the disk was full
                name, start, stop, lane, parent, status, thread, said = json.loads(line)
                self._recorder.add_wide(
                    Wide(writer, name, start, stop, lane, NOWHERE, parent, status, thread, said, pid)
                )
        if is_over:
            path.unlink()
            del self._read[path.name]

    def close(self) -> None:
        """Record the last of it and leave nothing behind; what children do after that is not recorded."""
        global _joined
        if self._owner is None or os.getpid() != self._pid:
            return
        try:
            self.collect()
        finally:
            _joined = None
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            os.close(self._owner)
            self._owner = None
            shutil.rmtree(self.folder, ignore_errors=True)


def follow(provider: TracerProvider | None, recorder: Recorder, node: int, anchor: int) -> Children | None:
    """Begin to record the children of this process; None where nothing is captured, or no file can be written."""
    if provider is None or provider.target is None:
        return None
    try:
        return Children(provider, provider.target, recorder, node, anchor)
    except OSError:
        return None


def provider() -> trace.TracerProvider:
    """Give the provider of a new process that a run's process started: the entry point; elsewhere nothing is kept."""
    global _joined
    try:
        spool = Spool(*json.loads(os.environ[SPOOL]))
    except (KeyError, TypeError, ValueError):
        return trace.NoOpTracerProvider()
    ours = TracerProvider(spool.target())
    _joined = ours, spool
    return ours


#: The provider of this process and the spool of its children, while a run is recorded.
_joined: tuple[TracerProvider, Spool] | None = None


def _forked() -> None:
    """Turn to the spool in a fork: the recorder that it inherited is emptied by nobody, and its role is elsewhere."""
    if _joined is not None and _joined[0].target is not None:
        _joined[0].target = _joined[1].target()
        HERE.set(None)


os.register_at_fork(after_in_child=_forked)


def _is_installed() -> bool:
    """Say whether a new process would find our entry point: where it does not, OpenTelemetry raises an error."""
    try:
        points = metadata.distribution("rayio").entry_points
    except metadata.PackageNotFoundError:
        return False
    return any(point.group == GROUP and point.name == NAME for point in points)


def _held(path: Path) -> int:
    """Make a file that this process, and its forks, hold as long as they live; it has its name once it is held."""
    partial = path.with_suffix(".new")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    partial.rename(path)
    return file


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _sweep() -> None:
    """Remove the spools of processes that were killed."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/owner"):
        with suppress(OSError):  # another user's, or another sweeps
            if not _is_held(owner):
                shutil.rmtree(owner.parent, ignore_errors=True)
