"""The section ``costs``: the loader overhead model, which the virtual engine charges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from rayio.errors import ScenarioError
from rayio.kinds import COSTS
from rayio.schema.choice import check_name
from rayio.schema.fields import JsonSchema, Reads, RefusedError, Seconds, Section, Text, quantity, without_removed
from rayio.units import BYTES, RATE, SECONDS, parse_rate, parse_seconds

_BytesPerSecond = Annotated[float | None, quantity(RATE, positive=True, or_none=True)]


_Bytes = Annotated[float | None, quantity(BYTES, or_none=True)]

_NAME = r"^(|[A-Za-z0-9_.-]+)$"


def _name_of_format(value: Any) -> str:
    if not isinstance(value, str) or not re.match(_NAME, value):
        raise RefusedError("must be the name of a format, or nothing")
    return value


#: A format by its name, which need not be installed here.
_FormatName = Annotated[str, Reads(_name_of_format, {"type": "string", "pattern": _NAME})]


#: The largest factor on CPU times; its inverse is the smallest.
MOST_FACTOR = 10.0


def _factor(least: float, most: float) -> Reads:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise RefusedError(f"must be a number from {least:g} to {most:g}")
        return float(value)

    return Reads(read, {"type": "number", "minimum": least, "maximum": most})


#: The shortest time slice: shorter ones would make a simulation do little but switch between processes (s).
LEAST_SLICE = 1e-4
#: Keys of ``costs.cpu`` in earlier versions: the values that are still accepted, and what to do about others.
_REMOVED = {
    key: ((0, "0 s", None, "none"), f"rayio no longer has this key: {remedy}, or calibrate again")
    for key, remedy in {
        "reader": "costs.put has it",
        "reader_bandwidth": "costs.put_bandwidth has it",
        "rank_bandwidth": "count it in costs.cpu.bandwidth",
        "node": "add it to costs.cpu.queue",
        "node_bandwidth": "count it in costs.cpu.bandwidth",
    }.items()
}
#: Keys of ``costs.cpu`` that are no work, with their defaults.
_NO_WORK = {"format": "", "put": None, "slice": 0.0, "contention": 1.0, "at_least": 1.0, "at_most": 1.0}


class CpuCosts(Section):
    """The CPU seconds of a batch; with ``cluster.cores`` they are spent on the cores of a node.

    They are part of the times in ``costs``, which stay the same where cores are free. Where cores are busy, the CPU
    seconds take longer.
    """

    format: _FormatName = Field(
        "", description="Format (dataset.format) that `sample` and `bandwidth` were measured with."
    )
    sample: Seconds = Field(
        0.0, description="CPU time of a worker that parses and checks a sample, without waiting for storage."
    )
    bandwidth: _BytesPerSecond = Field(
        None, description="Bytes per second that are copied, parsed and checked on one core; none is free."
    )
    queue: Seconds = Field(
        0.0, description="CPU time of the prefetch queue and of the engine's process on the node for each batch."
    )
    rank: Seconds = Field(0.0, description="CPU time of the rank for each batch.")
    put: Annotated[float | None, quantity(SECONDS, or_none=True)] = Field(
        None, description="The CPU time in costs.put; none: all of it."
    )
    step: Seconds = Field(0.0, description="The CPU time in costs.step: a rank waits for a core to end its step.")
    background: Seconds = Field(
        0.0, description="CPU seconds that a node's processes take each second at all times: clocks, heartbeats."
    )
    slice: Annotated[float, quantity(SECONDS, least=LEAST_SLICE)] = Field(
        0.0,
        description="Time slice of the kernel's scheduler: how long work keeps a core that other work waits for. With "
        "0, all work shares the cores at every moment.",
    )
    contention: Annotated[float, _factor(1.0, MOST_FACTOR)] = Field(
        1.0,
        description="Factor on work while every core of its node is busy: caches and memory are shared, and processes "
        "that take turns on a core find its caches cold.",
    )
    at_least: Annotated[float, _factor(1 / MOST_FACTOR, 1.0)] = Field(
        1.0, description="Smallest factor on all of these and on decoding: one end of a prediction's interval."
    )
    at_most: Annotated[float, _factor(1.0, MOST_FACTOR)] = Field(
        1.0,
        description="Largest factor on all of these and on decoding: processors are slower where they are busy or "
        "shared.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _earlier_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return without_removed(data, _REMOVED, handler)

    @property
    def is_work(self) -> bool:
        """Return True if anything takes processor time."""
        return self.model_copy(update=_NO_WORK) != CpuCosts()

    def times(self, factor: float) -> CpuCosts:
        """Return all of it multiplied by a factor."""
        changed: dict[str, float] = {}
        for name, value in self.model_dump(exclude={*_NO_WORK, "background"} - {"put"}).items():
            if value:
                changed[name] = value / factor if name.endswith("bandwidth") else value * factor
        return self.model_copy(update=changed)

    def parsing(self, num_samples: float, nbytes: float) -> float:
        """Return the CPU seconds of reading ``num_samples`` of ``nbytes`` in all."""
        return num_samples * self.sample + taken(nbytes, self.bandwidth)


def taken(nbytes: float, bandwidth: float | None) -> float:
    """Return the seconds that bytes take at a rate; 0 where there is none."""
    return nbytes / bandwidth if bandwidth else 0.0


class Costs(Section):
    """The overhead of a loader and its engine in seconds per call; ``simulate`` charges it.

    A name stands for measured numbers, or for none; a mapping gives them one by one.
    """

    lease: Seconds = Field(
        0.0,
        description="From when the prefetch window lets a batch begin to when its worker starts; a busy worker "
        "hides it.",
    )
    put: Seconds = Field(0.0, description="Time that a batch keeps its worker busy beyond reading and decoding.")
    put_bandwidth: _BytesPerSecond = Field(
        None,
        description="Bytes per second at which a worker passes a batch on, in addition to put; not with "
        "loader.payload=none. none is free.",
    )
    take: Seconds = Field(
        0.0, description="From when a worker is done to when its rank has the batch; compute hides it."
    )
    receive: Seconds = Field(
        0.0,
        description="Time that taking a batch, even a ready one, keeps its rank: PyTorch's main process unpickles it "
        "and maps its memory. At most costs.cpu.rank of it keeps a core.",
    )
    receive_bandwidth: _BytesPerSecond = Field(
        None,
        description="Bytes per second at which a rank takes a batch, in addition to receive: it maps and frees its "
        "memory. With costs.cpu it is work; not with loader.payload=none. none is free.",
    )
    neighbour: Seconds = Field(
        0.0,
        description="Time that each other rank of its node adds to receive: ranks take their batches together, and "
        "each waits for processes that serve the others.",
    )
    neighbour_error: Annotated[float, _factor(0.0, 1.0)] = Field(
        0.0,
        description="How much longer or shorter neighbour may be, as a share: both ends of a prediction's interval.",
    )
    transfer_latency: Seconds = Field(0.0, description="Latency of each batch from a worker to its rank.")
    transfer_bandwidth: _BytesPerSecond = Field(
        None, description="Bytes per second from a worker to its rank; none is free."
    )
    barrier: Seconds = Field(
        0.0, description="From the last announcement of a step to the barrier's answer; compute hides it."
    )
    step: Seconds = Field(0.0, description="Overhead of every step on its rank: wake-ups that come late, messages.")
    checkpoint: Seconds = Field(0.0, description="Time of a checkpoint beyond the storage model: messages, fsync.")
    checkpoint_less: Seconds = Field(
        0.0,
        description="How much less than costs.checkpoint a checkpoint may take: one end of a prediction's interval.",
    )
    checkpoint_more: Seconds = Field(
        0.0, description="How much more than costs.checkpoint a checkpoint may take: the other end."
    )
    checkpoint_bytes: _Bytes = Field(
        None,
        description="Size of the checkpoints that costs.checkpoint was measured with; other sizes are charged in "
        "proportion. `none` charges all alike. 0: no checkpoint was measured, so a simulation with checkpoints is "
        "refused.",
    )
    sample_bytes: _Bytes = Field(
        None,
        description="Mean size of the samples that all of these costs were calibrated with; none: several sizes, or "
        "not calibrated. For other sizes the interval of a prediction goes from no time that grows with bytes to all.",
    )
    cpu: CpuCosts = Field(
        default_factory=CpuCosts,
        description="The part of these costs that is processor time, which cluster.cores limits.",
    )
    error: Annotated[float, _factor(0.0, 1.0)] = Field(
        0.0,
        description="Further error of times, as a share: what the calibrated model missed of the run it was "
        "calibrated on.",
    )
    fixed_work: Seconds = Field(
        0.0,
        description="CPU time of fixed work (two million additions in Python) where these numbers were measured; "
        "0 is unknown. A simulation warns where it takes another time.",
    )
    source: Text = Field("", description="Where these numbers come from; `rayio calibrate` names its run.")

    def _scale(self, num_bytes: float) -> float:
        """Return the size as a multiple of the measured checkpoint."""
        return num_bytes / self.checkpoint_bytes if self.checkpoint_bytes else 1.0

    def of_checkpoint(self, num_bytes: float) -> float:
        """Return the seconds that a checkpoint takes beyond the storage model."""
        return self.checkpoint * self._scale(num_bytes)

    def checkpoint_ends(self, num_bytes: float) -> tuple[float, float]:
        """Return the fewest and the most seconds that a checkpoint may take beyond the storage model.

        For another size than the measured one, the share that grows with its bytes is unknown: all of it, or nothing.
        """
        usual, scale = self.of_checkpoint(num_bytes), self._scale(num_bytes)
        least = min(self.checkpoint, usual) - self.checkpoint_less * min(1.0, scale)
        return max(0.0, least), max(self.checkpoint, usual) + self.checkpoint_more * max(1.0, scale)

    def at_end(self, factor: float, checkpoint: float, num_bytes: float) -> Costs:
        """Return these costs, processor times multiplied by ``factor``, checkpoints of ``checkpoint`` seconds.

        A factor below 1 is the end where all is short, so neighbours add their least too.
        ``num_bytes`` are those of a checkpoint: its increments are charged in proportion, where sizes count.
        """
        size = num_bytes if self.checkpoint_bytes else None
        changed: dict[str, Any] = {
            "cpu": self.cpu.times(factor),
            "checkpoint": round(checkpoint, 9),
            "checkpoint_bytes": size,
        }
        for name in ("put_bandwidth", "receive_bandwidth"):  # copies are work too
            if (rate := getattr(self, name)) and self.cpu.is_work:
                changed[name] = rate / factor
        if factor != 1.0:
            changed["neighbour"] = self.neighbour * (1 + math.copysign(self.neighbour_error, factor - 1))
        return self.model_copy(update=changed)

    def next_to(self, others: int) -> Costs:
        """Return these costs of a rank with so many ``others`` on its node: taking a batch takes longer."""
        if not self.neighbour or not others:
            return self
        return self.model_copy(update={"receive": self.receive + self.neighbour * others, "neighbour": 0.0})

    def cpu_of_batch(self, num_samples: float, nbytes: float) -> float:
        """Return the CPU seconds of a batch: reading it, passing it on, and its way to its rank."""
        cpu = self.cpu
        of_rank = cpu.rank + cpu.step + taken(nbytes, self.receive_bandwidth)
        return cpu.parsing(num_samples, nbytes) + self.put_work(nbytes) + cpu.queue + of_rank

    def put_work(self, nbytes: float) -> float:
        """Return the CPU seconds of passing a batch on."""
        return (self.put if self.cpu.put is None else self.cpu.put) + taken(nbytes, self.put_bandwidth)

    @property
    def of_loader(self) -> bool:
        """Return True if a batch costs anything besides reading and decoding."""
        return any(
            (
                self.lease, self.put, self.put_bandwidth, self.take, self.receive, self.receive_bandwidth,
                self.neighbour, self.transfer_latency, self.transfer_bandwidth,
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedCosts:
    """Costs with a name, and how, where and when (ISO date) they were measured."""

    costs: Costs
    source: str
    machine: str = ""
    date: str = ""

    def __str__(self) -> str:
        """Return where the numbers come from, in one line."""
        return f"measured {self.date} on {self.machine}: {self.source}" if self.date else self.source


def _chosen(value: Any) -> str | Costs:
    if value is None or isinstance(value, str):
        name = "none" if value is None else value
        check_name(COSTS, name)
        return name
    if isinstance(value, Costs):
        return value
    if not isinstance(value, Mapping):
        check_name(COSTS, value)
        raise RefusedError("must be a name or a mapping")
    return Costs.model_validate(value)


def _schema() -> JsonSchema:
    numbers = Costs.model_json_schema()
    described = {"description": numbers["properties"]["cpu"]["description"], "default": {}}
    # A schema inside another schema cannot have definitions.
    numbers["properties"]["cpu"] = numbers.pop("$defs")["CpuCosts"] | described
    return {"anyOf": [{"enum": [*COSTS]}, numbers, {"type": "null"}]}


ChosenCosts = Annotated[str | Costs, Reads(_chosen, _schema)]


def with_removed_counted(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run directory's scenario with removed keys of ``costs.cpu`` counted where calibration counts them now.

    Raises:
        ScenarioError: a value is no quantity.
    """
    costs = data.get("costs")
    cpu = costs.get("cpu") if isinstance(costs, Mapping) else None
    if not isinstance(costs, Mapping) or not isinstance(cpu, Mapping) or not _REMOVED.keys() & cpu.keys():
        return dict(data)
    kept = {key: value for key, value in cpu.items() if key not in _REMOVED}
    rates = [cpu.get(key) for key in ("bandwidth", "rank_bandwidth", "node_bandwidth")]
    try:
        per_byte = sum(1 / parse_rate(rate) for rate in rates if rate not in (None, "none"))
        kept["queue"] = parse_seconds(cpu.get("queue", 0)) + parse_seconds(cpu.get("node", 0))
    except (ValueError, ZeroDivisionError) as error:
        raise ScenarioError(f"costs.cpu: {error}") from None
    kept["bandwidth"] = 1 / per_byte if per_byte else None
    return {**data, "costs": {**costs, "cpu": kept}}


def charged(chosen: str | Costs) -> Costs:
    """Return the numbers behind a name."""
    if isinstance(chosen, Costs):
        return chosen
    costs: Costs = COSTS[chosen].costs
    return costs
