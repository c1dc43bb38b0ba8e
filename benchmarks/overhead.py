"""What the emulator itself costs: AU and unnamed time of a run whose storage is far faster than its compute.

2 ranks × 2 readers, 50 ms of compute, one sample of 100 KB per step, 200 steps, on a local Ray. Everything that is
missing to AU 1 is rayio's own: messages, late wake-ups, bookkeeping. Goals: AU >= 0.985, other <= 1 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from typing import Any

from machine import print_machine

import rayio
from rayio.scenario.load import build

SCENARIO: dict[str, Any] = {
    "name": "overhead",
    "cluster": {"ranks_per_node": 2},
    "dataset": {"path": "data", "num_files": 400, "sample_bytes": "100 KB"},
    "loader": {"batch_size": 1, "num_workers": 2},
    "train": {"epochs": 1, "compute": "50 ms"},
}
REPEATS = 3


def main() -> None:
    print_machine()
    print(f"{'engine':<8}{'AU':>8}{'data wait':>11}{'sync':>8}{'other':>8}{'step p50':>11}{'step max':>11}")
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        for engine in ("virtual", "local", "ray"):
            runs = [rayio.run(build(SCENARIO), engine=engine, root=root).result for _ in range(REPEATS)]
            row = {name: statistics.median(r[name] for r in runs) for name in ("au", *SHARES)}
            step = sorted(runs, key=lambda r: r["au"])[len(runs) // 2]["percentiles"]["step_time"]
            shares = "".join(f"{100 * row[name]:>{width}.2f} %" for name, width in SHARES.items())
            print(f"{engine:<8}{row['au']:>8.4f}{shares}{1e3 * step['p50']:>8.2f} ms{1e3 * step['max']:>8.2f} ms")
    sys.stdout.flush()


SHARES = {"data_wait_share": 9, "sync_share": 6, "other_share": 6}

if __name__ == "__main__":
    main()
