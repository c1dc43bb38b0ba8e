"""The section ``train.parallelism``: how a model is divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rayio.place import MAX_RANKS
from rayio.schema.fields import Section, whole

#: The highest stage of ZeRO.
MAX_STAGE = 3


class Parallelism(Section):
    """The division of a model among ranks. Each part of it has ``ranks / (tensor × pipeline)`` replicas."""

    tensor: Annotated[int, whole(1, MAX_RANKS)] = Field(1, description="Ranks that share each layer.")
    pipeline: Annotated[int, whole(1, MAX_RANKS)] = Field(1, description="Stages that share the layers.")
    zero_stage: Annotated[int, whole(0, MAX_STAGE)] = Field(
        0,
        description="What replicas divide instead of a copy each (ZeRO): 1 the optimizer, 2 the gradients too, 3 the "
        "parameters too; 0 nothing.",
    )

    @property
    def parts(self) -> int:
        """Ranks that have the whole model together."""
        return self.tensor * self.pipeline

    @property
    def is_default(self) -> bool:
        """True if every rank has the whole model."""
        return self == type(self)()

    def refusals(self, ranks: int) -> Iterator[str]:
        """Refuse parts that do not divide the ranks."""
        if ranks % self.parts:
            yield (
                f"train.parallelism={{tensor: {self.tensor}, pipeline: {self.pipeline}}}: a replica of the model takes "
                f"{self.parts} ranks, which do not divide the {ranks} of cluster.nodes × cluster.ranks_per_node"
            )
