"""What shuffles are told in tests: numbers of samples, of which each kind takes its own."""

from __future__ import annotations

from typing import NamedTuple

from rayio.data.shuffle import BlockOptions, BufferOptions, Sizes
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section


class Together(NamedTuple):
    """Samples that belong together: those of a file, of a block, of a shuffle buffer."""

    file: int = 1
    block: int = 1
    buffer: int = 1

    def options(self, shuffle: str) -> Section:
        """Give the options of a shuffle."""
        if shuffle == "block":
            return BlockOptions(shuffle_block=self.block)
        return BufferOptions(shuffle_buffer=self.buffer) if shuffle == "buffer" else NO_OPTIONS

    def of(self, shuffle: str) -> Sizes:
        """Give what a shuffle is called with."""
        return Sizes(self.file, self.options(shuffle))
