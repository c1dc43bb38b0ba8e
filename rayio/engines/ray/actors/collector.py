"""The collector: an actor next to the driver that receives all spans and writes the run directory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

from rayio.errors import RayioError, StorageError
from rayio.machine.processes import is_alive
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.ledger import Tally
from rayio.storage.stores.opening import Settings
from rayio.trace.arrow import empty_table, from_ipc, plain, to_ipc
from rayio.trace.clocks import Anchor, Clocks, Offset
from rayio.trace.recorder import Recorder

if TYPE_CHECKING:
    from rayio.engines.ray.actors.showing import Showing
    from rayio.model.attempts import Beginning
    from rayio.model.marks import Mark
    from rayio.model.queue_levels import Levels
    from rayio.model.workflow import Progress, StageTally
    from rayio.records.failures import Restart

#: An actor's name, its spans as Arrow IPC, and the number of spans that its process has recorded and sent.
Push = tuple[str, bytes, int]


class Collector:
    """Receiver of all actors' spans; it records births, and so deaths with their losses."""

    def __init__(
        self,
        run_directory: str,
        settings: Settings,
        anchor: Anchor,
        showing: Callable[[], Showing] | None = None,
        world_size: int = 1,
        driver: int | None = None,
    ) -> None:
        # Every actor imports the module of this class for its handle: the modules for the files of a run come here.
        from rayio.model.marks import Saved
        from rayio.model.resuming import Keeper
        from rayio.trace.parts import Parts
        from rayio.trace.progress import Progress
        from rayio.trace.run_directory import RunDirectory

        self._anchor = anchor.here()
        #: The driver's process and a time at which it existed (s); None if it cannot be seen from here.
        self._driver = (driver, now) if driver is not None and is_alive(driver, now := time.time()) else None
        #: Live state of the run; None if nobody needs it.
        self._showing = None if showing is None else showing()
        self._clocks = Clocks()
        self.directory = RunDirectory(run_directory, settings)
        self._sums = Progress()
        self._parts = Parts(self.directory)
        #: Time (ns) of the last span received from each actor.
        self._heard: dict[str, int] = {}
        self._restarts: list[dict[str, Any]] = []
        self._recorder = Recorder()
        #: Recorded spans of each living actor as of its last message, and of the dead.
        self._recorded: dict[str, int] = {}
        self._recorded_by_the_dead = 0
        #: By rank: number of changes of its queue's request for readers, and the latest.
        self._wishes: dict[int, tuple[int, int]] = {}
        #: The checkpoints of the run, as ranks report them.
        self._keeper = Keeper(self.directory, world_size)
        self._saved = Saved(world_size, self._keeper.keep)
        self._failure: RayioError | None = None
        #: The first error of an actor's task that nobody awaits.
        self._unawaited: BaseException | None = None
        #: True while a push is processed; true once this process was asked to end.
        self._is_busy = self._is_ending = False
        self._cpu = Stopwatch("collector")
        self._rehearse()
        signal.signal(signal.SIGTERM, self._end)

    def _rehearse(self) -> None:
        """Receive and write no spans: what that imports would take a processor from the roles while they work."""
        from rayio.trace import span_files

        table = from_ipc(to_ipc(empty_table()))
        self._sums.add(table)
        span_files.write(BytesIO(), table)

    def _end(self, number: int, frame: object) -> None:
        """Write the buffered spans when a job's processes are asked to end, and write at once from then on.

        The process stays: the driver fetches the rest while Ray lives.
        """
        self._is_ending = True
        if not self._is_busy:
            self._parts.write()

    def ready(self) -> dict[str, Any]:
        """Return the collector's entry of run.json, once it has started."""
        return {"name": "collector", "pid": os.getpid()}

    def die(self, pid: int) -> None:
        """End this process as a failure does, if it is the named one."""
        if pid == os.getpid():
            os.kill(pid, signal.SIGKILL)

    def now(self) -> int:
        """Return the run's time in ns since the Unix epoch."""
        return self._anchor.ns + time.perf_counter_ns()

    def met(self, boot_id: str, node: int, estimate: Offset | None, own_ns: int) -> int | None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return self._clocks.met(boot_id, node, estimate, own_ns)

    def wants_drift(self, boot_id: str) -> bool:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return self._clocks.wants_drift(boot_id)

    def drifted(self, boot_id: str, estimate: Offset) -> None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        self._clocks.drifted(boot_id, estimate)

    def alive(self, name: str) -> None:
        """Record that an actor without spans is alive."""
        self._heard[name] = self.now()

    def born(self, name: str, node: int, pid: int, now: int | None, restarted: bool) -> None:
        """Record an actor's start, now or at a time of the run's clock.

        After a restart, the time since its last message is a ``lost`` interval: unsent spans are gone, and other actors
        may have waited.
        """
        now = self.now() if now is None else now
        self._recorded_by_the_dead += self._recorded.pop(name, 0)
        if restarted:
            if self._showing is not None:
                self._showing.died(name)
            since = self._heard.get(name, now)
            self._restarts.append({"actor": name, "pid": pid, "at_ns": now, "silent_seconds": (now - since) / 1e9})
            role, _, index = name.partition("-")
            writer = self._recorder.register(role, index, node)
            self._recorder.add(writer, "lost", since, now, 1, status="lost")
            self._parts.keep(self._recorder.drain())
        self._heard[name] = now

    def saved(self, number: int, tally: Tally | None, in_burst: bool = False, push: Push | None = None) -> None:
        """Record that a rank has passed a checkpoint and its part is durable; see ``rayio.model.attempts.Saved``.

        The spans of its actor until then come first.
        """
        if push is not None:
            self.push(*push)
        self._saved.add(number, tally, in_burst)

    def stages(self, progress: Progress) -> None:
        """Record what the processes of stages did before this part of the run."""
        self._keeper.stages = progress

    def staged(self, stage: int, process: int, tally: StageTally, began: list[int | None]) -> None:
        """Record the end of a stage's process, and when each stage began."""
        if (progress := self._keeper.stages) is not None:
            progress.end(stage, process, tally)
            progress.began = began

    def booked(self, number: int, is_needed: bool) -> Collection[int] | None:
        """Have the resume file name a checkpoint; see ``rayio.model.attempts.Book``.

        Actors outlive a killed driver for seconds, in which the run may be resumed: then all checkpoints stay.
        """
        if self._driver is not None and not is_alive(*self._driver):
            return None
        if self._keeper.must_write(number, is_needed=is_needed):
            self._write_books()
        return None if self._keeper.is_failing else self._keeper.named

    def began(self, beginning: Beginning) -> None:
        """Record the begin of an attempt that a failure ended."""
        beginning.record(self._recorder)
        self._parts.keep(self._recorder.drain())

    def resumed(self, mark: Mark | None, durable: Mark | None) -> None:
        """Record where a run that broke off goes on; see ``rayio.model.marks.Saved``."""
        self._saved.resume(mark, durable)

    def newest_checkpoint(self, is_tier_lost: bool) -> Mark | None:
        """Return the newest complete checkpoint; the attempt that left others incomplete is over."""
        self._saved.forget_partial()
        return self._saved.survivor(is_tier_lost=is_tier_lost)

    def remember(self, restarts: Sequence[Restart]) -> None:
        """Record the restarts of all ranks, for a run that breaks off."""
        self._keeper.remember(restarts)

    def last_heard(self, name: str) -> int:
        """Return the time of the last span that an actor sent, or of its start (ns); now if it never did."""
        return self._heard.get(name) or self.now()

    def wish(self, rank: int, workers: int) -> None:
        """Record a rank's requested number of readers, for the driver."""
        number, _ = self._wishes.get(rank, (0, 0))
        self._wishes[rank] = number + 1, workers

    def lived(self, number: int, requested: int, up: int | None, gone: int) -> None:
        """Record the life of a node for readers (ns), as the driver observed it."""
        from rayio.model.pool import record_node

        record_node(self._recorder, number, requested, up, gone)
        self._parts.keep(self._recorder.drain())

    def spent(self) -> tuple[int, ProcessCpu | None]:
        """Return the CPU time of its work, as a role's ``flush`` does; its spans count elsewhere."""
        return 0, self._cpu.read()

    def push(self, name: str, message: bytes, recorded: int) -> None:
        """Receive an actor's spans as Arrow IPC, and the number of spans that its process has recorded and sent."""
        self._cpu.begin()
        self._recorded[name] = recorded
        if self._failure is not None:
            return
        table = from_ipc(message)
        ends = plain(table["start_ns"]) + plain(table["duration_ns"])
        self._heard[name] = max(self._heard.get(name, 0), int(ends.max(initial=0)))
        self._sums.add(table)
        if self._showing is not None:
            self._showing.add(table)
        self._is_busy = True
        try:
            self._parts.keep(table)
            if self._is_ending:
                self._parts.write()
        except RayioError as error:  # nobody waits for this call: raised in the driver's next one
            self._failure = error
        finally:
            self._is_busy = False

    def failed(self, error: BaseException) -> None:
        """Record an error of an actor's task that nobody awaits; the driver raises the first one."""
        self._unawaited = self._unawaited or error

    def level(self, name: str, levels: Levels) -> None:
        """Record the levels of an actor's queues and the consumption of its ranks."""
        if self._showing is not None:
            self._showing.level(name, levels)

    def progress(self, is_last: bool = False) -> dict[str, Any]:
        """Return the sums so far, restarts, the error that fails the run, and the live state if it is recorded.

        Raises:
            StorageError: spans could not be written.
        """
        if self._failure is not None:
            raise self._failure
        if self._keeper.is_due:
            self._write_books()
        sums = {
            **self._sums.snapshot(), "restarts": list(self._restarts), "stored": self._parts.stored,
            "wishes": self._wishes, "error": self._unawaited,
        }  # fmt: skip
        return sums if self._showing is None else self._showing.look(sums, self.now(), is_last=is_last)

    def _write_books(self) -> None:
        """Write the spans, then the resume file: a checkpoint that is named there has all spans before it."""
        with suppress(StorageError):
            self._keeper.write(self._parts.write)

    def finish(self) -> dict[str, Any]:
        """Write the remaining spans; all received spans are on disk on return.

        ``recorded`` counts the spans that every process had recorded as of its last message; ``clocks`` has the clocks
        of emulated nodes on other hosts.
        """
        self._parts.write(is_last=True)
        if self._keeper.is_new:
            self._keeper.write()
        self.directory.close()
        recorded = sum(self._recorded.values()) + self._recorded_by_the_dead + self._recorder.recorded
        return {**self.progress(is_last=True), "recorded": recorded, "clocks": self._clocks.of_node}
