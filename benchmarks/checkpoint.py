"""Writing and reading checkpoints next to a raw loop with the same files and requests, and next to ``torch.save``.

Every round writes and reads with each, in turn, so that ratios are of one hour. The rates are by wall clock: all bytes,
from the first request of a checkpoint to its last file. Goal: at least 0.95 of the raw loop. The comparing of bytes
that rayio adds to a read is not in its rate; the column has its share of the restore. Rows "rayio, torch" and "rayio,
dcp" are of checkpoint.engine, on the local engine; the goal for torch is bare ``torch.save`` and ``torch.load``.

    python benchmarks/checkpoint.py [rounds] [MB of a checkpoint] [folder ...]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import print_machine

import rayio
from rayio.engines.ray.cluster.local_ray import lasting
from rayio.scenario.load import build
from rayio.storage.real import random_bytes

CHECKPOINTS, REQUEST, GOAL = 3, 4 << 20, 0.95
#: The bare loop of PyTorch, and the rows of rayio that are compared with it.
TORCH, OF_TORCH = "torch.save", ("rayio, torch", "rayio, dcp")
WRITERS: dict[str, int] = {"rank_zero": 1, "sharded": 2}


def together(work: Callable[[Path], None], files: Sequence[Path]) -> float:
    """Return the seconds until ``work`` is done with all files, each in a thread."""
    with ThreadPoolExecutor(len(files)) as pool:
        began = time.perf_counter()
        list(pool.map(work, files))
        return time.perf_counter() - began


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
    for path in files:
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


def by_hand(
    root: Path, size: int, number: int, write: Callable[[Path], None], read: Callable[[Path], None], *, drops: bool
) -> tuple[float, float]:
    """Return the MiB/s of writing and of reading some checkpoints of ``number`` files."""
    folder = Path(tempfile.mkdtemp(dir=root))
    files = [[folder / f"{place}-{part}.bin" for part in range(number)] for place in range(CHECKPOINTS)]
    spent = 0.0
    for some in files:
        spent += together(write, some)
        if drops:
            forget(some)
    total = CHECKPOINTS * size * number / 2**20
    written, spent = total / spent, 0.0
    for some in files:
        spent += together(read, some)
    shutil.rmtree(folder)
    return written, total / spent


def by_rayio(
    root: Path, size: int, writers: str, engine: str, *, drops: bool, saver: str = "raw"
) -> tuple[float, float, float]:
    """Return the MiB/s of writing and of reading by a run, and the share of comparing in the restore."""
    folder = Path(tempfile.mkdtemp(dir=root))
    wanted: dict[str, Any] = {
        "name": "checkpoint",
        "cluster": {"ranks_per_node": 2},
        "dataset": {"path": "data", "num_files": 2, "sample_bytes": "1 kB"},
        "loader": {"batch_size": 1, "num_workers": 0},
        "storage": {"page_cache": "drop" if drops else "use"},
        "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": {
            "path": "ck", "model": {"bytes": size}, "writers": writers, "request_bytes": REQUEST, "engine": saver,
            "phases": {"writes": CHECKPOINTS, "reads": CHECKPOINTS},
        },
    }  # fmt: skip
    run = rayio.run(build(wanted), engine=engine, root=folder)
    saved, restored, spans = run.result.saved, run.result.restored, run.spans()
    shutil.rmtree(folder)
    assert saved is not None
    assert restored is not None
    assert saved.mib_per_second is not None
    assert restored.mib_per_second is not None
    spent = {name: int(spans[spans.name == name].duration_ns.sum()) for name in ("load", "verify")}
    return saved.mib_per_second, restored.mib_per_second, spent["verify"] / sum(spent.values())


def rounds(root: Path, number: int, size: int, writers: str, *, drops: bool) -> Iterator[tuple[str, list[float]]]:
    """Yield the rates of each in every round, the raw loop first."""
    parts = WRITERS[writers]
    share = size // parts
    for _ in range(number):
        yield "raw loop", [*by_hand(root, share, parts, raw_write(share), raw_read, drops=drops)]
        for engine in ("local", "ray"):
            yield f"rayio, {engine}", [*by_rayio(root, size, writers, engine, drops=drops)]
        for saver in ("torch", "dcp"):
            yield f"rayio, {saver}", [*by_rayio(root, size, writers, "local", drops=drops, saver=saver)]
        yield TORCH, [*by_hand(root, share, parts, torch_write(share), torch_read, drops=drops)]


def main() -> None:
    """Print a table for each folder and kind of writers."""
    number, megabytes = (int(text) for text in (*sys.argv[1:3], *("3", "256")[len(sys.argv) - 1 :]))
    folders = [Path(text) for text in sys.argv[3:]] or [Path("/dev/shm"), Path.cwd()]
    print_machine()
    print(
        f"\n{CHECKPOINTS} checkpoints of {megabytes} MB, requests of {REQUEST >> 20} MiB, median of {number} rounds\n"
    )
    print("| where | writers | | write MiB/s | of bare | read MiB/s | of bare | comparing |")
    print("|---|---|---|---|---|---|---|---|")
    with lasting():
        for folder in folders:
            drops = not str(folder).startswith("/dev/shm")
            for writers in WRITERS:
                rates: dict[str, list[list[float]]] = {}
                for name, measured in rounds(folder, number, megabytes * 10**6, writers, drops=drops):
                    rates.setdefault(name, []).append(measured)
                for name, each in rates.items():
                    bare = rates[TORCH if name in OF_TORCH else "raw loop"]
                    print(row("disk" if drops else "memory", writers, name, each, bare), flush=True)


def row(where: str, writers: str, name: str, each: list[list[float]], raw: list[list[float]]) -> str:
    """Return a row: medians of the rates, and of their ratios to the bare loop of the same round."""
    cells = [where, writers, name]
    for column in range(2):
        rate = statistics.median(measured[column] for measured in each)
        ratio = statistics.median(mine[column] / other[column] for mine, other in zip(each, raw, strict=True))
        missed = " **missed**" if name.startswith("rayio") and name != "rayio, dcp" and ratio < GOAL else ""
        cells += [f"{rate:,.0f}", f"{ratio:.2f}{missed}"]
    shares = [measured[2] for measured in each if len(measured) > 2]
    return f"| {' | '.join(cells)} | {f'{100 * statistics.median(shares):.0f} %' if shares else ''} |"


if __name__ == "__main__":
    main()
