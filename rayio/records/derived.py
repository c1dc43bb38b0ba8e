"""What the numbers mean that follow from a scenario, and which of them are of one rank."""

from __future__ import annotations

#: Each number that ``rayio show`` derives from any scenario: what it is, and its unit where it has one. Kinds of
#: other packages, and options, add more.
DERIVED: dict[str, str] = {
    "world_size": "ranks of the run",
    "num_files": "files of the dataset, that of all ranks",
    "num_samples": "samples of the dataset, that of all ranks",
    "samples_per_epoch": "samples given to all ranks in an epoch; of a replicated dataset each counts for every rank",
    "steps_per_epoch": "steps of one rank in an epoch: of one that has the most",
    "fewest_steps_per_epoch": "steps of one rank in an epoch: of one that has the fewest",
    "total_steps": "steps of one rank in the run: of one that has the most",
    "dropped_samples": "samples of an epoch that loader.drop_last drops, of all ranks",
    "capped_samples": "samples of an epoch that train.steps leaves out, of all ranks",
    "dataset_bytes": "expected bytes of all samples",
    "batch_bytes": "expected bytes of one batch, which is what one rank takes in a step",
    "window_steps": "steps that one rank may have started and not consumed",
    "window_bytes": "expected bytes of one rank's full prefetch window",
    "read_demand": "bytes/s that one rank asks for when it never waits; null when computing takes no time",
    "total_read_demand": "bytes/s that all ranks together ask for when they never wait; null when computing takes none",
    "ideal_seconds": "seconds that one rank computes in the run",
    "num_readers": "readers of the run",
    "num_queues": "prefetch queues of the run, one for each rank that has readers",
    "num_writers": "checkpoint writers of the run",
    "num_checkpoints": "checkpoints of the run",
    "checkpoint_bytes": "bytes of one checkpoint, of all writers",
    "allreduce_seconds": "seconds that all ranks stay together after a step, once all are there",
    "num_evaluations": "evaluations of the run",
    "evaluation_samples": "samples that all ranks read in one evaluation",
    "evaluation_steps": "steps of one rank in one evaluation: of one that has the most",
    "evaluation_dataset_bytes": "expected bytes of all samples of the evaluation dataset",
    "requests_per_sample": "requests to storage for one sample, on average; missing where the format cannot say",
}

#: Those of one rank, among sums of all ranks: text says so.
EACH_RANK = ("batch_bytes", "window_steps", "window_bytes", "read_demand", "ideal_seconds")
