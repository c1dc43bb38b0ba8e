"""Small workload files in the style of DLIO's, and its arithmetic as its documentation has it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

#: An example of a published workload's form: one sample in a file, PyTorch, checkpoints.
VOLUMES = """
model: {name: volumes, type: cnn, model_size: 4000000}
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset:
  data_folder: data/volumes/
  format: npz
  num_files_train: 48
  num_samples_per_file: 1
  record_length_bytes: 1500000
  record_length_bytes_stdev: 300000
  record_length_bytes_resize: 65536
reader: {data_loader: pytorch, batch_size: 3, read_threads: 4, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 4, computation_time: 0.05}
checkpoint: {checkpoint_folder: checkpoints/volumes, checkpoint_after_epoch: 4, epochs_between_checkpoints: 2}
metric: {au: 0.80}
"""
#: Many samples in a file, TensorFlow.
RECORDS = """
model: {name: records}
framework: tensorflow
workflow: {train: True}
dataset:
  data_folder: data/records
  format: tfrecord
  num_files_train: 16
  num_samples_per_file: 4
  record_length_bytes: 20000.25
reader: {data_loader: tensorflow, batch_size: 4, read_threads: 2, computation_threads: 4, transfer_size: 65536}
train: {epochs: 2, computation_time: 1e-2}
"""
#: An evaluation, and most defaults.
EVALUATED = """
model: {name: evaluated}
framework: pytorch
workflow: {evaluation: True, profiling: False}
dataset:
  {data_folder: data/evaluated, format: npy, num_files_train: 20, num_files_eval: 6, record_length_bytes: 5000,
  num_subfolders_train: 4, num_subfolders_eval: 2}
reader: {batch_size: 2, batch_size_eval: 3, read_threads: 0}
train: {epochs: 3, computation_time: 0.02, total_training_steps: 7}
evaluation: {eval_time: 0.01, epochs_between_evals: 1}
profiling: {profiler: iostat}
"""
WORKLOADS = {"volumes": VOLUMES, "records": RECORDS, "evaluated": EVALUATED}


def written(folder: Path, text: str, name: str = "workload.yaml") -> str:
    """Write a workload; return its name for commands."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"dlio:{path}"


def value(workload: dict[str, Any], key: str, default: Any) -> Any:
    """Return a value by its dotted key."""
    node: Any = workload
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return default if node is None else float(node) if isinstance(default, float) else node


def dlio_arithmetic(text: str, ranks: int) -> dict[str, float]:
    """Return what DLIO's documentation says of a workload: steps of an epoch, files, bytes, seconds, bytes/s.

    Max steps per epoch = samples per file * files / batch size / number of processes, rounded down, and at most
    total_training_steps; prefetch_factor = ceil(prefetch_size / read_threads).
    """
    workload = yaml.safe_load(text)
    files, per_file = value(workload, "dataset.num_files_train", 8), value(workload, "dataset.num_samples_per_file", 1)
    batch, record = value(workload, "reader.batch_size", 1), value(workload, "dataset.record_length_bytes", 65536.0)
    steps = math.floor(per_file * files / batch / ranks)
    most = value(workload, "train.total_training_steps", -1)
    seconds = value(workload, "train.computation_time", 0.0)
    threads = value(workload, "reader.read_threads", 1)
    return {
        "steps": steps if most <= 0 else min(most, steps),
        "files": files,
        "samples": files * per_file,
        "epochs": value(workload, "train.epochs", 1),
        "step_bytes": batch * record,
        "demand": batch * record / seconds if seconds else math.inf,
        "window": math.ceil(value(workload, "reader.prefetch_size", 2) / threads) * threads if threads else 0,
    }
