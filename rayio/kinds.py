"""Registries of every kind that a scenario chooses by name, one line a name.

The schema takes the names from here. An implementation is imported on first use.
"""

from __future__ import annotations

from typing import Any

from rayio.registry import Registry

#: ``dataset.format``: file formats of samples (``rayio.data.formats.Format``).
FORMATS: Registry[Any] = Registry(
    "format",
    {
        "npz": "rayio.data.formats.npz:Npz",
        "hdf5": "rayio.data.formats.hdf5:Hdf5",
        "tfrecord": "rayio.data.formats.tfrecord:TfRecord",
        "parquet": "rayio.data.formats.parquet:Parquet",
        "npy": "rayio.data.formats.npy:Npy",
        "raw": "rayio.data.formats.raw:Raw",
        "tar": "rayio.data.formats.tar:Tar",
        "jpeg": "rayio.data.formats.jpeg:Jpeg",
        "png": "rayio.data.formats.png:Png",
        "jsonl": "rayio.data.formats.json_text:JsonLines",
        "json": "rayio.data.formats.json_text:Json",
        "csv": "rayio.data.formats.delimited:Csv",
        "tsv": "rayio.data.formats.delimited:Tsv",
        "indexed_binary": "rayio.data.formats.indexed:IndexedBinary",
        "mmap_indexed_binary": "rayio.data.formats.indexed:MmapIndexedBinary",
        "synthetic": "rayio.data.formats.synthetic:Synthetic",
    },
    needs=("extension", "file_bytes", "write", "requests", "read"),
    makes=True,
)

#: ``dataset.external``: formats of files that other programs wrote (``rayio.data.formats.external.External``).
EXTERNALS: Registry[Any] = Registry(
    "external_format",
    {
        "npz": "rayio.data.formats.external:NPZ",
        "npy": "rayio.data.formats.external:NPY",
        "hdf5": "rayio.data.formats.external:HDF5",
        "tfrecord": "rayio.data.formats.external:TFRECORD",
        "jpeg": "rayio.data.formats.external:JPEG",
        "png": "rayio.data.formats.external:PNG",
        "csv": "rayio.data.formats.external:CSV",
        "parquet": "rayio.data.formats.external:PARQUET",
    },
    title="external format",
    needs=("extensions", "count", "verify", "requests", "read"),
)

#: ``loader.kind``: data loaders (``rayio.model.wiring.LoaderKind``).
LOADERS: Registry[Any] = Registry(
    "loader",
    {"actors": "rayio.engines.loaders.actor_loader:ActorLoader", "torch": "rayio.engines.loaders.pytorch:TorchLoader"},
    later=("ray_data", "tf_data"),
    needs=("has_roles", "check", "batches"),
    makes=True,
)

#: ``loader.shuffle``: orders in which an epoch visits samples (``rayio.data.shuffle.Shuffle``).
SHUFFLES: Registry[Any] = Registry(
    "shuffle",
    {
        "none": "rayio.data.shuffle:Unshuffled",
        "file": "rayio.data.shuffle:FileShuffle",
        "block": "rayio.data.shuffle:BlockShuffle",
        "buffer": "rayio.data.shuffle:BufferShuffle",
        "global": "rayio.data.shuffle:GlobalShuffle",
        "zipf": "rayio.data.hot:ZipfDraws",
    },
    needs=("__call__",),
    makes=True,
)

#: ``loader.partition``: divisions of that order among ranks (``rayio.data.partition.Partition``).
PARTITIONS: Registry[Any] = Registry(
    "partition",
    {
        "contiguous": "rayio.data.partition:CONTIGUOUS",
        "strided": "rayio.data.partition:STRIDED",
        "replicated": "rayio.data.partition:REPLICATED",
    },
    needs=("share", "positions", "shared"),
)

#: ``loader.file_access``: how files are walked (``rayio.data.access.contract.Access``).
ACCESSES: Registry[Any] = Registry(
    "access",
    {
        "per_sample": "rayio.data.access.per_sample:PerSample",
        "streamed": "rayio.data.access.streamed:Streamed",
        "whole_file": "rayio.data.access.whole_file:WholeFile",
        "in_memory": "rayio.data.access.in_memory:InMemory",
        "collective": "rayio.data.access.collective:Collective",
    },
    title="file access",
    needs=("cannot", "memory", "requests", "request_table", "read", "close"),
    makes=True,
)

#: ``loader.decode``: real work on the bytes read (``rayio.scenario.decode.Work``).
DECODES: Registry[Any] = Registry(
    "decode",
    {
        "checksum": "rayio.data.decode:Checksum",
        "decompress": "rayio.data.decode:Decompress",
        "image": "rayio.data.decode_samples:Image",
        "numbers": "rayio.data.decode_samples:Numbers",
        "json": "rayio.data.decode_samples:Json",
    },
    needs=("model_validate", "prepare"),
)

#: Distributions of times and sizes (``rayio.schema.distribution.Distribution``).
DISTRIBUTIONS: Registry[Any] = Registry(
    "distribution",
    {
        "constant": "rayio.schema.distribution:Constant",
        "normal": "rayio.schema.distribution:Normal",
        "lognormal": "rayio.schema.distribution:LogNormal",
        "uniform": "rayio.schema.distribution:Uniform",
        "exponential": "rayio.schema.distribution:Exponential",
        "ramp": "rayio.schema.distribution:Ramp",
        "gamma": "rayio.schema.gamma:Gamma",
        "poisson": "rayio.schema.poisson:Poisson",
        "empirical": "rayio.schema.empirical:Empirical",
    },
    needs=("model_validate", "quantities", "read", "draw", "expected"),
)

#: ``train.sync``: synchronization of ranks after a step (``rayio.scenario.sync.Sync``).
SYNCS: Registry[Any] = Registry(
    "sync",
    {
        "none": "rayio.scenario.sync:NoSync",
        "barrier": "rayio.scenario.sync:BarrierSync",
        "allreduce": "rayio.scenario.sync:AllReduce",
    },
    needs=("model_validate", "meets", "seconds"),
)

#: ``checkpoint.writers``: division of a checkpoint among writers (``rayio.scenario.writers.Writers``).
CHECKPOINTS: Registry[Any] = Registry(
    "checkpoint",
    {
        "rank_zero": "rayio.scenario.writers:RankZero",
        "all_ranks": "rayio.scenario.writers:AllRanks",
        "sharded": "rayio.scenario.writers:Sharded",
        "dedicated": "rayio.scenario.writers:Dedicated",
        "per_node": "rayio.scenario.writers:PerNode",
        "per_group": "rayio.scenario.writers:PerGroup",
        "parallel": "rayio.scenario.writers:Parallel",
    },
    title="checkpoint kind",
    needs=("model_validate", "sizes", "of_rank", "node", "file_name"),
)

#: ``checkpoint.model``: the state that a checkpoint holds (``rayio.scenario.state.State``).
STATES: Registry[Any] = Registry(
    "state",
    {
        "bytes": "rayio.scenario.state:FlatState",
        "files": "rayio.scenario.state:FileList",
        "transformer": "rayio.scenario.transformer:Transformer",
        "sized": "rayio.scenario.layered:SizedLayers",
    },
    needs=("model_validate", "parts", "undividable"),
)

#: ``checkpoint.engine``: how the state becomes the bytes of files (``rayio.model.savers.Saver``).
SAVERS: Registry[Any] = Registry(
    "saver",
    {
        "raw": "rayio.model.savers:Raw",
        "torch": "rayio.engines.savers.torch_save:TorchSave",
        "dcp": "rayio.engines.savers.dcp:Dcp",
    },
    title="checkpoint engine",
    needs=("file_bytes", "fill", "loading", "is_ours"),
    makes=True,
)

#: Stores by the scheme of an address (``s3://``; ``file`` for paths) (``rayio.storage.stores.opening.Scheme``).
STORAGES: Registry[Any] = Registry(
    "storage",
    {"file": "rayio.storage.stores.posix:PosixStore", "s3": "rayio.scenario.s3:S3"},
    later=("gs", "az"),
)

#: ``storage.model``: modelled storage systems (``rayio.storage.presets.Preset``).
STORAGE_MODELS: Registry[Any] = Registry(
    "storage_model",
    {
        "memory": "rayio.storage.presets:MEMORY",
        "nvme": "rayio.storage.presets:NVME",
        "ebs-gp3": "rayio.storage.presets:EBS_GP3",
        "s3": "rayio.storage.object_presets:S3",
        "s3-documented": "rayio.storage.object_presets:S3_DOCUMENTED",
        "s3-express": "rayio.storage.object_presets:S3_EXPRESS",
        "gcs": "rayio.storage.object_presets:GCS",
        "azure-blob": "rayio.storage.object_presets:AZURE_BLOB",
        "minio-nvme": "rayio.storage.object_presets:MINIO_NVME",
        "lustre-theta": "rayio.storage.file_system_presets:LUSTRE_THETA",
        "lustre-cori": "rayio.storage.file_system_presets:LUSTRE_CORI",
        "lustre-flash": "rayio.storage.file_system_presets:LUSTRE_FLASH",
        "lustre-hdd": "rayio.storage.file_system_presets:LUSTRE_HDD",
        "nfs": "rayio.storage.file_system_presets:NFS",
        "fsx-125": "rayio.storage.file_system_presets:FSX_125",
        "daos": "rayio.storage.file_system_presets:DAOS",
        "burst-buffer": "rayio.storage.file_system_presets:BURST_BUFFER",
    },
    title="storage model",
    needs=("first_byte_median", "connection_bandwidth", "bandwidth", "scope"),
)

#: What stands between a reader and its bytes, the innermost first (``rayio.storage.layers.layer.Layer``).
LAYERS: Registry[Any] = Registry(
    "layer",
    {
        "throttle": "rayio.storage.layers.throttle:Throttle",
        "stripes": "rayio.storage.layers.stripes:Stripes",
        "faults": "rayio.storage.layers.faults:Faults",
        "cache": "rayio.storage.layers.cache:NodeCaches",
        "listing": "rayio.storage.layers.listing:Listing",
        "network": "rayio.storage.layers.network:NetworkSpec",
        "collective": "rayio.storage.layers.collective:Collective",
        "in_memory": "rayio.storage.layers.in_memory:InMemory",
    },
    needs=("name", "options", "of", "wrap"),
)
#: Layers without a key of their name in ``storage``. The others are imported only for scenarios that have it.
KEYLESS_LAYERS = ("stripes", "network", "collective", "in_memory")

#: ``costs``: loader overhead models (``rayio.scenario.costs.NamedCosts``).
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

#: Files of other programs that stand for a scenario, by the prefix of their name (``rayio.scenario.foreign.Foreign``).
FOREIGN: Registry[Any] = Registry(
    "foreign", {"dlio": "rayio.imports.dlio_source:DLIO"}, title="kind of file", needs=("is_own", "open")
)

#: What completes a run directory when it is opened, by the engine that ``run.json`` names: a function of the directory.
COMPLETIONS: Registry[Any] = Registry("completion", {"watch": "rayio.session.watched:complete"})

REGISTRIES = (
    FORMATS, EXTERNALS, LOADERS, SHUFFLES, PARTITIONS, ACCESSES, DECODES, DISTRIBUTIONS, SYNCS, CHECKPOINTS, STATES,
    SAVERS, STORAGES, STORAGE_MODELS, COSTS, LAYERS,
)  # fmt: skip
