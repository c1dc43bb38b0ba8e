"""The batches of one rank: their samples, requests and decoding time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.access.contract import Access, Files
from rayio.data.formats import Format
from rayio.data.layout import Batch
from rayio.data.sampler import Block, Sampler, sample_digest
from rayio.model.cpu_account import ReadCpu
from rayio.model.phases import Phased
from rayio.model.queue import Delivery
from rayio.place import Where
from rayio.scenario.decode import Work
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.distribution import Constant
from rayio.schema.fields import Section
from rayio.seeds import Draws
from rayio.storage.base import Divisible, Moved, Opener, Requests, RequestTable
from rayio.storage.itemise import Samples

#: A batch from real storage: its bytes, sample after sample, and the ids read from them.
Loaded = tuple[NDArray[np.uint8], NDArray[np.int64]]

#: The state that a worker keeps of each dataset between two batches (see ``Access``); the key is True for evaluation.
Kept = dict[bool, Any]

#: Free buffers that are kept: at most this number, and this many bytes in all.
MAX_BUFFERS, MAX_BUFFER_BYTES = 32, 128 << 20


class Buffers:
    """A pool of memory for batches. Memory of a finished batch is given back and lent again.

    Fresh memory costs a page fault per 4 KiB, which takes longer than reading as much from the page cache.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: Oldest first.
        self._free: list[NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        """Pickle as new: memory stays where it is."""
        return Buffers, ()

    @property
    def num_free(self) -> int:
        """Number of free buffers."""
        return len(self._free)

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a buffer of ``nbytes`` with undefined content; it is exclusive until it is given back."""
        with self._lock:
            for place, free in enumerate(self._free):
                if nbytes <= len(free) <= 2 * nbytes:
                    return self._free.pop(place)[:nbytes]
        return np.empty(nbytes, np.uint8)[:]

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Take back a buffer of :meth:`lend`; it, and views of it, must not be used any more."""
        whole = buffer.base
        assert isinstance(whole, np.ndarray)
        with self._lock:
            self._free.append(whole)
            while len(self._free) > MAX_BUFFERS or sum(map(len, self._free)) > MAX_BUFFER_BYTES:
                self._free.pop(0)


#: No planned requests: real storage counts its own.
NOTHING = np.empty(0, np.int64)


class Loading:
    """The batches of one rank, computed on demand and never stored. ``modelled`` is True if storage is a model.

    ``itemised`` is True if each request is recorded with its file; ``cached``, if a modelled cache is in front of the
    storage; ``named``, if a layer needs the files of each batch.
    """

    def __init__(
        self,
        samplers: Phased[Sampler],
        form: Format,
        access: Access,
        access_options: Section = NO_OPTIONS,
        *,
        seed: int,
        decode: Draws,
        payload: bool,
        modelled: bool,
        itemised: bool = False,
        cached: bool = False,
        named: bool = False,
        rate: float | None = None,
        decoding: Work | None = None,
    ) -> None:
        self.samplers = samplers
        self.format = form
        self.access = access
        self.access_options = access_options
        self.seed = seed
        self.decode = decode
        #: Seconds of decoding of each sample, if all are equal.
        self.decode_each: float | None = decode.value if isinstance(decode, Constant) and rate is None else None
        #: Bytes per second of modelled decoding work, in place of ``decode``.
        self.rate = rate
        #: Decoding that is carried out on the bytes, in place of a sleep.
        self.decoding = decoding
        #: Whether the bytes travel to the rank, or only their number.
        self.payload = payload
        self.modelled = modelled
        self.itemised = itemised
        #: Whether a modelled cache may have some of a batch's samples.
        self.cached = cached
        #: Whether a layer of storage needs the files of each batch.
        self.named = named
        self.buffers = Buffers()
        #: CPU time of reading.
        self.read_cpu = ReadCpu()

    @property
    def is_work(self) -> bool:
        """Return True if decoding takes CPU time; False if it is a sleep."""
        return self.rate is not None

    def of(self, at: Where, kept: Kept | None = None) -> Load:
        """Return one batch to read. It takes its worker's state out of ``kept``; :meth:`Load.keep` puts it back."""
        rank, epoch, step, _ = at
        sampler = self.samplers.of(epoch)
        block, row = sampler.block(epoch, rank, step)
        return Load(self, at, sampler, block, row, kept.pop(epoch >= self.samplers.first, None) if kept else None)

    def decode_seconds(self, at: Where, block: Block, row: int) -> float:
        """Return the decoding time of a batch (s): one draw per sample, at the sample's place in the epoch."""
        if self.rate is not None:
            return block.step_bytes[row] / self.rate
        if block.decode_seconds is None:
            steps = at.step - row + np.arange(len(block.samples), dtype=np.int64)
            index = steps[:, np.newaxis] * self.samplers.of(at.epoch).batch_size + np.arange(block.batch_size)
            drawn = self.decode.draw(seeds.key(self.seed, "decode", at.rank, at.epoch), index)
            block.decode_seconds = drawn.sum(axis=1).tolist()
        return block.decode_seconds[row]


class Ahead(NamedTuple):
    """Batches of consecutive steps of a rank, before they are read."""

    requests: RequestTable
    decode_seconds: list[float]
    #: The batches, without the sources of their bytes.
    deliveries: list[Delivery]


@dataclass(slots=True)
class Load:
    """A batch to read: a row of a block of the sampler."""

    loading: Loading
    at: Where
    sampler: Sampler
    block: Block
    row: int
    #: The worker's state of the files before this batch, and after.
    before: Any = None
    after: Any = None

    @property
    def files(self) -> Files:
        """The files that the batch is read from."""
        return Files(self.loading.format, self.sampler.layout, self.loading.access_options)

    @property
    def batch(self) -> Batch:
        """The samples."""
        rank, epoch, step, _ = self.at
        block, row = self.block, self.row
        return Batch(epoch, rank, step, block.samples[row], block.files[row], block.index[row], block.nbytes[row])

    @property
    def requests(self) -> Requests:
        """The requests of this batch on modelled storage; none on real storage, which counts its own."""
        loading, (rank, epoch, step, _) = self.loading, self.at
        if not loading.modelled:
            requests = Requests((rank, epoch, step), 0, NOTHING, num_samples=self.block.batch_size)
            return requests._replace(files=self.samples) if loading.named else requests
        table = self._table
        if table is None:
            requests, self.after = loading.access.requests(self.files, self.batch, self.before)
            requests = requests._replace(num_samples=self.block.batch_size)
        else:
            requests = table.row(self.row, (rank, epoch, step), self.block.batch_size)
        if loading.named:
            requests = requests._replace(files=self.samples)
        return self._divisible(requests) if loading.cached else requests

    @property
    def _table(self) -> RequestTable | None:
        """The requests of every step of the block; None if the access cannot compute them together."""
        block, loading = self.block, self.loading
        if block.requests is None and not loading.itemised:
            block.requests = loading.access.request_table(self.files, block.files, block.index, block.nbytes)
        return block.requests

    def ahead(self, most: int, kept: Sequence[Kept]) -> Ahead:
        """Return this batch and up to ``most - 1`` after it in the same block, of modelled storage without a cache.

        Workers have the steps in turn. ``kept`` has the state of each worker, and is updated.
        """
        loading, block, row, (rank, epoch, first, attempt) = self.loading, self.block, self.row, self.at
        number = min(most, len(block.step_bytes) - row)
        if (table := self._table) is not None:
            table = table.rows(row, number)
        else:
            each = []
            for step in range(first, first + number):
                load = loading.of(Where(rank, epoch, step, attempt), mine := kept[step % len(kept)])
                each.append(load.requests)
                load.keep(mine)
            table = RequestTable.of(each)
        decoding = [self.decode_seconds] * number
        if loading.decode_each is None:
            decoding = [loading.decode_seconds(self.at, block, row + n) for n in range(number)]
        self.sampler.digest_in(block, row, epoch, rank, first)
        assert block.digests is not None
        made = zip(block.step_bytes[row : row + number], block.digests[row : row + number], strict=True)
        deliveries = [
            Delivery(epoch, step, step % len(kept), block.batch_size, nbytes, digest, None, attempt)
            for step, (nbytes, digest) in enumerate(made, first)
        ]
        return Ahead(table, decoding, deliveries)

    def _divisible(self, requests: Requests) -> Requests:
        """Return requests with their samples one by one; samples of evaluations have keys below 0."""
        batch, is_training = self.batch, self.at.epoch < self.loading.samplers.first
        keys = batch.samples if is_training else ~batch.samples
        samples = Divisible(keys.tolist(), batch.nbytes.tolist(), partial(self._requests_of, batch))
        return requests._replace(samples=samples)

    def _requests_of(self, batch: Batch, places: NDArray[np.intp]) -> Requests:
        chosen = {name: getattr(batch, name)[places] for name in ("samples", "files", "index", "nbytes")}
        requests, _ = self.loading.access.requests(self.files, replace(batch, **chosen), self.before)
        return requests._replace(num_samples=len(places), files=self.samples if self.loading.named else None)

    def keep(self, kept: Kept) -> None:
        """Put the state after this batch into ``kept``."""
        if self.after is not None:
            kept[self.at.epoch >= self.loading.samplers.first] = self.after

    def samples(self) -> Samples:
        """Return the samples with their files, for the trace."""
        batch = self.batch
        files, place = np.unique(batch.files, return_inverse=True)
        path = self.sampler.layout.path
        return Samples([path(file) for file in files.tolist()], place, batch.nbytes)

    @property
    def decode_seconds(self) -> float:
        """The decoding time, in seconds."""
        each, block = self.loading.decode_each, self.block
        if each is not None:
            return each * block.batch_size
        return self.loading.decode_seconds(self.at, block, self.row)

    def from_files(self, opener: Opener) -> Loaded:
        """Read and check the batch; return its samples in one buffer, and their ids."""
        nbytes = self.block.step_bytes[self.row]
        buffer, began = self.loading.buffers.lend(nbytes), time.thread_time_ns()
        ids, self.after = self.loading.access.read(self.files, opener, self.batch, buffer, self.before)
        self.loading.read_cpu.add(self.block.batch_size, nbytes, (time.thread_time_ns() - began) / 1e9)
        return buffer, ids

    def decode(self, loaded: Loaded) -> int:
        """Decode what was read; return the number of decoded bytes."""
        assert self.loading.decoding is not None
        return self.loading.decoding(loaded[0], self.block.nbytes[self.row])

    def delivery(self, loaded: Loaded | None, worker: int, moved: Moved | None = None, skipped: int = 0) -> Delivery:
        """Return the batch as it travels, with the sources of its bytes and the number of ``skipped`` samples.

        The digest includes skipped samples. Modelled storage has no bytes, so the digest is the planned one.
        """
        rank, epoch, step, attempt = self.at
        block = self.block
        nbytes = block.step_bytes[self.row]
        if loaded is None:
            digest = self.sampler.digest_in(block, self.row, epoch, rank, step)
            number = block.batch_size - skipped
            return Delivery(epoch, step, worker, number, nbytes, digest, None, attempt, None, moved, skipped)
        (buffer, ids), buffers = loaded, self.loading.buffers
        delivery = Delivery(
            epoch, step, worker, block.batch_size - skipped, nbytes, sample_digest(epoch, rank, step, ids), buffer,
            attempt, partial(buffers.give_back, buffer), moved, skipped,
        )  # fmt: skip
        if not self.loading.payload:
            delivery.done()
        return delivery
