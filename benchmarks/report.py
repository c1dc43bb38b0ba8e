"""What a report costs: seconds and bytes of report.html, by the number of spans of the run.

The runs are simulated: 128 ranks, their readers, a checkpoint now and then. The time is that of `rayio report`, reading
the spans included, the start of Python not. Arguments are numbers of epochs, each of about 90 000 spans.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import rayio
from rayio.report import report
from rayio.trace.store import RunDirectory

SCENARIO = {
    "dataset.path": "model://report",
    "dataset.num_files": 7 * 128 * 100,
    "cluster.nodes": 16,
    "cluster.ranks_per_node": 8,
    "loader.decode": "5 ms",
    "checkpoint.every": {"steps": 50},
}


def main() -> None:
    print(f"{'spans':>10}{'report s':>10}{'CPU s':>8}{'bytes':>12}")
    for epochs in [int(argument) for argument in sys.argv[1:]] or [2, 12]:
        with tempfile.TemporaryDirectory(prefix="rayio-benchmark-") as folder:
            run = rayio.simulate("unet3d-small", SCENARIO | {"train.epochs": epochs}, out=Path(folder) / "run")
            spans = RunDirectory.open(run.path).stored
            began, used = time.perf_counter(), time.process_time()
            path = report(run.path)
            took, worked = time.perf_counter() - began, time.process_time() - used
            print(f"{spans:>10,}{took:>10.2f}{worked:>8.2f}{path.stat().st_size:>12,}", flush=True)


if __name__ == "__main__":
    main()
