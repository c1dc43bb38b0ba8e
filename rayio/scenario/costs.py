"""The section ``costs``: what a loader and its engine take beside the work asked for; the virtual engine charges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rayio.kinds import COSTS
from rayio.scenario.choice import check_name
from rayio.scenario.fields import JsonSchema, Reads, RefusedError, Seconds, Section, Text, quantity
from rayio.units import RATE

_BytesPerSecond = Annotated[float | None, quantity(RATE, positive=True, or_none=True)]


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
    source: Text = Field("", description="Where these numbers come from: `rayio calibrate` names its run.")

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
    return {"anyOf": [{"enum": [*COSTS]}, Costs.model_json_schema(), {"type": "null"}]}


#: What may stand under ``costs``.
ChosenCosts = Annotated[str | Costs, Reads(_chosen, _schema)]


def charged(chosen: str | Costs) -> Costs:
    """The numbers behind a name."""
    if isinstance(chosen, Costs):
        return chosen
    found: Costs = COSTS[chosen].costs
    return found
