"""The section ``costs``: what a loader and its engine take beside the work asked for; the virtual engine charges it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rayio.kinds import COSTS
from rayio.schema.choice import check_name
from rayio.schema.fields import JsonSchema, Reads, RefusedError, Seconds, Section, Text, quantity
from rayio.units import BYTES, RATE, SECONDS

_BytesPerSecond = Annotated[float | None, quantity(RATE, positive=True, or_none=True)]


_Bytes = Annotated[float | None, quantity(BYTES, or_none=True)]

_NAME = r"^(|[A-Za-z0-9_.-]+)$"


def _name_of_format(value: Any) -> str:
    if not isinstance(value, str) or not re.match(_NAME, value):
        raise RefusedError("must be the name of a format, or nothing")
    return value


#: A format by its name: costs of one that is not installed here say nothing of those that are.
_FormatName = Annotated[str, Reads(_name_of_format, {"type": "string", "pattern": _NAME})]


#: What CPU times may be multiplied by at most, and one of that at least.
MOST_FACTOR = 10.0


def _factor(least: float, most: float) -> Reads:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise RefusedError(f"must be a number from {least:g} to {most:g}")
        return float(value)

    return Reads(read, {"type": "number", "minimum": least, "maximum": most})


#: The shortest time slice: with shorter ones a simulation would do little but change whose turn it is (s).
LEAST_SLICE = 1e-4
#: What of the costs of processors is no work, and what it is by default.
_NO_WORK = {"format": "", "slice": 0.0, "contention": 1.0, "at_least": 1.0, "at_most": 1.0}


class CpuCosts(Section):
    """What a batch takes of processors, in CPU seconds: with ``cluster.cores`` it is done on the cores of a node.

    What ``costs`` says of times stays as it is where cores are free: the CPU seconds are the part of them that takes
    longer where cores are not, and what goes on beside.
    """

    format: _FormatName = Field(
        "", description="Format (dataset.format) whose parsing `sample` and `bandwidth` are of."
    )
    sample: Seconds = Field(
        0.0, description="What a reader parses and checks a sample for, beside waiting for storage."
    )
    bandwidth: _BytesPerSecond = Field(
        None, description="Bytes per second that a reader copies, parses and checks on one core; none is free."
    )
    reader: Seconds = Field(0.0, description="What a batch takes its reader beyond parsing: the messages and copies.")
    reader_bandwidth: _BytesPerSecond = Field(None, description="Bytes per second of that on one core; none is free.")
    queue: Seconds = Field(0.0, description="What a batch takes its prefetch queue.")
    rank: Seconds = Field(0.0, description="What a batch takes its rank.")
    rank_bandwidth: _BytesPerSecond = Field(None, description="Bytes per second of that on one core; none is free.")
    node: Seconds = Field(0.0, description="What a batch takes the engine's own process on the node (Ray's raylet).")
    node_bandwidth: _BytesPerSecond = Field(None, description="Bytes per second of that on one core; none is free.")
    step: Seconds = Field(
        0.0, description="The part of costs.step that is work: a rank's process waits for a core to end its step."
    )
    background: Seconds = Field(
        0.0, description="What a node's processes take each second whatever goes on, on one core: clocks, heartbeats."
    )
    slice: Annotated[float, quantity(SECONDS, least=LEAST_SLICE)] = Field(
        0.0,
        description="How long work keeps a core that other work waits for, as a kernel's scheduler has it: short work "
        "waits behind long. 0 has all work share the cores at every moment.",
    )
    contention: Annotated[float, _factor(1.0, MOST_FACTOR)] = Field(
        1.0,
        description="How many times as long work takes while every core of its node is busy: caches and memory are "
        "shared, and processes that take turns on a core find its caches cold.",
    )
    at_least: Annotated[float, _factor(1 / MOST_FACTOR, 1.0)] = Field(
        1.0, description="What all of these may have to be multiplied by, at least: one end of a prediction's interval."
    )
    at_most: Annotated[float, _factor(1.0, MOST_FACTOR)] = Field(
        1.0, description="The same at most: processors are slower where all of them are busy, or others have them."
    )

    @property
    def is_work(self) -> bool:
        """Whether anything takes processor time."""
        return self.model_copy(update=_NO_WORK) != CpuCosts()

    def times(self, factor: float) -> CpuCosts:
        """All of it so many times as long."""
        changed: dict[str, float] = {}
        for name, value in self.model_dump(exclude={*_NO_WORK, "background"}).items():
            if value:
                changed[name] = value / factor if name.endswith("bandwidth") else value * factor
        return self.model_copy(update=changed)

    def of_batch(self, num_samples: float, nbytes: float) -> float:
        """The CPU seconds of a batch in all: reading it, and its way to its rank."""
        way = self.reader + self.queue + self.rank + self.node + self.step
        rates = (self.reader_bandwidth, self.rank_bandwidth, self.node_bandwidth)
        return self.parsing(num_samples, nbytes) + way + sum(taken(nbytes, rate) for rate in rates)

    def parsing(self, num_samples: float, nbytes: float) -> float:
        """The CPU seconds of reading so many samples of so many bytes together."""
        return num_samples * self.sample + taken(nbytes, self.bandwidth)


def taken(nbytes: float, bandwidth: float | None) -> float:
    """The seconds that bytes take at a rate; none where there is no rate."""
    return nbytes / bandwidth if bandwidth else 0.0


class Costs(Section):
    """What a loader and its engine take beside the work asked for, in seconds per call; ``simulate`` charges them.

    A name stands for numbers that were measured, or for none; a mapping has numbers of one's own.
    """

    lease: Seconds = Field(
        0.0,
        description="From when the window lets a step begin to when its reader has the lease; a busy reader hides it.",
    )
    put: Seconds = Field(0.0, description="What a lease keeps its reader busy for beyond reading and decoding.")
    put_bandwidth: _BytesPerSecond = Field(
        None,
        description="Bytes per second of a batch that its reader is busy for on top of put, unless loader.payload is "
        "none; none is free.",
    )
    take: Seconds = Field(
        0.0, description="From when a reader is done to when its rank has the batch; a rank that computes hides it."
    )
    receive: Seconds = Field(
        0.0,
        description="What taking a batch keeps its rank for, one that is ready too: PyTorch's main process unpickles "
        "it and maps its memory.",
    )
    transfer_latency: Seconds = Field(0.0, description="Time of each batch's way from a reader to its rank.")
    transfer_bandwidth: _BytesPerSecond = Field(
        None, description="Bytes per second from a reader to its rank; none is free."
    )
    barrier: Seconds = Field(
        0.0, description="From the last announcement of a step to its answer; the compute hides it."
    )
    step: Seconds = Field(
        0.0, description="What every step takes its rank beyond all that is asked for: late wake-ups, messages."
    )
    checkpoint: Seconds = Field(
        0.0, description="What a checkpoint takes its rank beyond what the model of storage says: messages, fsync."
    )
    checkpoint_less: Seconds = Field(
        0.0,
        description="By how much less than costs.checkpoint a checkpoint may take: one end of a prediction's interval.",
    )
    checkpoint_more: Seconds = Field(
        0.0, description="By how much more a checkpoint may take: writing the same bytes takes now less, now more."
    )
    checkpoint_bytes: _Bytes = Field(
        None,
        description="Bytes of the checkpoints that costs.checkpoint is of: others are charged in proportion. `none` "
        "charges all alike; 0 says that none was seen, and a simulation with checkpoints is refused.",
    )
    cpu: CpuCosts = Field(
        default_factory=CpuCosts,
        description="The part of all that which is work of processors, which cluster.cores bounds.",
    )
    error: Annotated[float, _factor(0.0, 1.0)] = Field(
        0.0, description="What times may be off by beside that, as a share: what a calibration could not simulate back."
    )
    source: Text = Field("", description="Where these numbers come from: `rayio calibrate` names its run.")

    def _scale(self, num_bytes: float) -> float:
        """How many times the bytes of the checkpoint that is known."""
        return num_bytes / self.checkpoint_bytes if self.checkpoint_bytes else 1.0

    def of_checkpoint(self, num_bytes: float) -> float:
        """What a checkpoint of so many bytes takes beyond what the model of storage says, in s."""
        return self.checkpoint * self._scale(num_bytes)

    def checkpoint_ends(self, num_bytes: float) -> tuple[float, float]:
        """The least and the most that may be, in s.

        Nobody knows how much of what another size took was for its bytes: all of it, or nothing.
        """
        usual, scale = self.of_checkpoint(num_bytes), self._scale(num_bytes)
        least = min(self.checkpoint, usual) - self.checkpoint_less * min(1.0, scale)
        return max(0.0, least), max(self.checkpoint, usual) + self.checkpoint_more * max(1.0, scale)

    def at_end(self, factor: float, checkpoint: float) -> Costs:
        """Costs with processor times so many times as long, and checkpoints that take so many seconds."""
        changed = {"cpu": self.cpu.times(factor), "checkpoint": round(checkpoint, 9), "checkpoint_bytes": None}
        return self.model_copy(update=changed)

    @property
    def of_loader(self) -> bool:
        """Whether a batch takes anything beside being read and decoded."""
        return any(
            (
                self.lease, self.put, self.put_bandwidth, self.take, self.receive,
                self.transfer_latency, self.transfer_bandwidth,
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedCosts:
    """Costs that have a name, with how, where and when (ISO date) they were measured; empty for those of nobody."""

    costs: Costs
    source: str
    machine: str = ""
    date: str = ""

    def __str__(self) -> str:
        """Say in one line where the numbers come from."""
        return f"measured {self.date} on {self.machine}: {self.source}" if self.date else self.source


def _chosen(value: Any) -> str | Costs:
    """Read a name, or numbers."""
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
    # What stands in another schema may refer to nothing of its own.
    numbers["properties"]["cpu"] = numbers.pop("$defs")["CpuCosts"] | described
    return {"anyOf": [{"enum": [*COSTS]}, numbers, {"type": "null"}]}


#: What may stand under ``costs``.
ChosenCosts = Annotated[str | Costs, Reads(_chosen, _schema)]


def charged(chosen: str | Costs) -> Costs:
    """The numbers behind a name."""
    if isinstance(chosen, Costs):
        return chosen
    found: Costs = COSTS[chosen].costs
    return found
