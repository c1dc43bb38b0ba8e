"""``loader.reader: numpy``: batches read as users' scripts read them, one ``numpy.load`` per sample, then collated."""

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

    The bytes of a sample are in memory of their own first, and ``collate`` copies them into the batch, as PyTorch's
    default collation does. Requests are those that numpy, zipfile and Python's buffer make of it.
    """

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Load every sample, in the order of the batch; what is looked at are its size and the id in it."""
        check_length(batch.total_bytes, out)
        samples = [
            _sample(opener, place_of(layout, batch, number), int(batch.nbytes[number]))
            for number in range(len(batch.samples))
        ]
        if samples:
            self.collate(samples, out)
        return batch.samples.copy()


def _sample(opener: Opener, place: Place, nbytes: int) -> NDArray[np.uint8]:
    """Load the file of a sample; give its row.

    Raises:
        DataError: numpy finds no such row, zipfile another checksum, or it is another sample.
    """
    try:
        with (
            opened(opener, place) as raw,
            io.BufferedReader(cast(Any, raw)) as file,
            np.load(cast(BinaryIO, file), allow_pickle=False) as x,
        ):
            row: NDArray[np.uint8] = x[SAMPLES.removesuffix(".npy")][place.row]
    except RayioError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for bytes that are no npz
        raise place.error(
            f"numpy.load: {error}: the file is truncated, corrupted or foreign; delete it and generate it again"
        ) from error
    if row.dtype != np.uint8 or row.shape != (nbytes,):
        raise place.error(
            f"expected {nbytes} bytes, found {row.dtype} of shape {row.shape}: the file is of another dataset; delete "
            "it and generate it again"
        )
    found = HEADER.unpack_from(row.data)[0]
    if found != place.sample:
        raise place.error(
            f"expected id {place.sample}, found id {found}: files were swapped, or are of another dataset"
        )
    return row
