"""Uploads of modelled storage: the requests that write a file, and their time on an idle system.

Files are written one request after another. An object store takes an object up to the size of a part in one request. It
takes a larger one in parts, several at a time, with a request before them and one after them. Real uploads to ``s3://``
do the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.storage.itemise import in_flight
from rayio.storage.stores.opening import PART_BYTES


class Upload(NamedTuple):
    """The bytes of each request that writes a file, and how many of them are in flight."""

    sizes: NDArray[np.int64]
    depth: int

    @property
    def stages(self) -> tuple[slice, ...]:
        """Return the requests that end before the next ones begin: all, or those before, of and after the parts."""
        return (slice(0, 1), slice(1, -1), slice(-1, None)) if self.depth > 1 else (slice(None),)

    def alone(self, latencies: NDArray[np.float64], connection_bandwidth: float) -> float:
        """Return the seconds of the requests on an idle system; ``latencies`` has the time to the first byte of each.

        >>> upload_of(40 << 20, 1 << 20, 4).alone(np.full(7, 0.1), np.inf)
        0.4
        """
        each = latencies + self.sizes / connection_bandwidth
        return round(sum(in_flight(each[stage], self.depth) for stage in self.stages), 9)


def upload_of(num_bytes: int, request_bytes: int, parts: int) -> Upload:
    """Return the requests that write a file: of ``request_bytes``, or with ``parts`` in flight those of an object.

    >>> upload_of(5, 2, 1).sizes.tolist(), upload_of(20 << 20, 1, 4).sizes.tolist()
    ([2, 2, 1], [0, 8388608, 8388608, 4194304, 0])
    """
    if parts == 1:
        return Upload(sizes_of_writes(num_bytes, request_bytes), 1)
    sizes = sizes_of_writes(num_bytes, PART_BYTES)
    return Upload(sizes, 1) if len(sizes) == 1 else Upload(np.concatenate([[0], sizes, [0]]), parts)


def sizes_of_writes(num_bytes: int, request_bytes: int) -> NDArray[np.int64]:
    """Return the bytes of requests one after another; the last one is the rest."""
    sizes = np.full(max(1, -(-num_bytes // request_bytes)), request_bytes, np.int64)
    sizes[-1] = num_bytes - request_bytes * (len(sizes) - 1)
    return sizes
