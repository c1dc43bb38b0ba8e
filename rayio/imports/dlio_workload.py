"""A workload of DLIO as the keys of a scenario.

Ranks and storage are in no such file. Facts about DLIO come from argonne-lcf/dlio_benchmark (June 2026).
"""

from __future__ import annotations

import posixpath
from typing import Any

from rayio.imports.dlio_files import name_of
from rayio.imports.dlio_loader import put_loader
from rayio.imports.dlio_occasions import checkpoint, evaluate, is_alone
from rayio.imports.dlio_reading import CREDENTIALS, Reading
from rayio.imports.dlio_state import LAYERED
from rayio.imports.hydra import Composed
from rayio.kinds import FORMATS
from rayio.scenario.dataset import Dataset
from rayio.scenario.dlio_keys import KEYS
from rayio.scenario.source import Layer

#: What DLIO's code makes of several samples in a file.
_STEPS = (
    "DLIO of June 2026 divides files by samples here, and may train no step; rayio trains files × samples / batch_size "
    "/ ranks steps, rounded down"
)
#: Files of one folder by default.
_IN_ONE_FOLDER = Dataset.model_fields["files_per_folder"].default
#: Formats of DLIO, each with rayio's of the same name.
_FORMATS = (
    "tfrecord", "hdf5", "csv", "npz", "npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "synthetic",
    "parquet",
)  # fmt: skip
#: Formats whose generators in DLIO do not look at the compression.
_NEVER_COMPRESSED = ("npy", "jpeg", "png", "indexed_binary", "mmap_indexed_binary", "synthetic")
_ELEMENTS = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "float16": 2, "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip


def read_workload(composed: Composed, name: str) -> Reading:
    """Return a workload as keys of a scenario, with all that differs; ``name`` is used if the file has none."""
    reading = Reading(composed)
    title = reading.text("model.name", name) if "model.name" in reading.given else name
    reading.put("name", name_of(title), "model.name")
    reading.put("seed", reading.whole("train.seed", 123), "train.seed")
    _dataset(reading)
    _storage(reading)
    put_loader(reading)
    _train(reading)
    evaluate(reading)
    saved = checkpoint(reading)
    _measured(reading)
    reading.fates((*LAYERED, *CREDENTIALS, *saved))
    return reading


def workload_of(values: dict[str, Any], label: str, name: str) -> Reading:
    """Return a workload that is composed already, such as the configuration of results."""
    return read_workload(Composed(values, values, (Layer(values, label),)), name)


def _dataset(reading: Reading) -> None:
    form = reading.choice("dataset.format", "tfrecord", _FORMATS)
    reading.put("dataset.format", form, "dataset.format")
    files = reading.whole("dataset.num_files_train", 8, 1)
    reading.put("dataset.num_files", files, "dataset.num_files_train")
    per_file = reading.whole("dataset.num_samples_per_file", 1, 1)
    reading.put("dataset.samples_per_file", per_file, "dataset.num_samples_per_file")
    if per_file > 1:
        reading.differs("dataset.num_samples_per_file", _STEPS)
    _sample_bytes(reading)
    folders = reading.whole("dataset.num_subfolders_train", 0)
    if folders or files > _IN_ONE_FOLDER:
        reading.put("dataset.files_per_folder", -(-files // max(folders, 1)), "dataset.num_subfolders_train")
    _chunks(reading, form)
    _compression(reading, form)


def _sample_bytes(reading: Reading) -> None:
    names = {
        what: new if new in reading.given or old not in reading.given else old
        for what, new, old in (
            ("mean", "dataset.record_length_bytes", "dataset.record_length"),
            ("stdev", "dataset.record_length_bytes_stdev", "dataset.record_length_stdev"),
        )
    }
    for new, old in (("dataset.record_length_bytes", "dataset.record_length"),):
        if new in reading.given and old in reading.given:
            reading.unused(old, f"{new} is given")
    stdev = reading.number(names["stdev"], 0.0)
    element = "dataset.record_element_type"
    width = _ELEMENTS[reading.choice(element, "uint8", tuple(_ELEMENTS))]
    if (product := reading.sizes("dataset.record_dims")) is not None:
        if stdev:
            reading.refuse(names["stdev"], "cannot be with record_dims, as in DLIO; give record_length_bytes")
        if names["mean"] in reading.given:
            reading.unused(names["mean"], "record_dims is given, and wins as in DLIO")
        reading.put("dataset.sample_bytes", product * width, "dataset.record_dims", element)
        return
    if element in reading.given and "dataset.hdf5.chunk_dims" not in reading.given:
        reading.unused(element, "acts with record_dims alone")
    mean = reading.number(names["mean"], 65536.0, 1)
    mean = int(mean) if mean == int(mean) else mean
    value = {"kind": "normal", "mean": mean, "stdev": stdev} if stdev else mean
    reading.put("dataset.sample_bytes", value, names["mean"], names["stdev"])


def _compression(reading: Reading, form: str) -> None:
    name, level_name = "dataset.compression", "dataset.compression_level"
    kind = reading.choice(name, "none", ("none", "gzip", "zip", "lzf", "bz2", "xz"))
    level = reading.whole(level_name, 4, 1)
    if kind in ("gzip", "lzf") and form == "hdf5":
        if "dataset.chunk" not in reading.out:
            reading.refuse(name, "only chunks are compressed; give enable_chunking and chunk_size")
        reading.put("dataset.compression", kind, name)
        if kind == "lzf":
            reading.unused(level_name, "only gzip in hdf5 files has a level")
            return
        reading.put("dataset.compression_level", level, level_name)
        if level > 9:
            reading.refuse(level_name, "must be a whole number from 1 to 9")
        return
    reading.unused(level_name, "only gzip in hdf5 files has a level")
    if kind == "gzip" and form in ("tfrecord", "parquet"):
        reading.put("dataset.compression", "gzip", name)
    elif kind != "none" and form in _NEVER_COMPRESSED:
        reading.unused(name, f"as in DLIO, which writes {form} files uncompressed")
    elif kind == "zip" and form == "npz":
        reading.differs(name, "DLIO writes npz files uncompressed even so, and so does rayio")
    elif kind != "none":
        reading.refuse(name, f"not yet: {kind} in {form} files; use none")


def _chunks(reading: Reading, form: str) -> None:
    dims, chunking, size = "dataset.hdf5.chunk_dims", "dataset.enable_chunking", "dataset.chunk_size"
    if form != "hdf5":
        for name in (dims, chunking, size, "dataset.hdf5.num_dset_per_record"):
            reading.unused(name, "only hdf5 has chunks and datasets")
        return
    if (parts := reading.whole("dataset.hdf5.num_dset_per_record", 1, 1)) > 1:
        reading.refuse("dataset.hdf5.num_dset_per_record", f"not yet: a sample in {parts} datasets; use 1")
    width = _ELEMENTS[reading.choice("dataset.record_element_type", "uint8", tuple(_ELEMENTS))]
    wanted = reading.flag(chunking)
    if (product := reading.sizes(dims)) is not None:
        reading.put("dataset.chunk", product * width, dims)
    elif wanted and (nbytes := reading.whole(size, 0)):
        reading.put("dataset.chunk", nbytes, chunking, size)
    else:
        reading.unused(chunking, "acts with chunk_size alone")
        reading.unused(size, "acts with enable_chunking alone")


def _storage(reading: Reading) -> None:
    name, root_name = "storage.storage_type", "storage.storage_root"
    places = ("local_fs", "parallel_fs", "s3", "direct_fs")
    if str(reading.given.get(name, "")).lower() in ("aistore", "msc", "daos", "adls"):
        reading.refuse(name, f"rayio has no such storage; mount it and use local_fs, or use {places[2]}")
        kind = "local_fs"
    else:
        kind = reading.choice(name, "local_fs", places)
    if kind == "parallel_fs":
        reading.unused(name, "a mounted file system is read like local_fs; storage.model says which one it is")
    root = reading.text(root_name, "./")
    folders = {}
    for folder_name, default in (
        ("dataset.data_folder", "./data/"),
        ("checkpoint.checkpoint_folder", "./checkpoints/"),
    ):
        folder = reading.text(folder_name, default).rstrip("/") or "/"
        if "://" not in folder:
            if kind == "s3":
                folder = f"s3://{root.removeprefix('s3://').strip('/')}/{folder.removeprefix('./').lstrip('/')}"
            elif root not in ("./", "."):
                folder = posixpath.join(root, folder)
        folders[folder_name] = folder
    is_unnamed = root_name not in reading.given and root_name not in reading.wrong
    if kind == "s3" and is_unnamed and "://" not in str(reading.given.get("dataset.data_folder")):
        reading.refuse(name, "storage_root is missing, the name of the bucket")
    data = folders["dataset.data_folder"]
    reading.put("dataset.path", f"{data}/train", "dataset.data_folder", root_name, name)
    reading.put("dataset.eval.path", f"{data}/valid", "dataset.data_folder", root_name, name)
    reading.put("checkpoint.path", folders["checkpoint.checkpoint_folder"], "checkpoint.checkpoint_folder", root_name)
    is_bucket = data.startswith("s3://")
    reading.put("storage.model", "s3" if is_bucket else "nvme")
    if kind == "direct_fs" or reading.flag("reader.odirect"):
        if is_bucket:
            reading.unused("reader.odirect", "a bucket has no page cache")
        else:
            reading.put("storage.page_cache", "direct", "reader.odirect", name)
    _options(reading, is_bucket)


def _options(reading: Reading, is_bucket: bool) -> None:
    for name in CREDENTIALS:
        if name in reading.given:
            if reading.is_from_environment(name):
                reading.unused(name, "rayio reads AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from the environment")
            else:
                reading.refuse(name, f"{KEYS[name].why}; remove it, or add ~workload.{name}")
    section = "storage.storage_options"
    ours = {"endpoint_url": "endpoint", "region": "region", "s3_max_attempts": "max_attempts"}
    for key, own in ours.items():
        name = f"{section}.{key}"
        if name in reading.given:
            if not is_bucket:
                reading.unused(name, "only buckets have options")
            else:
                value = reading.whole(name, 5, 1) if key == "s3_max_attempts" else reading.text(name, "")
                reading.put(f"storage.{own}", value, name)
    name = f"{section}.s3_force_path_style"
    if reading.flag(name) and is_bucket:
        reading.put("storage.addressing_style", "path", name)
    elif not is_bucket:
        reading.unused(name, "only buckets have options")


def _train(reading: Reading) -> None:
    reading.flag("train.seed_change_epoch", default=True)
    reading.put("train.epochs", reading.whole("train.epochs", 1, 1), "train.epochs")
    name = "train.computation_time"
    compute = reading.times(name, "train.computation_time_stdev")
    reading.put("train.compute", compute, name, "train.computation_time_stdev")
    steps = reading.number("train.total_training_steps", -1.0, -1e9)
    if steps >= 1:
        steps = reading.whole("train.total_training_steps", 1, 1)
        reading.put("train.steps", int(steps), "train.total_training_steps")
    if not reading.flag("workflow.train", default=True) and not is_alone(reading):
        reading.differs("workflow.train", "a run always trains; rayio generate only makes the files")


def _measured(reading: Reading) -> None:
    if "metric.au" in reading.given:
        share = reading.number("metric.au", 0.9)
        if share > 1:
            reading.refuse("metric.au", "must be a share, from 0 to 1")
        if is_alone(reading):
            reading.unused("metric.au", "nothing is trained (workflow.train)")
        else:
            reading.put("expect", {"au_dlio": f">= {100 * share:g}"}, "metric.au")
    for section in ("metric", "output.metric"):
        for key, only in (("exclude_start_steps", 1), ("exclude_end_steps", 0)):
            name = f"{section}.{key}"
            if reading.whole(name, only) != only:
                reading.refuse(name, KEYS[name].why)


assert {*_FORMATS} <= {*FORMATS}
