"""``checkpoint.engine: dcp``: a checkpoint as ``torch.distributed.checkpoint`` writes and reads it.

Each file has one tensor, named as the file, and its stamp, which ``dcp.save`` writes and ``dcp.load`` reads. The index
of all of them, ``.metadata``, is written before rayio's manifest, so that PyTorch alone can load the checkpoint too.
Writers have no process group: what each saves is known beforehand, so no plans are gathered and scattered.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from rayio.engines.savers.streams import STATES, loaded, saved
from rayio.engines.savers.torch_save import OfTorch, added_bytes, is_archive, tensor_of, verified_tensor
from rayio.errors import DataError
from rayio.model.stamp import STAMP_BYTES, Stamp
from rayio.model.verified import REMEDY, Verified
from rayio.storage.base import Opener
from rayio.storage.real import Filled

#: The name of the index, as PyTorch has it.
INDEX = ".metadata"
#: What follows the name of a file in the name of its stamp.
STAMPED = ".stamp"


class Dcp(OfTorch):
    """``torch.distributed.checkpoint`` of one tensor of bytes, and its stamp, in each file."""

    engine, module, key = "dcp", "torch.distributed.checkpoint", ""

    def file_bytes(self, num_bytes: int) -> int:
        """Return the bytes of the two archives: the state, the stamp, and about 3 KiB."""
        return super().file_bytes(num_bytes) + super().file_bytes(STAMP_BYTES)

    def index(self, parts: Mapping[str, int]) -> Mapping[str, bytes]:
        """Return the index that PyTorch reads: the tensors, and their files."""
        self.check()
        return {INDEX: _index(tuple(parts.items()))}

    def prepare(self, num_bytes: int, period: int) -> None:
        """Make the state, and import what saves it."""
        super().prepare(num_bytes, period)
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # on purpose: see above

    def fill(self, file: BinaryIO, path: str, num_bytes: int, period: int, stamp: bytes) -> Filled:
        """Save the state and its stamp."""
        import torch
        from torch.distributed import checkpoint

        name = PurePosixPath(path).name
        state = {name: torch.from_numpy(STATES.of(num_bytes, period)), name + STAMPED: tensor_of(stamp)}
        return saved(file, period, lambda stream: checkpoint.save(state, storage_writer=_writer(stream), no_dist=True))

    def loading(
        self, path: str, num_bytes: int, request_bytes: int, period: int, index: Mapping[str, bytes], stamp: Stamp
    ) -> Callable[[Opener], Verified]:
        """Return a function that reads the index, loads the state, and compares its stamp and all of it."""
        place = PurePosixPath(path)

        def load(opener: Opener) -> Verified:
            import torch
            from torch.distributed import checkpoint

            with opener(f"{place.parent}/{INDEX}") as file:
                content = file.read()
            if content != index[INDEX]:  # it is a pickle, so it is compared before anything reads it
                raise DataError(f"{place.parent}/{INDEX}: is not the index of this checkpoint; {REMEDY}")
            state = {place.name: torch.empty(num_bytes, dtype=torch.uint8)}
            state[place.name + STAMPED] = torch.empty(STAMP_BYTES, dtype=torch.uint8)
            with opener(path) as file:
                _, made = loaded(
                    path, file, request_bytes, "torch.distributed.checkpoint.load",
                    lambda stream: checkpoint.load(state, storage_reader=_reader(stream, content), no_dist=True),
                )  # fmt: skip
            there = state[place.name + STAMPED], stamp
            return verified_tensor(path, state[place.name], num_bytes, period, made, there)

        return load

    def is_ours(self, head: bytes, content: bytes) -> bool:
        """Return True if the state begins in the first block of an archive, or an index names rayio."""
        return is_archive(head, content) or (head.startswith(b"\x80") and MARK in head)


#: What the index of rayio's checkpoints has near its beginning.
MARK = b"rayio"


@lru_cache(maxsize=2)
def _index(parts: tuple[tuple[str, int], ...]) -> bytes:
    import torch
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    start, tensors, places = torch.Size([0]), {}, {}
    for name, num_bytes in parts:
        offset = 0
        for tensor, each in ((name, num_bytes), (name + STAMPED, STAMP_BYTES)):
            size = torch.Size([each])
            properties = md.TensorProperties(dtype=torch.uint8)
            tensors[tensor] = md.TensorStorageMetadata(properties, size, [md.ChunkStorageMetadata(start, size)])
            length = each + added_bytes(each, "")
            places[md.MetadataIndex(tensor, start, 0)] = _StorageInfo(name, offset, length)
            offset += length
    index = md.Metadata(
        state_dict_metadata=tensors,
        planner_data={name: (name,) for name in tensors},
        storage_data=places,
        storage_meta=md.StorageMeta(save_id=MARK.decode()),
    )
    return pickle.dumps(index)


class _Files:
    """The file system that PyTorch sees: one stream, whatever the path."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """Yield the stream."""
        yield _Open(self._stream)

    def concat_path(self, path: Any, suffix: str) -> str:
        """Return a path."""
        return f"{path}/{suffix}"

    def exists(self, path: Any) -> bool:
        """Return False: every checkpoint is new."""
        return False

    def mkdir(self, path: Any) -> None:
        """Make nothing: the store makes folders."""


class _Open:
    """A stream that its user's ``close`` leaves open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        """Leave it open."""


def _writer(stream: BinaryIO) -> Any:
    """Return PyTorch's writer, which writes to a stream; rayio writes the index of all files."""
    from torch.distributed.checkpoint import FileSystemWriter

    class Writer(FileSystemWriter):  # type: ignore[misc]
        def finish(self, metadata: Any, results: Any) -> None:
            pass

    writer = Writer("", sync_files=False)
    writer.fs = _Files(stream)
    return writer


def _reader(stream: BinaryIO, index: bytes) -> Any:
    """Return PyTorch's reader of a stream."""
    from torch.distributed.checkpoint import FileSystemReader

    class Reader(FileSystemReader):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return pickle.loads(index)

    reader = Reader("")
    reader.fs = _Files(stream)
    return reader
