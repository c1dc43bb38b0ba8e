"""Benchmarks still start: what they take from the inside of rayio is there, under the names they use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

#: Imports every script, and enters what replaces functions by their names.
PROGRAM = """
import importlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
names = sorted(path.stem for path in Path(sys.argv[1]).glob("*.py"))
found = {name: importlib.import_module(name) for name in names}
with found["tracing"]._accounted():
    pass
from rayio.scenario.costs import Costs
assert found["grid"].told(Costs(lease=0.5, cpu={"sample": 0.25})) == "lease 0.5, cpu.sample 0.25, cpu.contention 1, " \
    "cpu.at_least 1, cpu.at_most 1"
print(len(names))
"""


def test_every_benchmark_finds_what_it_takes_from_rayio() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(BENCHMARKS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len([*BENCHMARKS.glob("*.py")]) > 20
