"""Stages of a workflow: the files of each process, when processes begin, and what they read and wrote.

Pure but for the conductor, which waits on a kernel. ``start`` runs a process: a role in this process, or an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.model.env_checkpoints import Shard
from rayio.model.kernel import Coro, Future, Kernel
from rayio.scenario.stages import Stage, StageFiles, partner
from rayio.storage.base import Served

#: The role of a process in spans, and the name of the actor that starts processes.
ROLE, CONDUCTOR = "stage", "stages"
#: In place of a rank in the address of latencies: that of the first stage; later ones have lower numbers.
FIRST = -2

Ints = NDArray[np.int64]


@dataclass(slots=True)
class StageTally:
    """The processes of a stage that ended, and their files, requests and bytes; or those that are planned."""

    processes: int = 0
    files_read: int = 0
    reads: int = 0
    read_bytes: int = 0
    files_written: int = 0
    writes: int = 0
    written_bytes: int = 0
    opens: int = 0

    def add(self, other: StageTally) -> None:
        """Add the numbers of another tally."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def read(self, served: Served[Any]) -> None:
        """Add a file that was read."""
        self.files_read += 1
        self.reads += served.requests
        self.read_bytes += served.nbytes

    def wrote(self, served: Served[None]) -> None:
        """Add a file that was written."""
        self.files_written += 1
        self.writes += served.requests
        self.written_bytes += served.nbytes


class Process(NamedTuple):
    """The work of one process: files to read from a folder, and a time before each file to write."""

    stage: int
    number: int
    #: The folder of the files to read, and of those to write.
    source: str
    folder: str
    reads: tuple[Shard, ...]
    writes: tuple[Shard, ...]
    #: Seconds of compute before each written file; without files, once.
    seconds: float
    #: Opens without a read or a write.
    opens: int = 0


@dataclass(frozen=True)
class Workflow:
    """The stages of a plan. Draws depend on ``seed``, the stage's name and the process alone."""

    #: Each with its folder.
    stages: tuple[Stage, ...] = ()
    seed: int = 0
    nodes: int = 1
    #: True if the run ends with its ranks: only what stages cost them is of interest.
    is_background: bool = False

    def __bool__(self) -> bool:
        return bool(self.stages)

    def number(self, name: str) -> int:
        """Return the number of a stage."""
        return next(number for number, stage in enumerate(self.stages) if stage.name == name)

    def node(self, number: int) -> int:
        """Return the node of a process: in turn over all nodes of ranks."""
        return number % self.nodes

    def process(self, stage: int, number: int) -> Process:
        """Return the work of a process."""
        of = self.stages[stage]
        parts = max(1, 0 if of.writes is None else of.writes.files)
        drawn = of.compute.draw(seeds.key(self.seed, f"stage/{of.name}/compute"), np.array([number], np.int64))
        source, reads = self._reads(stage, number)
        writes = self._writes(stage, number)
        return Process(stage, number, source, of.path or "", reads, writes, float(drawn[0]) / parts, of.opens)

    def _writes(self, stage: int, number: int) -> tuple[Shard, ...]:
        of = self.stages[stage]
        if of.writes is None:
            return ()
        return tuple(file._replace(fsync=of.writes.fsync) for file in self._files(of, of.writes, "out", number))

    def _reads(self, stage: int, number: int) -> tuple[str, tuple[Shard, ...]]:
        """Return the folder and the files that a process reads."""
        of = self.stages[stage]
        if of.reads is None:
            return "", ()
        request_bytes = of.reads.request_bytes
        if of.reads.of is None:
            assert of.reads.inputs is not None
            return of.path or "", tuple(self._files(of, of.reads.inputs, "in", number))
        other = self.number(of.reads.of)
        there = self._writes(other, partner(number, of.count, self.stages[other].count))
        files = (shard._replace(request_bytes=request_bytes or shard.num_bytes) for shard in there)
        return self.stages[other].path or "", tuple(files)

    def inputs(self, stage: int, number: int) -> tuple[Shard, ...]:
        """Return the input files of a process, which are generated before the run."""
        of = self.stages[stage]
        return () if of.reads is None or of.reads.of is not None else self._reads(stage, number)[1]

    def _files(self, stage: Stage, files: StageFiles, kind: str, number: int) -> Iterator[Shard]:
        first = number * files.files
        for place, size in enumerate(self._sizes(stage, files, kind, first, files.files).tolist()):
            request_bytes = files.requests(size)
            # An input file is written in requests of the same size as it is read.
            yield Shard(f"{kind}-{number:07}-{place}.bin", size, request_bytes, False, place, min(request_bytes, size))

    def _sizes(self, stage: Stage, files: StageFiles, kind: str, first: int, number: int) -> Ints:
        key = seeds.key(self.seed, f"stage/{stage.name}/{kind}")
        drawn = files.size.draw(key, np.arange(first, first + number, dtype=np.int64))
        sizes: Ints = np.maximum(1, np.rint(drawn)).astype(np.int64)
        return sizes

    def arrivals(self, stage: int) -> Ints:
        """Return the times at which the processes of a stage arrive, from its begin (ns)."""
        of = self.stages[stage]
        gaps = of.arrivals.draw(seeds.key(self.seed, f"stage/{of.name}/arrivals"), np.arange(of.count, dtype=np.int64))
        return np.concatenate([[0], np.cumsum(np.rint(gaps[:-1] * 1e9).astype(np.int64))])

    def planned(self) -> list[StageTally]:
        """Return the planned numbers of each stage."""
        return [self._planned(stage) for stage in self.stages]

    def _planned(self, stage: Stage) -> StageTally:
        tally = StageTally(stage.count, opens=stage.count * stage.opens)
        if stage.writes is not None:
            sizes = self._sizes(stage, stage.writes, "out", 0, stage.count * stage.writes.files)
            tally.files_written, tally.written_bytes = len(sizes), int(sizes.sum())
            tally.writes = _requests(sizes, stage.writes.request_bytes)
        if (reads := stage.reads) is None:
            return tally
        if reads.inputs is not None:
            sizes = self._sizes(stage, reads.inputs, "in", 0, stage.count * reads.inputs.files)
        else:
            other = self.stages[self.number(reads.of or "")]
            assert other.writes is not None
            partners = np.arange(stage.count, dtype=np.int64) * other.count // stage.count
            each = self._sizes(other, other.writes, "out", 0, other.count * other.writes.files)
            sizes = each.reshape(other.count, other.writes.files)[partners].ravel()
        tally.files_read, tally.read_bytes = len(sizes), int(sizes.sum())
        tally.reads = _requests(sizes, reads.request_bytes)
        return tally

    @property
    def most_at_once(self) -> int:
        """The most processes that can run at once."""
        return sum(min(stage.count, stage.at_once or stage.count) for stage in self.stages)


#: A workflow of nothing but training.
NO_STAGES = Workflow()


def _requests(sizes: Ints, request_bytes: int | None) -> int:
    return len(sizes) if request_bytes is None else int((-(-sizes // request_bytes)).sum())


class Progress:
    """A record of all attempts: what the processes of stages did, which ended, and when each stage began."""

    def __init__(self, workflow: Workflow) -> None:
        self.tallies = [StageTally() for _ in workflow.stages]
        self.ended: list[set[int]] = [set() for _ in workflow.stages]
        #: Time (ns) from which arrivals count; None before a stage begins.
        self.began: list[int | None] = [None for _ in workflow.stages]

    def end(self, stage: int, process: int, tally: StageTally) -> None:
        """Record the end of a process."""
        self.tallies[stage].add(tally)
        self.ended[stage].add(process)

    @property
    def number(self) -> int:
        """The number of processes that ended."""
        return sum(map(len, self.ended))

    def resume(self, earlier: Progress) -> None:
        """Begin with the record of a run that broke off."""
        self.tallies[:], self.ended[:], self.began[:] = earlier.tallies, earlier.ended, earlier.began

    def plain(self) -> list[dict[str, Any]]:
        """Return the record as plain data, an entry for each stage; processes as first and last numbers."""
        return [
            {"began": began, "ended": _ranges(ended), "tally": asdict(tally)}
            for began, ended, tally in zip(self.began, self.ended, self.tallies, strict=True)
        ]

    @classmethod
    def of_plain(cls, workflow: Workflow, entries: list[dict[str, Any]]) -> Progress:
        """Return a record from its plain data.

        Raises:
            ValueError, KeyError, TypeError: it is none of this workflow.
        """
        progress = cls(workflow)
        for number, (stage, entry) in enumerate(zip(workflow.stages, entries, strict=True)):
            progress.began[number] = None if entry["began"] is None else int(entry["began"])
            progress.tallies[number] = StageTally(**entry["tally"])
            ended = {process for first, last in entry["ended"] for process in range(first, last + 1)}
            if not ended <= {*range(stage.count)} or len(ended) != progress.tallies[number].processes:
                raise ValueError(f"stage {stage.name} has other processes")
            progress.ended[number] = ended
        return progress


def _ranges(numbers: Collection[int]) -> list[list[int]]:
    """Return whole numbers as ranges: first and last."""
    ranges = list[list[int]]()
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


class Conductor:
    """Starts the processes of all stages, each in its time, and adds up what they did.

    After a failure the processes that had not ended begin again, and those that had ended do not.

    Processes of a stage start in order: each once it has arrived, its partner in ``follows`` has ended, and fewer than
    ``at_once`` run. The first error of a process ends the workflow.
    """

    def __init__(
        self, workflow: Workflow, kernel: Kernel, start: Callable[[int, int], Coro[StageTally]], progress: Progress
    ) -> None:
        self.workflow, self.kernel, self.start, self.progress = workflow, kernel, start, progress
        names = [stage.name for stage in workflow.stages]
        #: Set when all processes of a stage have ended.
        self._over = {name: kernel.future(f"stage {name}") for name in names}
        #: Of each stage that another one follows: set when a process has ended.
        followed = {stage.follows for stage in workflow.stages}
        self._ended: dict[str, list[Future]] = {
            stage.name: [kernel.future(f"{stage.name}-{number}") for number in range(stage.count)]
            for stage in workflow.stages if stage.name in followed
        }  # fmt: skip
        self._running = dict.fromkeys(names, 0)
        #: A stage that waits for the end of one of its processes.
        self._room: dict[str, Future | None] = dict.fromkeys(names)
        self._fault = kernel.future("an error of a process")

    async def run(self) -> None:
        """Run all stages to their end.

        Raises:
            RayioError: a process failed.
        """
        await self.kernel.gather(self._all(), self._failed())

    async def _failed(self) -> None:
        await self._fault

    async def _all(self) -> None:
        await self.kernel.gather(*(self._stage(number) for number in range(len(self.workflow.stages))))
        self._fault.set_result(None)

    async def _stage(self, number: int) -> None:
        stage, kernel = self.workflow.stages[number], self.kernel
        for name in stage.after:
            await self._over[name]
        begin = self.progress.began[number]
        if begin is None:
            begin = self.progress.began[number] = kernel.now()
        ended = self.progress.ended[number]
        for process in ended if stage.name in self._ended else ():
            self._ended[stage.name][process].set_result(None)
        others = 0 if stage.follows is None else self.workflow.stages[self.workflow.number(stage.follows)].count
        for process, arrival in enumerate(self.workflow.arrivals(number).tolist()):
            if process in ended:
                continue
            await kernel.sleep_until(begin + arrival)
            if stage.follows is not None:
                await self._ended[stage.follows][partner(process, stage.count, others)]
            await self._until_below(stage.name, stage.at_once or stage.count)
            self._running[stage.name] += 1
            kernel.spawn(self._process(number, process), f"{stage.name}-{process}")
        await self._until_below(stage.name, 1)
        self._over[stage.name].set_result(None)

    async def _until_below(self, name: str, limit: int) -> None:
        """Wait until fewer than ``limit`` processes of a stage run."""
        while self._running[name] >= limit:
            room = self._room[name] = self.kernel.future(f"a process of {name} to end")
            await room

    async def _process(self, number: int, process: int) -> None:
        name = self.workflow.stages[number].name
        try:
            tally = await self.start(number, process)
        except Exception as error:  # raised by run, whatever the other processes do
            if not self._fault.done():
                self._fault.set_exception(error)
            return
        self.progress.end(number, process, tally)
        self._running[name] -= 1
        if name in self._ended:
            self._ended[name][process].set_result(None)
        if (room := self._room[name]) is not None:
            self._room[name] = None
            room.set_result(None)
