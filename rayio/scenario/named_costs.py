"""What loaders cost beside reading and decoding, by name, with how, where and when that was measured.

Costs are of processors and of Python, so they hold for machines like the one that is named beside them. A run on the
machine in question, and ``rayio calibrate``, know better.
"""

from __future__ import annotations

from rayio.scenario.costs import Costs, NamedCosts

NONE = NamedCosts(Costs(), "no loader takes any time beside reading and decoding: the best there can be")

RAY = NamedCosts(
    Costs(lease=0.0047, put=0.0004, take=0.0066),
    "readers as Ray actors, batches of 4 MiB, one worker, calibrated from the median of the runs of benchmarks/grid.py",
    machine="2 cores, 24 GiB, Ray 2.60",
    date="2026-11-21",
)
