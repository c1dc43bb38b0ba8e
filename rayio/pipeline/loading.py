"""What a reader needs to know of the batches of one rank: which samples, which requests, how much decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.formats import Format, request_table
from rayio.data.layout import Batch
from rayio.data.sampler import Block, Sampler, sample_digest
from rayio.pipeline.env import Where
from rayio.pipeline.queue import Delivery
from rayio.scenario.distribution import Constant, Distribution
from rayio.storage.base import Opener, Requests

#: What real storage gives for a batch: its bytes, one sample after the other, and the ids found in them.
Loaded = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Loading:
    """The batches of one rank, computed on demand and never stored."""

    def __init__(self, sampler: Sampler, form: Format, *, seed: int, decode: Distribution, payload: bool) -> None:
        self.sampler = sampler
        self.format = form
        self.seed = seed
        self.decode = decode
        self._decode_each = decode.value if isinstance(decode, Constant) else None
        #: Whether the bytes that were read travel to the rank, or only their number.
        self.payload = payload

    def of(self, at: Where) -> Load:
        """Give all there is to know of one batch before it is read."""
        block, row = self.sampler.block(at.epoch, at.rank, at.step)
        return Load(self, at, block, row)

    def decode_seconds(self, at: Where, size: int) -> float:
        """Sum the decoding times of a batch's samples, each drawn at the address of its place in the epoch."""
        if self._decode_each is not None:
            return self._decode_each * size
        index = at.step * self.sampler.batch_size + np.arange(size, dtype=np.int64)
        return float(self.decode.draw(seeds.key(self.seed, "decode", at.rank, at.epoch), index).sum())


@dataclass(slots=True)
class Load:
    """One batch to be read: a row of the block in which the sampler worked it out."""

    loading: Loading
    at: Where
    block: Block
    row: int

    @property
    def batch(self) -> Batch:
        """The samples."""
        return self.loading.sampler.batch(self.at.epoch, self.at.rank, self.at.step)

    @property
    def requests(self) -> Requests:
        """The requests that the format's library will issue for this batch."""
        table = self.block.requests
        if table is None:
            loading = self.loading
            table = self.block.requests = request_table(loading.format, loading.sampler.layout, self.block)
        rank, epoch, step, _ = self.at
        return table.row(self.row, (rank, epoch, step))

    @property
    def decode_seconds(self) -> float:
        """How long decoding takes, in seconds."""
        return self.loading.decode_seconds(self.at, self.block.batch_size)

    def from_files(self, opener: Opener) -> Loaded:
        """Read and check the batch with the format's library; the samples lie in one buffer, collated as read."""
        batch = self.batch
        buffer = np.empty(self.block.step_bytes[self.row], np.uint8)
        ids = self.loading.format.read(opener, self.loading.sampler.layout, batch, buffer)
        return buffer, ids

    def delivery(self, loaded: Loaded | None, worker: int) -> Delivery:
        """Wrap up what was read. A model has no bytes: there the plan's own digest stands in."""
        rank, epoch, step, attempt = self.at
        block = self.block
        if loaded is None:
            payload, digest = None, self.loading.sampler.digest_in(block, self.row, epoch, rank, step)
        else:
            payload = loaded[0] if self.loading.payload else None
            digest = sample_digest(epoch, rank, step, loaded[1])
        nbytes = block.step_bytes[self.row]
        return Delivery(epoch, step, worker, block.batch_size, nbytes, digest, payload, attempt)
