"""The section ``train``: the work of a rank on a batch, and its evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.functional_validators import BeforeValidator

from rayio.place import MAX_EPOCHS, MAX_RANKS, MAX_STEPS
from rayio.scenario.loader import MAX_BATCH
from rayio.scenario.parallelism import Parallelism
from rayio.scenario.sync import AnySync, BarrierSync
from rayio.schema.distribution import SecondsDistribution
from rayio.schema.every import Every
from rayio.schema.fields import Reads, RefusedError, Section, choice, none_is_null, whole


def _ranks(value: Any) -> tuple[int, ...]:
    numbers = list(value) if isinstance(value, (list, tuple)) else []
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise RefusedError("must be a list of ranks, such as [3]")
    if len(numbers) > MAX_RANKS:
        raise RefusedError(f"names {len(numbers)} ranks; at most {MAX_RANKS} are possible")
    if len(set(numbers)) < len(numbers):
        raise RefusedError("names a rank twice")
    return tuple(sorted(numbers))


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
        raise RefusedError("must be a number greater than 0 and at most 1e6, such as 1.5")
    return float(value)


_RANKS_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_RANKS - 1},
    "minItems": 1,
    "uniqueItems": True,
}


class Stragglers(Section):
    """Ranks whose compute times are all multiplied by ``factor``."""

    ranks: Annotated[tuple[int, ...], Reads(_ranks, _RANKS_SCHEMA)] = Field(description="Ranks that are slower.")
    factor: Annotated[float, Reads(_factor, {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6})] = Field(
        description="What their compute times are multiplied by."
    )

    def factor_of(self, rank: int) -> float:
        """Return the factor on a rank's compute times: 1 for ranks that are not named."""
        return self.factor if rank in self.ranks else 1.0


class Evaluate(Section):
    """An evaluation: training pauses, and every rank reads its share of ``dataset.eval``, in file order."""

    every: Every = Field(Every(epochs=1), description="When the model is tried.")
    compute: SecondsDistribution = Field(description="Time per step of an evaluation, drawn per rank.")
    steps: Annotated[int | None, whole(1, MAX_STEPS, or_none=True)] = Field(
        None, description="Cap on the steps of one evaluation; none is no cap."
    )
    batch_size: Annotated[int | None, whole(1, MAX_BATCH, or_none=True)] = Field(
        None, description="Samples per rank and step; by default as in training."
    )


class Train(Section):
    """The work of a rank on a batch."""

    epochs: Annotated[int, whole(1, MAX_EPOCHS)] = Field(1, description="Times that the dataset is gone through.")
    steps: Annotated[int | None, whole(1, MAX_STEPS, or_none=True)] = Field(
        None, description="Cap on the steps of an epoch; none is no cap."
    )
    compute: SecondsDistribution = Field(description="Time per step, drawn per rank.")
    compute_cores: Annotated[int, whole(0, 1)] = Field(
        0,
        description="1: compute is work on a processor, as in training without accelerators. It takes longer where "
        "others share the processors, on the virtual clock with cluster.cores. 0: it is slept.",
    )
    stragglers: Annotated[Stragglers | None, BeforeValidator(none_is_null)] = Field(
        None, description="Ranks that are slower than the others; none by default."
    )
    sync: AnySync = Field(BarrierSync(), description="How ranks wait for each other after a step.")
    parallelism: Parallelism = Field(Parallelism(), description="How the model is divided among ranks.")
    device_copy: Annotated[Literal["none"], choice("none", later=(Mapping,))] = Field(
        "none", description="What copying a batch to the accelerator costs; not yet."
    )
    evaluate: Annotated[Evaluate | None, BeforeValidator(none_is_null)] = Field(
        None, description="What tries the model on dataset.eval, and when; none is never."
    )
    warmup_steps: Annotated[int, whole(0, MAX_STEPS)] = Field(
        1, description="First steps of each rank that no number counts."
    )

    def idle(self) -> Iterator[str]:
        """Name stragglers with a factor of 1."""
        if self.stragglers is not None and self.stragglers.factor == 1:
            yield "train.stragglers.factor=1: slows nobody down"
