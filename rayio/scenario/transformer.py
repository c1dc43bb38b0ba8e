"""The state of a transformer: model and optimizer by its shape, divided among ranks as ``train.parallelism`` says."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from rayio.scenario.state import Part, State
from rayio.scenario.topology import Topology
from rayio.schema.fields import choice, whole

#: Bytes of a number.
DATATYPES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
#: The most of each number of a shape: what follows from them fits into 64 bits, or is refused.
MAX_LAYERS, MAX_WIDTH = 1 << 14, 1 << 24
#: The most bytes of a state.
MAX_BYTES = 1 << 62
#: Copies of the parameters that an optimizer has: the weights, and the two moments of Adam.
COPIES = 3

_ALONE = Topology(nodes=1, ranks_per_node=1)
_Width = Annotated[int, whole(1, MAX_WIDTH)]
_Datatype = Annotated[str, choice(*DATATYPES)]


class Transformer(State):
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

    @property
    def _keys_and_values(self) -> int:
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        wide, each = self.hidden, self._keys_and_values
        layer = 2 * wide + wide * (wide + 2 * each) + wide * wide + 3 * self.ffn * wide
        return 2 * self.vocabulary * wide + wide + self.layers * layer

    @property
    def parts(self) -> tuple[Part, ...]:
        """One file of the model and one of the optimizer."""
        model, optimizer = (part.num_bytes for part in self.saved_by(0, _ALONE))
        return Part("model", model, "model"), Part("optimizer", optimizer, "optimizer")

    def layer_bytes(self, number: int, topology: Topology) -> int:
        """Return the bytes of a layer on one rank: 0 embedding, then the layers, then output layer and last norm."""
        wide, split = self.hidden, topology.tensor_parallel
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
        each, more = divmod(self.layers, stages)
        first = stage * each + min(stage, more)
        last = first + each + (stage < more)
        return range(first + (stage > 0), last + 1 + 2 * (stage == stages - 1))

    def saved_by(self, rank: int, topology: Topology) -> tuple[Part, ...]:
        """Return the files of a rank by its stage of ZeRO.

        0: one replica saves model and optimizer. 1 and 2: one replica saves the model, every rank its share of the
        optimizer. 3: every rank saves its shares of both. With pipeline stages each layer is a file, except in 3.
        """
        zero, is_first = topology.zero_stage, topology.replica_of(rank) == 0
        files: list[Part] = []
        if zero == 3 or is_first:
            stages = topology.pipeline_parallel
            sizes = {
                number: self.layer_bytes(number, topology) for number in self.layers_of(topology.stage_of(rank), stages)
            }
            if stages > 1 and zero < 3:
                files += [
                    Part(f"model-rank-{rank:05d}-layer-{number:05d}.bin", size, "model")
                    for number, size in sizes.items()
                ]
            else:
                files.append(Part(f"model-rank-{rank:05d}.bin", sum(sizes.values()), "model"))
        if zero > 0 or is_first:
            replicas = topology.data_parallel if zero > 0 else 1
            elements = COPIES * (self.parameters // (replicas * topology.parts) + 5 * self.hidden)
            nbytes = elements * DATATYPES[self.optimizer_datatype]
            files.append(Part(f"optimizer-rank-{rank:05d}.bin", nbytes, "optimizer"))
        return (*files,)

    def contradictions(self) -> Iterator[str]:
        """Refuse heads that no layer can have, and states of too many bytes."""
        if self.heads > self.hidden:
            yield f"checkpoint.model.heads={self.heads}: more heads than checkpoint.model.hidden={self.hidden} is wide"
        if self.kv_heads is not None and self.heads % self.kv_heads:
            yield (
                f"checkpoint.model.kv_heads={self.kv_heads}: must divide checkpoint.model.heads={self.heads}; each "
                "head of keys and values serves as many heads"
            )
        if self.num_bytes > MAX_BYTES:
            yield f"checkpoint.model.layers={self.layers}: {self.num_bytes} B; at most {MAX_BYTES} B are possible"

    def idle(self) -> Iterator[str]:
        """Name what of the width no head has: published shapes have such a rest."""
        if rest := self.hidden % self.heads:
            yield (
                f"checkpoint.model.heads={self.heads}: do not divide checkpoint.model.hidden={self.hidden}; each head "
                f"has {self.hidden // self.heads}, and {rest} belong to none"
            )

    def refusals(self, topology: Topology) -> Iterator[str]:
        """Refuse stages without a layer, and tensors that split a head or a column of the MLP."""
        if (stages := topology.pipeline_parallel) > self.layers:
            yield (
                f"train.parallelism.pipeline={stages}: more stages than checkpoint.model.layers={self.layers}; use at "
                f"most {self.layers}"
            )
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

    def undividable(self, topology: Topology) -> Iterator[str]:
        """Refuse what no ranks can have."""
        yield from self.refusals(topology)
