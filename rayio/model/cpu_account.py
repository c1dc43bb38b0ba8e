"""CPU time of a run by role, as its processes report it at their end, summed for run.json."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from rayio.machine.cpu_time import cpu_seconds_of
from rayio.machine.timers import Punctual


@dataclass(slots=True)
class StageCpu:
    """CPU seconds of reads, or of decoding, with samples and bytes: sums for a least-squares line."""

    batches: int = 0
    samples: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    samples_samples: float = 0.0
    samples_bytes: float = 0.0
    bytes_bytes: float = 0.0
    samples_seconds: float = 0.0
    bytes_seconds: float = 0.0

    def add(self, num_samples: int, nbytes: int, seconds: float) -> None:
        """Add a batch: its samples, their bytes, and the CPU seconds that they took."""
        samples, size = float(num_samples), float(nbytes)
        self.batches += 1
        self.samples += samples
        self.bytes += size
        self.seconds += seconds
        self.samples_samples += samples * samples
        self.samples_bytes += samples * size
        self.bytes_bytes += size * size
        self.samples_seconds += samples * seconds
        self.bytes_seconds += size * seconds

    def join(self, other: StageCpu) -> None:
        """Add the sums of another one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ProcessCpu(NamedTuple):
    """CPU time of a process from ready to end, and of Ray's process on its node."""

    role: str
    seconds: float
    wall_seconds: float
    node: str
    node_seconds: float | None
    reads: StageCpu
    decodes: StageCpu
    #: Other processes that this one speaks for.
    children: tuple[ProcessCpu, ...] = ()


class Starts:
    """CPU time of this process in which loaders start: imports and new processes. No batch takes it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the CPU time that this thread uses meanwhile."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began


class Stopwatch:
    """A measurement of this process's CPU time from its first work on.

    With a node's name it includes the parent's, on Ray the node's raylet. Excluded are the spinning of a ``punctual``
    role and ``aside``, seconds that no batch takes. ``children`` returns other processes that this one speaks for.
    """

    def __init__(
        self,
        role: str,
        node: str = "",
        reads: StageCpu | None = None,
        decodes: StageCpu | None = None,
        punctual: Punctual | None = None,
        aside: Callable[[], float] = lambda: 0.0,
        children: Callable[[], Iterable[ProcessCpu]] = tuple,
    ) -> None:
        self.role = role
        self._punctual, self._aside, self._children = punctual, aside, children
        self.node = node
        self.reads, self.decodes = reads or StageCpu(), decodes or StageCpu()
        self._since: tuple[float, float, float | None] | None = None

    def begin(self) -> None:
        """Start with the first call of work; later calls have no effect."""
        if self._since is None:
            self._since = self._now()

    def _now(self) -> tuple[float, float, float | None]:
        awake = self._aside() + (0.0 if self._punctual is None else self._punctual.awake_ns / 1e9)
        return time.process_time() - awake, time.monotonic(), cpu_seconds_of(os.getppid()) if self.node else None

    def read(self) -> ProcessCpu | None:
        """Return the CPU time since the start; None without work."""
        if self._since is None:
            return None
        (seconds, wall, parent), (seconds0, wall0, parent0) = self._now(), self._since
        of_parent = None if parent is None or parent0 is None else parent - parent0
        return ProcessCpu(
            self.role, seconds - seconds0, wall - wall0, self.node, of_parent, self.reads, self.decodes,
            tuple(self._children()),
        )  # fmt: skip


@dataclass(slots=True)
class CpuAccount:
    """The CPU seconds of a run by role, of Ray's processes on its nodes, of its reads and of decoding."""

    by_role: dict[str, float] = field(default_factory=dict)
    by_node: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    reads: StageCpu = field(default_factory=StageCpu)
    decodes: StageCpu = field(default_factory=StageCpu)

    @classmethod
    def of(cls, processes: Iterable[ProcessCpu]) -> CpuAccount:
        """Return the sum over processes."""
        account = cls()
        for process in chain.from_iterable((each, *each.children) for each in processes):
            account.by_role[process.role] = account.by_role.get(process.role, 0.0) + process.seconds
            if process.node_seconds is not None:  # every process of a node reports it: the largest one counts
                account.by_node[process.node] = max(account.by_node.get(process.node, 0.0), process.node_seconds)
            account.wall_seconds = max(account.wall_seconds, process.wall_seconds)
            account.reads.join(process.reads)
            account.decodes.join(process.decodes)
        return account

    def as_json(self) -> dict[str, Any]:
        """Return the entry of run.json, in seconds."""
        return {
            "wall_seconds": self.wall_seconds,
            "roles": dict(sorted(self.by_role.items())),
            "nodes": sum(self.by_node.values()),
            "reads": asdict(self.reads),
            "decodes": asdict(self.decodes),
        }
