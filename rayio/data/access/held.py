"""Files as an access presents them to a format: bytes from its buffers, in requests of its size."""

from __future__ import annotations

from typing import Any, cast

from rayio.data.formats.reads import HEAD, NOT_KEPT
from rayio.storage.stores.counted import CountedFile

#: Bytes by their offset and length in a file.
Kept = dict[tuple[int, int], bytes]


class Through(CountedFile):
    """A file whose reads an access answers; the access opens and closes the file behind it."""

    __slots__ = ("file",)

    def __init__(self, file: Any, path: str) -> None:
        self.file = cast(CountedFile, file)
        super().__init__(self.file.shown, self.file.traffic, path)

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return self.file.size

    def fetch(self, position: int, buffer: Any) -> int:
        """Fill ``buffer`` from ``position`` on; shorter at the file's end."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Leave the file open."""


class WindowFile(Through):
    """A file read in windows of ``buffer_bytes``, each from the place where the last one ended or that is needed."""

    __slots__ = ("buffer_bytes", "last", "start")

    def __init__(self, file: Any, path: str, buffer_bytes: int, start: int, last: memoryview) -> None:
        super().__init__(file, path)
        self.buffer_bytes = buffer_bytes
        #: The last window, and its offset.
        self.start, self.last = start, last

    @property
    def until(self) -> int:
        """Offset after the last window."""
        return self.start + len(self.last)

    def fetch(self, position: int, buffer: Any) -> int:
        """Fill ``buffer`` from windows, and fetch the next ones as needed."""
        view, filled = memoryview(buffer), 0
        while filled < len(view):
            at = position + filled
            if not self.start <= at < self.until and not self._advance(at):
                break
            part = self.last[at - self.start : at - self.start + len(view) - filled]
            view[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def _advance(self, at: int) -> int:
        length = max(0, min(self.buffer_bytes, self.size - at))
        window = memoryview(bytearray(length))
        got = self.file.fetch(at, window) if length else 0
        self.start, self.last = at, window[:got]
        return got


class KeptFile(Through):
    """A file with its description and last unit in memory; ``plan`` is the unit of each request that a format makes."""

    __slots__ = ("head", "plan", "unit", "unit_bytes")

    def __init__(
        self, file: Any, path: str, plan: dict[tuple[int, int], int], unit: int, head: Kept, unit_bytes: Kept
    ) -> None:
        super().__init__(file, path)
        self.plan, self.unit, self.head, self.unit_bytes = plan, unit, head, unit_bytes

    def fetch(self, position: int, buffer: Any) -> int:
        """Fill ``buffer`` from memory, or with a request."""
        view = memoryview(buffer)
        place = position, view.nbytes
        known = self.head.get(place) or self.unit_bytes.get(place)
        if known is not None:
            view[: len(known)] = known
            return len(known)
        length, unit = self.file.fetch(position, view), self.plan.get(place, NOT_KEPT)
        if unit == HEAD:
            self.head[place] = bytes(view[:length])
        elif unit >= 0:
            if unit != self.unit:
                self.unit, self.unit_bytes = unit, {}
            self.unit_bytes = {**self.unit_bytes, place: bytes(view[:length])}
        else:
            self.unit, self.unit_bytes = -1, {}
        return length


class MemoryFile(Through):
    """A file whose content is in memory."""

    __slots__ = ("memory",)

    def __init__(self, file: Any, path: str, memory: memoryview) -> None:
        super().__init__(file, path)
        self.memory = memory

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.memory)

    def fetch(self, position: int, buffer: Any) -> int:
        """Copy the bytes from ``position`` on."""
        view = memoryview(buffer)
        part = self.memory[position : position + len(view)]
        view[: len(part)] = part
        return len(part)
