"""The overhead of loaders by name, with how, where and when it was measured.

Overhead is processor time of Python, so it holds for machines like the one that is named with it. A run on the machine
in question and ``rayio calibrate`` give better numbers.
"""

from __future__ import annotations

from rayio.scenario.costs import Costs, NamedCosts

NONE = NamedCosts(Costs(), "loader overhead is not modelled: the best there can be")

_SOURCE = "{} one rank, one worker, batches of 150 KB, 1 MB and 8 MB; medians of the runs of benchmarks/costs.py"
_MACHINE, _DATE = "2 cores, 24 GiB, Ray 2.60, torch 2.13", "2026-11-22"

RAY = NamedCosts(
    Costs(lease=0.0029, put=0.0009, take=0.0007, receive=0.0001),
    _SOURCE.format("readers and queue as Ray actors of one node,"),
    machine=_MACHINE,
    date=_DATE,
)

RAY_IN_RANK = NamedCosts(
    Costs(lease=0.0017, put=0.0006, take=0.0002, receive=0.0002),
    _SOURCE.format("readers as Ray actors on their rank's node, loader.queue=in_rank,"),
    machine=_MACHINE,
    date=_DATE,
)

RAY_CALLS = NamedCosts(
    Costs(lease=0.0092, put=0.0005, take=0.0087, receive=0.0001),
    _SOURCE.format("readers and queue as Ray actors that use Ray's calls alone, as between nodes,"),
    machine=_MACHINE,
    date=_DATE,
)

TORCH = NamedCosts(
    Costs(lease=0.0035, put=0.0012, take=0.0016, receive=0.0027),
    _SOURCE.format("PyTorch's DataLoader, its batches in shared memory,"),
    machine=_MACHINE,
    date=_DATE,
)
