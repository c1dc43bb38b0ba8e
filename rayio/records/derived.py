"""Meanings of the numbers derived from a scenario."""

from __future__ import annotations

#: Numbers that ``rayio show`` derives from every scenario, with their meanings. Kinds and options add more.
DERIVED: dict[str, str] = {
    "world_size": "ranks of the run",
    "num_files": "files of the dataset of all ranks",
    "num_samples": "samples of the dataset of all ranks",
    "samples_per_epoch": "samples for all ranks in an epoch; those of a replicated dataset count for every rank",
    "steps_per_epoch": "steps of the rank with the most, in the longest epoch",
    "fewest_steps_per_epoch": "steps of the rank with the fewest, in the longest epoch",
    "total_steps": "steps of the rank with the most, in the run",
    "dropped_samples": "samples per epoch not read because of loader.drop_last, all ranks",
    "capped_samples": "samples per epoch not read because of train.steps, all ranks; of unequal epochs their mean",
    "dataset_bytes": "expected bytes of all samples",
    "batch_bytes": "expected bytes of a batch (of one rank and step)",
    "window_steps": "steps of a rank's full prefetch window",
    "window_bytes": "expected bytes of a rank's full prefetch window",
    "read_demand": "bytes/s of a rank that never waits; null if computing takes no time",
    "total_read_demand": "bytes/s of all ranks if they never wait; null if computing takes no time",
    "ideal_seconds": "compute seconds of a rank in the run",
    "num_readers": "workers of the run",
    "num_queues": "prefetch queues of the run, one for each rank with workers",
    "num_writers": "checkpoint writers of the run",
    "num_checkpoints": "checkpoints of the run; by the clock, the fewest, which a run without waits has",
    "checkpoint_files": "files of a checkpoint, all writers",
    "checkpoint_bytes": "bytes of a checkpoint, all writers",
    "checkpoint_increment_bytes": "bytes of an increment, all writers; missing without checkpoint.incremental",
    "checkpoint_model_bytes": "bytes of the model in a checkpoint; 0 unless checkpoint.model is a transformer",
    "checkpoint_optimizer_bytes": "bytes of the optimizer in a checkpoint; 0 unless checkpoint.model is a transformer",
    "checkpoint_fewest_rank_bytes": "bytes of a checkpoint that the rank with the fewest saves",
    "checkpoint_most_rank_bytes": "bytes of a checkpoint that the rank with the most saves",
    "allreduce_seconds": "seconds of the all-reduce after a step",
    "num_evaluations": "evaluations of the run",
    "evaluation_samples": "samples read by all ranks in an evaluation",
    "evaluation_steps": "steps of the rank with the most, in an evaluation",
    "evaluation_dataset_bytes": "expected bytes of all samples of the evaluation dataset",
    "requests_per_sample": "mean requests to storage per sample; missing if the format does not report it",
}

#: Numbers of one rank; text marks them, because the others are sums of all ranks.
EACH_RANK = ("batch_bytes", "window_steps", "window_bytes", "read_demand", "ideal_seconds")
