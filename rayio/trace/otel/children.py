"""Processes that start during a run: spans of instrumented libraries in them join those of the run.

Children of a process write into a spool (``rayio.trace.otel.spool``) of that process, which takes the lines in: forks
by themselves, other children through OpenTelemetry's own entry point (``opentelemetry_tracer_provider``) and two
environment variables.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from rayio.trace.otel.foreign import HERE
from rayio.trace.otel.provider import Target, TracerProvider
from rayio.trace.otel.spool import HELD, PREFIX, Intake, Spool, held, sweep
from rayio.trace.recorder import Recorder

#: Where OpenTelemetry's API looks for the provider of a new process, by which name and group it finds ours, and what
#: ours finds there.
PROVIDER, NAME, GROUP, SPOOL = "OTEL_PYTHON_TRACER_PROVIDER", "rayio", "opentelemetry_tracer_provider", "RAYIO_SPOOL"
#: What the entry point of that name must be: an installation from before this module was here has another.
ENTRY = f"{__name__}:provider"


class Children:
    """The parent's side: has the processes that it starts spool what they record, and takes it in."""

    def __init__(self, provider: TracerProvider, target: Target, recorder: Recorder, node: int, anchor: int) -> None:
        global _joined
        self._pid = os.getpid()
        self._before: dict[str, str | None] = {}
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._parent: int | None = held(self.folder / f"parent{HELD}")
        self._intake = Intake(self.folder, recorder, node)
        spool = Spool(str(self.folder), target.run, target.actor, anchor)
        #: Whether new programs may be told of our provider: they would find it, and the user has chosen no other.
        self.is_told = os.environ.get(PROVIDER, NAME) == NAME and _is_installed()
        if self.is_told:
            self._before = {name: os.environ.get(name) for name in (PROVIDER, SPOOL)}
            os.environ.update({PROVIDER: NAME, SPOOL: json.dumps(spool)})
        _joined = provider, spool

    def collect(self) -> None:
        """Record what the children have written since the last time."""
        if self._parent is None or os.getpid() != self._pid:  # closed; or a fork that came back to the parent's code
            return
        self._intake.collect()

    def close(self) -> None:
        """Record the last of it and leave nothing behind; what children do after that is not recorded."""
        global _joined
        if self._parent is None or os.getpid() != self._pid:
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
            os.close(self._parent)
            self._parent = None
            shutil.rmtree(self.folder, ignore_errors=True)


def follow(provider: TracerProvider | None, recorder: Recorder, node: int, anchor: int) -> Children | None:
    """Begin to record the children of this process; None where nothing is captured, or no file can be written."""
    if provider is None or provider.target is None:
        return None
    try:
        return Children(provider, provider.target, recorder, node, anchor)
    except OSError:
        return None


def provider() -> TracerProvider:
    """The provider of a new process: the entry point. One that is no child of a run keeps nothing yet."""
    global _joined
    try:
        spool = Spool(*json.loads(os.environ[SPOOL]))
    except (KeyError, TypeError, ValueError):
        return TracerProvider()  # which a run that begins here makes its own
    ours = TracerProvider(spool.target())
    _joined = ours, spool
    return ours


#: The provider of this process and the spool of its children, while a run is recorded.
_joined: tuple[TracerProvider, Spool] | None = None


def _forked() -> None:
    """Turn to the spool in a fork: the recorder that it inherited is emptied by nobody, and its role is elsewhere."""
    if _joined is not None and _joined[0].target is not None:
        _joined[0].target.is_of_parent = True
        _joined[0].target = _joined[1].target()
        HERE.set(None)


os.register_at_fork(after_in_child=_forked)


def _is_installed() -> bool:
    """Whether a new process would find our entry point; where it does not, OpenTelemetry raises an error."""
    try:
        points = metadata.distribution("rayio").entry_points
    except metadata.PackageNotFoundError:
        return False
    return any((point.group, point.name, point.value) == (GROUP, NAME, ENTRY) for point in points)
