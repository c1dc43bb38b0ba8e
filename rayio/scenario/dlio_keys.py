"""DLIO's keys and the scenario's keys that replace them, for hints in error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: DLIO's keys, dotted as in its configuration, with the scenario's key, or the remedy in words.
OURS = {
    "model.name": "name",
    "model.model_size": "checkpoint.model.bytes",
    "framework": "loader.kind",
    "workflow.generate_data": "the command rayio generate",
    "workflow.train": "the command rayio run",
    "workflow.evaluation": "train.evaluate",
    "workflow.checkpoint": "checkpoint",
    "workflow.profiling": "trace.level",
    "dataset.data_folder": "dataset.path",
    "dataset.num_files_train": "dataset.num_files",
    "dataset.num_files_eval": "dataset.eval.num_files",
    "dataset.num_samples_per_file": "dataset.samples_per_file",
    "dataset.record_length": "dataset.sample_bytes",
    "dataset.record_length_bytes": "dataset.sample_bytes",
    "dataset.record_length_stdev": "stdev in dataset.sample_bytes: {kind: normal, mean: …, stdev: …}",
    "dataset.record_length_bytes_stdev": "stdev in dataset.sample_bytes: {kind: normal, mean: …, stdev: …}",
    "dataset.chunk_size": "dataset.chunk",
    "dataset.num_subfolders_train": "dataset.files_per_folder, the files of each folder",
    "dataset.batch_size": "loader.batch_size",
    "reader.data_loader": "loader.kind",
    "reader.batch_size": "loader.batch_size",
    "reader.batch_size_eval": "train.evaluate.batch_size",
    "reader.read_threads": "loader.num_workers",
    "reader.prefetch_size": "loader.prefetch_factor, which counts for each worker: prefetch_size / read_threads",
    "reader.file_shuffle": "loader.shuffle",
    "reader.sample_shuffle": "loader.shuffle",
    "reader.seed_change_epoch": "loader.shuffle, which draws anew in each epoch",
    "reader.shuffle_size": "loader.shuffle_buffer",
    "reader.file_access": "loader.partition",
    "reader.preprocess_time": "loader.decode",
    "reader.pin_memory": "loader.pin_memory",
    "reader.multiprocessing_context": "loader.multiprocessing_context",
    "train.computation_time": "train.compute",
    "train.computation_time_stdev": "stdev in train.compute: {kind: normal, mean: …, stdev: …}",
    "train.total_training_steps": "train.steps",
    "train.seed": "seed",
    "evaluation.eval_time": "train.evaluate.compute",
    "evaluation.epochs_between_evals": "train.evaluate.every.epochs",
    "checkpoint.checkpoint_folder": "checkpoint.path",
    "checkpoint.epochs_between_checkpoints": "checkpoint.every.epochs",
    "checkpoint.steps_between_checkpoints": "checkpoint.every.steps",
    "checkpoint.model_size": "checkpoint.model.bytes",
    "checkpoint.type": "checkpoint.writers",
    "storage.storage_type": "the scheme of dataset.path, such as s3://",
    "storage.storage_root": "dataset.path",
    "output.folder": "the option --out",
    "metric.au": "expect.au",
}

#: DLIO's sections that a scenario does not have, with their older names.
SECTIONS = {key.partition(".")[0] for key in OURS} - {"dataset", "train", "checkpoint", "storage"}
_OLDER = {"data_reader": "reader"}

#: The most keys of a section that one line names.
_MOST_KEYS = 3


def hint(path: Sequence[str], value: Any) -> str | None:
    """Return the remedy for a key of DLIO that a scenario does not have; None for other keys. ``value`` is its value.

    >>> hint(["reader"], {"read_threads": 4})
    'is a DLIO key; use loader.num_workers for reader.read_threads (rayio import dlio-results DIR imports results)'
    """
    name = ".".join([_OLDER.get(path[0], path[0]), *path[1:]])
    remedy = ""
    if name in OURS:
        remedy = f"use {OURS[name]}"
    elif name in SECTIONS:
        keys = {key: f"{name}.{key}" for key in value} if isinstance(value, Mapping) else {}
        known = [f"{OURS[full]} for {'.'.join(path)}.{key}" for key, full in keys.items() if full in OURS]
        remedy = f"use {', '.join(known[:_MOST_KEYS])}" if known else "a scenario has no such section"
        remedy += f", and {len(known) - _MOST_KEYS} more: see docs/dlio.md" if len(known) > _MOST_KEYS else ""
    elif path[0] in SECTIONS:
        remedy = "a scenario has nothing like it"
    return f"is a DLIO key; {remedy} (rayio import dlio-results DIR imports results)" if remedy else None
