"""``loader.reader: numpy``: batches read as in users' scripts, one ``numpy.load`` per sample, then collated."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.npz import SAMPLES, Npz
from rayio.data.formats.reads import check_length, opened, place_of
from rayio.data.formats.sample import HEADER, Place
from rayio.data.layout import Batch, Layout
from rayio.errors import RayioError
from rayio.storage.base import Opener

#: Copies samples of one size, one after the other, into the memory of a batch.
Collate = Callable[[Sequence[NDArray[np.uint8]], NDArray[np.uint8]], None]


class NumpyReader(Npz):
    """The format npz, read by numpy: zipfile finds the member and checks its CRC-32, and all of its rows are loaded.

    Each sample is read into separate memory, and ``collate`` copies it into the batch, as PyTorch's default collation
    does. The requests are those of numpy, zipfile and Python's buffer.
    """

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Load every sample, in the batch's order; check its size and id."""
        check_length(batch.total_bytes, out)
        samples = [
            _sample(opener, place_of(layout, batch, number), int(batch.nbytes[number]))
            for number in range(len(batch.samples))
        ]
        if samples:
            self.collate(samples, out)
        return batch.samples.copy()


def _sample(opener: Opener, place: Place, nbytes: int) -> NDArray[np.uint8]:
    """Return a sample's row, loaded from its file."""
    try:
        with (
            opened(opener, place) as raw,
            io.BufferedReader(cast(Any, raw)) as file,
            np.load(cast(BinaryIO, file), allow_pickle=False) as x,
        ):
            row: NDArray[np.uint8] = x[SAMPLES.removesuffix(".npy")][place.row]
    except RayioError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen classes for invalid bytes
        raise place.error(
            f"numpy.load: {error}: the file is truncated, corrupted or foreign; delete it and generate it again"
        ) from error
    if row.dtype != np.uint8 or row.shape != (nbytes,):
        raise place.error(
            f"expected {nbytes} bytes, found {row.dtype} of shape {row.shape}: another dataset's file; delete "
            "it and generate it again"
        )
    read_id = HEADER.unpack_from(row.data)[0]
    if read_id != place.sample:
        raise place.error(
            f"expected id {place.sample}, found id {read_id}: files were swapped, or belong to another dataset"
        )
    return row
