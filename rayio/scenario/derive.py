"""Numbers derived from a scenario: every formula without a clock, with its rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rayio.kinds import PARTITIONS
from rayio.place import MAX_STEPS
from rayio.scenario import shards
from rayio.scenario.compute import Between, times_at
from rayio.scenario.pace import Pace
from rayio.scenario.schedule import EpochSteps, Schedule
from rayio.schema.distribution import Distribution
from rayio.schema.every import Every

if TYPE_CHECKING:
    from rayio.scenario.checkpoint import Phases
    from rayio.scenario.model import Scenario

#: A sample begins with its id and a digest of 8 bytes each (see ``rayio.data.formats.sample``).
MIN_SAMPLE_BYTES = 16
#: Most samples of a file whose samples differ in size: a worker adds up those before each.
MAX_VARYING = 1_000_000
MAX_SAMPLES = MAX_BYTES = 1 << 62
#: The largest sample; a larger size is a mistake in the distribution.
MAX_SAMPLE_BYTES = 1 << 47
#: The longest run: half the range of a clock of 64 bits in ns, 146 years.
MAX_SECONDS = (1 << 62) / 1e9


def world_size(scenario: Scenario) -> int:
    """Return the number of ranks of the whole run."""
    return scenario.cluster.world_size


def num_shares(scenario: Scenario) -> int:
    """Return the shares of an epoch: one for each replica of the model, whose ranks read the same batches."""
    return scenario.topology.data_parallel


def ranks_of_sample(scenario: Scenario) -> int:
    """Return the ranks that read each sample: those of a replica of the model."""
    return world_size(scenario) // num_shares(scenario)


def is_replicated(scenario: Scenario) -> bool:
    """Return True if every rank reads the whole dataset."""
    is_shared: bool = PARTITIONS[scenario.loader.partition].shared
    return is_shared


def num_files(scenario: Scenario) -> int:
    """Return the files of the whole dataset: ``dataset.num_files``; with ``loader.scaling: weak``, times the ranks.

    Weak scaling keeps what a rank reads in an epoch, whatever the number of ranks; the dataset grows with them, or with
    the replicas of a divided model. A
    replicated dataset is every rank's own as it is, so that it has the same files under both.
    """
    grows = scenario.loader.scaling == "weak" and not is_replicated(scenario)
    return scenario.dataset.num_files * (num_shares(scenario) if grows else 1)


def num_samples(scenario: Scenario) -> int:
    """Return the number of samples of the whole dataset."""
    return num_files(scenario) * scenario.dataset.samples_per_file


def samples_per_rank(scenario: Scenario) -> tuple[int, int]:
    """Return the smallest and largest share of a rank in one epoch, in samples; they differ by one, or by a file."""
    if is_replicated(scenario):
        return num_samples(scenario), num_samples(scenario)
    if shards.are_whole(scenario):
        return shards.samples_of(scenario, num_files(scenario), num_shares(scenario))
    share, left = divmod(num_samples(scenario), num_shares(scenario))
    return share, share + (left > 0)


def samples_per_epoch(scenario: Scenario) -> int:
    """Return the number of samples of all ranks in one epoch; a sample counts once for each rank that reads it."""
    return num_samples(scenario) * (world_size(scenario) if is_replicated(scenario) else scenario.topology.parts)


def larger_shares(scenario: Scenario) -> int:
    """Return the number of ranks whose share of an epoch is larger than the smallest, by a sample or a file."""
    shared = num_files(scenario) if shards.are_whole(scenario) else num_samples(scenario)
    return 0 if is_replicated(scenario) else shared % num_shares(scenario) * scenario.topology.parts


def whole_steps_per_epoch(scenario: Scenario) -> int:
    """Return the whole batches of every rank in one epoch, rounded down, before ``train.steps`` caps them.

    If workers own files, each worker's batches are rounded down.
    """
    if shards.is_by_file(scenario):
        return shards.steps_of(scenario, num_files(scenario), num_shares(scenario))[0]
    return samples_per_rank(scenario)[0] // scenario.loader.batch_size


def uncapped_steps(scenario: Scenario) -> tuple[int, int]:
    """Return the fewest and most steps of a rank in one epoch, before ``train.steps`` caps them.

    With ``drop_last`` all ranks have the whole batches of the smallest share, rounded down. Without, each has its
    whole share, rounded up: the last batch may be smaller, and ranks may differ by one step.
    """
    if scenario.loader.drop_last:
        return (whole_steps_per_epoch(scenario),) * 2
    if shards.are_whole(scenario):
        return shards.steps_of(scenario, num_files(scenario), num_shares(scenario))
    fewest, most = (-(-share // scenario.loader.batch_size) for share in samples_per_rank(scenario))
    return fewest, most


def rank_steps(scenario: Scenario) -> tuple[int, int]:
    """Return the fewest and most steps of a rank in one epoch, at most ``train.steps``; in the longest epoch."""
    return _capped(uncapped_steps(scenario), scenario.train.cap)


def _capped(steps: tuple[int, int], cap: int | None) -> tuple[int, int]:
    fewest, most = steps
    return (fewest, most) if cap is None else (min(fewest, cap), min(most, cap))


def rank_steps_by_epoch(scenario: Scenario) -> list[tuple[int, int]]:
    """Return :func:`rank_steps` of each epoch; if all are equal, as one."""
    caps = scenario.train.steps
    if not isinstance(caps, tuple):
        return [rank_steps(scenario)]
    uncapped = uncapped_steps(scenario)
    return [_capped(uncapped, cap) for cap in caps]


def epoch_steps(scenario: Scenario) -> EpochSteps:
    """Return the steps of each epoch, of the rank with the most."""
    most = tuple(most for _, most in rank_steps_by_epoch(scenario))
    return EpochSteps(epochs(scenario), most if len({*most}) > 1 else most[0])


def steps_per_epoch(scenario: Scenario) -> int:
    """Return the steps of the longest epoch, at most ``train.steps``; without ``drop_last``, of the largest shares."""
    return rank_steps(scenario)[1]


def total_steps(scenario: Scenario) -> int:
    """Return the steps of the whole run, of the rank that has the most."""
    return epoch_steps(scenario).total


def epochs(scenario: Scenario) -> int:
    """Return the passes over the dataset; none without training (``checkpoint.phases``)."""
    return 0 if phases(scenario) is not None else scenario.train.epochs


def phases(scenario: Scenario) -> Phases | None:
    """Return the phases of a run that saves and restores checkpoints without training."""
    return None if scenario.checkpoint is None else scenario.checkpoint.phases


def total_rank_steps(scenario: Scenario) -> int:
    """Return the steps of the whole run, summed over all ranks."""
    by_epoch, larger = rank_steps_by_epoch(scenario), larger_shares(scenario)
    each = [fewest * world_size(scenario) + (most - fewest) * larger for fewest, most in by_epoch]
    return sum(each) if len(each) > 1 else epochs(scenario) * each[0]


def samples_per_step(scenario: Scenario) -> int:
    """Return the samples of all ranks in one step."""
    return scenario.loader.batch_size * world_size(scenario)


def samples_read(scenario: Scenario) -> int:
    """Return the samples that all ranks read in one epoch, including smaller last batches; of unequal ones the mean."""
    larger, shares, read = larger_shares(scenario), samples_per_rank(scenario), list[int]()
    for _, steps in rank_steps_by_epoch(scenario):
        smallest, largest = (min(share, steps * scenario.loader.batch_size) for share in shares)
        if shards.are_whole(scenario):
            smallest, largest = shards.samples_of(scenario, num_files(scenario), num_shares(scenario), steps)
        read.append((world_size(scenario) - larger) * smallest + larger * largest)
    return round(sum(read) / len(read))


def dropped_samples(scenario: Scenario) -> int:
    """Return the samples per epoch that ``drop_last`` drops, because they fill no whole batch on every rank.

    What every rank of a replicated dataset drops counts once for each, as in ``samples_per_epoch``.
    """
    if not scenario.loader.drop_last:
        return 0
    return samples_per_epoch(scenario) - whole_steps_per_epoch(scenario) * samples_per_step(scenario)


def capped_samples(scenario: Scenario) -> int:
    """Return the samples per epoch that are not visited because of ``train.steps``, apart from the dropped ones.

    Of unequal epochs it is their mean.
    """
    return samples_per_epoch(scenario) - dropped_samples(scenario) - samples_read(scenario)


def least_sample_bytes(options: Any) -> int:
    """Return the least bytes of a sample; some formats need more than an id and a checksum."""
    least: int = getattr(options, "least_bytes", MIN_SAMPLE_BYTES)
    return least


def read_bytes(options: Any, sample_bytes: Any) -> Any:
    """Return the bytes that are delivered of samples of these sizes; a format's options may leave some out."""
    read = getattr(options, "read_bytes", None)
    return sample_bytes if read is None else read(sample_bytes)


def batch_bytes(scenario: Scenario) -> float:
    """Return the expected bytes of one delivered batch."""
    dataset = scenario.dataset
    return scenario.loader.batch_size * float(read_bytes(dataset.options, dataset.sample_bytes.expected))


def sample_bytes(scenario: Scenario) -> float:
    """Return the mean bytes of a sample of the dataset."""
    return batch_bytes(scenario) / scenario.loader.batch_size


def dataset_bytes(scenario: Scenario) -> float:
    """Return the expected bytes of all samples, without the overhead of the format."""
    return num_samples(scenario) * scenario.dataset.sample_bytes.expected


def compute_times(scenario: Scenario) -> Distribution | Between:
    """Return the compute times of steps of ``loader.batch_size``."""
    return times_at(scenario.train.compute, scenario.loader.batch_size)


def compute_seconds(scenario: Scenario) -> float:
    """Return the expected compute time of a step, in seconds."""
    return compute_times(scenario).expected


def own_seconds(scenario: Scenario) -> float:
    """Return the expected time of a step that waits for no batch and no rank, in seconds.

    It is the compute with its bubble, and the copy to the accelerator; of a copy that overlaps, the longer of both.
    """
    train, seconds = scenario.train, compute_seconds(scenario) * (1 + scenario.train.parallelism.bubble)
    if (copy := train.device_copy) is None:
        return seconds
    copied = batch_bytes(scenario) / copy.rate(pinned=scenario.loader.pin_memory)
    return max(seconds, copied) if copy.overlap else seconds + copied


def pace(scenario: Scenario) -> Pace:
    """Return what changes compute times from step to step and from rank to rank."""
    train = scenario.train
    return Pace(train.warmup, train.speeds, train.stragglers, compute_seconds(scenario))


def read_demand(scenario: Scenario) -> float:
    """Return the bytes/s that one rank needs to never wait; infinite if compute takes no time."""
    seconds = own_seconds(scenario)
    return batch_bytes(scenario) / seconds if seconds > 0 else math.inf


def total_read_demand(scenario: Scenario) -> float:
    """Return the bytes/s that all ranks need to never wait; infinite if compute takes no time."""
    return world_size(scenario) * read_demand(scenario)


def ideal_seconds(scenario: Scenario) -> float:
    """Return the expected compute time of one rank in the whole run, in seconds, at its usual pace (``Pace``)."""
    return total_steps(scenario) * compute_seconds(scenario)


def window_steps(scenario: Scenario) -> int:
    """Return the prefetch window in steps: P·W as in PyTorch; 0 without workers."""
    return scenario.loader.prefetch_factor * scenario.loader.max_workers


def window_bytes(scenario: Scenario) -> float:
    """Return the expected bytes of one rank's full prefetch window."""
    return window_steps(scenario) * batch_bytes(scenario)


def node_window_bytes(scenario: Scenario) -> float:
    """Return the expected bytes of the full prefetch windows of all ranks of the node with the most."""
    return scenario.cluster.most_ranks * window_bytes(scenario)


def num_readers(scenario: Scenario) -> int:
    """Return the number of workers of the whole run."""
    return world_size(scenario) * scenario.loader.max_workers


def num_queues(scenario: Scenario) -> int:
    """Return the number of prefetch queues of the whole run: one per rank, none without workers."""
    return world_size(scenario) if scenario.loader.num_workers else 0


def num_writers(scenario: Scenario) -> int:
    """Return the number of checkpoint writers of the whole run."""
    return len(checkpoint_shards(scenario))


def num_roles(scenario: Scenario) -> int:
    """Return the number of workers, queues, ranks and checkpoint writers."""
    return num_readers(scenario) + num_queues(scenario) + world_size(scenario) + num_writers(scenario)


def checkpoint_shards(scenario: Scenario) -> tuple[int, ...]:
    """Return the bytes of each writer in one checkpoint, by number."""
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return ()
    topology = scenario.saving_topology
    loads = checkpoint.writers.loads(checkpoint.model, topology)
    if checkpoint.subset_of is None:
        return loads
    used = {writer for rank in range(world_size(scenario)) for writer in checkpoint.writers.of_rank(rank, topology)}
    return loads[: len(used)]  # each belongs to a rank of the same number


def checkpoint_contents(scenario: Scenario) -> dict[str, tuple[int, int]]:
    """Return the number of files of one checkpoint and their bytes, by what they hold."""
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return {}
    if checkpoint.subset_of is None:
        return checkpoint.writers.contents(checkpoint.model, scenario.saving_topology)
    contents: dict[str, tuple[int, int]] = {}
    for writer in range(num_writers(scenario)):
        for part in checkpoint.writers.files(writer, checkpoint.model, scenario.saving_topology):
            number, nbytes = contents.get(part.of, (0, 0))
            contents[part.of] = number + 1, nbytes + part.num_bytes
    return contents


def checkpoint_files(scenario: Scenario) -> int:
    """Return the number of files of one checkpoint."""
    return sum(number for number, _ in checkpoint_contents(scenario).values())


def checkpoint_shares(scenario: Scenario) -> list[int]:
    """Return the bytes that each rank saves in one checkpoint."""
    if scenario.checkpoint is None or not (loads := checkpoint_shards(scenario)):
        return []
    writers, topology = scenario.checkpoint.writers, scenario.saving_topology
    ranks = range(world_size(scenario))
    return [sum(loads[writer] for writer in writers.of_rank(rank, topology)) for rank in ranks]


def checkpoint_bytes(scenario: Scenario) -> int:
    """Return the bytes of one checkpoint, of all writers."""
    return sum(checkpoint_shards(scenario))


def checkpoint_period(scenario: Scenario) -> int:
    """Return the steps from one checkpoint to the next, counted over epochs; 0 without checkpoints in training."""
    saved = scenario.checkpoint
    return 0 if saved is None or saved.every is None or saved.phases is not None else period(scenario, saved.every)


def period(scenario: Scenario, every: Every) -> int:
    """Return the steps from one occasion to the next, counted over epochs; of seconds, the steps without any wait."""
    if every.seconds is not None:
        each = compute_seconds(scenario)
        return max(1, math.ceil(min(every.seconds / each, float(MAX_STEPS)) - 1e-9)) if each > 0 else MAX_STEPS
    return every.steps if every.steps is not None else epoch_steps(scenario).before(every.epochs or 1)


def schedule(scenario: Scenario, every: Every) -> Schedule:
    """Return the occasions of a run; of seconds, those without any wait."""
    if every.epochs is not None:
        return Schedule(every.epochs, epoch_steps(scenario), of_epochs=True, first=every.first)
    return Schedule(period(scenario, every), epoch_steps(scenario), first=every.first)


def checkpoint_steps(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Return each (epoch, step), from 0, with a checkpoint after it."""
    saved = scenario.checkpoint
    if (chosen := phases(scenario)) is not None:
        yield from ((0, number) for number in range(chosen.writes))
    elif saved is not None and saved.every is not None:
        yield from schedule(scenario, saved.every).places()


def num_checkpoints(scenario: Scenario) -> int:
    """Return the number of checkpoints of the whole run; by the clock, those without any wait."""
    if (chosen := phases(scenario)) is not None:
        return chosen.writes
    saved = scenario.checkpoint
    if saved is None or saved.every is None:
        return 0
    if (seconds := saved.every.seconds) is not None:
        after_first = total_steps(scenario) - 1
        return min(after_first, int(after_first * compute_seconds(scenario) / seconds + 1e-9))
    return schedule(scenario, saved.every).number
