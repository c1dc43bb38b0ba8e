"""The section ``train.parallelism``: how a model is divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rayio.place import MAX_RANKS
from rayio.scenario.loader import MAX_BATCH
from rayio.schema.fields import Section, whole

#: The highest stage of ZeRO.
MAX_STAGE = 3


class Division(Section):
    """A division of a model among ranks. Each part of it has ``ranks / (tensor × pipeline)`` replicas."""

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

    def refusals(self, ranks: int, key: str = "train.parallelism") -> Iterator[str]:
        """Refuse parts that do not divide the ranks."""
        if ranks % self.parts:
            yield (
                f"{key}={{tensor: {self.tensor}, pipeline: {self.pipeline}}}: a replica of the model takes "
                f"{self.parts} ranks, which do not divide the {ranks} of cluster.nodes × cluster.ranks_per_node"
            )


class Parallelism(Division):
    """The division of a model that trains: ranks with a part of it share a batch."""

    microbatches: Annotated[int, whole(1, MAX_BATCH)] = Field(
        1,
        description="Parts of a step's batch that follow each other through the stages of a pipeline. Between them "
        "stages are idle.",
    )

    @property
    def bubble(self) -> float:
        """The idle time of a stage as a multiple of its compute: ``(p - 1) / m``, p stages and m microbatches.

        It is ``(p - 1) / (m + p - 1)`` of both together. Sources: Huang et al., "GPipe: Efficient training of giant
        neural networks using pipeline parallelism" (NeurIPS 2019); Narayanan et al., "Efficient large-scale language
        model training on GPU clusters using Megatron-LM" (SC 2021), section 2.2.1.
        """
        return (self.pipeline - 1) / self.microbatches
