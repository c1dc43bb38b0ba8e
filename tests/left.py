"""What a test must not leave behind: processes, threads, files in HOME, another working directory or environment."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Seconds that what is ending has to end, on a machine that is busy with other work.
GRACE = 60.0
#: Helpers that Python's multiprocessing keeps until the process ends.
KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def children() -> set[int]:
    """Find this process's own children, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none at all, which is quick to find out
        return set()
    try:  # where the kernel names them: looking through all processes of the machine takes thirty times as long
        named = [Path(task, "children").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for text in named for pid in text.split()}


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def running(pids: set[int]) -> bool:
    """Whether one of some processes has not ended; those of multiprocessing that have are forgotten."""
    multiprocessing.active_children()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            pass
    return False


@dataclass(frozen=True)
class Before:
    """What there was when a test began."""

    children: set[int]
    threads: set[threading.Thread]
    folder: str
    environment: dict[str, str]

    @staticmethod
    def look() -> Before:
        """Take it all down."""
        return Before(children(), {*threading.enumerate()}, os.getcwd(), dict(os.environ))  # noqa: PTH109

    def _started(self) -> set[int]:
        new = children() - self.children
        return {pid for pid in new if not any(kept in _said(pid) for kept in KEPT)}

    def left(self, home: Path) -> list[str]:
        """Say what is there now that was not, and put back what can be."""
        until = time.monotonic() + GRACE
        while running(new := self._started()) and time.monotonic() < until:
            time.sleep(0.01)
        found = [f"the process {_said(pid)}" for pid in new & self._started()]
        threads = [one for one in {*threading.enumerate()} - self.threads if not one.daemon]
        for thread in threads:
            thread.join(GRACE)  # one that is ending may end
        found += [f"the thread {one.name}" for one in threads if one.is_alive()]
        for path in home.iterdir():
            found.append(f"{path.name} in HOME")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if os.getcwd() != self.folder:  # noqa: PTH109
            found.append(f"the working directory {Path.cwd()}")
            os.chdir(self.folder)
        changed = {*dict(os.environ).items()} ^ {*self.environment.items()}
        names = {name for name, _ in changed} - {
            "PYTEST_CURRENT_TEST",
            "RAY_CLIENT_MODE",
        }  # importing Ray sets the latter
        return found + [f"the variable {name}" for name in sorted(names)]


def _said(pid: int) -> str:
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline())[:200]}"
    except psutil.Error:
        return str(pid)
