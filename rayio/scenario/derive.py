"""Numbers that follow from a scenario: every formula that needs no clock, once, with its rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rayio.kinds import PARTITIONS
from rayio.scenario.sync import Sync
from rayio.schema.every import Every

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: A sample begins with its id and a digest of 8 bytes each (see ``rayio.data.formats.sample``).
MIN_SAMPLE_BYTES = 16
MAX_SAMPLES = MAX_BYTES = 1 << 62
#: Beyond this a size is a mistake in the distribution, not a sample.
MAX_SAMPLE_BYTES = 1 << 47
#: What a clock of 64 bits in ns has room for, and half of it to spare; 146 years.
MAX_SECONDS = (1 << 62) / 1e9


def world_size(scenario: Scenario) -> int:
    """Ranks of the whole run."""
    return scenario.cluster.world_size


def is_replicated(scenario: Scenario) -> bool:
    """Return True if every rank reads the whole dataset."""
    is_shared: bool = PARTITIONS[scenario.loader.partition].shared
    return is_shared


def num_files(scenario: Scenario) -> int:
    """Files of the whole dataset: ``dataset.num_files``, and with ``loader.scaling: weak`` so many for each rank.

    Weak scaling keeps what a rank reads in an epoch, whatever the number of ranks; the dataset grows with them. A
    replicated dataset is every rank's own as it is, so that it has the same files under both.
    """
    grows = scenario.loader.scaling == "weak" and not is_replicated(scenario)
    return scenario.dataset.num_files * (world_size(scenario) if grows else 1)


def num_samples(scenario: Scenario) -> int:
    """Samples of the whole dataset, that of all ranks."""
    return num_files(scenario) * scenario.dataset.samples_per_file


def samples_per_rank(scenario: Scenario) -> tuple[int, int]:
    """Smallest and largest share of a rank in one epoch, before whole batches are made; they differ by at most one."""
    if is_replicated(scenario):
        return num_samples(scenario), num_samples(scenario)
    share, left = divmod(num_samples(scenario), world_size(scenario))
    return share, share + (left > 0)


def samples_per_epoch(scenario: Scenario) -> int:
    """Samples given to ranks in one epoch; of a replicated dataset each counts once for every rank."""
    return num_samples(scenario) * (world_size(scenario) if is_replicated(scenario) else 1)


def larger_shares(scenario: Scenario) -> int:
    """Ranks whose share of an epoch is one sample larger than the smallest; which ranks, the partition says."""
    return 0 if is_replicated(scenario) else num_samples(scenario) % world_size(scenario)


def whole_steps_per_epoch(scenario: Scenario) -> int:
    """Whole batches that every rank has in one epoch, before the cap; rounded down, equal on all ranks."""
    return samples_per_rank(scenario)[0] // scenario.loader.batch_size


def uncapped_steps(scenario: Scenario) -> tuple[int, int]:
    """Fewest and most steps of a rank in one epoch, before ``train.steps`` caps them.

    With ``drop_last`` all ranks have the whole batches of the smallest share, rounded down. Without, each has its
    whole share, rounded up: the last batch may be smaller, and ranks may differ by one step.
    """
    if scenario.loader.drop_last:
        return whole_steps_per_epoch(scenario), whole_steps_per_epoch(scenario)
    fewest, most = (-(-share // scenario.loader.batch_size) for share in samples_per_rank(scenario))
    return fewest, most


def rank_steps(scenario: Scenario) -> tuple[int, int]:
    """Fewest and most steps of a rank in one epoch, at most ``train.steps``."""
    fewest, most = uncapped_steps(scenario)
    cap = scenario.train.steps
    return (fewest, most) if cap is None else (min(fewest, cap), min(most, cap))


def steps_per_epoch(scenario: Scenario) -> int:
    """Steps of one epoch, at most ``train.steps``: all ranks', or without ``drop_last`` those of the largest shares."""
    return rank_steps(scenario)[1]


def total_steps(scenario: Scenario) -> int:
    """Steps of the whole run, as one rank counts them that has the most."""
    return scenario.train.epochs * steps_per_epoch(scenario)


def total_rank_steps(scenario: Scenario) -> int:
    """Steps of the whole run, those of all ranks added up."""
    fewest, most = rank_steps(scenario)
    extra = (most - fewest) * larger_shares(scenario)
    return scenario.train.epochs * (fewest * world_size(scenario) + extra)


def samples_per_step(scenario: Scenario) -> int:
    """Samples that all ranks together consume in one step."""
    return scenario.loader.batch_size * world_size(scenario)


def samples_read(scenario: Scenario) -> int:
    """Samples that all ranks together read in one epoch; a last batch that is smaller counts as what it holds."""
    most, larger = steps_per_epoch(scenario) * scenario.loader.batch_size, larger_shares(scenario)
    smallest, largest = (min(share, most) for share in samples_per_rank(scenario))
    return (world_size(scenario) - larger) * smallest + larger * largest


def dropped_samples(scenario: Scenario) -> int:
    """Samples per epoch that ``drop_last`` drops, because they fill no whole batch on every rank.

    What every rank of a replicated dataset drops counts once for each, as in ``samples_per_epoch``.
    """
    if not scenario.loader.drop_last:
        return 0
    return samples_per_epoch(scenario) - whole_steps_per_epoch(scenario) * samples_per_step(scenario)


def capped_samples(scenario: Scenario) -> int:
    """Samples per epoch that are not visited because of ``train.steps``, apart from the dropped ones."""
    return samples_per_epoch(scenario) - dropped_samples(scenario) - samples_read(scenario)


def read_bytes(options: Any, sample_bytes: Any) -> Any:
    """Bytes that are read and delivered of samples of these sizes: fewer where a format's options leave some out."""
    read = getattr(options, "read_bytes", None)
    return sample_bytes if read is None else read(sample_bytes)


def batch_bytes(scenario: Scenario) -> float:
    """Expected bytes of one batch, as it is delivered."""
    dataset = scenario.dataset
    sample_bytes: float = read_bytes(dataset.options, dataset.sample_bytes.expected)
    return scenario.loader.batch_size * sample_bytes


def dataset_bytes(scenario: Scenario) -> float:
    """Expected bytes of all samples, those of all ranks; what a format adds around them is not counted."""
    return num_samples(scenario) * scenario.dataset.sample_bytes.expected


def read_demand(scenario: Scenario) -> float:
    """Bytes per second that one rank asks for when it never waits; infinite when compute takes no time."""
    compute = scenario.train.compute.expected
    return batch_bytes(scenario) / compute if compute > 0 else math.inf


def total_read_demand(scenario: Scenario) -> float:
    """Bytes per second that all ranks together ask for when they never wait; infinite when compute takes no time."""
    return world_size(scenario) * read_demand(scenario)


def ideal_seconds(scenario: Scenario) -> float:
    """Expected compute time of one rank in the whole run: what it would take with data, barrier and disk for free."""
    return total_steps(scenario) * scenario.train.compute.expected


def window_steps(scenario: Scenario) -> int:
    """Steps of one rank that may be started and not yet consumed: P·W as in PyTorch; 0 when the rank reads itself."""
    return scenario.loader.prefetch_factor * scenario.loader.max_workers


def window_bytes(scenario: Scenario) -> float:
    """Expected bytes that one rank's full window holds."""
    return window_steps(scenario) * batch_bytes(scenario)


def node_window_bytes(scenario: Scenario) -> float:
    """Expected bytes that the full windows of all ranks of one node hold."""
    return scenario.cluster.ranks_per_node * window_bytes(scenario)


def num_readers(scenario: Scenario) -> int:
    """Reader roles of the whole run; none when ranks read themselves."""
    return world_size(scenario) * scenario.loader.max_workers


def num_queues(scenario: Scenario) -> int:
    """Prefetch queues of the whole run: one per rank, none when ranks read themselves."""
    return world_size(scenario) if scenario.loader.num_workers else 0


def num_writers(scenario: Scenario) -> int:
    """Checkpoint writers of the whole run."""
    return len(checkpoint_shards(scenario))


def num_roles(scenario: Scenario) -> int:
    """Readers, queues, ranks and checkpoint writers together."""
    return num_readers(scenario) + num_queues(scenario) + world_size(scenario) + num_writers(scenario)


def checkpoint_shards(scenario: Scenario) -> tuple[int, ...]:
    """Bytes that each writer writes in one checkpoint, by number."""
    checkpoint = scenario.checkpoint
    return () if checkpoint is None else checkpoint.writers.sizes(checkpoint.model.bytes, scenario.cluster.topology)


def checkpoint_bytes(scenario: Scenario) -> int:
    """Bytes of one checkpoint, all writers together."""
    return sum(checkpoint_shards(scenario))


def checkpoint_period(scenario: Scenario) -> int:
    """Steps from one checkpoint to the next, counted over epochs; 0 without checkpoints."""
    return 0 if scenario.checkpoint is None else period(scenario, scenario.checkpoint.every)


def period(scenario: Scenario, every: Every) -> int:
    """Steps from one occasion to the next, counted over epochs."""
    return every.steps if every.steps is not None else (every.epochs or 1) * steps_per_epoch(scenario)


def checkpoint_steps(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """List each (epoch, step), from 0, that a checkpoint follows."""
    if often := checkpoint_period(scenario):
        for number in range(often, total_steps(scenario) + 1, often):
            yield divmod(number - 1, steps_per_epoch(scenario))


def num_checkpoints(scenario: Scenario) -> int:
    """Checkpoints of the whole run."""
    often = checkpoint_period(scenario)
    return total_steps(scenario) // often if often else 0


def allreduce_seconds(sync: Sync, ranks: int) -> float:
    """Time that so many ranks stay together after a step, once all are there (see ``sync.AllReduce.seconds``)."""
    return sync.seconds(ranks)
