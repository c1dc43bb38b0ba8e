"""Processes started during a run: spans of instrumented libraries in them join the run.

Children write into a spool (``rayio.trace.otel.spool``) of their parent, which records the lines: forks directly, other
children through OpenTelemetry's entry point (``opentelemetry_tracer_provider``) and two environment variables.
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

#: OpenTelemetry's variable of a new process's provider, rayio's value for it, its entry-point group, and the variable
#: for rayio's provider there.
PROVIDER, NAME, GROUP, SPOOL = "OTEL_PYTHON_TRACER_PROVIDER", "rayio", "opentelemetry_tracer_provider", "RAYIO_SPOOL"
#: The expected entry point; an older installation has another.
ENTRY = f"{__name__}:provider"


class Children:
    """The parent's side: its children write spans into a spool, which it records."""

    def __init__(self, provider: TracerProvider, target: Target, recorder: Recorder, node: int, anchor: int) -> None:
        global _joined
        self._pid = os.getpid()
        self._before: dict[str, str | None] = {}
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._parent: int | None = held(self.folder / f"parent{HELD}")
        self._intake = Intake(self.folder, recorder, node)
        spool = Spool(str(self.folder), target.run, target.actor, anchor)
        #: True if new programs may use rayio's provider: they would find it, and the user has chosen no other.
        self.is_announced = os.environ.get(PROVIDER, NAME) == NAME and _is_installed()
        if self.is_announced:
            self._before = {name: os.environ.get(name) for name in (PROVIDER, SPOOL)}
            os.environ.update({PROVIDER: NAME, SPOOL: json.dumps(spool)})
        _joined = provider, spool

    def collect(self) -> None:
        """Record the children's new spans."""
        if self._parent is None or os.getpid() != self._pid:  # closed, or a fork in the parent's code
            return
        self._intake.collect()

    def close(self) -> None:
        """Record the last spans and remove the spool; later spans of children are lost."""
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
    """Record the children of this process; None if nothing is captured, or no file can be written."""
    if provider is None or provider.target is None:
        return None
    try:
        return Children(provider, provider.target, recorder, node, anchor)
    except OSError:
        return None


def provider() -> TracerProvider:
    """Return the provider of a new process: the entry point. Outside of runs it records nothing yet."""
    global _joined
    try:
        spool = Spool(*json.loads(os.environ[SPOOL]))
    except (KeyError, TypeError, ValueError):
        return TracerProvider()  # a run that begins here uses it
    ours = TracerProvider(spool.target())
    _joined = ours, spool
    return ours


#: The provider of this process and the spool of its children, during a recorded run.
_joined: tuple[TracerProvider, Spool] | None = None


def _forked() -> None:
    """Switch to the spool in a fork: its copy of the recorder is never drained, and its role is the parent's."""
    if _joined is not None and _joined[0].target is not None:
        _joined[0].target.is_of_parent = True
        _joined[0].target = _joined[1].target()
        HERE.set(None)


os.register_at_fork(after_in_child=_forked)


def _is_installed() -> bool:
    """Return True if a new process would find the entry point; otherwise OpenTelemetry raises an error there."""
    try:
        points = metadata.distribution("rayio").entry_points
    except metadata.PackageNotFoundError:
        return False
    return any((point.group, point.name, point.value) == (GROUP, NAME, ENTRY) for point in points)
