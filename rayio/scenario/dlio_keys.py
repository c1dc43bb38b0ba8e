"""DLIO's keys: what each becomes in a scenario, what has no effect here, and what is refused.

The import of DLIO's files (``rayio/imports/dlio_workload.py``), the hints of error messages and the table of the
documentation all have their keys from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: What becomes of a key.
ACTS, ONLY, IDLE, REFUSED = "acts", "one value", "no effect", "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of DLIO. ``to`` is the scenario's key, or the remedy in words; ``why`` a reason or a difference."""

    to: str = ""
    why: str = ""
    fate: str = ACTS


def _idle(why: str) -> Key:
    return Key(why=why, fate=IDLE)


def _only(why: str) -> Key:
    return Key(why=why, fate=ONLY)


def _refused(why: str) -> Key:
    return Key(why=why, fate=REFUSED)


_NOT_READ = "what becomes of a sample after it was read changes no request"
_OWN_CODE = "rayio cannot load classes of DLIO"
_READING = "in training checkpoint.parallelism, because all ranks read different batches"
_CREDENTIALS = "credentials belong in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), never in a file"
_TRACES = "every run records its spans (trace.level)"
_KSM = "memory pages are not merged"

#: DLIO's keys, dotted as in its files, in the order of its documentation.
KEYS = {
    "model.name": Key("name"),
    "model.type": Key("checkpoint.model", "all but transformer save model_size_bytes too"),
    "model.model_size_bytes": Key("checkpoint.model.bytes"),
    "model.model_size": Key("checkpoint.model.bytes", "DLIO ignores this name, and saves 10240 bytes"),
    "model.num_layers": Key("checkpoint.model.layers"),
    "model.model_datatype": Key("checkpoint.model.datatype"),
    "model.optimizer_datatype": Key("checkpoint.model.optimizer_datatype"),
    "model.parallelism.tensor": Key("train.parallelism.tensor", _READING),
    "model.parallelism.pipeline": Key("train.parallelism.pipeline", _READING),
    "model.parallelism.data": Key(
        "cluster.nodes", "one replica if it is -1; with checkpoint.mode: subset, checkpoint.subset_of"
    ),
    "model.parallelism.zero_stage": Key("train.parallelism.zero_stage", _READING),
    "model.transformer.vocab_size": Key("checkpoint.model.vocabulary"),
    "model.transformer.hidden_size": Key("checkpoint.model.hidden"),
    "model.transformer.ffn_hidden_size": Key("checkpoint.model.ffn"),
    "model.transformer.num_attention_heads": Key("checkpoint.model.heads"),
    "model.transformer.num_kv_heads": Key("checkpoint.model.kv_heads"),
    "model.optimization_groups": Key(
        "checkpoint.model.optimizer", "three times their sum, as in DLIO, for each rank that saves an optimizer"
    ),
    "model.layer_parameters": Key("checkpoint.model.layer", "bytes of each tensor of a layer, with num_layers"),
    "framework": Key("loader.file_access", "tensorflow streams TFRecord files; pytorch reads samples by index"),
    "workflow.generate_data": _idle("rayio run generates files that are missing, rayio generate only them"),
    "workflow.train": Key("the command rayio run", "without it, and with checkpoints: checkpoint.phases"),
    "workflow.evaluation": Key("train.evaluate"),
    "workflow.checkpoint": Key("checkpoint"),
    "workflow.profiling": _idle(_TRACES),
    "workflow.debug": _idle("DLIO waits for a key before it starts"),
    "dataset.data_folder": Key("dataset.path", "as in DLIO, files are in its folders train and valid"),
    "dataset.format": Key("dataset.format"),
    "dataset.num_files_train": Key("dataset.num_files"),
    "dataset.num_files_eval": Key("dataset.eval.num_files"),
    "dataset.num_samples_per_file": Key("dataset.samples_per_file"),
    "dataset.record_length_bytes": Key("dataset.sample_bytes", "DLIO rounds it down to the square of a whole number"),
    "dataset.record_length": Key("dataset.sample_bytes", "the older name"),
    "dataset.record_length_bytes_stdev": Key("dataset.sample_bytes", "its stdev, by file; negative sizes are redrawn"),
    "dataset.record_length_stdev": Key("dataset.sample_bytes", "the older name of its stdev"),
    "dataset.record_length_bytes_resize": _idle(_NOT_READ),
    "dataset.record_length_resize": _idle(_NOT_READ),
    "dataset.record_dims": Key("dataset.sample_bytes", "their product, times the bytes of an element"),
    "dataset.record_element_type": Key("dataset.sample_bytes", "the bytes of an element of record_dims"),
    "dataset.record_element_bytes": _idle("as in DLIO, record_element_type says it"),
    "dataset.num_subfolders_train": Key("dataset.files_per_folder", "the files of each folder"),
    "dataset.num_subfolders_eval": _idle("files of the evaluation are in folders as large as those of training"),
    "dataset.file_prefix": _idle("rayio names its files"),
    "dataset.compression": Key("dataset.compression", "gzip or lzf of hdf5 (its chunks), gzip of tfrecord and parquet"),
    "dataset.compression_level": Key("dataset.compression_level", "of gzip in hdf5 files"),
    "dataset.enable_chunking": Key("dataset.chunk"),
    "dataset.chunk_size": Key("dataset.chunk", "of hdf5, with enable_chunking"),
    "dataset.keep_files": _idle("rayio never deletes a dataset"),
    "dataset.generation_buffer_size": _idle("files are generated piece by piece"),
    "dataset.hdf5.num_dset_per_record": _only("only 1: parts of a sample in several datasets are not yet possible"),
    "dataset.hdf5.chunk_dims": Key("dataset.chunk", "their product, times the bytes of an element"),
    "dataset.hdf5.max_shape": _idle("the room to grow changes no request"),
    "reader.data_loader": Key(
        "loader.num_workers", "pytorch, tensorflow, dali (one worker with threads) and native_dali; others are refused"
    ),
    "reader.batch_size": Key("loader.batch_size"),
    "reader.batch_size_eval": Key("train.evaluate.batch_size"),
    "reader.read_threads": Key("loader.num_workers"),
    "reader.computation_threads": Key(
        "loader.decode_threads", "of tensorflow, with preprocess_time: computation_threads / read_threads, rounded up"
    ),
    "reader.prefetch_size": Key(
        "loader.prefetch_factor", "which counts for each worker: prefetch_size / read_threads, rounded up"
    ),
    "reader.file_shuffle": Key("loader.shuffle", "it acts; with DLIO's PyTorch loader it does nothing"),
    "reader.sample_shuffle": Key("loader.shuffle", "it acts; with DLIO's PyTorch loader it does nothing"),
    "reader.shuffle_size": _idle("a shuffle buffer in memory changes no request"),
    "reader.seed_change_epoch": _idle("DLIO has it in train"),
    "reader.file_access": _idle("as in DLIO, where nothing reads it; for one shared file use num_files_train: 1"),
    "reader.read_type": Key("loader.file_access", "memory is in_memory"),
    "reader.transfer_size": Key("loader.buffer_bytes", "of TensorFlow's streams; PyTorch has no such buffer"),
    "reader.preprocess_time": Key("loader.decode", "per sample, in the worker"),
    "reader.preprocess_time_stdev": Key("loader.decode", "its stdev"),
    "reader.odirect": Key("storage.page_cache", "direct"),
    "reader.pin_memory": _idle("without a GPU DLIO's PyTorch copies nothing; loader.pin_memory=true counts that copy"),
    "reader.multiprocessing_context": _idle("workers are actors; loader.kind=torch has the key of this name"),
    "reader.transformed_record_dims": _idle(_NOT_READ),
    "reader.transformed_record_element_type": _idle(_NOT_READ),
    "reader.dont_use_mmap": _idle("files are read in requests, never through memory maps"),
    "reader.data_loader_sampler": _idle("each rank reads a run of samples, and each sample once"),
    "reader.data_loader_classname": _refused(_OWN_CODE),
    "reader.reader_classname": _refused(_OWN_CODE),
    "train.epochs": Key("train.epochs"),
    "train.computation_time": Key("train.compute", "negative times are redrawn; DLIO takes their absolute value"),
    "train.computation_time_stdev": Key("train.compute", "its stdev"),
    "train.total_training_steps": Key("train.steps", "of each epoch, as in DLIO"),
    "train.seed": Key("seed"),
    "train.seed_change_epoch": _idle("each epoch draws its order anew"),
    "evaluation.eval_time": Key("train.evaluate.compute"),
    "evaluation.eval_time_stdev": Key("train.evaluate.compute", "its stdev"),
    "evaluation.eval_after_epoch": Key("train.evaluate.every.first"),
    "evaluation.epochs_between_evals": Key("train.evaluate.every.epochs"),
    "checkpoint.checkpoint_folder": Key("checkpoint.path"),
    "checkpoint.checkpoint_after_epoch": Key("checkpoint.every.first"),
    "checkpoint.epochs_between_checkpoints": Key("checkpoint.every.epochs"),
    "checkpoint.steps_between_checkpoints": Key(
        "checkpoint.every.steps", "counted over epochs; DLIO counts the steps of each epoch anew"
    ),
    "checkpoint.model_size": Key("checkpoint.model.bytes", "the older place of model.model_size"),
    "checkpoint.type": Key("checkpoint.writers"),
    "checkpoint.mode": Key("checkpoint.subset_of", "subset: of a state of layers"),
    "checkpoint.fsync": Key("checkpoint.fsync", "it acts; in DLIO it does nothing"),
    "checkpoint.time_between_checkpoints": Key("checkpoint.phases.pause", "without training"),
    "checkpoint.num_checkpoints_write": Key("checkpoint.phases.writes", "without training"),
    "checkpoint.num_checkpoints_read": Key("checkpoint.phases.reads", "without training"),
    "checkpoint.recovery_rank_shift": Key(
        "checkpoint.phases.shift", "node, without training; it acts, in DLIO it does nothing"
    ),
    "checkpoint.rank_sync": _only("only False: after a checkpoint, ranks meet at the end of their next step"),
    "checkpoint.randomize_tensor": _idle("the content of a state does not change its size"),
    "checkpoint.ksm": _idle(_KSM),
    "checkpoint.checkpoint_mechanism_classname": _refused(_OWN_CODE),
    "storage.storage_type": Key(
        "the scheme of dataset.path, such as s3://",
        "parallel_fs is read like local_fs; direct_fs is storage.page_cache=direct; aistore is refused",
    ),
    "storage.storage_root": Key("dataset.path"),
    "storage.storage_options.access_key_id": _refused(_CREDENTIALS),
    "storage.storage_options.secret_access_key": _refused(_CREDENTIALS),
    "storage.storage_options.endpoint_url": Key("storage.endpoint"),
    "storage.storage_options.region": Key("storage.region"),
    "storage.storage_options.s3_force_path_style": Key("storage.addressing_style"),
    "storage.storage_options.s3_max_attempts": Key("storage.max_attempts"),
    "output.folder": _idle("the option --out names the run directory"),
    "output.log_file": _idle("messages go to the terminal"),
    "output.metric.exclude_start_steps": _only("only 1, as in the AU that rayio computes by DLIO's formula"),
    "output.metric.exclude_end_steps": _only("only 0, as in the AU that rayio computes by DLIO's formula"),
    "metric.au": Key("expect.au_dlio"),
    "metric.exclude_start_steps": _only("only 1, as in the AU that rayio computes by DLIO's formula"),
    "metric.exclude_end_steps": _only("only 0, as in the AU that rayio computes by DLIO's formula"),
    "profiling.profiler": _idle(_TRACES),
    "profiling.iostat_devices": _idle(_TRACES),
}

#: DLIO's sections, with the older name of one.
ALL_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in KEYS))
OLDER = {"data_reader": "reader"}
#: Those that a scenario does not have.
SECTIONS = {*ALL_SECTIONS} - {"dataset", "train", "checkpoint", "storage"}

#: The most keys of a section that one line names.
_MOST_KEYS = 3

_CONVERTED = "rayio import dlio FILE converts a workload of DLIO"


def _remedy(key: Key, name: str = "") -> str:
    """Return what to do in place of a key."""
    written = f" for {name}" if name else ""
    if key.to:
        return f"use {key.to}{written}"
    return f"leave it out{written}: {key.why}"


def hint(path: Sequence[str], value: Any) -> str | None:
    """Return the remedy for a key of DLIO that a scenario does not have; None for other keys. ``value`` is its value.

    >>> hint(["reader"], {"read_threads": 4})
    'is a DLIO key; use loader.num_workers for reader.read_threads (rayio import dlio FILE converts a workload of DLIO)'
    """
    name = ".".join([OLDER.get(path[0], path[0]), *path[1:]])
    remedy = ""
    if name in KEYS:
        remedy = _remedy(KEYS[name])
    elif name in SECTIONS:
        keys = {key: f"{name}.{key}" for key in value} if isinstance(value, Mapping) else {}
        known = [f"use {KEYS[full].to} for {'.'.join(path)}.{key}" for key, full in keys.items() if _has_name(full)]
        remedy = ", ".join(known[:_MOST_KEYS]) if known else "a scenario has no such section"
        remedy += f", and {len(known) - _MOST_KEYS} more: see docs/dlio.md" if len(known) > _MOST_KEYS else ""
        remedy = remedy.replace(", use ", ", ")
    elif path[0] in SECTIONS:
        remedy = "a scenario has nothing like it"
    return f"is a DLIO key; {remedy} ({_CONVERTED})" if remedy else None


def _has_name(full: str) -> bool:
    return full in KEYS and bool(KEYS[full].to)


def table() -> str:
    """Return all keys as a table in Markdown."""
    rows = ["| DLIO | fate | rayio | note |", "|---|---|---|---|"]
    for name, key in KEYS.items():
        to = f"`{key.to}`" if key.to and " " not in key.to else key.to
        rows.append(f"| `{name}` | {key.fate} | {to} | {key.why} |")
    return "\n".join(rows)
