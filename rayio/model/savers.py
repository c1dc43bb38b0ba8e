"""Kinds of ``checkpoint.engine``: how the state of a file becomes its bytes, and is read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, ClassVar

from rayio.model.stamp import MARK, Stamp
from rayio.model.verified import Verified, verified
from rayio.scenario.kind import Kind
from rayio.storage.base import Opener
from rayio.storage.real import Filled, fill_random, random_bytes


class Saver(Kind):
    """An engine of checkpoints. All of them save the same state: random bytes that repeat after a request.

    Nothing of an engine happens on modelled storage, where a file has the bytes of its state.

    >>> load("unet3d-small", {"checkpoint.engine": "torch"}).checkpoint.engine
    'torch'
    """

    #: True if a writer has the whole state of a file in memory while it saves it, and again while it reads it.
    holds_state: ClassVar[bool] = False

    @property
    def library(self) -> str:
        """The library and version that files depend on; empty without one."""
        return ""

    def check(self) -> None:
        """Refuse an engine that cannot work here.

        Raises:
            ScenarioError: its library is missing.
        """

    def file_bytes(self, num_bytes: int) -> int:
        """Return the bytes of a file with a state of ``num_bytes``."""
        return num_bytes

    def index(self, parts: Mapping[str, int]) -> Mapping[str, bytes]:
        """Return further files of a checkpoint, by name, which are written before its manifest.

        ``parts`` has the bytes of the state in each file, by name.
        """
        return {}

    def prepare(self, num_bytes: int, period: int) -> None:
        """Make the state of files of up to ``num_bytes``, which repeats after ``period`` bytes."""

    async def close(self) -> None:
        """Forget what :meth:`prepare` made, at the end of a run in this process."""

    def fill(self, file: BinaryIO, path: str, num_bytes: int, period: int, stamp: bytes) -> Filled:
        """Write the content of a file in requests of ``period`` bytes, with a stamp (``rayio.model.stamp``)."""
        raise NotImplementedError

    def loading(
        self, path: str, num_bytes: int, request_bytes: int, period: int, index: Mapping[str, bytes], stamp: Stamp
    ) -> Callable[[Opener], Verified]:
        """Return a function that reads a file with an opener and compares stamp and state with what was written.

        ``index`` has the files of :meth:`index` that belong to the checkpoint.
        """
        raise NotImplementedError

    def is_ours(self, head: bytes, content: bytes) -> bool:
        """Return True if this engine wrote a file that begins with ``head``; ``content`` is the begin of its state."""
        raise NotImplementedError


class Raw(Saver):
    """The bytes of the state, as they are."""

    def prepare(self, num_bytes: int, period: int) -> None:
        """Make the bytes of a request: the first file takes no longer."""
        random_bytes(min(period, max(num_bytes, 1)))

    def fill(self, file: BinaryIO, path: str, num_bytes: int, period: int, stamp: bytes) -> Filled:
        """Write the bytes; the stamp is in the place of the first ones."""
        return fill_random(file, path, num_bytes, period, stamp)

    def loading(
        self, path: str, num_bytes: int, request_bytes: int, period: int, index: Mapping[str, Any], stamp: Stamp
    ) -> Callable[[Opener], Verified]:
        """Return a function that compares the bytes request by request."""
        return verified(path, num_bytes, request_bytes, period, stamp)

    def is_ours(self, head: bytes, content: bytes) -> bool:
        """Return True if the file begins with a stamp, or with the state as in files of earlier versions."""
        return head.startswith((MARK[: len(content)], content))
