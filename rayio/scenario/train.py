"""The section ``train``: the work of a rank on a batch, and its evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import BeforeValidator

from rayio.place import MAX_EPOCHS, MAX_STEPS
from rayio.scenario.compute import Compute
from rayio.scenario.device_copy import DeviceCopy
from rayio.scenario.loader import MAX_BATCH
from rayio.scenario.pace import Speeds, Stragglers, Warmup
from rayio.scenario.parallelism import Parallelism
from rayio.scenario.schedule import PerEpoch
from rayio.scenario.sync import AnySync, BarrierSync
from rayio.schema.every import Every
from rayio.schema.fields import Section, none_is_null, show, whole
from rayio.schema.for_each import for_each


class Evaluate(Section):
    """An evaluation: training pauses, and every rank reads its share of ``dataset.eval``, in file order."""

    every: Every = Field(Every(epochs=1), description="When the model is tried.")
    compute: Compute = Field(
        description="Time per step of an evaluation, drawn per rank; or a table, see train.compute."
    )
    steps: Annotated[int | None, whole(1, MAX_STEPS, or_none=True)] = Field(
        None, description="Cap on the steps of one evaluation; none is no cap."
    )
    batch_size: Annotated[int | None, whole(1, MAX_BATCH, or_none=True)] = Field(
        None, description="Samples per rank and step; by default as in training."
    )


class Train(Section):
    """The work of a rank on a batch."""

    epochs: Annotated[int, whole(1, MAX_EPOCHS)] = Field(1, description="Times that the dataset is gone through.")
    steps: Annotated[int | tuple[int, ...] | None, for_each("epoch", MAX_STEPS, or_none=True)] = Field(
        None,
        description="Cap on the steps of an epoch. A list has a cap for each of train.epochs, for epochs that differ; "
        "none is no cap.",
    )
    compute: Compute = Field(description="Time per step, drawn per rank; or a table {by_batch_size: {4: 50 ms, …}}.")
    compute_cores: Annotated[int, whole(0, 1)] = Field(
        0,
        description="1: compute is work on a processor, as in training without accelerators. It takes longer where "
        "others share the processors, on the virtual clock with cluster.cores. 0: it is slept.",
    )
    warmup: Annotated[Warmup | None, BeforeValidator(none_is_null)] = Field(
        None, description="First steps that take longer; none by default. train.warmup_steps leaves steps uncounted."
    )
    speeds: Annotated[Speeds | None, BeforeValidator(none_is_null)] = Field(
        None, description="Accelerators of unequal speed; none by default."
    )
    stragglers: Annotated[Stragglers | None, BeforeValidator(none_is_null)] = Field(
        None, description="Ranks that are slower than the others; none by default."
    )
    accumulate: Annotated[int, whole(1, MAX_STEPS)] = Field(
        1,
        description="Steps whose gradients are summed before ranks synchronise. The last step of an epoch always ends "
        "with a synchronisation.",
    )
    sync: AnySync = Field(BarrierSync(), description="How ranks wait for each other after a step.")
    parallelism: Parallelism = Field(Parallelism(), description="How the model is divided among ranks.")
    device_copy: Annotated[DeviceCopy | None, BeforeValidator(none_is_null)] = Field(
        None, description="What copying a batch to the accelerator takes; none is free."
    )
    evaluate: Annotated[Evaluate | None, BeforeValidator(none_is_null)] = Field(
        None, description="What tries the model on dataset.eval, and when; none is never."
    )
    warmup_steps: Annotated[int, whole(0, MAX_STEPS)] = Field(
        1, description="First steps of each rank that no number counts."
    )

    def contradictions(self) -> Iterator[str]:
        """Refuse a list of caps whose length is not the number of epochs."""
        if isinstance(self.steps, tuple) and len(self.steps) != self.epochs:
            yield (
                f"train.steps={show([*self.steps])}: its length is {len(self.steps)}; give one number for each "
                f"epoch (train.epochs={self.epochs})"
            )

    @property
    def cap(self) -> int | None:
        """The cap of an epoch, of unequal ones the largest; None is no cap."""
        return max(self.steps) if isinstance(self.steps, tuple) else self.steps

    def caps(self, epochs: int) -> PerEpoch | None:
        """Return the caps of a run of so many epochs; a list is continued from its begin."""
        if not isinstance(self.steps, tuple):
            return self.steps
        return tuple(islice(cycle(self.steps), epochs))

    def idle(self) -> Iterator[str]:
        """Name what of the synchronisation takes no time."""
        yield from self.sync.idle()
