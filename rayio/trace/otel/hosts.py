"""Spans of a run's processes that no process of ours has started: Ray's workers, which do tasks for a library.

Each of the run's hosts has one spool for them, in a folder whose name follows from the run, so that a new process finds
it by an environment variable alone. Every actor there shares it, and one of them, which has the lock, takes the lines
in. When that one is killed, the next that looks goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rayio.files import replacing
from rayio.trace.clocks import boot_id
from rayio.trace.otel.spool import HELD, PREFIX, Intake, Spool, held, sweep
from rayio.trace.recorder import Recorder

#: By which variable a process finds the spool of its run.
RUN = "RAYIO_RUN"


def name_of(run: str) -> str:
    """Name a run such that the name may be a file's, or a variable's, whatever the run is called."""
    return hashlib.blake2b(run.encode(), digest_size=12).hexdigest()


def find() -> Spool:
    """The spool of this process's run on its host.

    Raises:
        KeyError, OSError, ValueError: it is of no run, or of one that records nothing here.
    """
    folder = _folder(os.environ[RUN])
    _check(folder)
    spool, _ = json.loads((folder / "spool.json").read_text())
    return Spool(*spool)


def _folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{PREFIX}{name}-{boot_id()}"


def _check(folder: Path) -> None:
    """Refuse a folder that another user has put in our way: its name is no secret."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours")


class HostSpool:
    """One actor's share in the spool of its run and host; a fork has none.

    One that is not eager leaves the work to others as long as there are any: it takes nothing in before it collects.
    """

    def __init__(self, run: str, recorder: Recorder, node: int, anchor: int, is_eager: bool = True) -> None:
        sweep()
        self.folder = _folder(name_of(run))
        self.folder.mkdir(mode=0o700, exist_ok=True)
        _check(self.folder)
        self._recorder, self._lock = recorder, self.folder / "owner"
        stem = f"{os.getpid()}-{time.perf_counter_ns()}"
        #: What keeps the folder from being swept, and what the lock is tried on; empty once it is closed.
        self._files = [held(self.folder / f"{stem}{HELD}"), os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)]
        self._intake: Intake | None = None
        #: What all who write and read here need, as the first actor wrote it down.
        self._spool = self.folder / "spool.json"
        if not self._spool.exists():
            with replacing(self._spool, self.folder / f"{stem}.new") as partial:
                spool = Spool(str(self.folder), run, f"tasks-{boot_id()}", anchor)
                partial.write_text(json.dumps([spool, node]))
        if is_eager:
            self.is_owner()
        _shares.append(self)

    def is_owner(self) -> bool:
        """Say whether this actor takes the lines in; it does from the moment that nobody else does."""
        if self._intake is None and self._files:
            with suppress(OSError):  # another has the lock, or the folder is gone: the run has ended
                fcntl.flock(self._files[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._files[1]).st_ino == self._lock.stat().st_ino:
                    _, node = json.loads(self._spool.read_text())
                    self._intake = Intake(self.folder, self._recorder, node, self.folder / "read.json")
        return self._intake is not None

    def collect(self) -> None:
        """Record what was written since the last time, if nobody else does."""
        if self.is_owner() and self._intake is not None:
            self._intake.collect()

    def close(self) -> None:
        """Record the last of it, and leave nothing behind; what tasks do after that is not recorded."""
        try:
            self.collect()
        finally:
            if self._intake is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            self.leave()

    def leave(self) -> None:
        """Have no share any more."""
        for file in self._files:
            os.close(file)
        self._files, self._intake = [], None
        with suppress(ValueError):
            _shares.remove(self)


def share(run: str, recorder: Recorder, node: int, anchor: int, is_eager: bool = True) -> HostSpool | None:
    """Share in the spool of a run on this host; None where no file can be written."""
    try:
        return HostSpool(run, recorder, node, anchor, is_eager)
    except OSError:
        return None


#: What this process shares in.
_shares: list[HostSpool] = []


def _forked() -> None:
    """Have no share in a fork: locks are one with its parent's, and would outlive it."""
    for one in _shares[:]:
        one.leave()


os.register_at_fork(after_in_child=_forked)
