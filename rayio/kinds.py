"""Every kind of thing that a scenario chooses by name, and where each is implemented: one line a name.

A name here is all it takes for the schema to know it. What stands behind it is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from rayio.registry import Registry

#: ``dataset.format``: how samples lie in files (``rayio.data.formats.Format``).
FORMATS: Registry[Any] = Registry(
    "format",
    {
        "npz": "rayio.data.formats.npz:Npz",
        "hdf5": "rayio.data.formats.hdf5:Hdf5",
        "tfrecord": "rayio.data.formats.tfrecord:TfRecord",
        "parquet": "rayio.data.formats.parquet:Parquet",
    },
    later=("jpeg", "png", "csv", "npy", "indexed_binary", "mmap_indexed_binary"),
    needs=("extension", "file_bytes", "write", "requests", "read"),
    makes=True,
)

#: ``loader.kind``: what makes batches (``rayio.model.wiring.LoaderKind``).
LOADERS: Registry[Any] = Registry(
    "loader",
    {"actors": "rayio.engines.loaders.actor_loader:ActorLoader", "torch": "rayio.engines.loaders.pytorch:TorchLoader"},
    later=("ray_data", "tf_data"),
    needs=("has_roles", "check", "batches"),
    makes=True,
)

#: ``loader.shuffle``: in which order an epoch visits samples (``rayio.data.shuffle.Shuffle``).
SHUFFLES: Registry[Any] = Registry(
    "shuffle",
    {
        "none": "rayio.data.shuffle:Unshuffled",
        "file": "rayio.data.shuffle:FileShuffle",
        "block": "rayio.data.shuffle:BlockShuffle",
        "buffer": "rayio.data.shuffle:BufferShuffle",
        "global": "rayio.data.shuffle:GlobalShuffle",
    },
    needs=("__call__",),
    makes=True,
)

#: ``loader.partition``: which rank has which part of that order (``rayio.data.partition.Partition``).
PARTITIONS: Registry[Any] = Registry(
    "partition",
    {
        "contiguous": "rayio.data.partition:CONTIGUOUS",
        "strided": "rayio.data.partition:STRIDED",
        "replicated": "rayio.data.partition:REPLICATED",
    },
    needs=("share", "positions", "shared"),
)

#: ``loader.decode``: work that is really done on what was read (``rayio.scenario.decode.Work``).
DECODES: Registry[Any] = Registry(
    "decode",
    {"checksum": "rayio.data.decode:Checksum", "decompress": "rayio.data.decode:Decompress"},
    needs=("model_validate", "prepare"),
)

#: Times and sizes: how they are drawn (``rayio.schema.distribution.Distribution``).
DISTRIBUTIONS: Registry[Any] = Registry(
    "distribution",
    {
        "constant": "rayio.schema.distribution:Constant",
        "normal": "rayio.schema.distribution:Normal",
        "lognormal": "rayio.schema.distribution:LogNormal",
        "uniform": "rayio.schema.distribution:Uniform",
        "exponential": "rayio.schema.distribution:Exponential",
        "ramp": "rayio.schema.distribution:Ramp",
    },
    later=("gamma", "poisson", "empirical"),
    needs=("model_validate", "quantities", "draw", "expected"),
)

#: ``train.sync``: how ranks wait for each other after a step (``rayio.scenario.sync.Sync``).
SYNCS: Registry[Any] = Registry(
    "sync",
    {
        "none": "rayio.scenario.sync:NoSync",
        "barrier": "rayio.scenario.sync:BarrierSync",
        "allreduce": "rayio.scenario.sync:AllReduce",
    },
    needs=("model_validate", "meets", "seconds"),
)

#: ``checkpoint.writers``: who saves which part of a checkpoint, and where (``rayio.scenario.writers.Writers``).
CHECKPOINTS: Registry[Any] = Registry(
    "checkpoint",
    {
        "rank_zero": "rayio.scenario.writers:RankZero",
        "all_ranks": "rayio.scenario.writers:AllRanks",
        "sharded": "rayio.scenario.writers:Sharded",
        "dedicated": "rayio.scenario.writers:Dedicated",
    },
    title="checkpoint kind",
    needs=("model_validate", "sizes", "of_rank", "node", "file_name"),
)

#: Schemes of addresses (``s3://``; a path is of ``file``): what opens them (``rayio.storage.stores.opening.Scheme``).
STORAGES: Registry[Any] = Registry(
    "storage",
    {"file": "rayio.storage.stores.posix:PosixStore", "s3": "rayio.scenario.s3:S3"},
    later=("gs", "az"),
)

#: ``storage.model``: storage systems as numbers (``rayio.storage.presets.Preset``).
STORAGE_MODELS: Registry[Any] = Registry(
    "storage_model",
    {
        "memory": "rayio.storage.presets:MEMORY",
        "nvme": "rayio.storage.presets:NVME",
        "s3": "rayio.storage.presets:S3",
        "lustre-theta": "rayio.storage.presets:LUSTRE_THETA",
        "lustre-cori": "rayio.storage.presets:LUSTRE_CORI",
    },
    title="storage model",
    needs=("first_byte_median", "connection_bandwidth", "bandwidth", "scope"),
)

#: What stands between a reader and its bytes, the innermost first (``rayio.storage.layers.layer.Layer``).
LAYERS: Registry[Any] = Registry(
    "layer",
    {
        "throttle": "rayio.storage.layers.throttle:Throttle",
        "faults": "rayio.storage.layers.faults:Faults",
        "cache": "rayio.storage.layers.cache:NodeCaches",
        "network": "rayio.storage.layers.network:NetworkSpec",
    },
    needs=("name", "options", "of", "wrap"),
)

#: ``costs``: what a loader takes beside reading and decoding (``rayio.scenario.costs.NamedCosts``).
COSTS: Registry[Any] = Registry(
    "costs",
    {
        "none": "rayio.scenario.named_costs:NONE",
        "ray": "rayio.scenario.named_costs:RAY",
        "ray_in_rank": "rayio.scenario.named_costs:RAY_IN_RANK",
        "ray_calls": "rayio.scenario.named_costs:RAY_CALLS",
        "torch": "rayio.scenario.named_costs:TORCH",
    },
    needs=("costs", "source"),
)

#: All of them.
REGISTRIES = (
    FORMATS, LOADERS, SHUFFLES, PARTITIONS, DECODES, DISTRIBUTIONS, SYNCS, CHECKPOINTS, STORAGES, STORAGE_MODELS, COSTS,
    LAYERS,
)  # fmt: skip
