"""``checkpoint.engine: torch``: each file is written by ``torch.save`` and read by ``torch.load``."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, BinaryIO

from rayio.engines.savers.streams import STATES, check_torch, loaded, saved, torch_version
from rayio.errors import DataError, ScenarioError
from rayio.model.savers import Saver
from rayio.model.stamp import STAMP_BYTES, Stamp
from rayio.model.verified import REMEDY, Content, Verified
from rayio.storage.base import Opener
from rayio.storage.real import Filled
from rayio.units import format_bytes

#: Of Linux: a mapping that counts as no memory until it is used. Python names it from version 3.12 on.
NORESERVE = 0x4000
#: The names of a file's tensors in what ``torch.save`` is given: the state, and the stamp (``rayio.model.stamp``).
KEY, STAMP = "state", "stamp"


class OfTorch(Saver):
    """An archive of a tensor of bytes and a small one with its stamp for each file, as PyTorch writes it."""

    holds_state = True
    #: Its value of ``checkpoint.engine``, the module that saves, and the name of the tensor in the archive.
    engine: str
    module: str
    key: str

    @property
    def library(self) -> str:
        """PyTorch and its version."""
        return f"torch {torch_version()}"

    def check(self) -> None:
        """Refuse to work without PyTorch.

        Raises:
            ScenarioError: it is not installed.
        """
        check_torch(self.engine)

    def file_bytes(self, num_bytes: int) -> int:
        """Return the bytes of the archive: the state, and about 2 KiB."""
        self.check()
        return num_bytes + added_bytes(num_bytes, self.key)

    def prepare(self, num_bytes: int, period: int) -> None:
        """Make the state, and import what saves it."""
        self.check()
        import_module(self.module)
        STATES.of(num_bytes, period)

    async def close(self) -> None:
        """Free the memory of the state."""
        STATES.clear()


class TorchSave(OfTorch):
    """``torch.save`` of a mapping with two tensors of bytes."""

    engine, module, key = "torch", "torch", KEY

    def fill(self, file: BinaryIO, path: str, num_bytes: int, period: int, stamp: bytes) -> Filled:
        """Save the state and its stamp."""
        import torch

        state = {KEY: torch.from_numpy(STATES.of(num_bytes, period)), STAMP: tensor_of(stamp)}
        return saved(file, period, lambda stream: torch.save(state, stream))

    def loading(
        self, path: str, num_bytes: int, request_bytes: int, period: int, index: Mapping[str, bytes], stamp: Stamp
    ) -> Callable[[Opener], Verified]:
        """Return a function that loads the state, and compares its stamp and all of it."""

        def load(opener: Opener) -> Verified:
            import torch

            with opener(path) as file:
                state, made = loaded(
                    path, file, request_bytes, "torch.load", lambda stream: torch.load(stream, weights_only=True)
                )
            there = state if isinstance(state, dict) else {}
            return verified_tensor(path, there.get(KEY), num_bytes, period, made, (there.get(STAMP), stamp))

        return load

    def is_ours(self, head: bytes, content: bytes) -> bool:
        """Return True if the state begins in the first block of an archive."""
        return is_archive(head, content)


def tensor_of(content: bytes) -> Any:
    """Return a tensor with some bytes."""
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def verified_tensor(
    path: str, tensor: Any, num_bytes: int, period: int, made: int, stamps: tuple[Any, Stamp]
) -> Verified:
    """Compare a tensor that was loaded with the state that was saved; ``made`` is the time without requests (ns).

    ``stamps`` are the tensor of a stamp that was loaded with it, and the one that was saved.

    Raises:
        DataError: it is another tensor, or has another byte, or another stamp.
    """
    import torch

    there, stamp = stamps
    if not isinstance(there, torch.Tensor) or there.dtype != torch.uint8 or tuple(there.shape) != (STAMP_BYTES,):
        raise DataError(f"{path}: it has no stamp of {STAMP_BYTES} B, which says what it holds; {REMEDY}")
    stamp.check(path, there.numpy().tobytes(), REMEDY)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (num_bytes,):
        raise DataError(f"{path}: it has another tensor than one of {num_bytes} B; {REMEDY}")
    content = Content(num_bytes, period)
    content.compare(path, tensor.numpy())
    return Verified(content.elapsed, made)


def is_archive(head: bytes, content: bytes) -> bool:
    """Return True if a file begins as an archive of PyTorch whose first tensor begins with ``content``."""
    return head.startswith(b"PK\x03\x04") and b"/data.pkl" in head and content in head


class _Nowhere(io.RawIOBase):
    """A file of which only the length is kept."""

    def __init__(self) -> None:
        self.length = 0
        self._position = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the position."""
        self._position = offset + (0, self._position, self.length)[whence]
        return self._position

    def write(self, buffer: Any) -> int:
        """Count some bytes."""
        self._position += len(buffer)
        self.length = max(self.length, self._position)
        return len(buffer)


@lru_cache(maxsize=1024)
def added_bytes(num_bytes: int, key: str) -> int:
    """Return the bytes that ``torch.save`` adds to a tensor of ``num_bytes``; with a key it has a stamp too.

    PyTorch lays out the archive without the tensor's bytes, which take address space alone.

    Raises:
        ScenarioError: no process has so many addresses.
    """
    import torch
    from torch.serialization import skip_data

    try:
        nothing = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    except (OSError, OverflowError, ValueError):
        raise ScenarioError(
            f"checkpoint.model: a file of {format_bytes(num_bytes)} is too large for checkpoint.engine=torch; use more "
            "checkpoint.writers, or checkpoint.engine=raw"
        ) from None
    tensor, file = torch.frombuffer(nothing, dtype=torch.uint8), _Nowhere()
    with skip_data():
        torch.save({key: tensor, STAMP: tensor_of(bytes(STAMP_BYTES))} if key else tensor, file)
    return file.length - num_bytes
