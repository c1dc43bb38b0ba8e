"""The batches of a rank for its readers: samples, requests and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.access.contract import Access, Files
from rayio.data.access.joined import joined_table
from rayio.data.formats import Format
from rayio.data.formats.reads import place_of
from rayio.data.layout import Batch
from rayio.data.sampler import Block, Sampler, sample_digest
from rayio.model.buffers import Buffers
from rayio.model.cpu_account import StageCpu
from rayio.model.decode_threads import runs, shares
from rayio.model.phases import Phased
from rayio.model.queue import Delivery
from rayio.place import Where
from rayio.scenario.decode import UndecodableError, Work
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.distribution import Constant
from rayio.schema.fields import Section
from rayio.seeds import Draws
from rayio.storage.base import Divisible, Moved, Opener, Requests, RequestTable
from rayio.storage.itemise import Samples
from rayio.storage.joining import joined

#: The result of a real read: the bytes of the samples, one after the other, and the ids in them.
Loaded = tuple[NDArray[np.uint8], NDArray[np.int64]]


#: State that a reader keeps of each dataset between batches (see ``Access``), by whether it is the evaluation's, and
#: whether it is the plan's, which has no handles.
Kept = dict[tuple[bool, bool], Any]


#: Real storage counts its requests; only a model gets planned ones.
NOTHING = np.empty(0, np.int64)
NO_TABLE = RequestTable([], NOTHING, [], [])


class Loading:
    """The batches of one rank, computed on demand. ``modelled`` means modelled storage.

    ``itemised``: each request is recorded, with its place; ``cached``: a modelled cache is in front of the storage;
    ``named``: a layer needs the files of each batch; what precedes their names, by phase.
    ``gap``: ranges of a file this close (bytes) are one request, by phase (see ``rayio.storage.joining``).
    ``ahead``: real storage makes the planned requests before the format asks for them.
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
        named: Phased[str] | None = None,
        modelled_work: Work | None = None,
        decoding: Work | None = None,
        threads: int = 1,
        gap: Phased[int] | None = None,
        ahead: bool = False,
    ) -> None:
        self.samplers = samplers
        self.format = form
        self.access = access
        self.access_options = access_options
        self.seed = seed
        self.decode = decode
        #: Decode time of each sample (s), if all are equal.
        self.decode_each: float | None = (
            decode.value if isinstance(decode, Constant) and modelled_work is None else None
        )
        #: Decode work in place of ``decode`` on modelled storage, where only its time counts.
        self.modelled_work = modelled_work
        #: Real decode work in place of a sleep.
        self.decoding = decoding
        #: Threads that decode the samples of a batch.
        self.threads = threads
        #: True if bytes travel to the rank, not only their number.
        self.payload = payload
        self.modelled = modelled
        self.itemised = itemised
        #: True if a modelled cache may have some of a batch's samples.
        self.cached = cached
        #: What precedes the names of files in ``Requests.files``; None if no layer of storage needs them.
        self.named = named
        self.gap = gap or Phased(0, 0, samplers.first)
        self.is_joined = access.is_joined(access_options)
        self.ahead = ahead
        self.buffers = Buffers()
        self.read_cpu, self.decode_cpu = StageCpu(), StageCpu()

    @property
    def is_work(self) -> bool:
        """True if decoding is CPU work, not a sleep."""
        return self.modelled_work is not None

    def of(self, at: Where, kept: Kept | None = None) -> Load:
        """Return a batch to be read; the reader's state ``kept`` is lost until :meth:`Load.keep`."""
        rank, epoch, step, _ = at
        sampler = self.samplers.of(epoch)
        block, row = sampler.block(epoch, rank, step)
        load = Load(self, at, sampler, block, row)
        if kept:
            phase = epoch >= self.samplers.first
            load.before, load.planned_before = kept.pop((phase, False), None), kept.pop((phase, True), None)
        return load

    def planned(self, files: Files, batch: Batch, before: Any) -> tuple[Requests, Any]:
        """Return the requests of a batch, or of a part of it, and the state after it."""
        requests, after = self.access.requests(files, batch, before)
        return joined(requests, self.joining(batch.epoch)), after

    def joining(self, epoch: int) -> int:
        """Return how close ranges of a file are one request, in bytes; 0 if a key gives the size of requests."""
        return self.gap.of(epoch) if self.is_joined else 0

    def decode_shares(self, block: Block, row: int) -> list[float]:
        """Return the seconds of modelled decode work of each thread."""
        work = self.modelled_work
        assert work is not None
        if self.threads == 1:
            return [work.seconds(block.batch_size, block.step_bytes[row])]
        return shares([work.seconds(1, nbytes) for nbytes in block.nbytes[row].tolist()], self.threads)

    def decode_seconds(self, at: Where, block: Block, row: int) -> float:
        """Return the time of decoding a batch: each sample's is drawn at the address of its place in the epoch."""
        if self.modelled_work is not None:
            return max(self.decode_shares(block, row), default=0.0)
        if self.decode_each is not None:
            return self.decode_each * -(-block.batch_size // self.threads)
        if block.decode_seconds is None:
            steps = at.step - row + np.arange(len(block.samples), dtype=np.int64)
            index = steps[:, np.newaxis] * self.samplers.of(at.epoch).batch_size + np.arange(block.batch_size)
            drawn = self.decode.draw(seeds.key(self.seed, "decode", at.rank, at.epoch), index)
            if self.threads == 1:
                block.decode_seconds = drawn.sum(axis=1).tolist()
            else:
                block.decode_seconds = [shares(each, self.threads)[0] for each in drawn.tolist()]
        return block.decode_seconds[row]


class Ahead(NamedTuple):
    """Batches of consecutive steps of a rank, before they are read."""

    requests: RequestTable
    decode_seconds: list[float]
    #: The deliveries, without the source of their bytes.
    deliveries: list[Delivery]


@dataclass(slots=True)
class Load:
    """A batch to be read: a row of the sampler's block."""

    loading: Loading
    at: Where
    sampler: Sampler
    block: Block
    row: int
    #: The reader's state of the files before this batch, and after; and the plan's, if real storage needs one.
    before: Any = None
    after: Any = None
    planned_before: Any = None
    planned_after: Any = None
    #: CPU time of the reader's thread for the real read, and of each thread for decoding (s).
    cpu_seconds: float = 0.0
    decoded: list[float] = field(default_factory=list)

    @property
    def files(self) -> Files:
        """The batch's files."""
        return Files(self.loading.format, self.sampler.layout, self.loading.access_options)

    @property
    def batch(self) -> Batch:
        """The samples."""
        rank, epoch, step, _ = self.at
        return self.sampler.batch_of(self.block, self.row, epoch, rank, step)

    @property
    def requests(self) -> Requests:
        """The requests of reading this batch; empty if they are known only by the real read that issues them."""
        loading, (rank, epoch, step, _) = self.loading, self.at
        if not loading.modelled:
            if not loading.ahead and not loading.gap.of(epoch):
                planned = Requests((rank, epoch, step), 0, NOTHING)
            elif (table := self._table) is not None:
                planned = table.row(self.row, (rank, epoch, step), 0)
            else:
                planned, self.planned_after = loading.planned(self.files, self.batch, self.planned_before)
            return self._named(planned._replace(num_samples=self.block.batch_size))
        table = self._table
        if table is None:
            planned, self.after = loading.planned(self.files, self.batch, self.before)
            planned = planned._replace(num_samples=self.block.batch_size)
        else:
            planned = table.row(self.row, (rank, epoch, step), self.block.batch_size)
        planned = self._named(planned)
        return self._divisible(planned) if loading.cached else planned

    def _named(self, planned: Requests, part: Batch | None = None) -> Requests:
        """Return requests with the files of a part of the batch, or all of it, if a layer needs them."""
        named = self.loading.named
        if named is None:
            return planned
        folder = named.of(self.at.epoch)
        if self.loading.access.reads_all and self.before is None:
            return planned._replace(files=partial(self.files.whole, folder))
        return planned._replace(files=partial(self._samples, part or self.batch, folder))

    @property
    def _table(self) -> RequestTable | None:
        """The requests of every step of the block, with places where they are needed; None if there is no fast way."""
        block, loading = self.block, self.loading
        if block.requests is None:
            arrays, gap = (self.files, block.files, block.index, block.nbytes), loading.joining(self.at.epoch)
            table = None
            if not gap and loading.modelled:
                table = loading.access.request_table(*arrays)
            elif not loading.itemised:
                table = joined_table(loading.access, *arrays, gap, has_places=not loading.modelled)
            if table is None or (loading.itemised and table.places is None):
                table = NO_TABLE
            block.requests = table
        return block.requests if block.requests and block.requests.edges else None

    def ahead(self, most: int, kept: Sequence[Kept]) -> Ahead:
        """Return this batch and those of later steps in the block, for modelled storage without cache.

        Workers take turns; ``kept`` is the state of each, which is updated.
        """
        loading, block, row, (rank, epoch, first, attempt) = self.loading, self.block, self.row, self.at
        number = min(most, len(block.step_bytes) - row)
        if (table := self._table) is not None:
            table = table.rows(row, number)
        else:
            planned = []
            for step in range(first, first + number):
                load = loading.of(Where(rank, epoch, step, attempt), mine := kept[step % len(kept)])
                planned.append(load.requests)
                load.keep(mine)
            table = RequestTable.of(planned)
        decoding = [self.decode_seconds] * number
        if loading.decode_each is None:
            decoding = [loading.decode_seconds(self.at, block, row + n) for n in range(number)]
        self.sampler.digest_in(block, row, epoch, rank, first)
        assert block.digests is not None
        sums = zip(block.step_bytes[row : row + number], block.digests[row : row + number], strict=True)
        deliveries = [
            Delivery(epoch, step, step % len(kept), block.batch_size, nbytes, digest, None, attempt)
            for step, (nbytes, digest) in enumerate(sums, first)
        ]
        return Ahead(table, decoding, deliveries)

    def _divisible(self, planned: Requests) -> Requests:
        """Return requests divided by sample; evaluation samples have keys below 0."""
        batch, is_training = self.batch, self.at.epoch < self.loading.samplers.first
        keys = batch.samples if is_training else ~batch.samples
        samples = Divisible(keys.tolist(), batch.nbytes.tolist(), partial(self._requests_of, batch))
        return planned._replace(samples=samples)

    def _requests_of(self, batch: Batch, places: NDArray[np.intp]) -> Requests:
        chosen = {name: getattr(batch, name)[places] for name in ("samples", "files", "index", "nbytes")}
        part = replace(batch, **chosen)
        planned, _ = self.loading.planned(self.files, part, self.before)
        return self._named(planned._replace(num_samples=len(places), sample_places=places), part)

    def keep(self, kept: Kept) -> None:
        """Update the reader's state after this batch."""
        phase = self.at.epoch >= self.loading.samplers.first
        for is_plan, after in ((False, self.after), (True, self.planned_after)):
            if after is not None:
                kept[phase, is_plan] = after

    def samples(self) -> Samples:
        """Return the samples by file, for the trace."""
        return self._samples(self.batch)

    def _samples(self, batch: Batch, before: str = "") -> Samples:
        files, place = np.unique(batch.files, return_inverse=True)
        path = self.sampler.layout.path
        return Samples([before + path(file) for file in files.tolist()], place, batch.nbytes)

    @property
    def decode_seconds(self) -> float:
        """Return the decode time in seconds."""
        return self.loading.decode_seconds(self.at, self.block, self.row)

    @property
    def decode_shares(self) -> list[float]:
        """Return the seconds of modelled decode work of each thread."""
        return self.loading.decode_shares(self.block, self.row)

    def from_files(self, opener: Opener) -> Loaded:
        """Read and verify the batch; samples are in one buffer, collated as read."""
        nbytes = self.block.step_bytes[self.row]
        began = time.thread_time_ns()
        buffer = self.loading.buffers.lend(nbytes)  # PyTorch's shared memory is filled with zeros here
        ids, self.after = self.loading.access.read(self.files, opener, self.batch, buffer, self.before)
        self.cpu_seconds = (time.thread_time_ns() - began) / 1e9
        return buffer, ids

    def count_cpu(self, helped: float) -> None:
        """Record the CPU time of the real read; ``helped`` is that of other threads (s)."""
        seconds = self.cpu_seconds + helped
        self.loading.read_cpu.add(self.block.batch_size, self.block.step_bytes[self.row], seconds)

    def decodings(self, loaded: Loaded) -> list[Callable[[], int]]:
        """Return the calls that decode the batch for real, one for each thread; they return the bytes of output."""
        sizes = self.block.nbytes[self.row]
        each = runs(sizes, self.loading.threads) if self.loading.threads > 1 else [(0, len(sizes))]
        return [partial(self._decode, loaded[0], sizes, first, last) for first, last in each]

    def _decode(self, samples: NDArray[np.uint8], sizes: NDArray[np.int64], first: int, last: int) -> int:
        assert self.loading.decoding is not None
        began = time.thread_time_ns()
        start, end = int(sizes[:first].sum()), int(sizes[:last].sum())
        try:
            nbytes = self.loading.decoding(samples[start:end], sizes[first:last])
        except UndecodableError as error:
            place = place_of(self.files.layout, self.batch, first + error.number)
            raise place.error(f"cannot be decoded: {error.reason}") from error
        self.decoded.append((time.thread_time_ns() - began) / 1e9)
        return nbytes

    def count_decoding(self) -> None:
        """Record the CPU time of decoding, of all threads."""
        self.loading.decode_cpu.add(self.block.batch_size, self.block.step_bytes[self.row], sum(self.decoded))

    def delivery(
        self, loaded: Loaded | None, worker: int, moved: Moved | None = None, skipped: Sequence[int] = ()
    ) -> Delivery:
        """Return the delivery of a read batch with the source of its bytes.

        ``skipped`` are the places of skipped samples, which digest and bytes of the batch include. A model has no
        bytes: there the plan's digest is used.
        """
        rank, epoch, step, attempt = self.at
        block = self.block
        nbytes, number = block.step_bytes[self.row], block.batch_size - len(skipped)
        lost = (len(skipped), int(block.nbytes[self.row][[*skipped]].sum()) if skipped else 0)
        if loaded is None:
            digest = self.sampler.digest_in(block, self.row, epoch, rank, step)
            return Delivery(epoch, step, worker, number, nbytes, digest, None, attempt, None, moved, *lost)
        (buffer, ids), buffers = loaded, self.loading.buffers
        delivery = Delivery(
            epoch, step, worker, number, nbytes, sample_digest(epoch, rank, step, ids), buffer, attempt,
            partial(buffers.give_back, buffer), moved, *lost,
        )  # fmt: skip
        if not self.loading.payload:
            delivery.done()
        return delivery
