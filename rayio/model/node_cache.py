"""The modelled cache of a node: the samples in its memory, and who of its readers is reading which."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.model.kernel import Future, Kernel
from rayio.storage.layers.cached import COMING, MEMORY_SPEC, MISSING, THERE, Lru, Who
from rayio.storage.model import Device


class _Reading:
    """A batch that is being read, and what is set once it was."""

    __slots__ = ("arrived", "who")

    def __init__(self, who: Who, arrived: Future) -> None:
        self.who = who
        self.arrived = arrived


class NodeCache:
    """One node's cache of ``capacity`` bytes, which all its readers share; see ``rayio.storage.layers.cached.Cache``.

    A sample is read by one of them at a time: the others wait for it, as readers of one page do. A batch that is read
    once more, because its reader was killed, reads again what it was to read.
    """

    def __init__(self, kernel: Kernel, capacity: int) -> None:
        self.kernel = kernel
        self.kept = Lru(capacity)
        #: The memory that it is in.
        self.device = Device(MEMORY_SPEC)
        self.reserve = self.device.reserve
        #: By sample: the batch with which it is being read.
        self._coming: dict[int, _Reading] = {}

    def look(self, who: Who, keys: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Use samples one after the other: say of each whether it was there; ``who`` reads those that are missing."""
        found, mine = [], None
        for key, size in zip(keys, sizes, strict=True):
            is_there = self.kept.use(key, size)
            reading = self._coming.get(key)
            if reading is None and not is_there:
                mine = mine or _Reading(who, self.kernel.future("a sample that another reader of the node reads"))
                self._coming[key] = reading = mine
            found.append(THERE if reading is None else MISSING if reading.who == who else COMING)
        return found

    def came(self, who: Who, keys: Sequence[int]) -> None:
        """Learn that a batch has read samples, and let those go on who wait for them."""
        for key in keys:
            reading = self._coming.get(key)
            if reading is not None and reading.who == who:
                del self._coming[key]
                if not reading.arrived.done():
                    reading.arrived.set_result(None)

    async def arrived(self, keys: Sequence[int]) -> None:
        """Return once nobody is reading any of these samples."""
        for key in keys:
            if (reading := self._coming.get(key)) is not None:
                await reading.arrived

    def clear(self) -> None:
        """Begin empty, as a node does that comes anew: whoever was reading here before is gone."""
        self.kept.clear()
        coming, self._coming = self._coming, {}
        for reading in coming.values():
            if not reading.arrived.done():
                reading.arrived.set_result(None)
