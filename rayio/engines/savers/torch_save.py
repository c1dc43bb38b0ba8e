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
from rayio.model.verified import REMEDY, Content, Verified
from rayio.storage.base import Opener
from rayio.storage.real import Filled
from rayio.units import format_bytes

#: Of Linux: a mapping that counts as no memory until it is used. Python names it from version 3.12 on.
NORESERVE = 0x4000
#: The name of a file's tensor in what ``torch.save`` is given.
KEY = "state"


class OfTorch(Saver):
    """What PyTorch writes in an archive of one tensor of bytes for each file."""

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
        """Return the bytes of the archive: the state, and about 1.5 KiB."""
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
    """``torch.save`` of a mapping with one tensor of bytes."""

    engine, module, key = "torch", "torch", KEY

    def fill(self, file: BinaryIO, path: str, num_bytes: int, period: int) -> Filled:
        """Save the state."""
        import torch

        state = {KEY: torch.from_numpy(STATES.of(num_bytes, period))}
        return saved(file, period, lambda stream: torch.save(state, stream))

    def loading(
        self, path: str, num_bytes: int, request_bytes: int, period: int, index: Mapping[str, bytes]
    ) -> Callable[[Opener], Verified]:
        """Return a function that loads the state, and compares all of it."""

        def load(opener: Opener) -> Verified:
            import torch

            with opener(path) as file:
                state, made = loaded(
                    path, file, request_bytes, "torch.load", lambda stream: torch.load(stream, weights_only=True)
                )
            return verified_tensor(path, state.get(KEY) if isinstance(state, dict) else None, num_bytes, period, made)

        return load

    def is_ours(self, head: bytes, content: bytes) -> bool:
        """Return True if the state begins in the first block of an archive."""
        return is_archive(head, content)


def verified_tensor(path: str, tensor: Any, num_bytes: int, period: int, made: int) -> Verified:
    """Compare a tensor that was loaded with the state that was saved; ``made`` is the time without requests (ns).

    Raises:
        DataError: it is another tensor, or has another byte.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (num_bytes,):
        raise DataError(f"{path}: it has another tensor than one of {num_bytes} B; {REMEDY}")
    content = Content(num_bytes, period)
    content.compare(path, tensor.numpy())
    return Verified(content.elapsed, made)


def is_archive(head: bytes, content: bytes) -> bool:
    """Return True if a file begins as an archive of PyTorch whose tensor begins with ``content``."""
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
    """Return the bytes that ``torch.save`` adds to a tensor of ``num_bytes``; without a key it is saved alone.

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
        torch.save({key: tensor} if key else tensor, file)
    return file.length - num_bytes
