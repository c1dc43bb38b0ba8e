"""Stamps: the first bytes of a checkpoint's file name the run, the checkpoint and the file that it holds.

All files of a size have equal bytes otherwise.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from rayio.errors import DataError

#: Bytes of a stamp: the mark, a digest of path and run, and both as text, which ends with zeros.
STAMP_BYTES, MARK = 256, b"rayio-ck"
_TEXT = len(MARK) + 16


class Stamp(NamedTuple):
    """A file's identity: the run that wrote it, and its path in the folder of checkpoints."""

    run: str
    path: str

    @property
    def content(self) -> bytes:
        """The bytes of the stamp; what does not fit is only in its digest.

        >>> len(Stamp("rayio-1", "epoch-0000-step-00000099/shard-00000.bin").content)
        256
        """
        text = f"{self.path}\0{self.run}\0".encode(errors="replace")
        whole = MARK + blake2b(text, digest_size=16).digest() + text
        return whole[:STAMP_BYTES].ljust(STAMP_BYTES, b"\0")

    def check(self, path: str, head: bytes, remedy: str) -> None:
        """Refuse another stamp, or of a small file another begin of it; ``path`` is the file's name in messages.

        Raises:
            DataError: the file holds what another one should, or its stamp is damaged.
        """
        expected = self.content[: len(head)]
        if head == expected:
            return
        if (there := read(head)) is None:
            place = next(place for place in range(len(head)) if head[place] != expected[place])
            raise DataError(f"{path}: byte {place} is not what was written there; {remedy}")
        what = f"it holds {_plain(there.path)}" if there.path != self.path else "it was written by another run"
        if there.run != self.run:
            what += f", of run {_plain(there.run)}" if there.path != self.path else f", {_plain(there.run)}"
        raise DataError(f"{path}: {what}; {remedy}")


def read(head: bytes) -> Stamp | None:
    """Return the stamp with which a file begins; None without a whole one."""
    path, _, rest = head[_TEXT:STAMP_BYTES].partition(b"\0")
    run, _, _ = rest.partition(b"\0")
    there = Stamp(run.decode(errors="replace"), path.decode(errors="replace"))
    return there if there.content == head[:STAMP_BYTES] else None


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
