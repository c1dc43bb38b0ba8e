"""What the keys of a DLIO configuration are called in a scenario, for whoever writes them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Keys of DLIO, dotted as in its configuration, and ours; what is no key of ours stands in words.
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

#: DLIO's sections that a scenario does not have, with older names of them.
SECTIONS = {key.partition(".")[0] for key in OURS} - {"dataset", "train", "checkpoint", "storage"}
_OLDER = {"data_reader": "reader"}

#: Keys of a section that are told in one line.
_TOLD = 3


def hint(path: Sequence[str], value: Any) -> str | None:
    """Say what a key that a scenario does not have is called here, if it is one of DLIO's; ``value`` is what it holds.

    >>> hint(["reader"], {"read_threads": 4})
    'is of DLIO; here reader.read_threads is loader.num_workers (rayio import dlio-results DIR takes its results)'
    """
    name = ".".join([_OLDER.get(path[0], path[0]), *path[1:]])
    told = ""
    if name in OURS:
        told = f"here it is {OURS[name]}"
    elif name in SECTIONS:
        held = {key: f"{name}.{key}" for key in value} if isinstance(value, Mapping) else {}
        known = [f"{'.'.join(path)}.{key} is {OURS[full]}" for key, full in held.items() if full in OURS]
        told = f"here {', '.join(known[:_TOLD])}" if known else "a scenario has no such section"
        told += f", and {len(known) - _TOLD} more: see docs/dlio.md" if len(known) > _TOLD else ""
    elif path[0] in SECTIONS:
        told = "a scenario has nothing like it"
    return f"is of DLIO; {told} (rayio import dlio-results DIR takes its results)" if told else None
