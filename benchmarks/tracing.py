"""What tracing costs: CPU per span, per request and per run; bytes per stored span; seconds to load and sum up.

Spans are those of a simulated training (5 spans per rank and step); ten million are ten of it on other ranks. Goals:
<= 1 µs CPU per span recorded; a run at level ``batch`` against ``none`` <= 0.5 % more CPU, requests of 20 µs at level
``io`` <= 5 % more; <= 7 bytes per span at 1 ns, <= 5.5 at 1 us; load and sum up by name <= 0.3 s for a million spans,
<= 1.5 s for ten, memory <= 2 GiB.

``python benchmarks/tracing.py 100`` measures a hundred millions too. DFTracer is measured beside it where installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from machine import print_machine
from opentelemetry.sdk.trace import TracerProvider as SdkProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import rayio
from rayio.analyze.student import t_quantile
from rayio.engines.virtual import simulation
from rayio.engines.virtual.clock import VirtualKernel
from rayio.model.env import Env
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.load import build
from rayio.session import conclude
from rayio.storage.base import Requests
from rayio.storage.real import RealStorage
from rayio.storage.stores.posix import PosixStore
from rayio.trace.otel.provider import Target, TracerProvider
from rayio.trace.parts import Parts
from rayio.trace.progress import Progress
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Many
from rayio.trace.run_directory import RunDirectory

MILLION = 1_000_000
#: Requests of which nothing is known before they are made.
NOTHING_PLANNED = Requests((0, 0, 0), 0, np.zeros(0, np.int64))
SAMPLES = {"kind": "normal", "mean": "1 MB", "stdev": "100 KB"}


def cpu(function: Callable[[], object], repeats: int = 5) -> float:
    """Give the CPU seconds of this process for one call: the median of some, without garbage collection."""
    times = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
        gc.enable()
    return statistics.median(times)


class _Nothing(SpanExporter):
    """Drops everything."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def recording() -> float:
    """Print the CPU time per span, until it is an Arrow table; give it in seconds."""
    number = 200_000
    recorder = Recorder()
    env = Env(VirtualKernel(), recorder, role="rank", index="0", node=0)
    at = Where(3, 1, 17)

    def spans() -> None:
        for start in range(number):
            env.span("read", start, start + 999, at, nbytes=4096, requests=3)
        recorder.drain()

    writer = recorder.register("rank", "0", 0)
    provider = TracerProvider(Target(recorder, writer, time.perf_counter_ns, "run", "rank-0"))
    tracer = provider.get_tracer("library")

    def foreign() -> None:
        for start in range(number // 10):
            tracer.start_span("read", attributes={"rank": 3, "epoch": 1, "step": start, "n": 4096, "k": 3}).end()
        recorder.drain()

    print(f"{'one span':<44}{'us CPU':>8}")
    ours = cpu(spans) / number
    print(f"{'Env.span -> recorder -> Arrow':<44}{1e6 * ours:>8.2f}")
    print(f"{'OpenTelemetry API, 5 attributes':<44}{1e6 * cpu(foreign) / (number // 10):>8.2f}")
    sdk = SdkProvider()
    sdk.add_span_processor(BatchSpanProcessor(_Nothing()))
    theirs = sdk.get_tracer("library")

    def standard() -> None:
        for start in range(number // 10):
            theirs.start_span("read", attributes={"rank": 3, "epoch": 1, "step": start, "n": 4096, "k": 3}).end()

    print(f"{'the same, SDK and a null exporter':<44}{1e6 * cpu(standard) / (number // 10):>8.2f}")
    if (dftracer := _dftracer(number // 10)) is not None:
        print(f"{'DFTracer, 5 arguments':<44}{dftracer:>8.2f}")
    return ours


def _dftracer(number: int) -> float | None:
    """Give DFTracer's microseconds of CPU per event, in a process of its own; None where not installed."""
    program = f"""
import os, time, tempfile
os.environ["DFTRACER_ENABLE"] = "1"
os.environ["DFTRACER_INC_METADATA"] = "1"
from dftracer.python import dftracer, dft_fn
log = dftracer.initialize_log(tempfile.mkdtemp() + "/trace", "/", 0)
began = time.process_time()
for n in range({number}):
    with dft_fn("bench", name="read", epoch=1, step=n) as event:
        event.update(args={{"rank": "3", "n": "4096", "k": "3"}})
print((time.process_time() - began) / {number} * 1e6)
log.finalize()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def requests(folder: Path) -> None:
    """Print what level ``io`` adds to reads of about 20 µs: 64 to a lease, emptied as often as an actor does."""
    size, number, leases = 1 << 20, 64, 500
    (folder / "file").write_bytes(os.urandom(size))
    buffer = bytearray(size)

    async def now(function: Callable[[], Any]) -> Any:
        return function()

    def load(opener: Any) -> None:
        with opener("file") as file:
            for _ in range(number):
                file.seek(0)
                file.readinto(buffer)

    recorder = Recorder()
    writer = recorder.register("reader", "0-0", 0)
    store = PosixStore(folder)
    plain, itemised = RealStorage(store, now), RealStorage(store, now, 0)

    def calls(storage: RealStorage) -> Callable[[], None]:
        async def some() -> None:
            for step in range(leases):
                served = await storage.read(NOTHING_PLANNED, load)
                if served.issued is not None:
                    recorder.add_many(Many(writer, (0, 0, step, 0), served.issued.rows, served.issued.files))
            recorder.drain()

        return lambda: asyncio.run(some())

    # The least of some: on a shared machine the rest is what others do to the processor's caches.
    pairs = [(cpu(calls(plain), 1), cpu(calls(itemised), 1)) for _ in range(15)]
    without, recorded = (min(times) / leases / number for times in zip(*pairs, strict=True))
    more = recorded - without
    pairwise = statistics.median((b - a) / leases / number for a, b in pairs)
    print(
        f"\nlevel io: a read takes {1e6 * without:.1f} us of CPU, {1e6 * more:+.2f} us recorded: {more / without:+.1%}"
        f" (median of pairs {1e6 * pairwise:+.2f} us)"
    )


def whole_runs(root: str, span_seconds: float) -> None:
    """Print the CPU of runs at each level beside ``none``: the same scenario in turns, in this process.

    A shared machine's CPU seconds vary by more than the goal, so there are three answers: the mean of pairs with its
    95 % interval, the least of all runs, and what was accounted for: the spans, at ``span_seconds`` each, and the CPU
    time that passed in what is done with them (live view, files, compaction, reading them back, numbers) beyond the
    same of the run at ``none``.
    """
    scenario: dict[str, Any] = {
        "name": "levels",
        "cluster": {"ranks_per_node": 2},
        "dataset": {"path": "data", "num_files": 168, "sample_bytes": "2 MiB"},
        "loader": {"batch_size": 7, "num_workers": 2},
        "train": {"epochs": 50, "compute": "5 ms"},
    }
    levels = ("none", "step", "batch", "io")
    seconds: dict[str, list[float]] = {level: [] for level in levels}
    handled: dict[str, list[float]] = {level: [] for level in levels}
    spans: dict[str, int] = {}
    for number in range(ROUNDS + 1):
        for level in levels if number % 2 else levels[::-1]:
            gc.collect()
            with _accounted() as passed:
                began = time.process_time()
                run = rayio.run(build({**scenario, "trace": {"level": level}}), engine="local", root=root)
                whole = time.process_time() - began
            spans[level] = run.result["trace"]["stored"]
            if number:  # the first round makes the files and loads libraries
                seconds[level].append(whole)
                handled[level].append(sum(passed) + spans[level] * span_seconds)
    head = f"{'run at level':<14}{'spans':>8}{'CPU s':>9}{'against none':>14}{'95 % interval':>20}"
    print(f"\n{head}{'by the least':>14}{'accounted for':>15}")
    for level in levels:
        more = [a / b - 1 for a, b in zip(seconds[level], seconds["none"], strict=True)]
        spread = t_quantile(len(more) - 1) * statistics.stdev(more) / len(more) ** 0.5
        mean = statistics.mean(more)
        known = statistics.median(handled[level]) - statistics.median(handled["none"])
        print(
            f"{level:<14}{spans[level]:>8}{statistics.median(seconds[level]):>9.3f}{mean:>13.2%}"
            f"{f'{mean - spread:+.2%} to {mean + spread:+.2%}':>20}"
            f"{min(seconds[level]) / min(seconds['none']) - 1:>13.2%}"
            f"{known / statistics.median(seconds['none']):>14.2%}"
        )


#: Runs at each level.
ROUNDS = 24


@contextlib.contextmanager
def _accounted() -> Iterator[list[float]]:
    """Give the CPU seconds that pass in each call of what is done with spans after they are recorded."""
    passed: list[float] = []
    #: While roles run, only this thread's; after them, Arrow's threads too.
    during, after = time.thread_time, time.process_time
    places: list[tuple[Any, str, Callable[[], float]]] = [
        (Progress, "add", during), (Parts, "keep", during), (Parts, "write", during), (RunDirectory, "compact", after),
        (RunDirectory, "slices", after), (conclude, "measure", after), (conclude, "measure_lives", after),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in places]
    is_inside = False

    def timed(function: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return function(*args, **keywords)
            is_inside, began = True, clock()
            try:
                return function(*args, **keywords)
            finally:
                is_inside = False
                passed.append(clock() - began)

        return call

    for (owner, name, clock), function in zip(places, before, strict=True):
        setattr(owner, name, timed(function, clock))
    try:
        yield passed
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def simulated(ranks: int = 128, steps: int = 1565) -> pa.Table:
    """Give a million spans, or a little more."""
    wanted: dict[str, Any] = {
        "name": "tracing",
        "cluster": {"nodes": ranks // 8, "ranks_per_node": 8},
        "dataset": {"path": "model://tracing", "num_files": 10**8, "sample_bytes": SAMPLES},
        "loader": {"batch_size": 4, "num_workers": 4, "decode": {"kind": "normal", "mean": "5 ms", "stdev": "1 ms"}},
        "train": {"epochs": 1, "steps": steps, "compute": {"kind": "normal", "mean": "100 ms", "stdev": "5 ms"}},
    }  # fmt: skip
    plan = plan_of(build(wanted), modelled=True)
    recorder, tallies = Recorder(), [Tally(rank) for rank in range(plan.world_size)]
    simulation.simulate(plan, recorder, tallies)
    table = recorder.drain()
    assert table is not None
    return table.unify_dictionaries().combine_chunks().slice(0, MILLION)


def moved(table: pa.Table, number: int, resolution_ns: int) -> pa.Table:
    """Give the spans of a training on other ranks, at another time.

    Pages are compressed one by one, and copies lie far apart: they do not make each other smaller.
    """
    later = int(np.random.default_rng(number).integers(0, 10**9)) if number else 0
    start = table["start_ns"].to_numpy() + later
    end = start + table["duration_ns"].to_numpy()
    start, end = start - start % resolution_ns, end - end % resolution_ns
    columns = {"start_ns": pa.array(start), "duration_ns": pa.array(end - start)}
    for name, step in (("rank", 128), ("node", 16)):
        values = table[name].to_numpy()
        columns[name] = pa.array(np.where(values >= 0, values + step * number, values).astype(np.int32))
    columns["batch"] = pa.array(table["batch"].to_numpy() + ((128 * number) << 42) * (table["batch"].to_numpy() >= 0))
    index = table["index"].combine_chunks()
    ranks = [text.partition("-") for text in index.dictionary.to_pylist()]
    names = pa.array([f"{int(rank) + 128 * number}{dash}{worker}" for rank, dash, worker in ranks])
    columns["index"] = pa.DictionaryArray.from_arrays(index.indices, names)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


LOAD = """
import json, sys, time
import pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from rayio.trace.run_directory import RunDirectory
wall, cpu = time.perf_counter(), time.process_time()
table = RunDirectory.open(sys.argv[1]).columns("name", "duration_ns")
rows = table.group_by("name").aggregate([("duration_ns", "count"), ("duration_ns", "sum")]).to_pylist()
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**20
print(json.dumps([wall, cpu, peak, sum(row["duration_ns_count"] for row in rows)]))
"""


def store(root: Path, millions: list[int]) -> None:
    """Print the bytes per stored span and what it takes to read them again."""
    base = simulated()
    head = f"{'spans':>12}{'resolution':>12}{'bytes/span':>12}{'write+compact s':>17}{'load+sum s':>12}"
    print(f"\n{head}{'CPU s':>8}{'peak GiB':>10}")
    for many in millions:
        for name, resolution_ns in (("1 ns", 1), ("1 us", 1000)):
            directory = RunDirectory.create(root / f"{many}-{resolution_ns}")
            parts = Parts(directory)
            written = 0.0
            for number in range(many):
                table = moved(base, number, resolution_ns)
                began = time.process_time()
                parts.keep(table)
                written += time.process_time() - began
            began = time.process_time()
            parts.write()
            directory.compact()
            written += time.process_time() - began
            size = sum(path.stat().st_size for path in (directory.path / "spans").iterdir())
            loads = []
            for _ in range(3):
                command = [sys.executable, "-c", LOAD, str(directory.path)]
                loads.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            wall, seconds, peak, found = (statistics.median(column) for column in zip(*loads, strict=True))
            assert found == many * MILLION == directory.stored
            print(
                f"{many * MILLION:>12,}{name:>12}{size / many / MILLION:>12.2f}{written:>17.2f}{wall:>12.2f}"
                f"{seconds:>8.2f}{peak:>10.2f}",
                flush=True,
            )
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main() -> None:
    print_machine()
    span_seconds = recording()
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        requests(Path(root))
        whole_runs(root, span_seconds)
        store(Path(root), [1, 10, *map(int, sys.argv[1:])])


if __name__ == "__main__":
    main()
