"""Writing and reading checkpoints next to the same calls in a bare loop: raw, ``torch.save`` and ``dcp.save``.

Every round writes and reads with each, in turn, every other round backwards, so that a busy machine is busy for all.
The rates are by wall clock, of a round's median checkpoint, from its first request to its last file. Goal: rayio's
rate is at least 0.95 of its bare loop's in the same round, in the median of rounds.

A virtual machine gives free memory back to its host, some seconds after memory was freed, and gets it at an eighth of
the rate. So each side writes a few checkpoints in one run, 2 GB, and reads more of them in another.

The comparing of bytes that rayio adds to a read is not in its rate; the column has its share of the restore. Rows
"rayio, torch" and "rayio, dcp" show checkpoint.engine, on the local engine; the bare loops save the same files (dcp: a
checkpoint for each file), with fsync too. The row "rayio, ray" is compared with the raw loop in bare actors of the same
Ray ("raw loop, ray"), whose own ratio is to the raw loop. A round has 5 GB of checkpoints: 512 MB are read in 50 ms,
and each process of a run on Ray sends its spans every 0.7 s, which takes milliseconds.

Next to other work a rate shows the other work. So a column has the CPU seconds of both sides' threads: those of the
bare loop divided by rayio's, without the comparing, for writing and for reading.

    python benchmarks/checkpoint.py [rounds] [MB of a checkpoint] [folder ...] [--only "rayio, ray"]
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pandas as pd
from machine import print_machine
from side import in_turn, print_head, print_row

import rayio
from rayio.analyze.transfers import READ, WRITTEN
from rayio.engines.ray.cluster.local_ray import lasting
from rayio.model.verified import Content, Verified
from rayio.scenario.load import build
from rayio.storage.real import RealStorage, random_bytes
from rayio.storage.stores.posix import PosixStore

REQUEST, GOAL = 4 << 20, 0.95
#: Checkpoints of a round at least. Bytes of those without PyTorch at least, written and read.
CHECKPOINTS, WRITTEN_BYTES, READ_BYTES = 3, 2_000_000_000, 5_000_000_000


class Rates(NamedTuple):
    """The MiB/s of writing and reading, CPU seconds of both (0: unknown), and the share of comparing in the restore."""

    writing: float
    reading: float
    cpu_writing: float
    cpu_reading: float
    comparing: float = 0.0


#: The bare loop that a row is compared with; the others with the raw loop.
BARE = {
    "torch.save": "torch.save", "rayio, torch": "torch.save", "dcp.save": "dcp.save", "rayio, dcp": "dcp.save",
    "rayio, ray": "raw loop, ray",
}  # fmt: skip
WRITERS: dict[str, int] = {"rank_zero": 1, "sharded": 2}


def checkpoints_of(size: int) -> tuple[int, int]:
    """Return how many checkpoints of ``size`` bytes a round writes, and how many it reads."""
    return max(CHECKPOINTS, round(WRITTEN_BYTES / size)), max(CHECKPOINTS, round(READ_BYTES / size))


class Spent:
    """The CPU seconds of threads that write and read checkpoints."""

    def __init__(self) -> None:
        self.writing = self.reading = 0.0
        self.comparing = threading.local()

    @contextmanager
    def by_rayio(self, *, reads: bool) -> Iterator[None]:
        """Measure the reading, or the writing, of a run of rayio in this process."""
        write, watched, compare = PosixStore.write, RealStorage._watched, Content.compare

        def writing(store: PosixStore, *args: Any, traffic: Any = None, **named: Any) -> None:
            began = time.thread_time()
            write(store, *args, traffic=traffic, **named)
            self.writing += (time.thread_time() - began) * (traffic is not None and not reads)  # manifests have none

        def reading(storage: RealStorage, load: Any, traffic: Any) -> Any:
            self.comparing.seconds, began = 0.0, time.thread_time()
            answer = watched(storage, load, traffic)
            if isinstance(answer[0], Verified):
                self.reading += time.thread_time() - began - self.comparing.seconds
            return answer

        def comparing(content: Content, *args: Any) -> None:
            began = time.thread_time()
            compare(content, *args)
            self.comparing.seconds += time.thread_time() - began

        with ExitStack() as stack:
            for owner, name, function in (
                (PosixStore, "write", writing), (RealStorage, "_watched", reading), (Content, "compare", comparing)
            ):  # fmt: skip
                stack.enter_context(mock.patch.object(owner, name, function))
            yield


def together(work: Callable[[Path], None], files: Sequence[Path]) -> tuple[float, float]:
    """Return the seconds until ``work`` is done with all files, each in a thread; and the threads' CPU seconds."""

    def timed(path: Path) -> float:
        began = time.thread_time()
        work(path)
        return time.thread_time() - began

    with ThreadPoolExecutor(len(files)) as pool:
        began = time.perf_counter()
        spent = sum(pool.map(timed, files))
        return time.perf_counter() - began, spent


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


def by_hand(
    root: Path,
    size: int,
    number: int,
    write: Callable[[Path], None],
    read: Callable[[Path], None],
    checkpoints: tuple[int, int],
    *,
    drops: bool,
) -> Rates:
    """Return the rates of writing and of reading some checkpoints of ``number`` files."""
    total, rates, spent = size * number / 2**20, list[float](), list[float]()
    for work, times in zip((write, read), checkpoints, strict=True):
        folder = Path(tempfile.mkdtemp(dir=root))
        places = [[folder / f"{place}-{part}.bin" for part in range(number)] for place in range(times)]
        taken = [together(write, files) for files in places]
        if work is read:
            for files in places if drops else []:
                forget(files)
            taken = [together(read, files) for files in places]
        shutil.rmtree(folder)
        wall, cpu = zip(*taken, strict=True)
        rates.append(total / statistics.median(wall))
        spent.append(sum(cpu))
    return Rates(*rates, *spent)


class Bare:
    """An actor with nothing but the raw loop."""

    def work(self, write: bool, path: Path, size: int) -> tuple[float, float]:
        """Write or read a file; return when that began and ended."""
        began = time.time()
        if write:
            raw_write(size)(path)
        else:
            raw_read(path)
        return began, time.time()


def by_actors(root: Path, size: int, number: int, *, drops: bool) -> Rates:
    """Return the rates of the raw loop in bare actors of the same Ray, one for each file.

    Ray's own processes take a part of the machine, and calls of actors take time; this is what they leave.
    """
    import ray

    actors = [ray.remote(num_cpus=0)(Bare).remote() for _ in range(number)]
    rates = list[float]()

    def seconds(write: bool, files: Sequence[Path], size: int = size) -> float:
        times = ray.get([actor.work.remote(write, path, size) for actor, path in zip(actors, files, strict=True)])
        return float(max(end for _, end in times) - min(begin for begin, _ in times))

    for writes, times in zip((True, False), checkpoints_of(size * number), strict=True):
        folder = Path(tempfile.mkdtemp(dir=root))
        seconds(True, [folder / f"{part}.bin" for part in range(number)], REQUEST)  # imports
        places = [[folder / f"{place}-{part}.bin" for part in range(number)] for place in range(times)]
        taken = [seconds(True, files) for files in places]
        if not writes:
            for files in places if drops else []:
                forget(files)
            taken = [seconds(False, files) for files in places]
        shutil.rmtree(folder)
        rates.append(size * number / 2**20 / statistics.median(taken))
    for actor in actors:
        ray.kill(actor)
    return Rates(rates[0], rates[1], 0.0, 0.0)


def by_rayio(root: Path, size: int, writers: str, engine: str, *, drops: bool, saver: str = "raw") -> Rates:
    """Return the rates of writing by a run, and of reading by another."""
    folder = Path(tempfile.mkdtemp(dir=root))
    written, read = checkpoints_of(size) if saver == "raw" else (CHECKPOINTS, CHECKPOINTS)
    cpu, rates, share = Spent(), list[float](), 0.0
    for reads, phases in ((False, {"writes": written}), (True, {"writes": read, "reads": read})):
        wanted: dict[str, Any] = {
            "name": "checkpoint",
            "cluster": {"ranks_per_node": 2},
            "dataset": {"path": "data", "num_files": 2, "sample_bytes": "1 kB"},
            "loader": {"batch_size": 1, "num_workers": 0},
            "storage": {"page_cache": "drop" if drops else "use"},
            "train": {"epochs": 1, "compute": "1 ms"},
            "checkpoint": {
                "path": "ck", "model": {"bytes": size}, "writers": writers, "request_bytes": REQUEST, "engine": saver,
                "phases": phases,
            },
        }  # fmt: skip
        with cpu.by_rayio(reads=reads):
            run = rayio.run(build(wanted), engine=engine, root=folder)
        moved, spans = run.result.restored if reads else run.result.saved, run.spans()
        assert moved is not None
        shutil.rmtree(folder / "ck")
        seconds = lasted(spans[spans.name.isin(READ if reads else WRITTEN)])
        assert len(seconds) == moved.checkpoints == (read if reads else written)
        assert math.isclose(sum(seconds), moved.seconds, rel_tol=1e-6)
        rates.append(size / 2**20 / statistics.median(seconds))
        if reads:
            spent = {name: int(spans[spans.name == name].duration_ns.sum()) for name in ("load", "verify")}
            share = spent["verify"] / sum(spent.values())
    shutil.rmtree(folder)
    return Rates(rates[0], rates[1], cpu.writing, cpu.reading, share)


def lasted(spans: pd.DataFrame) -> list[float]:
    """Return the seconds from the first begin to the last end of each checkpoint's spans."""
    spans = spans[spans.role == "checkpoint_writer"].assign(end_ns=spans.start_ns + spans.duration_ns)
    each = spans.groupby(["attempt", "epoch", "step"])
    return ((each.end_ns.max() - each.start_ns.min()) / 1e9).tolist()


def rounds(root: Path, number: int, size: int, writers: str, only: str, *, drops: bool) -> dict[str, list[Rates]]:
    """Return the rates in every round of each whose name has ``only``, with their bare loops, the raw loop first."""
    parts = WRITERS[writers]
    share = size // parts
    bare, run = partial(by_hand, root, share, parts, drops=drops), partial(by_rayio, root, size, writers, drops=drops)
    sides: dict[str, Callable[[], Rates]] = {
        "raw loop": lambda: bare(raw_write(share), raw_read, checkpoints_of(size)),
        "rayio, local": lambda: run("local"),
        "raw loop, ray": lambda: by_actors(root, share, parts, drops=drops),
        "rayio, ray": lambda: run("ray"),
        "torch.save": lambda: bare(torch_write(share), torch_read, (CHECKPOINTS,) * 2),
        "rayio, torch": lambda: run("local", saver="torch"),
        "dcp.save": lambda: bare(dcp_write(share), dcp_read, (CHECKPOINTS,) * 2),
        "rayio, dcp": lambda: run("local", saver="dcp"),
    }
    wanted = {"raw loop"} | {side for name in sides if only in name for side in (name, BARE.get(name, "raw loop"))}
    sides = {name: side for name, side in sides.items() if name in wanted}
    for name in [name for name in ("rayio, ray", *BARE) if name in sides]:
        sides[name]()  # imports, and a start of Ray
    return in_turn(sides, number)


def main() -> None:
    """Print a table for each folder and kind of writers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("megabytes", type=int, nargs="?", default=256)
    parser.add_argument("folders", type=Path, nargs="*", default=[Path("/dev/shm"), Path.cwd()])
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name has it, and their bare loops")
    asked = parser.parse_args()
    number, megabytes, folders = asked.rounds, asked.megabytes, asked.folders
    print_machine()
    size = megabytes * 10**6
    written, read = checkpoints_of(size)
    print(
        f"\n{written} checkpoints of {megabytes} MB written, {read} read ({CHECKPOINTS} by PyTorch), requests of "
        f"{REQUEST >> 20} MiB, median of {number} rounds\n"
    )
    print_head("where", "writers", "", "write MiB/s", "of bare", "read MiB/s", "of bare", "by CPU", "comparing")
    with lasting():
        for folder in folders:
            drops = not str(folder).startswith("/dev/shm")
            for writers in WRITERS:
                rates = rounds(folder, number, size, writers, asked.only, drops=drops)
                for name, each in rates.items():
                    bare = rates[BARE.get(name, "raw loop")]
                    print_row("disk" if drops else "memory", writers, name, *cells(name, each, bare))


def cells(name: str, each: list[Rates], bare: list[Rates]) -> Iterator[str]:
    """Yield medians of the rates, and those of their ratios to the bare loop's in the same round.

    By CPU time the ratio is that of the medians.
    """
    for kind in ("writing", "reading"):
        rate = statistics.median(getattr(rates, kind) for rates in each)
        of_bare = statistics.median(
            getattr(rates, kind) / getattr(other, kind) for rates, other in zip(each, bare, strict=True)
        )
        missed = " **missed**" if name.startswith("rayio") and of_bare < GOAL else ""
        yield f"{rate:,.0f}"
        yield f"{of_bare:.2f}{missed}"
    mine, other = (Rates(*map(statistics.median, zip(*rates, strict=True))) for rates in (each, bare))
    is_known = name.startswith("rayio") and mine.cpu_reading > 0
    yield (
        f"{other.cpu_writing / mine.cpu_writing:.2f}, {other.cpu_reading / mine.cpu_reading:.2f}" if is_known else ""
    )
    yield f"{100 * mine.comparing:.0f} %" if mine.comparing else ""


if __name__ == "__main__":
    main()
