"""The state of a transformer: model and optimizer by its shape, divided among ranks as ``train.parallelism`` says."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from rayio.scenario.layered import MAX_LAYERS, Layered, TensorSizes
from rayio.scenario.topology import Topology
from rayio.schema.fields import choice, quantity, whole
from rayio.units import BYTES

#: Bytes of a number.
DATATYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
#: The most of each width of a shape: what follows from them fits into 64 bits, or is refused.
MAX_WIDTH = 1 << 24
#: Copies of the parameters that an optimizer has: the weights, and the two moments of Adam.
COPIES = 3

_Width = Annotated[int, whole(1, MAX_WIDTH)]
_Datatype = Annotated[str, choice(*DATATYPES)]


class Transformer(Layered):
    """The model and the optimizer of a transformer of this shape, with a gated MLP (SwiGLU) as in Llama.

    Sizes and files are those that DLIO has: the tensors of Megatron, and the files of DeepSpeed.
    """

    kind: Literal["transformer"] = "transformer"
    layers: Annotated[int, whole(1, MAX_LAYERS)] = Field(description="Transformer layers.")
    hidden: _Width = Field(description="Width of a layer.")
    ffn: _Width = Field(description="Width of the gated MLP inside a layer.")
    vocabulary: _Width = Field(description="Tokens of the embedding and of the output layer, which have own weights.")
    heads: _Width = Field(description="Attention heads.")
    kv_heads: Annotated[int | None, whole(1, MAX_WIDTH, or_none=True)] = Field(
        None, description="Heads of keys and values; by default as many as heads."
    )
    datatype: _Datatype = Field("fp16", description="Numbers of the model.")
    optimizer_datatype: _Datatype = Field("fp32", description="Numbers of the optimizer.")
    layer: TensorSizes = Field(
        (),
        description="Bytes of each tensor of a layer, in place of those of the shape. Ranks that share a layer have "
        "equal parts, rounded down. Then there is neither embedding nor output layer.",
    )
    optimizer: Annotated[int | None, quantity(BYTES, integer=True, or_none=True)] = Field(
        None, description="Bytes of the optimizer of each rank that saves one, in place of those of the shape."
    )

    @property
    def _keys_and_values(self) -> int:
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        wide, each = self.hidden, self._keys_and_values
        layer = 2 * wide + wide * (wide + 2 * each) + wide * wide + 3 * self.ffn * wide
        return 2 * self.vocabulary * wide + wide + self.layers * layer

    def layer_bytes(self, number: int, topology: Topology) -> int:
        """Return the bytes of a layer on one rank: 0 embedding, then the layers, then output layer and last norm."""
        wide, split = self.hidden, topology.tensor_parallel
        if self.layer:
            return sum(size // split for size in self.layer)
        replicas = topology.data_parallel if topology.zero_stage == 3 else 1
        if number in (0, self.layers + 1):
            elements = wide * self.vocabulary // split // replicas
        elif number == self.layers + 2:
            elements = wide // replicas
        else:
            whole_tensors = (wide, wide)
            split_tensors = (
                wide * (wide + 2 * self._keys_and_values),
                wide * wide,
                2 * wide * self.ffn,
                wide * self.ffn,
            )
            elements = sum(size // replicas for size in whole_tensors)
            elements += sum(size // split // replicas for size in split_tensors)
        return elements * DATATYPES[self.datatype]

    def layers_of(self, stage: int, stages: int) -> range:
        """Return the numbers of a pipeline stage's layers; the first has the embedding, the last what follows."""
        own = super().layers_of(stage, stages)
        if self.layer:
            return own
        return range(own.start - (stage == 0), own.stop + 2 * (stage == stages - 1))

    def optimizer_bytes(self, topology: Topology) -> int:
        """Return the bytes of a rank's share of the optimizer; without ZeRO a replica has all of it."""
        if self.optimizer is not None:
            return self.optimizer
        replicas = topology.data_parallel if topology.zero_stage > 0 else 1
        elements = COPIES * (self.parameters // (replicas * topology.parts) + 5 * self.hidden)
        return elements * DATATYPES[self.optimizer_datatype]

    def contradictions(self) -> Iterator[str]:
        """Refuse heads that no layer can have, and states of too many bytes."""
        if self.heads > self.hidden:
            yield f"checkpoint.model.heads={self.heads}: more heads than checkpoint.model.hidden={self.hidden} is wide"
        if self.kv_heads is not None and self.heads % self.kv_heads:
            yield (
                f"checkpoint.model.kv_heads={self.kv_heads}: must divide checkpoint.model.heads={self.heads}; each "
                "head of keys and values serves as many heads"
            )
        yield from super().contradictions()

    def idle(self) -> Iterator[str]:
        """Name what of the width no head has: published shapes have such a rest."""
        if rest := self.hidden % self.heads:
            yield (
                f"checkpoint.model.heads={self.heads}: do not divide checkpoint.model.hidden={self.hidden}; each head "
                f"has {self.hidden // self.heads}, and {rest} belong to none"
            )

    def refusals(self, topology: Topology) -> Iterator[str]:
        """Refuse stages without a layer, and tensors that split a head or a column of the MLP."""
        yield from super().refusals(topology)
        split = topology.tensor_parallel
        for key in ("heads", "ffn"):
            if (width := getattr(self, key)) % split:
                yield (
                    f"train.parallelism.tensor={split}: must divide checkpoint.model.{key}={width}; use "
                    f"{gcd(split, width)}, or another {key}"
                )

    def uneven(self, topology: Topology) -> Iterator[str]:
        """Name a vocabulary with a rest."""
        split = topology.tensor_parallel
        if self.vocabulary % split:
            yield (
                f"checkpoint.model.vocabulary={self.vocabulary}: train.parallelism.tensor={split} does not divide it; "
                f"each rank has {self.vocabulary // split}, and frameworks add tokens up to "
                f"{-(-self.vocabulary // split) * split}"
            )
