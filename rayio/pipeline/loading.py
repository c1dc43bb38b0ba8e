"""What a reader needs to know of the batches of one rank: which samples, which requests, how much decoding."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.decode import Decoding
from rayio.data.formats import Format
from rayio.data.layout import Batch
from rayio.data.sampler import Sampler, sample_digest
from rayio.pipeline.env import Where
from rayio.pipeline.phases import Phased
from rayio.pipeline.queue import Delivery
from rayio.scenario.distribution import Constant, Distribution
from rayio.storage.base import Opener, Requests
from rayio.storage.itemise import Samples

#: What real storage gives for a batch: its bytes, one sample after the other, and the ids found in them.
Loaded = tuple[NDArray[np.uint8], NDArray[np.int64]]


#: Buffers kept for the batches to come: at most so many, and so many bytes.
MAX_BUFFERS, MAX_BUFFER_BYTES = 32, 128 << 20
#: What a remembered buffer that nobody else holds is referred to by: the list, a loop's variable, the count's argument.
UNUSED = 3


class Buffers:
    """Memory to read batches into, given again once nobody holds what was read there before.

    Fresh memory costs a page fault per 4 KiB, which takes longer than reading as much from the page cache.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: Oldest first.
        self._kept: list[NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()  # what is kept stays in its process

    def get(self, nbytes: int) -> NDArray[np.uint8]:
        """Give a buffer of ``nbytes`` with anything in it."""
        with self._lock:
            for kept in self._kept:
                if nbytes <= len(kept) <= 2 * nbytes and sys.getrefcount(kept) <= UNUSED:
                    return kept[:nbytes]
            fresh = np.empty(nbytes, np.uint8)
            self._kept.append(fresh)
            while len(self._kept) > MAX_BUFFERS or sum(map(len, self._kept)) > MAX_BUFFER_BYTES:
                self._kept.pop(0)
            return fresh[:]


#: Real storage counts what it was asked for; only a model is told what it would be asked for.
NOTHING = np.empty(0, np.int64)


class Loading:
    """The batches of one rank, computed on demand and never stored. ``modelled`` says that storage is a model."""

    def __init__(
        self,
        samplers: Phased[Sampler],
        form: Format,
        *,
        seed: int,
        decode: Distribution,
        payload: bool,
        modelled: bool,
        rate: float | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        self.samplers = samplers
        self.format = form
        self.seed = seed
        self.decode = decode
        #: Bytes per second that decoding takes in place of ``decode``, where it is work and there are no bytes.
        self.rate = rate
        #: What is really done to the bytes, in place of sleeping.
        self.decoding = decoding
        #: Whether the bytes that were read travel to the rank, or only their number.
        self.payload = payload
        self.modelled = modelled
        self.buffers = Buffers()

    def of(self, at: Where) -> Load:
        """Give all there is to know of one batch before it is read."""
        sampler = self.samplers.of(at.epoch)
        return Load(self, at, sampler, sampler.batch(at.epoch, at.rank, at.step))

    def decode_seconds(self, batch: Batch) -> float:
        """Sum the decoding times of the batch's samples, each drawn at the address of its place in the epoch."""
        if self.rate is not None:
            return batch.total_bytes / self.rate
        size = len(batch.samples)
        if isinstance(self.decode, Constant):
            return self.decode.value * size
        index = batch.step * self.samplers.of(batch.epoch).batch_size + np.arange(size, dtype=np.int64)
        return float(self.decode.draw(seeds.key(self.seed, "decode", batch.rank, batch.epoch), index).sum())


@dataclass(slots=True)
class Load:
    """One batch to be read."""

    loading: Loading
    at: Where
    sampler: Sampler
    batch: Batch

    @property
    def requests(self) -> Requests:
        """The requests that the format's library will issue for this batch; none where the library itself will."""
        if not self.loading.modelled:
            return Requests(self.at[:3], 0, NOTHING)
        return self.loading.format.requests(self.sampler.layout, self.batch)

    def samples(self) -> Samples:
        """Give the samples by their files, for the trace."""
        files, place = np.unique(self.batch.files, return_inverse=True)
        path = self.sampler.layout.path
        return Samples([path(file) for file in files.tolist()], place, self.batch.nbytes)

    @property
    def decode_seconds(self) -> float:
        """How long decoding takes, in seconds."""
        return self.loading.decode_seconds(self.batch)

    def from_files(self, opener: Opener) -> Loaded:
        """Read and check the batch with the format's library; the samples lie in one buffer, collated as read."""
        buffer = self.loading.buffers.get(self.batch.total_bytes)
        ids = self.loading.format.read(opener, self.sampler.layout, self.batch, buffer)
        return buffer, ids

    def decode(self, loaded: Loaded) -> int:
        """Do what decoding asks for to what was read, however long it takes; give the bytes that came out of it."""
        assert self.loading.decoding is not None
        return self.loading.decoding(loaded[0], self.batch.nbytes)

    def delivery(self, loaded: Loaded | None, worker: int) -> Delivery:
        """Wrap up what was read. A model has no bytes: there the plan's own digest stands in."""
        rank, epoch, step, attempt = self.at
        if loaded is None:
            payload, digest = None, self.sampler.digest(epoch, rank, step)
        else:
            payload = loaded[0] if self.loading.payload else None
            digest = sample_digest(epoch, rank, step, loaded[1])
        size = len(self.batch.samples)
        return Delivery(epoch, step, worker, size, self.batch.total_bytes, digest, payload, attempt)
