"""Reading objects: rayio's reader next to bare obstore with as many requests in flight, over one loopback server.

A reader in this process reads batches of npz objects of one sample (which samples, their objects, requests, spans,
checksums), with ``loader.io_depth`` requests in flight. In turn, as many threads get the same objects of the same
batches with ``obstore.get_range`` and drop them; and again, copying each into a batch and computing XXH3 over it, which
is what a loader of verified samples must do. The server (``object_server.py``) is a separate process on loopback,
and answers at once or after 20 ms. Median of rounds of MB/s; goal: >= 0.85 of obstore. CPU time of the process, all
threads, is that of rayio, obstore, and obstore copied and hashed; it holds next to other work too.

Then runs of two workers (batches of 8 objects of 20 KB, answers after 20 ms), next to obstore in as many threads and to
two predictions. One is calibrated from the first run, with one request in flight (``rayio calibrate``). The other has
two numbers of bare obstore with one get in flight: what it takes, and the CPU time of this process in it
(``costs.cpu.sample``). Goal: both within 10 %.

``python benchmarks/object.py``; ``--quick`` in a few seconds; ``--rounds N``; ``--only reading`` or ``simulated``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash
from machine import print_machine
from numpy.typing import NDArray
from side import ONE_THREAD, in_turn, print_head, print_row, spread

import rayio
from rayio.data.formats import layout_of
from rayio.engines.loaders.reading import BatchReader, Reading
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.storage.real import RealStorage
from rayio.storage.stores.s3.store import S3Store
from rayio.units import BYTES

#: A sample, batches a round without and with a delay, requests in flight.
CASES = (("100 KB", 16, 8), ("1 MB", 6, 4), ("8 MB", 2, 2))
DELAYS, DEPTHS, GOAL = (0.0, 0.02), (1, 4, 16), 0.85
#: Samples of a batch, at every depth.
BATCH = 16


@contextmanager
def served(delay: float) -> Iterator[str]:
    """Start a server that answers each get after ``delay`` seconds; give its address."""
    command = [sys.executable, str(Path(__file__).with_name("object_server.py")), str(delay)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.wait(10)


class Case:
    """A dataset of objects, and both ways to read it."""

    def __init__(self, sample: str, batches: int, depth: int) -> None:
        self.nbytes, self.batches, self.depth = int(BYTES.parse(sample)), batches, depth
        wanted = build({
            "name": "object", "cluster": {"ranks_per_node": 1},
            "dataset": {"path": f"s3://bucket/{sample}", "num_files": BATCH * batches, "sample_bytes": sample},
            "loader": {"batch_size": BATCH, "num_workers": 1, "io_depth": depth, "shuffle": "none"},
            "train": {"compute": 0},
        })  # fmt: skip
        rayio.generate(wanted)
        layout = layout_of(wanted)
        self.keys = [f"{sample}/{layout.path(number)}" for number in range(layout.num_files)]
        self.memory = np.zeros(BATCH * self.nbytes, np.uint8)
        self.reader = BatchReader(Reading(plan_of(wanted, modelled=False), 0, "", 0), 0, self._lend)
        self.store = cast(S3Store, cast(RealStorage, self.reader.env.storage).store)
        self.pool, self.alone = ThreadPoolExecutor(depth), ThreadPoolExecutor(1)
        #: CPU microseconds of this process for an object, by side and round.
        self.cpu: dict[str, list[float]] = {"_read": [], "_get": [], "_verify": []}

    def _lend(self, nbytes: int) -> NDArray[np.uint8]:
        return self.memory[:nbytes]

    def rayio(self) -> float:
        """Read all batches as a reader does; give MB/s."""
        return self._rate(self._read)

    def _read(self, step: int) -> None:
        parcel = self.reader.read(Where(0, 0, step))
        if isinstance(parcel.header, Exception):
            raise parcel.header

    def obstore(self) -> float:
        """Get the same objects, batch by batch; give MB/s."""
        return self._rate(self._get)

    def _get(self, step: int) -> None:
        get = partial(got, self.client, self.nbytes)
        assert all(map(self.nbytes.__lt__, self.pool.map(get, self.keys[step * BATCH : (step + 1) * BATCH])))

    def verified(self) -> float:
        """Get the same objects, and copy and hash each one, as a loader must; give MB/s."""
        return self._rate(self._verify)

    def _verify(self, step: int) -> None:
        places = range(step * BATCH, (step + 1) * BATCH)
        assert all(map(self.nbytes.__lt__, self.pool.map(self._copy, places)))

    def _copy(self, place: int) -> int:
        import obstore

        content = obstore.get_range(self.client, self.keys[place], start=0, end=self.nbytes + 4096)
        sample = np.frombuffer(memoryview(content), np.uint8, self.nbytes)
        mine = self.memory[place % BATCH * self.nbytes :][: self.nbytes]
        mine[:] = sample
        xxhash.xxh3_64_digest(mine.data)
        return len(content)

    def _rate(self, read: Callable[[int], None]) -> float:
        """Read in a thread, as readers do: the main thread is kept for signals. Connections are new, and used once."""
        self.store._clients.clear()
        self.store.direct._idle.clear()
        self.client = client_of(os.environ["AWS_ENDPOINT_URL"])
        self.alone.submit(read, 0).result()
        cpu = time.process_time_ns()
        rate = self.alone.submit(self._timed, read).result()
        self.cpu[read.__name__].append((time.process_time_ns() - cpu) / 1e3 / (self.batches * BATCH))
        return rate

    def _timed(self, read: Callable[[int], None]) -> float:
        began = time.perf_counter()
        for step in range(self.batches):
            read(step)
        return self.batches * BATCH * self.nbytes / (time.perf_counter() - began) / 1e6


class Simulated:
    """A run of two workers, its simulation, and the same gets by obstore."""

    WORKERS, BATCH, NBYTES = 2, 8, 20_000

    def __init__(self, depth: int, steps: int, root: str) -> None:
        self.depth, self.steps, self.root, self.runs = depth, steps, root, 0
        wanted = self._wanted()
        rayio.generate(wanted)
        layout = layout_of(wanted)
        self.keys = [f"runs/{layout.path(number)}" for number in range(steps * self.BATCH)]
        self.client = client_of(os.environ["AWS_ENDPOINT_URL"])
        #: Seconds of a get, with the threads' gets one after the other, and its CPU seconds, by round.
        self.each: list[float] = []
        self.cpu: list[float] = []
        self.first: rayio.Run | None = None
        self.pools = [ThreadPoolExecutor(depth) for _ in range(self.WORKERS)]

    def _wanted(self, **storage: Any) -> Scenario:
        return build({
            "name": "depth", "cluster": {"ranks_per_node": 1},
            "dataset": {"path": "s3://bucket/runs", "num_files": 1280, "sample_bytes": self.NBYTES},
            "loader": {"batch_size": self.BATCH, "num_workers": self.WORKERS, "io_depth": self.depth},
            "train": {"compute": 0, "steps": self.steps}, **storage,
        })  # fmt: skip

    def _rate(self, run: rayio.Run) -> float:
        """Return samples/s between the first batch and the last."""
        spans = run.spans()
        waits = spans[spans["name"] == "data_wait"].sort_values("start_ns")
        ends = waits["start_ns"] + waits["duration_ns"]
        return float((len(waits) - 1) * self.BATCH / ((ends.iloc[-1] - ends.iloc[0]) / 1e9))

    def rayio(self) -> float:
        """Run on the local engine; give samples/s."""
        self.runs += 1
        out = f"{self.root}/{self.depth}-{self.runs}"
        run = rayio.run(self._wanted(), engine="local", out=out)
        self.first = self.first or run
        return self._rate(run)

    def obstore(self) -> float:
        """Get the same objects, each worker's batches in turn; give samples/s between the first batch and the last."""
        began, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(self.WORKERS) as workers:
            ends = sorted(end for ends in workers.map(self._get, range(self.WORKERS)) for end in ends)
        self.cpu.append((time.process_time() - cpu) / (self.steps * self.BATCH))
        self.each.append((ends[-1] - began) * self.WORKERS / (self.steps * self.BATCH))
        return (len(ends) - 1) * self.BATCH / (ends[-1] - ends[0])

    def _get(self, worker: int) -> list[float]:
        ends = []
        for step in range(worker, self.steps, self.WORKERS):
            keys = self.keys[step * self.BATCH : (step + 1) * self.BATCH]
            list(self.pools[worker].map(partial(got, self.client, self.NBYTES), keys))
            ends.append(time.perf_counter())
        return ends

    def simulated(self, get: float, cpu: float) -> float:
        """Return samples/s of a simulation of gets that take this long, with so much CPU time (s)."""
        model = {"first_byte": get - cpu, "connection_bandwidth": "10 GB/s", "bandwidth": "10 GB/s"}
        known = self._wanted(storage={"model": model}, costs={"cpu": {"sample": cpu}})
        two = known.cluster.model_copy(update={"cores": 2})
        return self._predicted(known.model_copy(update={"cluster": two}), "simulated")

    def predicted(self, learned: Scenario) -> float:
        """Return samples/s of the calibrated scenario with this depth and number of steps."""
        wanted = self._wanted()
        return self._predicted(learned.model_copy(update={"loader": wanted.loader, "train": wanted.train}), "predicted")

    def _predicted(self, scenario: Scenario, kind: str) -> float:
        return self._rate(rayio.simulate(scenario, out=f"{self.root}/{self.depth}-{kind}"))


def print_simulated(rounds: int) -> None:
    """Print what runs reach of their predictions."""
    print_head(
        "in flight", "rayio samples/s", "predicted from depth 1", "rayio of it", "obstore samples/s",
        "simulated, of a get", "obstore of it",
    )  # fmt: skip
    with served(DELAYS[1]) as address, tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        os.environ["AWS_ENDPOINT_URL"] = address
        learned: Scenario | None = None
        get = cpu = 0.0
        for depth, steps in ((1, 20), (4, 60), (16, 120)):
            case = Simulated(depth, steps, root)
            rates = in_turn({"rayio": case.rayio, "obstore": case.obstore}, rounds)
            if learned is None:
                assert case.first is not None
                learned = rayio.calibrate(case.first).scenario
                get, cpu = statistics.median(case.each), statistics.median(case.cpu)
            expected = {"rayio": case.predicted(learned), "obstore": case.simulated(get, cpu)}
            of = {name: statistics.median(values) / expected[name] for name, values in rates.items()}
            missed = {name: "" if abs(share - 1) <= 0.1 else " **missed**" for name, share in of.items()}
            print_row(
                depth, spread(rates["rayio"]), f"{expected['rayio']:.0f}", f"{of['rayio']:.2f}{missed['rayio']}",
                spread(rates["obstore"]), f"{expected['obstore']:.0f}", f"{of['obstore']:.2f}{missed['obstore']}",
            )  # fmt: skip
        print(f"\nA get of obstore takes {1000 * get:.2f} ms, of it {1e6 * cpu:.0f} µs of CPU.")


def client_of(address: str) -> Any:
    """Return obstore's client of the bucket."""
    from obstore.store import S3Store

    return S3Store(
        "bucket", config={"region": "us-east-1", "endpoint": address, "virtual_hosted_style_request": False},
        client_options={"allow_http": True},
    )  # fmt: skip


def got(client: Any, nbytes: int, key: str) -> int:
    """Get an object of a sample; give its bytes."""
    import obstore

    return len(obstore.get_range(client, key, start=0, end=nbytes + 4096))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Objects read by rayio's reader, next to bare obstore.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("reading", "simulated"), help="one of the tables")
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    os.environ.update(ONE_THREAD | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    print_machine()
    if chosen.only != "simulated":
        print_reading(rounds, is_quick=chosen.quick)
        print()
    if chosen.only != "reading":
        print_simulated(rounds)


def print_reading(rounds: int, *, is_quick: bool) -> None:
    """Print the rates of both readers."""
    print_head(
        "answers after", "sample", "in flight", "rayio MB/s", "obstore MB/s", f"x (goal {GOAL})",
        "obstore, copied and hashed, MB/s", "x of that", "CPU µs an object", "obstore / rayio, by CPU",
    )  # fmt: skip
    for delay in DELAYS:
        with served(delay) as address:
            os.environ["AWS_ENDPOINT_URL"] = address
            for sample, *batches in CASES[:1] if is_quick else CASES:
                for depth in DEPTHS:
                    case = Case(sample, 1 if is_quick else batches[bool(delay)], depth)
                    sides = {"rayio": case.rayio, "obstore": case.obstore, "verified": case.verified}
                    for side in sides.values():
                        side()
                    rates = in_turn({name: partial(side) for name, side in sides.items()}, rounds)
                    ratio, of_verified = (
                        statistics.median(a / b for a, b in zip(rates["rayio"], rates[other], strict=True))
                        for other in ("obstore", "verified")
                    )
                    missed = "" if ratio >= GOAL else " **missed**"
                    cpu = {name: each[1:] for name, each in case.cpu.items()}  # the first one warms up
                    of_cpu = statistics.median(a / b for a, b in zip(cpu["_get"], cpu["_read"], strict=True))
                    print_row(
                        f"{1000 * delay:.0f} ms", sample, depth, spread(rates["rayio"]), spread(rates["obstore"]),
                        f"{ratio:.2f}{missed}", spread(rates["verified"]), f"{of_verified:.2f}",
                        " / ".join(f"{statistics.median(cpu[name]):.0f}" for name in ("_read", "_get", "_verify")),
                        f"{of_cpu:.2f}",
                    )  # fmt: skip


if __name__ == "__main__":
    main()
