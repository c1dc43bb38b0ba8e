"""What reading a long run costs: seconds, CPU seconds and peak memory of each command, by the number of spans.

The runs are simulated: 128 ranks × 2 readers, a checkpoint now and then. Every command is a process of its own, the
start of Python included; `explain` without its simulations, which take as long for any run. Arguments are numbers of
epochs, each of about 90 000 spans: 12 is a million spans, 112 are 10 million, 1120 are 100 million.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from machine import print_machine

from rayio.trace.run_directory import RunDirectory

SCENARIO = (
    "unet3d-small", "dataset.path=model://report", f"dataset.num_files={7 * 128 * 100}", "cluster.nodes=16",
    "cluster.ranks_per_node=8", "loader.decode=5 ms", "checkpoint.every={steps: 50}",
)  # fmt: skip
QUERY = "select name, count(*), sum(duration_ns) from spans group by name"


def measured(*command: str) -> tuple[float, float, float]:
    """Run a command of rayio; give its seconds, its CPU seconds, and its peak of memory in MiB."""
    began = time.perf_counter()
    process = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "rayio", *command], os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"rayio {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    print_machine()
    print(f"{'spans':>12}  {'command':<10}{'seconds':>9}{'CPU s':>8}{'peak MiB':>10}  written")
    for epochs in sys.argv[1:] or ["2", "12"]:
        with tempfile.TemporaryDirectory(prefix="rayio-benchmark-") as folder:
            run, page = Path(folder) / "run", Path(folder) / "report.html"
            commands = {
                "simulate": (*SCENARIO, f"train.epochs={epochs}", "--out", str(run), "--no-report"),
                "report": (str(run), "--out", str(page)),
                "explain": (str(run), "--no-simulate"),
                "query": (str(run), QUERY),
            }
            for name, arguments in commands.items():
                seconds, worked, peak = measured(name, *arguments)
                spans = RunDirectory.open(run).stored
                stored = sum(path.stat().st_size for path in run.rglob("*.parquet"))
                written = f"{stored / spans:.1f} bytes a span" if name == "simulate" else ""
                if name == "report":
                    written = f"{page.stat().st_size:,} bytes"
                print(f"{spans:>12,}  {name:<10}{seconds:>9.2f}{worked:>8.2f}{peak:>10.0f}  {written}", flush=True)


if __name__ == "__main__":
    main()
