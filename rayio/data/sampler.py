"""The sampler: the samples of rank r at step s of epoch e, computed from parameters in O(batch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data import permuted
from rayio.data.formats import layout_of
from rayio.data.layout import Batch, Layout
from rayio.data.partition import PARTITIONS
from rayio.data.shuffle import SHUFFLES, Sizes
from rayio.data.streams import Streams
from rayio.errors import DataError
from rayio.scenario import derive, shards
from rayio.scenario.schedule import PerEpoch, in_epoch
from rayio.scenario.turns import Turns
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section
from rayio.storage.base import RequestTable

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: Default number of samples computed together.
BLOCK_SAMPLES = 4096
#: Up to this many ids of a step are summed without numpy, which costs per call.
FEW = 64


def sample_digest(epoch: int, rank: int, step: int, ids: NDArray[np.int64]) -> int:
    """Return the sum of hash(epoch, rank, step, id) over the samples of a step, mod 2**64.

    A sum ignores the order of the samples and, unlike XOR, detects a repeated sample.
    """
    if len(ids) > FEW:
        return int(digests(epoch, rank, np.array([step], np.int64), ids.reshape(1, -1))[0])
    mix, golden = seeds.mix_one, seeds.GOLDEN
    step_key = seeds.word(seeds.key(0, "digest", epoch, rank), step)
    return sum(mix((sample + 1) * golden + step_key) for sample in ids.tolist()) & seeds.MASK


def digests(epoch: int, rank: int, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return :func:`sample_digest` of steps; ``ids`` has a row for each."""
    step_keys = seeds.words(seeds.key(0, "digest", epoch, rank), steps)
    hashes = seeds.mix((ids.astype(np.uint64) + np.uint64(1)) * np.uint64(seeds.GOLDEN) + step_keys[:, None])
    digests: NDArray[np.uint64] = hashes.sum(axis=1, dtype=np.uint64)
    return digests


class Block:
    """Consecutive steps of one (epoch, rank), computed together because numpy costs per call."""

    def __init__(self, samples: NDArray[np.int64], layout: Layout, within: Block | None = None, first: int = 0) -> None:
        self.samples = samples
        self.batch_size: int = samples.shape[1]
        if within is None:
            self.files, self.index = layout.locate(samples)
            self.nbytes = layout.delivered_bytes_of(samples, self.files)
            self.step_bytes: list[int] = self.nbytes.sum(axis=1).tolist()
        else:
            rows = slice(first, first + len(samples))
            self.files, self.index, self.nbytes = within.files[rows], within.index[rows], within.nbytes[rows]
            self.step_bytes = within.step_bytes[rows]
        self.digests: list[int] | None = None
        #: The format's requests for these steps; filled by the code that computes them.
        self.requests: RequestTable | None = None
        #: Decode time (s) of each step's samples; filled by the code that draws it.
        self.decode_seconds: list[float] | None = None

    def split(self, num_steps: int, layout: Layout) -> list[Block]:
        """Return blocks of ``num_steps`` rows each, which share this block's arrays."""
        starts = range(0, len(self.samples), num_steps)
        return [Block(self.samples[first : first + num_steps], layout, self, first) for first in starts]


class Sampler:
    """The plan of all ranks and epochs, as a handful of parameters; it pickles to a few hundred bytes.

    With ``drop_last`` every rank has the same number of steps: samples that do not fill a batch on every rank are
    dropped from the end of each rank's share (with ``shuffle="global"`` other samples every epoch). Without it every
    rank has all of its share: its last batch (of workers that own files, that of each) may be smaller, and ranks may
    differ in steps. ``block_samples`` and ``max_blocks`` bound a cache of computed steps, which is no part of the plan;
    see :meth:`cached_for`.

    Raises:
        DataError: a size is not positive, or the dataset is smaller than one batch a rank (one sample without
            ``drop_last``).
        ScenarioError: no such partition or shuffle.

    ``alike`` ranks next to each other read the same, such as those of one replica of a model: shares count groups of
    them. With ``workers`` each worker of a rank owns files (:mod:`rayio.data.streams`); ``interleave`` of them are read
    at once.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        batch_size: int,
        world_size: int,
        alike: int = 1,
        partition: str = "contiguous",
        shuffle: str = "global",
        shuffle_options: Section = NO_OPTIONS,
        seed: int,
        max_steps: PerEpoch | None = None,
        drop_last: bool = True,
        workers: int = 0,
        interleave: int = 1,
        block_samples: int = BLOCK_SAMPLES,
        max_blocks: int = 4,
    ) -> None:
        for name, number in (("batch_size", batch_size), ("world_size", world_size)):
            if number < 1:
                raise DataError(f"{name} must be at least 1, not {number}")
        self.layout = layout
        self.batch_size = batch_size
        self.world_size = world_size
        self.alike = alike
        #: Shares of an epoch: one for each group of ranks that read the same.
        self.num_shares = world_size // alike
        self.partition = partition
        self.shuffle = shuffle
        self.sizes = Sizes(layout.samples_per_file, shuffle_options)
        #: The streams of workers that own files; None if batches are dealt out.
        self.streams = None if not workers else Streams(
            layout.num_files, layout.samples_per_file, batch_size, self.num_shares, partition, shuffle, self.sizes,
            seed, workers, interleave, drop_last,
        )  # fmt: skip
        self.seed = seed
        self.max_steps = max_steps
        self.drop_last = drop_last
        share = PARTITIONS[partition].share
        SHUFFLES[shuffle]  # refuses an unknown one
        #: With ``drop_last`` the smallest share decides: in a further step the other ranks would be missing.
        shares = [share(layout.num_samples, self.num_shares, number) for number in range(self.num_shares)]
        smallest = min(shares)
        #: Samples of an epoch over all ranks; replicated samples count once per rank.
        self.shared_out = sum(shares) * alike
        #: Full batches that every rank has in an epoch.
        self.whole_steps = smallest // batch_size if self.streams is None else self.streams.steps()[0]
        if smallest < (batch_size if drop_last else 1):
            each = f"batch_size {batch_size}" if drop_last else "one"
            raise DataError(
                f"{layout.num_samples} samples are fewer than {each} on each of {world_size} ranks; "
                f"lower loader.batch_size or the number of ranks, or raise dataset.num_files"
            )
        #: The largest number of steps of a rank in an epoch: without ``max_steps``, and at most that.
        most = -(-max(shares) // batch_size) if self.streams is None else self.streams.steps()[1]
        self._uncapped = self.whole_steps if drop_last else most
        self.num_steps = self._uncapped
        if max_steps is not None:
            self.num_steps = min(self._uncapped, max_steps if isinstance(max_steps, int) else max(max_steps))
        self._cache(block_samples, max_blocks)

    def _cache(self, block_samples: int, max_blocks: int) -> None:
        self.block_steps = max(1, min(block_samples // self.batch_size, self.num_steps))
        self.max_blocks = max(1, max_blocks)
        #: Ranks whose blocks are computed together.
        self._together = 1
        #: Oldest first; the oldest is evicted first. Hits change nothing, so threads may share a sampler.
        self._blocks: dict[tuple[int, int, int], Block] = {}

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> Sampler:
        """Return the sampler that all processes of this scenario share.

        Raises:
            ScenarioError: another package's shuffle gives no permutation.
        """
        loader = scenario.loader
        sampler = cls(
            layout_of(scenario),
            batch_size=loader.batch_size,
            world_size=derive.world_size(scenario),
            alike=scenario.topology.parts,
            partition=loader.partition,
            shuffle=loader.shuffle,
            shuffle_options=loader.shuffle_options,
            seed=scenario.seed,
            max_steps=scenario.train.steps,
            drop_last=loader.drop_last,
            workers=max(1, loader.max_workers) if shards.is_by_file(scenario) else 0,
            interleave=getattr(loader.file_access_options, "num_parallel_reads", 1),
        )
        permuted.check(sampler.shuffle, sampler.layout.num_samples, sampler.seed, scenario.train.epochs, sampler.sizes)
        return sampler

    def cached_for(self, num_ranks: int, memory_bytes: int = 256 << 20) -> Sampler:
        """Return a copy with a cache of about ``memory_bytes`` for ``num_ranks`` ranks that advance in lockstep.

        It keeps two blocks a rank, because workers read ahead across the edges of blocks and epochs.
        """
        copy = Sampler.__new__(Sampler)
        copy.__dict__.update(self.__dict__)
        bytes_per_sample = 8 * 4
        blocks = (2 if self.drop_last else 3) * num_ranks  # a smaller last step is a separate block
        copy._cache(min(BLOCK_SAMPLES, memory_bytes // (2 * num_ranks * bytes_per_sample)), blocks)
        if num_ranks == self.world_size and self.streams is None:
            copy._together = max(1, BLOCK_SAMPLES // (copy.block_steps * self.batch_size))
        return copy

    @property
    def has_equal_epochs(self) -> bool:
        """True if ``max_steps`` is the same for all epochs."""
        return not isinstance(self.max_steps, tuple)

    def _capped(self, steps: int, epoch: int) -> int:
        return steps if self.max_steps is None else min(steps, in_epoch(self.max_steps, epoch))

    def most_steps(self, epoch: int) -> int:
        """Return the steps of an epoch, of the rank with the most."""
        return self._capped(self._uncapped, epoch)

    def _share(self, rank: int) -> int:
        return PARTITIONS[self.partition].share(self.layout.num_samples, self.num_shares, rank // self.alike)

    def turns(self, rank: int) -> Turns | None:
        """Return whose batch each step of a rank is, if workers own files."""
        return None if self.streams is None else self.streams.turns(rank // self.alike)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}

    def steps(self, epoch: int, rank: int) -> int:
        """Return a rank's steps in an epoch, at most ``max_steps``; with ``drop_last`` equal for all ranks."""
        if self.drop_last:
            return self.most_steps(epoch)
        turns = self.turns(rank)
        return self._capped(-(-self._share(rank) // self.batch_size) if turns is None else turns.steps, epoch)

    def samples(self, epoch: int, rank: int) -> int:
        """Return the number of a rank's samples in an epoch."""
        return self._samples_of(rank, self.steps(epoch, rank))

    def _samples_of(self, rank: int, steps: int) -> int:
        """Return the number of samples in a rank's first steps, of which the last ones may be smaller."""
        most = steps * self.batch_size
        if self.drop_last:
            return most
        return min(most, self._share(rank)) if self.streams is None else self._turns(rank).samples(steps)

    def _turns(self, rank: int) -> Turns:
        assert self.streams is not None
        return self.streams.turns(rank // self.alike)

    def short(self, epoch: int, rank: int) -> list[int]:
        """Return the steps of a rank that are smaller than others."""
        steps = self.steps(epoch, rank)
        if self.drop_last:
            return []
        if self.streams is not None:
            return [step for step in self._turns(rank).short if step < steps]
        return [steps - 1] if self.samples(epoch, rank) < steps * self.batch_size else []

    @property
    def dropped(self) -> int:
        """Samples that an epoch leaves out because they fill no batch on every rank, without regard to ``max_steps``.

        A replicated sample counts once per rank.
        """
        if not self.drop_last:
            return 0
        return self.shared_out - self.whole_steps * self.batch_size * self.world_size

    def batch(self, epoch: int, rank: int, step: int) -> Batch:
        """Return the batch of a rank at a step.

        Raises:
            IndexError: there is no such rank or step.
        """
        block, row = self.block(epoch, rank, step)
        return self.batch_of(block, row, epoch, rank, step)

    def batch_of(self, block: Block, row: int, epoch: int, rank: int, step: int) -> Batch:
        """Return :meth:`batch` of a step whose block is known."""
        upcoming = None if self.streams is None else self.streams.upcoming(self.layout, epoch, rank // self.alike, step)
        samples, files, index, nbytes = block.samples[row], block.files[row], block.index[row], block.nbytes[row]
        return Batch(epoch, rank, step, samples, files, index, nbytes, upcoming)

    def step_bytes(self, epoch: int, rank: int, step: int) -> int:
        """Return the bytes of a step's samples."""
        block, row = self.block(epoch, rank, step)
        return block.step_bytes[row]

    def digest(self, epoch: int, rank: int, step: int) -> int:
        """Return the planned digest of a step: :func:`sample_digest` of its planned samples."""
        block, row = self.block(epoch, rank, step)
        return self.digest_in(block, row, epoch, rank, step)

    @staticmethod
    def digest_in(block: Block, row: int, epoch: int, rank: int, step: int) -> int:
        """Return :meth:`digest` of a step whose block is known."""
        if block.digests is None:
            steps = np.arange(step - row, step - row + len(block.samples), dtype=np.int64)
            block.digests = digests(epoch, rank, steps, block.samples).tolist()
        return block.digests[row]

    def left(self, epoch: int, rank: int, step: int) -> tuple[int, int]:
        """Return the number of steps and of samples from a step to the end of a rank's epoch."""
        num_steps, num_samples = self.steps(epoch, rank), self.samples(epoch, rank)
        return max(0, num_steps - step), max(0, num_samples - self._samples_of(rank, min(step, num_steps)))

    def ids(self, epoch: int, rank: int, first_step: int, num_steps: int) -> NDArray[np.int64]:
        """Return the samples of equally large steps, a row each, without the cache."""
        if self.streams is not None:
            return self.streams.samples(epoch, rank // self.alike, first_step, num_steps)
        return self._shuffled(epoch, self._positions(rank, first_step, num_steps)).reshape(num_steps, -1)

    def ids_of(self, epoch: int, ranks: Sequence[int], first_step: int, num_steps: int) -> NDArray[np.int64]:
        """Return :meth:`ids` of ranks whose steps are all equally large."""
        places = [self._positions(rank, first_step, num_steps) for rank in ranks]
        return self._shuffled(epoch, np.concatenate(places)).reshape(len(ranks), num_steps, self.batch_size)

    @property
    def has_even_steps(self) -> bool:
        """True if all steps of all ranks are equally large, and ranks have as many."""
        return self.drop_last and self.streams is None

    def _positions(self, rank: int, first_step: int, num_steps: int) -> NDArray[np.int64]:
        last = min((first_step + num_steps) * self.batch_size, self._share(rank))
        local = np.arange(first_step * self.batch_size, last, dtype=np.int64)
        number = rank // self.alike
        return PARTITIONS[self.partition].positions(self.layout.num_samples, self.num_shares, number, local)

    def _shuffled(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return permuted.samples_at(self.shuffle, self.layout.num_samples, self.seed, epoch, positions, self.sizes)

    def block(self, epoch: int, rank: int, step: int) -> tuple[Block, int]:
        """Return the block of a step and the step's row in it."""
        number, row = divmod(step, self.block_steps)
        address = (epoch, rank, number)
        block = self._blocks.get(address)
        if block is None or row >= len(block.step_bytes):
            if not (0 <= rank < self.world_size and 0 <= step < self.steps(epoch, rank) and epoch >= 0):
                raise IndexError(
                    f"no step {step} for rank {rank} in epoch {epoch}: {self.world_size} ranks, {self.num_steps} steps"
                )
            first, many = step - row, self._whole_steps(epoch, rank, number)
            if row >= many:  # smaller than the others or behind one that is, so a separate block
                return self._last(epoch, rank, step), 0
            ranks = self._side_by_side(epoch, rank, number, many)
            if self.streams is not None:
                samples = self.streams.samples(epoch, rank // self.alike, first, many)
            else:
                places = np.concatenate([self._positions(each_rank, first, many) for each_rank in ranks])
                samples = self._shuffled(epoch, places).reshape(-1, self.batch_size)
            whole = Block(samples, self.layout)
            parts = whole.split(many, self.layout) if len(ranks) > 1 else [whole]
            for each_rank, part in zip(ranks, parts, strict=True):
                self._keep((epoch, each_rank, number), part)
            block = parts[0]
        return block, row

    def _whole_steps(self, epoch: int, rank: int, number: int) -> int:
        first = number * self.block_steps
        end = min([self.steps(epoch, rank), *(step for step in self.short(epoch, rank) if step >= first)])
        return min(self.block_steps, end - first)

    def _last(self, epoch: int, rank: int, step: int) -> Block:
        address = (epoch, rank, -1 - step)
        if (block := self._blocks.get(address)) is None:
            block = Block(self.ids(epoch, rank, step, 1), self.layout)
            self._keep(address, block)
        return block

    def _keep(self, address: tuple[int, int, int], block: Block) -> None:
        while len(self._blocks) >= self.max_blocks:
            self._blocks.pop(next(iter(self._blocks), address), None)
        self._blocks[address] = block

    def _side_by_side(self, epoch: int, rank: int, number: int, many: int) -> list[int]:
        """Return this rank and its neighbours whose block of this number is missing and has as many full steps."""
        if self._together == 1:
            return [rank]
        first = rank - rank % self._together
        around = range(first, min(first + self._together, self.world_size))
        missing = [other for other in around if other != rank and (epoch, other, number) not in self._blocks]
        return [rank, *(other for other in missing if self._whole_steps(epoch, other, number) == many)]
