"""The state of layers in a workload of DLIO as keys of a scenario: a transformer's shape, or lists of sizes."""

from __future__ import annotations

from rayio.imports.dlio_reading import Reading, as_number
from rayio.scenario.transformer import DATATYPES

#: DLIO's sizes of a transformer with their defaults, and the scenario's keys below ``checkpoint.model``.
_SHAPE = {
    "model.transformer.hidden_size": ("hidden", 2048),
    "model.transformer.ffn_hidden_size": ("ffn", 8192),
    "model.transformer.vocab_size": ("vocabulary", 32000),
    "model.transformer.num_attention_heads": ("heads", 32),
    "model.transformer.num_kv_heads": ("kv_heads", 8),
}
_NUMBERS = {"model.model_datatype": ("datatype", "fp16"), "model.optimizer_datatype": ("optimizer_datatype", "fp32")}
_PARALLEL = ("model.parallelism.tensor", "model.parallelism.pipeline", "model.parallelism.zero_stage")
_REPLICAS = "model.parallelism.data"
_LAYERS = "model.num_layers"
#: Lists of sizes in place of a shape.
_GROUPS, _TENSORS = "model.optimization_groups", "model.layer_parameters"
#: All keys of such a state.
LAYERED = (_LAYERS, *_NUMBERS, *_PARALLEL, _REPLICAS, *_SHAPE, _GROUPS, _TENSORS)
#: Names of the size of a flat state, the current one first.
FLAT = ("model.model_size_bytes", "model.model_size", "checkpoint.model_size")
#: Copies that DLIO's optimizer has of each group of a list: two tensors, and a part of a tensor of all groups.
_COPIES = 3


def is_layered(reading: Reading) -> bool:
    """Return True if the state has layers or groups: its keys are mapped or refused then, and have no effect else."""
    layers = reading.number(_LAYERS, -1.0, -1)
    if _is_transformer(reading) and (layers <= 0 or layers != int(layers)):
        name = _LAYERS if _LAYERS in reading.given else "model.type"
        reading.refuse(name, "num_layers must be a whole number of at least 1")
    if _is_transformer(reading) or layers > 0 or reading.given.get(_GROUPS):
        return True
    for name in LAYERED:
        reading.unused(name, "without num_layers nothing reads it")
    return False


def put_layered(reading: Reading, size: int, size_name: str, *, is_subset: bool, trains: bool) -> None:
    """Map a state of layers and its division among ranks; ``size`` is that of the flat state, if all have one too.

    Ranks are those of all replicas, or of one if their number is not given; those of a subset are one pipeline stage,
    on a node. In training all ranks read different batches in DLIO, so only the state is divided there.
    """
    groups, tensors = (_list(reading, name) for name in (_GROUPS, _TENSORS))
    layers = int(reading.number(_LAYERS, -1.0, -1))
    if (groups and tensors) or (groups and layers <= 0):
        _put_sizes(reading, layers, groups, tensors)
    else:
        _put_shape(reading, groups, tensors)
    if _is_transformer(reading):
        for name in FLAT:
            reading.unused(name, "a transformer's size follows from its layers")
    elif size:
        reading.put("checkpoint.model.each_rank", size, size_name)
    tensor, pipeline = (reading.whole(name, 1, 1) for name in _PARALLEL[:2])
    section = "checkpoint" if trains else "train"
    for name, value in zip(_PARALLEL, (tensor, pipeline, reading.whole(_PARALLEL[2], 0)), strict=True):
        reading.put(f"{section}.parallelism.{name.rpartition('.')[2]}", value, name)
    replicas = 1
    if reading.number(_REPLICAS, -1.0, -1) > 0:
        replicas = reading.whole(_REPLICAS, 1, 1)
    elif is_subset:
        reading.refuse("checkpoint.mode", f"a subset needs {_REPLICAS}, the replicas of the whole training")
    if is_subset:
        reading.put("checkpoint.subset_of", tensor * pipeline * replicas, "checkpoint.mode", _REPLICAS)
    reading.put("checkpoint.writers", "parallel", _LAYERS, _GROUPS)
    nodes = 1 if is_subset else pipeline * replicas
    reading.put("cluster.nodes", nodes, "model.parallelism.pipeline", _REPLICAS)
    reading.put("cluster.ranks_per_node", tensor, "model.parallelism.tensor")
    reading.unused("checkpoint.type", "each rank saves its part of the layers")


def _is_transformer(reading: Reading) -> bool:
    return "model.type" in reading.given and reading.text("model.type", "none").lower() == "transformer"


def _put_shape(reading: Reading, groups: list[int], tensors: list[int]) -> None:
    """Map a shape, and the list of sizes that stands for a part of it."""
    reading.put("checkpoint.model.kind", "transformer", "model.type", _LAYERS)
    reading.put("checkpoint.model.layers", reading.whole(_LAYERS, 1, 1), _LAYERS)
    for name, (key, default) in _SHAPE.items():
        reading.put(f"checkpoint.model.{key}", reading.whole(name, default, 1), name)
    for name, (key, word) in _NUMBERS.items():
        reading.put(f"checkpoint.model.{key}", reading.choice(name, word, tuple(DATATYPES)), name)
    if tensors:
        reading.put("checkpoint.model.layer", tensors, _TENSORS)
    if groups:
        reading.put("checkpoint.model.optimizer", _COPIES * sum(groups), _GROUPS)


def _put_sizes(reading: Reading, layers: int, groups: list[int], tensors: list[int]) -> None:
    reading.put("checkpoint.model.kind", "sized", _TENSORS, _GROUPS)
    if layers > 0:
        reading.put("checkpoint.model.layers", reading.whole(_LAYERS, 1, 1), _LAYERS)
        reading.put("checkpoint.model.layer", tensors, _TENSORS)
    else:
        for name in (_LAYERS, _TENSORS):
            reading.unused(name, "without num_layers nothing reads it")
    reading.put("checkpoint.model.optimizer", _COPIES * sum(groups), _GROUPS)
    for name in (*_NUMBERS, *_SHAPE):
        reading.unused(name, "the lists of sizes are bytes, without a shape")


def _list(reading: Reading, name: str) -> list[int]:
    """Return a list of whole numbers without its zeros; empty if it is not given, or refused."""
    value = reading.given.get(name, [])
    numbers = [as_number(entry) for entry in value] if isinstance(value, list) else [None]
    sizes = [int(number) for number in numbers if number is not None and number >= 0 and number == int(number)]
    if len(sizes) < len(numbers) or (numbers and not sum(sizes)):
        reading.refuse(name, "must be a list of whole numbers of bytes, one of them above 0")
        return []
    return [size for size in sizes if size]
