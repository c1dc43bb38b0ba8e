"""Does the prediction agree with the run? ``unet3d-small`` on a local Ray against the virtual clock.

Goals: AU within 5 points with ``costs: ray`` (what Ray's messages add, measured on another day), and within 3 % when
calibrated from the run itself.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from machine import print_machine

import rayio
from rayio.predict.calibrate import calibrate

SHARES = ("data_wait_share", "sync_share", "checkpoint_share", "other_share")


def row(name: str, results: Sequence[Mapping[str, Any]]) -> None:
    values = [statistics.median(r[key] for r in results) for key in ("au", *SHARES)]
    print(f"{name:<28}{values[0]:>8.4f}" + "".join(f"{100 * v:>9.2f} %" for v in values[1:]), flush=True)


def main() -> None:
    print_machine()
    print(f"{'run':<28}{'AU':>8}" + "".join(f"{name.removesuffix('_share'):>11}" for name in SHARES))
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        runs = sorted((rayio.run("unet3d-small", root=root) for _ in range(3)), key=lambda run: run.au or 0.0)
        row("ray (median of 3)", [run.result for run in runs])
        learned = calibrate(runs[1].path).scenario
        row("simulated, calibrated", [rayio.simulate(learned, root=root).result])
        for costs in ("ray", "none"):
            row(f"simulated, costs {costs}", [rayio.simulate("unet3d-small", {"costs": costs}, root=root).result])


if __name__ == "__main__":
    main()
