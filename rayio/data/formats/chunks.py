"""Chunks of an HDF5 file: options, shapes, and the reads of a batch."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rayio.data.formats.reads import Runs
from rayio.data.layout import Batch, Layout
from rayio.schema.fields import Flag, RefusedError, Section, choice, quantity, refusal, whole
from rayio.units import BYTES

#: HDF5 stores the size of a chunk in 32 bits.
MAX_CHUNK_BYTES = 1 << 32


class Hdf5Options(Section):
    """Options of HDF5."""

    chunk: Annotated[int | None, quantity(BYTES, positive=True, integer=True, or_none=True)] = Field(
        None, description="Largest size of a chunk: whole samples, or an equal part of one; none is contiguous."
    )

    compression: Annotated[str, choice("none", "gzip", "lzf")] = Field(
        "none", description="Compression of chunks, as h5py's."
    )
    compression_level: Annotated[int, whole(1, 9)] = Field(4, description="Level of gzip.")
    shuffle: Flag = Field(False, description="HDF5's shuffle before compression; values of one byte stay as they are.")
    datasets: Annotated[int, whole(1, 5)] = Field(
        1, description="Datasets read for each sample: `x`, then labels and weights, a number for each sample."
    )

    @model_validator(mode="after")
    def _is_within_hdf5s_limit(self) -> Self:
        if self.chunk is not None and self.chunk >= MAX_CHUNK_BYTES:
            raise refusal(RefusedError("must be less than 4 GiB, which is HDF5's limit", "chunk", self.chunk))
        if self.compression == "lzf" and "compression_level" in self.model_fields_set:
            raise refusal(RefusedError("lzf has no levels; remove it", "compression_level", self.compression_level))
        if self.shuffle and self.compression == "none":
            raise refusal(RefusedError("only before compression; give dataset.compression", "shuffle", self.shuffle))
        if self.chunk is None and self.compression != "none":
            raise refusal(
                RefusedError("only chunks are compressed; give dataset.chunk", "compression", self.compression)
            )
        return self


def chunk_of(layout: Layout) -> int | None:
    """Return the largest size of a chunk in bytes; None without chunks."""
    return layout.options.chunk if isinstance(layout.options, Hdf5Options) else None


def chunk_shape(layout: Layout, nbytes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a chunk's number of samples and its bytes of each, for files with samples of ``nbytes``.

    Without chunks it is one sample.
    """
    if (most := chunk_of(layout)) is None:
        return np.ones_like(nbytes), nbytes
    rows = np.clip(most // nbytes, 1, layout.samples_per_file)
    return rows, -(-nbytes // -(-nbytes // most))


class Reads(NamedTuple):
    """The reads of ``x`` for a batch: an entry for each run of samples, or with chunks for each sample."""

    files: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    #: Requests of an entry: consecutive in the file for a sample in several chunks, none for a sample in the chunk just
    #: read; then the offset in ``x`` of the first, and the bytes of each.
    times: NDArray[np.int64]
    starts: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout, batch: Batch) -> Reads:
        """Return the reads of a batch that is not empty."""
        runs = Runs.of(batch)
        if chunk_of(layout) is None:
            first = runs.order[runs.starts]
            length = np.add.reduceat(batch.nbytes[runs.order], runs.starts)
            starts = batch.index[first] * batch.nbytes[first]
            return cls(batch.files[first], runs.is_first, np.ones_like(length), starts, length)
        files, nbytes = batch.files[runs.order], batch.nbytes[runs.order]
        rows, columns = chunk_shape(layout, nbytes)
        chunk, parts = batch.index[runs.order] // rows, -(-nbytes // columns)
        is_first = np.concatenate([[True], files[1:] != files[:-1]])
        is_other = is_first | np.concatenate([[True], chunk[1:] != chunk[:-1]])
        length = rows * columns
        return cls(files, is_first, np.where(parts > 1, parts, is_other), chunk * parts * length, length)

    def repeated(self, of_heads: NDArray[np.int64], of_entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return values by request: the head's before a file's first entry, then those of entries."""
        values, times = np.stack([of_heads, of_entries], axis=1), np.stack([self.is_first, self.times], axis=1)
        repeated: NDArray[np.int64] = np.repeat(values.ravel(), times.ravel())
        return repeated
