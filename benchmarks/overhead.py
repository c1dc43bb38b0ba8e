"""What the emulator itself costs: AU and unnamed time of a run whose storage is far faster than its compute.

2 ranks × 2 readers, one sample of 100 KB per step, 10 s of compute in steps of 50 ms, on Ray also of 10 ms. Everything
that is missing to AU 1 is rayio's own: messages, late wake-ups, bookkeeping. Goals on Ray: AU >= 0.993 with 50 ms, 0.98
with 10 ms, other <= 1 %.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from machine import print_machine

import rayio
from rayio.scenario.load import build

SCENARIO: dict[str, Any] = {
    "name": "overhead",
    "cluster": {"ranks_per_node": 2},
    "loader": {"batch_size": 1, "num_workers": 2},
}
REPEATS, SECONDS = 3, 10


def main() -> None:
    print_machine()
    head = f"{'engine':<8}{'compute':>8}{'AU':>9}{'least to most':>18}"
    print(f"{head}{'data wait':>11}{'sync':>8}{'other':>8}{'step p50':>11}{'step max':>11}")
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        for engine, compute in (("virtual", 50), ("local", 50), ("ray", 50), ("ray", 10)):
            wanted = SCENARIO | {
                "dataset": {
                    "path": f"data-{compute}", "num_files": 2000 * SECONDS // compute, "sample_bytes": "100 KB",
                },
                "train": {"epochs": 1, "compute": f"{compute} ms"},
            }  # fmt: skip
            runs = [rayio.run(build(wanted), engine=engine, root=root).result for _ in range(REPEATS)]
            row = {name: statistics.median(r[name] for r in runs) for name in ("au", *SHARES)}
            step = sorted(runs, key=lambda r: r["au"])[len(runs) // 2]["percentiles"]["step_time"]
            shares = "".join(f"{100 * row[name]:>{width}.2f} %" for name, width in SHARES.items())
            aus = f"{min(r['au'] for r in runs):.4f} to {max(r['au'] for r in runs):.4f}"
            print(
                f"{engine:<8}{compute:>5} ms{row['au']:>9.4f}{aus:>18}{shares}{1e3 * step['p50']:>8.2f} ms"
                f"{1e3 * step['max']:>8.2f} ms",
                flush=True,
            )


SHARES = {"data_wait_share": 9, "sync_share": 6, "other_share": 6}

if __name__ == "__main__":
    main()
