"""CPU seconds of runs -> CPU time of a batch: least squares over runs of batches of different sizes.

A run records the CPU seconds of its readers, queues and ranks, and those of its reads with the samples and bytes of
each batch (``cpu_seconds`` of ``run.json``). Two runs whose batches differ in size separate the time of a batch from
that of a byte; one run alone does not, and all of it then counts as the batch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.records.explained import Stage
from rayio.scenario import derive
from rayio.scenario.costs import MOST_FACTOR, Costs, CpuCosts, taken
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario
from rayio.units import RATE

if TYPE_CHECKING:
    from rayio.records.calibrated import Note

#: Batch sizes whose largest is less than this times the smallest do not separate bytes from batches.
ALIKE = 1.2
#: Where nobody probed a machine: how long work keeps a core that other work waits for (s; Linux schedules 250 times a
#: second), and the factor on work while all cores are busy.
SLICE, CONTENTION = 0.004, 1.2
#: The part of a step's end that counts as work.
OF_STEP = 0.5
FEWEST_BATCHES = 10


@dataclass(frozen=True, slots=True)
class SeenCpu:
    """The CPU time of one run."""

    name: str
    #: CPU seconds by role, those of the nodes' own processes, and of all reads.
    roles: Mapping[str, float]
    nodes: float
    reads: Mapping[str, float]
    #: Those of decoding that is work, with its batches; empty without any.
    decodes: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, info: Mapping[str, Any], name: str) -> SeenCpu | None:
        """Return the CPU time in ``run.json``; None where that has none, or too little."""
        recorded = info.get("cpu_seconds")
        if not isinstance(recorded, Mapping):
            return None
        reads, roles, decodes = recorded.get("reads"), recorded.get("roles"), recorded.get("decodes", {})
        if not (isinstance(reads, Mapping) and isinstance(roles, Mapping) and isinstance(decodes, Mapping)):
            return None
        numbers = (*reads.values(), *roles.values(), *decodes.values())
        if not all(isinstance(number, int | float) for number in numbers):
            return None
        if reads.get("batches", 0) < FEWEST_BATCHES:
            return None
        return cls(name, roles, float(recorded.get("nodes") or 0.0), reads, decodes)

    @property
    def of_readers(self) -> float:
        """Return the CPU seconds of the readers, which are the ranks where those read for themselves."""
        return self.roles.get("reader", self.of_files)

    @property
    def of_files(self) -> float:
        """Return the CPU seconds of reading and decoding."""
        return self.reads["seconds"] + self.decodes.get("seconds", 0.0)

    @property
    def of_ranks(self) -> float:
        """Return the CPU seconds of the ranks and their barrier, without reads."""
        read = 0.0 if "reader" in self.roles else self.of_files
        return max(0.0, self.roles.get("rank", 0.0) - read) + self.roles.get("barrier", 0.0)

    @property
    def put(self) -> float:
        """CPU seconds of the readers for a batch beyond reading and decoding it."""
        return max(0.0, self.of_readers - self.of_files) / self.batches

    def most(self, costs: Costs) -> dict[str, float]:
        """Return ``costs.put`` and ``costs.step`` of a run with busy processors: at most the work of its processes."""
        work = {"put": self.put, "step": self.of_ranks / self.batches}
        return {name: round(min(getattr(costs, name), max(0.0, seconds)), 9) for name, seconds in work.items()}

    def utilisation(self, step: float, cores: int, scenario: Scenario) -> float:
        """Return the share of the cores of a node that worked, with steps of ``step`` seconds."""
        whole, train = (sum(self.roles.values()) + self.nodes) / self.batches, scenario.train
        whole += derive.compute_seconds(scenario) * train.compute_cores
        return whole * scenario.cluster.load / step / cores

    @property
    def batches(self) -> float:
        """Return the number of batches that were read."""
        return self.reads["batches"]

    @property
    def batch_bytes(self) -> float:
        """Return the mean bytes of a batch."""
        return self.reads["bytes"] / self.batches


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors of a machine, as probed: its scheduler's time slice (s), and contention (a factor)."""

    slice: float = SLICE
    contention: float = CONTENTION


UNKNOWN = Processors()


def scheduled(cpu: CpuCosts, step: float, machine: Processors = UNKNOWN) -> CpuCosts:
    """Return the costs on the cores of a machine, with part of each ``step``'s time on top (s) as work.

    A run records that ends of steps are late, and the CPU time of its ranks, but not which part of that was there. Its
    size matters little: however short, it waits for a core.
    """
    work = round(min(step, cpu.rank) * OF_STEP, 9)
    return cpu.model_copy(update={"step": work, "rank": round(cpu.rank - work, 9), **asdict(machine)})


def in_background(cpu: CpuCosts, share: float, per_second: float) -> CpuCosts:
    """Return the costs with a share of the work other than reading as permanent work of a node's processes.

    ``per_second`` is how many batches a node has a second. A run records the CPU time of its processes, not when they
    used it: heartbeats, clocks and busy threads are in it, and delay no batch.
    """
    others = {name: getattr(cpu, name) for name in ("queue", "rank", "step")}
    kept = {name: round(seconds * (1 - share), 9) for name, seconds in others.items()}
    background = cpu.background + share * sum(others.values()) * per_second
    return cpu.model_copy(update=kept | {"background": round(background, 9)})


def cores_of_run(scenario: Scenario, info: Mapping[str, Any]) -> int:
    """Return the cores of each node of a run on Ray, by its ``run.json``; emulated nodes share their machine's."""
    actors = [actor for actor in info.get("actors", ()) if isinstance(actor, Mapping)]
    machines = {actor["ray_node"] for actor in actors if actor.get("ray_node")}
    cpus = info.get("cpus")
    each = cpus if isinstance(cpus, int) and cpus > 0 else 1
    return max(1, each * max(1, len(machines)) // scenario.cluster.all_nodes)


@dataclass(frozen=True, slots=True)
class Worked:
    """The cores of each node of a run, the costs of its batches, and decoding, where that is work on cores."""

    cores: int | tuple[int, ...]
    costs: Costs
    decode: Work | None

    @classmethod
    def planned(cls, scenario: Scenario, *, is_decoded: bool = True) -> Worked | None:
        """Return the cores and work of a simulated scenario; None where processors are no limit."""
        cores, decode, costs = scenario.cluster.cores, scenario.loader.decode, scenario.charges
        work = decode if is_decoded and isinstance(decode, Work) else None
        return None if cores is None or not (costs.cpu.is_work or work) else cls(cores, costs, work)

    @classmethod
    def seen(cls, scenario: Scenario, info: Mapping[str, Any]) -> Worked | None:
        """Return the cores and work in ``run.json`` of a run on Ray, with decoding; None where it has none."""
        seconds = SeenCpu.of(info, "run") if info.get("engine") == "ray" else None
        if seconds is None or scenario.cluster.reader_pool is not None:  # whose cores came and went
            return None
        cpu, _ = learn_cpu([seconds], "")
        cores = scenario.cluster.cores
        costs = Costs(put=seconds.put, cpu=cpu)
        known = cores if isinstance(cores, tuple) else cores_of_run(scenario, info)
        return cls(known, costs, _work_of(scenario, seconds)) if costs.put or cpu.is_work else None

    def stage(self, scenario: Scenario, batch_bytes: float | None, delivered: float) -> Stage | None:
        """Return the capacity of the cores of all nodes as a stage; None where a batch takes no time, or nodes come."""
        if scenario.cluster.reader_pool is not None:
            return None
        number = sum(self.cores) if isinstance(self.cores, tuple) else self.cores * scenario.cluster.all_nodes
        seconds = self.costs.cpu_of_batch(scenario.loader.batch_size, batch_bytes or 0.0)
        size = scenario.loader.batch_size
        seconds += 0.0 if self.decode is None else self.decode.seconds(size, batch_bytes or 0.0)
        if not seconds:
            return None
        return Stage(
            stage="processors",
            service_seconds=seconds,
            parallelism=number,
            capacity=number / seconds,
            utilisation=min(1.0, delivered * seconds / number),
        )


def _work_of(scenario: Scenario, seen: SeenCpu) -> Work | None:
    """Return decode work with the rate of a run; None if it has none."""
    decode, seconds = scenario.loader.decode, seen.decodes.get("seconds", 0.0)
    if not isinstance(decode, Work) or seconds <= 0:
        return None
    return decode.model_copy(update={"rate": seen.decodes["bytes"] * decode.work_per_byte / seconds, "per_sample": 0.0})


def learn_cpu(seen: Sequence[SeenCpu], form: str, received: float | None = None) -> tuple[CpuCosts, list[Note]]:
    """Return the CPU time of a batch, and notes on it.

    ``form`` is the format that was read, and ``received`` the bytes that a rank takes in a CPU second.
    """
    from rayio.records.calibrated import OneSize  # of a calibration alone: simulate and explain load this file too

    sizes = [run.batch_bytes for run in seen]
    differ = max(sizes) >= ALIKE * min(sizes)
    notes: list[Note] = []
    if not differ:
        notes.append(OneSize(sizes[0]))
    sample, byte = line_of_sums([run.reads for run in seen]) or (_each([run.reads for run in seen], "samples"), 0.0)
    queue, _ = _line(seen, [run.roles.get("queue", 0.0) for run in seen], differ=False)
    rank, _ = _line(seen, [run.of_ranks - taken(run.batch_bytes * run.batches, received) for run in seen], differ=False)
    node = _line(seen, [run.nodes + run.roles.get("collector", 0.0) for run in seen], differ=differ)
    return CpuCosts(
        format=form,
        sample=_seconds(sample), bandwidth=rate_of(byte + node[1]),
        queue=_seconds(queue + node[0]), rank=_seconds(rank),
    ), notes  # fmt: skip


def contention_of(seen: Sequence[SeenCpu], full: Sequence[SeenCpu]) -> float:
    """Return how many times the CPU time of the runs ``seen`` reading and decoding took in ``full`` ones, 1 at least.

    Only runs of one batch size are compared.
    """
    usual, busy = 0.0, 0.0
    for run in full:
        like = min(seen, key=lambda other: abs(other.batch_bytes - run.batch_bytes))
        if like.batch_bytes < ALIKE * run.batch_bytes and run.batch_bytes < ALIKE * like.batch_bytes:
            usual, busy = usual + like.of_files / like.batches, busy + run.of_files / run.batches
    return min(MOST_FACTOR, max(1.0, busy / usual)) if usual else 1.0


def put_of(seen: Sequence[SeenCpu]) -> tuple[float, float | None]:
    """Return the CPU seconds of passing a batch on, and the rate of its bytes; None where no runs of two sizes tell."""
    sizes = [run.batch_bytes for run in seen]
    batch, byte = _line(seen, [run.put * run.batches for run in seen], differ=max(sizes) >= ALIKE * min(sizes))
    return batch, rate_of(byte)


def receiving(groups: Sequence[tuple[Sequence[SeenCpu], float]]) -> float | None:
    """Return the bytes of batches that a rank takes in a CPU second; None where no runs of two sizes tell.

    ``groups`` have runs that differ in their sizes alone, each with a factor on the duration of its work. The other
    time of a batch differs from group to group.
    """
    groups = [(group, factor) for group, factor in groups if group]
    sizes = [run.batch_bytes for group, _ in groups for run in group]
    if max(sizes) < ALIKE * min(sizes):
        return None
    squares = products = 0.0
    for group, factor in groups:
        size = np.array([run.batch_bytes for run in group])
        each = np.array([run.of_ranks / run.batches for run in group]) / factor
        squares += float(((size - size.mean()) ** 2).sum())
        products += float(((size - size.mean()) * (each - each.mean())).sum())
    return rate_of(products / squares) if products > 0 else None


def _line(seen: Sequence[SeenCpu], seconds: Sequence[float], *, differ: bool) -> tuple[float, float]:
    """Return the seconds per batch and per byte that are closest to each run's, relative to that."""
    each = [max(0.0, taken) / run.batches for taken, run in zip(seconds, seen, strict=True)]
    if not differ:
        return float(np.mean(each)), 0.0
    weight = 1 / np.maximum(each, 1e-9)
    columns = np.column_stack([np.ones(len(seen)), [run.batch_bytes for run in seen]])
    first, second = _not_negative(columns * weight[:, None], np.asarray(each) * weight)
    return first, second


def line_of_sums(runs: Sequence[Mapping[str, float]], scale: float = 1.0) -> tuple[float, float] | None:
    """Return the seconds per sample and per byte that are closest to all batches; None where sizes are too alike.

    ``runs`` are sums (``StageCpu``), and count alike. A byte is counted ``scale`` times.
    """
    sizes = [run["bytes"] / run["batches"] for run in runs]
    if max(sizes) < ALIKE * min(sizes) and not any(_varies(run) for run in runs):
        return None
    square, right = np.zeros((2, 2)), np.zeros(2)
    for sums in runs:
        mean = max(sums["seconds"] / sums["batches"], 1e-9)
        weight = 1 / (sums["batches"] * mean**2)
        cross = sums["samples_bytes"] * scale
        square += weight * np.array([[sums["samples_samples"], cross], [cross, sums["bytes_bytes"] * scale**2]])
        right += weight * np.array([sums["samples_seconds"], sums["bytes_seconds"] * scale])
    for kept in ([0, 1], [0], [1]):
        part = square[np.ix_(kept, kept)]
        if np.linalg.cond(part / np.sqrt(np.outer(np.diag(part), np.diag(part)))) > 1e8:
            continue
        solution = np.linalg.solve(part, right[kept])
        if (solution >= 0).all():
            both = dict(zip(kept, solution.tolist(), strict=True))
            return both.get(0, 0.0), both.get(1, 0.0)
    return 0.0, 0.0


def _each(runs: Sequence[Mapping[str, float]], what: str) -> float:
    number, seconds = (sum(run[key] for run in runs) for key in (what, "seconds"))
    return seconds / number if number else 0.0


def _varies(reads: Mapping[str, float]) -> bool:
    """Return True if bytes per sample vary from batch to batch of a run, so that it alone separates the two."""
    product = reads["samples_samples"] * reads["bytes_bytes"]
    return product > 0 and reads["samples_bytes"] ** 2 < (1 - 1e-3) * product


def _not_negative(columns: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return least squares for two numbers that are not negative: both, else the closer one alone."""
    both, *_ = np.linalg.lstsq(columns, values, rcond=None)
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = []
    for place in range(2):
        column = columns[:, place]
        number = max(0.0, float(column @ values / (column @ column)))
        alone.append((float(((number * column - values) ** 2).sum()), place, number))
    _, place, number = min(alone)
    return (number, 0.0) if place == 0 else (0.0, number)


def _seconds(seconds: float) -> float:
    return round(seconds, 9)


def rate_of(seconds_per_byte: float) -> float | None:
    """Return bytes per second; None where a byte takes no time."""
    return 1 / seconds_per_byte if seconds_per_byte * RATE.most >= 1 else None
