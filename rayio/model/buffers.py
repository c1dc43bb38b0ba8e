"""Memory of batches, lent and given back."""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

#: Limits of free buffers kept for later batches: their number, and their bytes.
MAX_BUFFERS, MAX_BUFFER_BYTES = 32, 128 << 20


class Buffers:
    """Reusable memory for batches. Finished batches give their memory back, and it is lent again.

    Memory that is not given back is freed normally. Fresh memory costs a page fault per 4 KiB, which takes longer than
    a read of 4 KiB from the page cache.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        """Pickle as empty."""
        return Buffers, ()

    @property
    def num_free(self) -> int:
        """Number of free buffers."""
        return len(self._free)

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an uninitialised buffer of ``nbytes`` for exclusive use until it is given back."""
        with self._lock:
            for place, free in enumerate(self._free):
                if nbytes <= len(free) <= 2 * nbytes:
                    return self._free.pop(place)[:nbytes]
        return np.empty(nbytes, np.uint8)[:]

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Take back a lent buffer; it and its views must not be used after that."""
        whole = buffer.base
        assert isinstance(whole, np.ndarray)
        with self._lock:
            self._free.append(whole)
            while len(self._free) > MAX_BUFFERS or sum(map(len, self._free)) > MAX_BUFFER_BYTES:
                self._free.pop(0)
