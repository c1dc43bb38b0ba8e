"""Writing and reading checkpoints next to the same calls in a bare loop: raw, ``torch.save`` and ``dcp.save``.

Both sides take turns by the checkpoint: a run pauses before each checkpoint that it writes or reads (``phases.pause``),
and there the bare loop writes or reads one of the same size. The rates are by wall clock, of a checkpoint, from its
first request to its last file. A ratio is that of a checkpoint of rayio to the bare loop's ones before and after it;
the table has the median of all, and the middle half. Goal: at least 0.95. Those that overlap are left out.

In the rows "again" two bare loops take the same turns: what their ratio is off 1 is the machine. The row "rayio, ray"
is compared with bare actors of the same Ray, because Ray's own processes take a part of the machine. Rows "rayio,
torch" and "rayio, dcp" show checkpoint.engine, on the local engine; their bare loops save the same files (dcp: a
checkpoint for each file), with fsync too.

The comparing of bytes that rayio adds to a read is not in its rate; the column has its share of the restore. *By CPU*
has the CPU seconds of the bare loop's threads divided by those of rayio's, without the comparing, for writing and for
reading: next to other work a rate shows the other work.

    python benchmarks/checkpoint.py [rounds] [MB of a checkpoint] [folder ...] [--only "rayio, ray$"]
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
from backed import backed
from checkpoint_loops import LOOPS, REQUEST, Bare, Turn, in_actors, raw, together
from machine import print_machine
from side import in_turn, print_head, print_row
from uses import Uses

import rayio
from rayio.analyze.transfers import READ, WRITTEN
from rayio.engines.ray.cluster.local_ray import lasting
from rayio.model.verified import Content, Verified
from rayio.scenario.load import build
from rayio.storage.real import RealStorage
from rayio.storage.stores.posix import PosixStore

GOAL = 0.95
#: Checkpoints that a run writes, and then reads.
CHECKPOINTS = 6
#: Seconds between two checkpoints of a run; with PyTorch. After a third without I/O the bare loop has its turn.
PAUSE, LATER = 0.9, 2.4
WRITERS: dict[str, int] = {"rank_zero": 1, "sharded": 2}


class Pairs:
    """The seconds of checkpoints of rayio and of the bare loop next to each, by what they did, and the CPU seconds."""

    def __init__(self) -> None:
        self.seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        self.cpu: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}
        self.comparing: list[float] = []

    def add(self, writes: bool, mine: Sequence[Turn], bare: Sequence[Turn]) -> None:
        """Add each of ``mine`` with the mean of ``bare`` before and after it.

        Those without a turn of ``bare`` between them and the next, or with one that overlaps, are left out.
        """
        before = list[float]()
        for turn, follower in zip(mine, [*mine[1:], None], strict=True):
            others = [other for other in bare if other.ended > turn.began]
            others = [other for other in others if follower is None or other.began < follower.began]
            if len(others) == 1 and others[0].began > turn.ended and (
                follower is None or others[0].ended < follower.began
            ):  # fmt: skip
                after = others[0].ended - others[0].began
                self.seconds[writes].append((turn.ended - turn.began, statistics.mean([*before, after])))
                before = [after]
            else:
                before = []

    def spent(self, writes: bool, mine: float, bare: Sequence[Turn]) -> None:
        """Add the CPU seconds of a checkpoint of both sides."""
        self.cpu[writes][0] += mine
        self.cpu[writes][1] += statistics.mean(turn.cpu for turn in bare)

    def cells(self, size: int, *, judged: bool) -> Iterator[str]:
        """Yield the number of pairs, the rates, and the ratios."""
        yield ", ".join(str(len(self.seconds[writes])) for writes in (True, False))
        for writes in (True, False):
            if not self.seconds[writes]:  # turns took longer than pauses
                yield from ("", "", "")
                continue
            mine, bare = zip(*self.seconds[writes], strict=True)
            ratios = sorted(other / one for one, other in self.seconds[writes])
            middle, quarter = statistics.median(ratios), len(ratios) // 4
            for seconds in (mine, bare):
                yield f"{size / 2**20 / statistics.median(seconds):,.0f}"
            missed = " **missed**" if judged and middle < GOAL else ""
            yield f"{middle:.2f} ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}){missed}"
        known = self.cpu[True][0] and self.cpu[False][0]
        yield ", ".join(f"{bare / mine:.2f}" for mine, bare in self.cpu.values()) if known else ""
        yield f"{100 * statistics.median(self.comparing):.0f} %" if self.comparing else ""


class Spent:
    """The CPU seconds of threads that write and read checkpoints."""

    def __init__(self) -> None:
        self.writing = self.reading = 0.0
        self.comparing = threading.local()

    @contextmanager
    def by_rayio(self) -> Iterator[None]:
        """Measure the reading and the writing of a run of rayio in this process."""
        write, watched, compare = PosixStore.write, RealStorage._watched, Content.compare

        def writing(store: PosixStore, *args: Any, traffic: Any = None, **named: Any) -> None:
            began = time.thread_time()
            write(store, *args, traffic=traffic, **named)
            self.writing += (time.thread_time() - began) * (traffic is not None)  # manifests have none

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


def by_rayio(pairs: Pairs, bare: Bare, size: int, writers: str, engine: str, saver: str) -> None:
    """Write and read checkpoints by a run, with a turn of ``bare`` after each."""
    folder, pause = Path(tempfile.mkdtemp(dir=bare.folder)), PAUSE if saver == "raw" else LATER
    (folder / "ck").mkdir()
    wanted: dict[str, Any] = {
        "name": "checkpoint",
        "cluster": {"ranks_per_node": 2},
        "dataset": {"path": "data", "num_files": 2, "sample_bytes": "1 kB"},
        "loader": {"batch_size": 1, "num_workers": 0},
        "storage": {"page_cache": "drop" if bare.drops else "use"},
        "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": {
            "path": "ck", "model": {"bytes": size}, "writers": writers, "request_bytes": REQUEST, "engine": saver,
            "phases": {"writes": CHECKPOINTS, "reads": CHECKPOINTS, "pause": pause},
        },
    }  # fmt: skip
    uses, over, turns, cpu = Uses(folder / "ck"), threading.Event(), {True: list[Turn](), False: list[Turn]()}, Spent()

    def takes_turns() -> None:
        while not over.is_set():
            if uses.wait(pause / 3, at_most=pause):
                writes = uses.wrote
                number = len(turns[True]) if writes else len(turns[False]) % len(turns[True])
                turns[writes].append(bare.turn(writes, number))

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(takes_turns)
        try:
            with cpu.by_rayio():
                run = rayio.run(build(wanted), engine=engine, root=folder)
        finally:
            time.sleep(pause)  # the last one's turn
            over.set()
        taking.result()
    uses.close()
    if run.exit_code:
        raise SystemExit(f"{run.address}: the run ended with {run.exit_code}")
    spans, result = run.spans(), run.result
    shutil.rmtree(folder)
    for writes, names, moved, spent in (
        (True, WRITTEN, result.saved, cpu.writing), (False, READ, result.restored, cpu.reading)
    ):  # fmt: skip
        mine = lasted(spans[spans.name.isin(names)])
        assert moved is not None
        assert len(mine) == moved.checkpoints == CHECKPOINTS
        assert math.isclose(sum(turn.ended - turn.began for turn in mine), moved.seconds, rel_tol=1e-4)
        pairs.add(writes, mine, turns[writes])
        pairs.spent(writes, spent / CHECKPOINTS, turns[writes])
    took = {name: int(spans[spans.name == name].duration_ns.sum()) for name in ("load", "verify")}
    pairs.comparing.append(took["verify"] / sum(took.values()))


def again(pairs: Pairs, first: Bare, second: Bare) -> None:
    """Write and read checkpoints by two bare loops in turn."""
    for writes in (True, False):
        turns = list[Turn]()
        for turn in range(2 * CHECKPOINTS):
            time.sleep(PAUSE / 2)
            turns.append((second if turn % 2 else first).turn(writes, turn // 2))
        pairs.add(writes, turns[::2], turns[1::2])
        pairs.spent(writes, statistics.mean(turn.cpu for turn in turns[::2]), turns[1::2])


def lasted(spans: pd.DataFrame) -> list[Turn]:
    """Return the first begin and the last end of each checkpoint's spans."""
    spans = spans[spans.role == "checkpoint_writer"].assign(end_ns=spans.start_ns + spans.duration_ns)
    each = spans.groupby(["attempt", "epoch", "step"])
    return list(map(Turn, (each.start_ns.min() / 1e9).tolist(), (each.end_ns.max() / 1e9).tolist()))


def row(pairs: Pairs, root: Path, size: int, writers: str, name: str) -> None:
    """Add a round of the row ``name``."""
    parts, drops = WRITERS[writers], not str(root).startswith("/dev/shm")
    share = size // parts
    with ExitStack() as stack:

        def bare() -> Bare:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root)))
            if name.endswith("ray"):
                work = stack.enter_context(in_actors(share, parts))
            else:
                work = partial(together, *LOOPS.get(name, raw)(share))
            made = Bare(work, folder, parts, drops)
            made.turn(True, 0)  # imports
            return made._replace(folder=Path(tempfile.mkdtemp(dir=folder)))

        if name.startswith("again"):
            again(pairs, bare(), bare())
        else:
            engine, saver = ("local", name.split()[-1]) if name in LOOPS else (name.split()[-1], "raw")
            by_rayio(pairs, bare(), size, writers, engine, saver)


ROWS = ("again, local", "rayio, local", "again, ray", "rayio, ray", *LOOPS)


def pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text}: is no pattern: {error}") from None


def main() -> None:
    """Print a table for each folder and kind of writers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("megabytes", type=int, nargs="?", default=256)
    parser.add_argument("folders", type=Path, nargs="*", default=[Path("/dev/shm"), Path.cwd()])
    parser.add_argument("--only", type=pattern, default="", metavar="PATTERN", help="rows whose name matches")
    asked = parser.parse_args()
    names = [name for name in ROWS if asked.only.search(name)]
    if not names:
        parser.error(f"--only {asked.only.pattern}: no row has that; rows are {'; '.join(ROWS)}")
    size = asked.megabytes * 10**6
    print_machine()
    print(f"\n{asked.rounds} × {CHECKPOINTS} checkpoints of {asked.megabytes} MB, requests of {REQUEST >> 20} MiB\n")
    print_head(
        "where", "writers", "", "pairs", "write MiB/s", "bare", "ratio", "read MiB/s", "bare", "ratio", "by CPU",
        "comparing",
    )  # fmt: skip
    with lasting(), backed(2 * CHECKPOINTS * size + (6 << 30)):
        if any(name.endswith("ray") for name in names):
            warm(asked.folders[0])
        for folder in asked.folders:
            for writers in WRITERS:
                pairs = {name: Pairs() for name in names}
                in_turn(
                    {name: partial(row, pairs[name], folder, size, writers, name) for name in names},
                    asked.rounds,
                )
                for name, each in pairs.items():
                    where = "memory" if str(folder).startswith("/dev/shm") else "disk"
                    print_row(where, writers, name, *each.cells(size, judged=name.startswith("rayio")))


def warm(root: Path) -> None:
    """Start the Ray that all rows share."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        wanted: dict[str, Any] = {
            "name": "warm", "dataset": {"path": "data", "num_files": 2, "sample_bytes": "1 kB"},
            "train": {"epochs": 1, "compute": "1 ms"},
        }  # fmt: skip
        rayio.run(build(wanted), engine="ray", root=Path(folder))


if __name__ == "__main__":
    main()
