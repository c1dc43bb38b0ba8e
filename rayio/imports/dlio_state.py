"""The state of a transformer in a workload of DLIO as keys of a scenario."""

from __future__ import annotations

from rayio.imports.dlio_reading import Reading
from rayio.scenario.dlio_keys import KEYS, REFUSED
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
#: Lists of sizes in place of a shape.
_LISTS = ("model.optimization_groups", "model.layer_parameters")
#: All keys of such a state.
TRANSFORMER = ("model.num_layers", *_NUMBERS, *_PARALLEL, _REPLICAS, *_SHAPE, *_LISTS)


def is_transformer(reading: Reading) -> bool:
    """Return True if the state has layers: its keys are mapped or refused then, and have no effect else."""
    layers = reading.number("model.num_layers", -1.0, -1)
    kind = (reading.text("model.type", "none") if "model.type" in reading.given else "").lower()
    lists = [name for name in _LISTS if reading.given.get(name)]
    for name in lists:
        reading.refuse(name, KEYS[name].why)
    if kind != "transformer" and layers <= 0:
        for name in TRANSFORMER:
            if name not in lists:
                reading.unused(name, "without num_layers nothing reads it")
        return bool(lists)
    if layers <= 0 or layers != int(layers):
        name = "model.num_layers" if "model.num_layers" in reading.given else "model.type"
        reading.refuse(name, "num_layers must be a whole number of at least 1")
    elif kind != "transformer" and not lists:
        reading.refuse("model.num_layers", "saves layers and model_size_bytes together; give model.type=transformer")
    return True


def put_transformer(reading: Reading, *, is_subset: bool) -> None:
    """Map the shape of a transformer and its division among ranks.

    Ranks are those of all replicas, or of one if their number is not given; those of a subset are one pipeline stage,
    on a node.
    """
    reading.put("checkpoint.model.kind", "transformer", "model.type")
    reading.put("checkpoint.model.layers", reading.whole("model.num_layers", 1, 1), "model.num_layers")
    for name, (key, default) in _SHAPE.items():
        reading.put(f"checkpoint.model.{key}", reading.whole(name, default, 1), name)
    for name, (key, word) in _NUMBERS.items():
        reading.put(f"checkpoint.model.{key}", reading.choice(name, word, tuple(DATATYPES)), name)
    tensor, pipeline = (reading.whole(name, 1, 1) for name in _PARALLEL[:2])
    for name, value in zip(_PARALLEL, (tensor, pipeline, reading.whole(_PARALLEL[2], 0)), strict=True):
        reading.put(f"train.parallelism.{name.rpartition('.')[2]}", value, name)
    replicas = 1
    if reading.number(_REPLICAS, -1.0, -1) > 0:
        replicas = reading.whole(_REPLICAS, 1, 1)
    elif is_subset:
        reading.refuse("checkpoint.mode", f"a subset needs {_REPLICAS}, the replicas of the whole training")
    if is_subset:
        reading.put("checkpoint.subset_of", tensor * pipeline * replicas, "checkpoint.mode", _REPLICAS)
    reading.put("checkpoint.writers", "parallel", "model.type")
    nodes = 1 if is_subset else pipeline * replicas
    reading.put("cluster.nodes", nodes, "model.parallelism.pipeline", _REPLICAS)
    reading.put("cluster.ranks_per_node", tensor, "model.parallelism.tensor")
    for name in ("model.model_size_bytes", "model.model_size", "checkpoint.model_size"):
        reading.unused(name, "a transformer's size follows from its shape")
    reading.unused("checkpoint.type", "each rank saves its part of a transformer")


assert all(KEYS[name].fate == REFUSED for name in _LISTS)
