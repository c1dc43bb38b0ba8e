"""Bare loops that write and read checkpoints: raw requests, ``torch.save``, ``dcp.save``; in threads or in actors."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rayio.storage.real import random_bytes

REQUEST = 4 << 20


class Turn(NamedTuple):
    """When a checkpoint began and ended (s of the epoch), and the CPU seconds of its threads (0: unknown)."""

    began: float
    ended: float
    cpu: float = 0.0


class Bare(NamedTuple):
    """A bare loop: what it writes and reads with, its folder, and its files of a checkpoint."""

    work: Callable[[bool, Sequence[Path]], Turn]
    folder: Path
    parts: int
    drops: bool

    def turn(self, writes: bool, number: int) -> Turn:
        """Write or read a checkpoint."""
        files = [self.folder / f"{number}-{part}.bin" for part in range(self.parts)]
        if self.drops and not writes:
            forget(files)
        return self.work(writes, files)


def together(write: Callable[[Path], None], read: Callable[[Path], None], writes: bool, files: Sequence[Path]) -> Turn:
    """Write or read all files, each in a thread."""

    def timed(path: Path) -> float:
        began = time.thread_time()
        (write if writes else read)(path)
        return time.thread_time() - began

    with ThreadPoolExecutor(len(files)) as pool:
        began = time.time()
        spent = sum(pool.map(timed, files))
        return Turn(began, time.time(), spent)


def durable(path: Path) -> None:
    """Force a file to the device under its final name, and its name too."""
    descriptor = os.open(path.with_suffix(".partial"), os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    path.with_suffix(".partial").rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def forget(files: Sequence[Path]) -> None:
    """Evict files from the page cache."""
    for path in [part for file in files for part in (file.iterdir() if file.is_dir() else [file])]:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def raw_write(size: int) -> Callable[[Path], None]:
    """Return a loop of write requests."""
    content = random_bytes(REQUEST)

    def write(path: Path) -> None:
        with path.with_suffix(".partial").open("xb", buffering=0) as file:
            written = 0
            while written < size:
                written += file.write(content[: size - written])
        durable(path)

    return write


def raw_read(path: Path) -> None:
    """Read a file in requests into one buffer."""
    buffer = memoryview(bytearray(REQUEST))
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def torch_write(size: int) -> Callable[[Path], None]:
    """Return a call of ``torch.save``."""
    import numpy as np
    import torch

    state = {"state": torch.from_numpy(np.resize(np.frombuffer(random_bytes(REQUEST), np.uint8), size).copy())}

    def write(path: Path) -> None:
        torch.save(state, path.with_suffix(".partial"))
        durable(path)

    return write


def torch_read(path: Path) -> None:
    """Load a file with ``torch.load``."""
    import torch

    torch.load(path, weights_only=True)


def dcp_write(size: int) -> Callable[[Path], None]:
    """Return a call of ``torch.distributed.checkpoint.save`` to a folder."""
    import numpy as np
    import torch
    from torch.distributed import checkpoint

    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    state = {"state": torch.from_numpy(np.resize(np.frombuffer(random_bytes(REQUEST), np.uint8), size).copy())}

    def write(path: Path) -> None:
        checkpoint.save(state, checkpoint_id=path, no_dist=True)
        folder = os.open(path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    return write


def dcp_read(path: Path) -> None:
    """Load a folder with ``torch.distributed.checkpoint.load``."""
    import torch
    from torch.distributed import checkpoint

    size = checkpoint.FileSystemReader(path).read_metadata().state_dict_metadata["state"].size
    checkpoint.load({"state": torch.empty(size, dtype=torch.uint8)}, checkpoint_id=path, no_dist=True)


class Actor:
    """An actor with nothing but the raw loop."""

    def work(self, write: bool, path: Path, size: int) -> tuple[float, float]:
        """Write or read a file; return when that began and ended."""
        began = time.time()
        if write:
            raw_write(size)(path)
        else:
            raw_read(path)
        return began, time.time()


@contextmanager
def in_actors(size: int, number: int) -> Iterator[Callable[[bool, Sequence[Path]], Turn]]:
    """Give the raw loop in bare actors, one for each file.

    Ray's own processes take a part of the machine, and calls of actors take time; this is what they leave.
    """
    import ray

    actors = [ray.remote(num_cpus=0)(Actor).remote() for _ in range(number)]

    def work(writes: bool, files: Sequence[Path]) -> Turn:
        times = ray.get([actor.work.remote(writes, path, size) for actor, path in zip(actors, files, strict=True)])
        return Turn(min(begin for begin, _ in times), max(end for _, end in times))

    yield work
    for actor in actors:
        ray.kill(actor)


def raw(size: int) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """Return the raw loop."""
    return raw_write(size), raw_read


#: The bare loops of PyTorch.
LOOPS: dict[str, Any] = {
    "rayio, torch": lambda size: (torch_write(size), torch_read),
    "rayio, dcp": lambda size: (dcp_write(size), dcp_read),
}
