"""Reading objects: rayio's reader next to bare obstore with as many requests in flight, over one loopback server.

A reader in this process reads batches of npz objects of one sample (which samples, their objects, requests, spans,
checksums), with ``loader.io_depth`` requests in flight. In turn, as many threads get the same objects of the same
batches with ``obstore.get_range`` and drop them. The server (``object_server.py``) is a separate process on loopback,
and answers at once or after 20 ms. Median of rounds of MB/s; goal: >= 0.85 of obstore.

``python benchmarks/object.py``; ``--quick`` in a few seconds; ``--rounds N``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from machine import print_machine
from numpy.typing import NDArray
from side import ONE_THREAD, in_turn, print_head, print_row, spread

import rayio
from rayio.data.formats import layout_of
from rayio.engines.loaders.reading import BatchReader, Reading
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.load import build
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
        from obstore.store import S3Store

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
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        self.client = S3Store(
            "bucket", config={"region": "us-east-1", "endpoint": endpoint, "virtual_hosted_style_request": False},
            client_options={"allow_http": True},
        )  # fmt: skip
        self.pool, self.alone = ThreadPoolExecutor(depth), ThreadPoolExecutor(1)

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
        import obstore

        def get(key: str) -> int:
            return len(obstore.get_range(self.client, key, start=0, end=self.nbytes + 4096))

        assert all(map(self.nbytes.__lt__, self.pool.map(get, self.keys[step * BATCH : (step + 1) * BATCH])))

    def _rate(self, read: Callable[[int], None]) -> float:
        """Read in a thread, as readers do: the main thread is kept for signals."""
        return self.alone.submit(self._timed, read).result()

    def _timed(self, read: Callable[[int], None]) -> float:
        began = time.perf_counter()
        for step in range(self.batches):
            read(step)
        return self.batches * BATCH * self.nbytes / (time.perf_counter() - began) / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Objects read by rayio's reader, next to bare obstore.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    os.environ.update(ONE_THREAD | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})
    print_machine()
    print_head("answers after", "sample", "in flight", "rayio MB/s", "obstore MB/s", f"x (goal {GOAL})")
    for delay in DELAYS:
        with served(delay) as address:
            os.environ["AWS_ENDPOINT_URL"] = address
            for sample, *batches in CASES[:1] if chosen.quick else CASES:
                for depth in DEPTHS:
                    case = Case(sample, 1 if chosen.quick else batches[bool(delay)], depth)
                    sides = {"rayio": case.rayio, "obstore": case.obstore}
                    for side in sides.values():
                        side()
                    rates = in_turn({name: partial(side) for name, side in sides.items()}, rounds)
                    ratio = statistics.median(a / b for a, b in zip(rates["rayio"], rates["obstore"], strict=True))
                    missed = "" if ratio >= GOAL else " **missed**"
                    print_row(
                        f"{1000 * delay:.0f} ms", sample, depth, spread(rates["rayio"]), spread(rates["obstore"]),
                        f"{ratio:.2f}{missed}",
                    )  # fmt: skip


if __name__ == "__main__":
    main()
