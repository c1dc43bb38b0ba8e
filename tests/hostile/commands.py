"""``rayio`` as a process with children, some of which are killed, stopped or signalled; and what must hold then."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil
from stories import KEPT, KILLS, SIGNALS, STOPS

from rayio.cli import _exit_code
from rayio.session import Run
from scenarios import latest

#: Guards against hanging; nothing is expected to take that long.
PATIENCE = 180.0
#: A run on Ray with every kind of actor: two ranks, four readers, checkpoints, a barrier.
ON_RAY = (
    "run", "unet3d-small", "dataset.num_files=56", "dataset.sample_bytes=20 kB", "loader.num_workers=2",
    "loader.batch_size=7", "train.compute=30 ms", "train.epochs=60", "checkpoint.every={steps: 20}",
    "checkpoint.model.bytes=4 MB", "--out", "r",
)  # fmt: skip
#: As actors are called in the list of processes, by role.
TITLES = {
    "reader": "ray::Reader", "queue": "ray::PrefetchQueue", "rank": "ray::TrainerRank",
    "checkpoint_writer": "ray::CheckpointWriter", "barrier": "ray::BarrierActor", "storage": "ray::StorageServer",
    "network": "ray::LayerServer", "collector": "ray::Collector", "gcs": "gcs_server", "raylet": "raylet/raylet",
    "dashboard_agent": "ray::DashboardAgent", "runtime_env_agent": "ray::RuntimeEnvAgent",
}  # fmt: skip


class Command:
    """One command and its processes. ``home`` is its HOME and working directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.temporary = Path(tempfile.mkdtemp(prefix="rayio-h-"))  # Ray's sockets have short paths
        self.said = ""
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str]
        #: Every process that was ever seen of it.
        self._seen: set[psutil.Process] = set()
        #: What was done to it, and whether its result was there (tests/stories.py).
        self.did: Counter[str] = Counter()

    def begin(self, *arguments: str) -> None:
        """Begin it, as the leader of a process group."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "RAYIO_"))}
        own |= {"HOME": str(self.home), "RAY_TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        if self._process is not None:
            self._errors.close()
        self._errors = (self.home / "stderr.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rayio", *latest(*arguments)], cwd=self.home, env=own, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=self._errors, text=True, preexec_fn=_interruptible,
        )  # fmt: skip

    @property
    def process(self) -> psutil.Process:
        """The command itself."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        assert self._process is not None
        return self._process.poll() is not None

    def look(self) -> list[psutil.Process]:
        """Its processes that live now."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            found = self.process.children(recursive=True)
        self._seen.update(found)
        return found

    def errors(self) -> str:
        """What it has said on standard error so far."""
        return (self.home / "stderr.txt").read_text()

    def until(self, text: str) -> None:
        """Wait until it has said something."""
        self._wait(lambda: text in self.errors(), f"said {text!r}")

    def until_there(self, pattern: str) -> None:
        """Wait until a file is there."""
        self._wait(lambda: any(self.home.glob(pattern)), f"made {pattern}")

    def _wait(self, is_so: object, what: str) -> None:
        ends = time.monotonic() + PATIENCE
        while not is_so():  # type: ignore[operator]
            assert not self.is_over, f"ended before it {what}: {self.errors()}"
            assert time.monotonic() < ends, f"never {what}: {self.errors()}"
            self.look()
            time.sleep(0.02)

    def until_it_listens(self) -> None:
        """Wait until it handles SIGTERM: before that, Python itself is starting."""
        taken = 1 << (signal.SIGTERM - 1)

        def is_so() -> bool:
            if self.is_over:
                return True
            status = Path(f"/proc/{self.process.pid}/status").read_text()  # of one that is over, too: nobody has waited
            return bool(int(status.partition("SigCgt:")[2].split()[0], 16) & taken)

        self._wait(is_so, "listened")

    def find(self, role: str) -> psutil.Process:
        """The first process of a role."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            for process in self.look():
                with contextlib.suppress(psutil.Error):
                    if TITLES[role] in " ".join(process.cmdline()):
                        found.append(process)
            return bool(found)

        self._wait(is_there, f"had a {role}")
        return found[0]

    def send(self, number: signal.Signals, *, to_group: bool = False) -> None:
        """Send it a signal, or all of its process group: its Ray is in that, too."""
        self.look()
        self.did[SIGNALS] += 1
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.process.pid, number)

    def kill(self, role: str) -> None:
        """Kill the first process of a role."""
        self.find(role).kill()
        self.did[KILLS] += 1

    def stop(self, role: str) -> psutil.Process:
        """Stop the first process of a role, as SIGSTOP does."""
        found = self.find(role)
        found.suspend()
        self.did[STOPS] += 1
        return found

    def code(self) -> int:
        """Wait for its end; give its exit code."""
        assert self._process is not None
        ends = time.monotonic() + PATIENCE
        while not self.is_over:
            assert time.monotonic() < ends, f"has not ended: {self.errors()}"
            self.look()
            time.sleep(0.05)
        return self._process.returncode

    def end(self) -> None:
        """Leave nothing behind: what is left by now is killed, whatever the story came to."""
        self.look()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._errors.close()
        for process in self._seen:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def last_line(self) -> str:
        """The last line that it said, which is rayio's own; there is no traceback above it."""
        said = self.errors()
        assert "Traceback" not in said, said
        assert "our fault" not in said, said
        last = said.strip().splitlines()[-1]
        assert last.startswith("rayio: "), said
        return last

    def nothing_lives(self) -> None:
        """Make sure that all its processes end."""
        ends = time.monotonic() + PATIENCE
        while (alive := [said for one in self._seen if (said := _living(one))]) and time.monotonic() < ends:
            time.sleep(0.1)
        assert not alive

    def run(self, folder: str = "r", *, is_whole: bool = False) -> Run:
        """Its run: readable by every command, and with the books even where all was done."""
        run = Run.open(self.home / folder)
        result = run.result
        assert result.trace is not None
        assert result.trace.stored == len(run.spans())
        for arguments in (("report", "--no-html"), ("explain",), ("query",)):
            name, *options = arguments
            question = ["select count(*) from spans"] if name == "query" else []
            assert _quiet([name, str(self.home / folder), *options, *question]) == 0, arguments
        if is_whole:
            assert result.exit_code == 0
            assert result["ledger"]["even"] is True
            assert result.trace.recorded == result.trace.stored
        self.did[KEPT] += 1
        return run


def _living(process: psutil.Process) -> str:
    """The command line of a process; empty where it has ended, also where nobody has taken note of that."""
    with contextlib.suppress(psutil.Error):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline()) or process.name()
    return ""


def _interruptible() -> None:
    """Undo that a suite in the background has Ctrl-C ignored, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _quiet(arguments: Sequence[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = _exit_code(arguments)
    assert "Traceback" not in said.getvalue()
    return code
