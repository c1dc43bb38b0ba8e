"""States of layers, divided among ranks as the model is: of a transformer's shape, or of given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.scenario.state import Part, State, read_size
from rayio.scenario.topology import Topology
from rayio.schema.fields import Reads, RefusedError, quantity, whole
from rayio.units import BYTES

#: The most layers; what follows from them fits into 64 bits, or is refused.
MAX_LAYERS = 1 << 14
#: The most tensors of a layer.
MAX_TENSORS = 1 << 10
#: The most bytes of a state.
MAX_BYTES = 1 << 62

_ALONE = Topology(nodes=1, ranks_per_node=1)

BytesOrNone = Annotated[int, quantity(BYTES, integer=True)]


class Layered(State):
    """A state of layers and an optimizer, in the files of DeepSpeed.

    ZeRO's stage decides who saves. 0: one replica saves model and optimizer. 1 and 2: one replica saves the model,
    every rank its optimizer. 3: every rank saves both. In 1 and 2 each layer is a file if there are pipeline stages.
    """

    layers: int
    each_rank: BytesOrNone = Field(
        0, description="Bytes that each rank which saves anything has in addition, in a file of the model."
    )

    def layer_bytes(self, number: int, topology: Topology) -> int:
        """Return the bytes of a layer on one rank."""
        raise NotImplementedError

    def optimizer_bytes(self, topology: Topology) -> int:
        """Return the bytes of the optimizer that a rank saves."""
        raise NotImplementedError

    def layers_of(self, stage: int, stages: int) -> range:
        """Return the numbers of a pipeline stage's layers, from 1; the first stages have one more."""
        each, more = divmod(self.layers, stages)
        first = stage * each + min(stage, more)
        return range(first + 1, first + each + (stage < more) + 1)

    @property
    def parts(self) -> tuple[Part, ...]:
        """One file of the model and one of the optimizer."""
        sizes: dict[str, int] = {}
        for part in self.saved_by(0, _ALONE):
            sizes[part.of] = sizes.get(part.of, 0) + part.num_bytes
        return tuple(Part(of, nbytes, of) for of, nbytes in sizes.items())

    def saved_by(self, rank: int, topology: Topology) -> tuple[Part, ...]:
        """Return the files of a rank by its stage of ZeRO."""
        zero, is_first = topology.zero_stage, topology.replica_of(rank) == 0
        files: list[Part] = []
        if zero == 3 or is_first:
            stages = topology.pipeline_parallel
            sizes = {
                number: self.layer_bytes(number, topology) for number in self.layers_of(topology.stage_of(rank), stages)
            }
            if stages > 1 and 0 < zero < 3:
                files += [
                    Part(f"model-rank-{rank:05d}-layer-{number:05d}.bin", size, "model")
                    for number, size in sizes.items()
                ]
            else:
                files.append(Part(f"model-rank-{rank:05d}.bin", sum(sizes.values()), "model"))
        if zero > 0 or is_first:
            files.append(Part(f"model-states-rank-{rank:05d}.bin", self.each_rank, "model"))
            files.append(Part(f"optimizer-rank-{rank:05d}.bin", self.optimizer_bytes(topology), "optimizer"))
        return tuple(part for part in files if part.num_bytes)

    def contradictions(self) -> Iterator[str]:
        """Refuse states of too many bytes."""
        if self.num_bytes > MAX_BYTES:
            yield f"checkpoint.model.layers={self.layers}: {self.num_bytes} B; at most {MAX_BYTES} B are possible"

    def refusals(self, topology: Topology) -> Iterator[str]:
        """Refuse stages without a layer."""
        if self.layers < (stages := topology.pipeline_parallel):
            yield (
                f"train.parallelism.pipeline={stages}: more stages than checkpoint.model.layers={self.layers}; use at "
                f"most {self.layers}"
            )

    def undividable(self, topology: Topology) -> Iterator[str]:
        """Refuse what no ranks can have."""
        yield from self.refusals(topology)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise RefusedError("must be a list of sizes, such as [52 MB, 209 MB]")
    if len(value) > MAX_TENSORS:
        raise RefusedError(f"has {len(value)} sizes; {MAX_TENSORS} are the most")
    return tuple(read_size(f"[{number}]", size) for number, size in enumerate(value))


def _written(sizes: tuple[int, ...]) -> list[str]:
    return [BYTES.exact(size) for size in sizes]


_SIZE = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": BYTES.most}, BYTES.schema]}
_SIZES: Mapping[str, Any] = {"type": "array", "items": _SIZE, "maxItems": MAX_TENSORS}


#: Bytes of each tensor of a layer.
TensorSizes = Annotated[tuple[int, ...], Reads(_sizes, _SIZES, _written)]


class SizedLayers(Layered):
    """Equal layers, an optimizer, and a rest that each rank has, of given sizes."""

    kind: Literal["sized"] = "sized"
    layers: Annotated[int, whole(0, MAX_LAYERS)] = Field(0, description="Layers, all of these tensors.")
    layer: TensorSizes = Field(
        (), description="Bytes of each tensor of a layer. Ranks that share a layer have equal parts, rounded down."
    )
    optimizer: BytesOrNone = Field(description="Bytes of the optimizer of each rank that saves one; 0 is none.")

    def layer_bytes(self, number: int, topology: Topology) -> int:
        """Return the bytes of a rank's part of each tensor."""
        return sum(size // topology.tensor_parallel for size in self.layer)

    def optimizer_bytes(self, topology: Topology) -> int:
        """Return the given bytes."""
        return self.optimizer

    def contradictions(self) -> Iterator[str]:
        """Refuse layers without tensors, and no bytes at all."""
        yield from super().contradictions()
        if bool(self.layers) != bool(self.layer):
            yield (
                f"checkpoint.model.layers={self.layers}: goes with checkpoint.model.layer, the sizes of a layer's "
                "tensors; give both"
            )
        elif not self.parts:
            yield "checkpoint.model.kind=sized: it has no bytes; give layers and layer, optimizer or each_rank"

    def refusals(self, topology: Topology) -> Iterator[str]:
        """Refuse stages without a layer, if there are layers."""
        if self.layers:
            yield from super().refusals(topology)

    def uneven(self, topology: Topology) -> Iterator[str]:
        """Name a tensor with a rest."""
        split = topology.tensor_parallel
        if rest := [size for size in self.layer if size % split]:
            yield (
                f"checkpoint.model.layer: {split} ranks do not divide a tensor of {rest[0]} B; each has "
                f"{rest[0] // split} B of it"
            )
