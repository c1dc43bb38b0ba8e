"""The keys of compute and synchronisation on Ray: the same batches, times and meetings as on the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayio
from scenarios import scenario, simulated

KEYS: dict[str, Any] = {
    "cluster__ranks_per_node": 4, "cluster__roles_per_actor": 8, "dataset__num_files": 64, "train__epochs": 1,
    "loader__num_workers": 1, "loader__queue": "in_rank",
    "train__compute": {"kind": "empirical", "values": ["4 ms", "6 ms", "9 ms"]},
    "train__warmup": {"steps": 2, "factor": 2},
    "train__speeds": {"ranks": {3: 0.5}},
    "train__stragglers": {"probability": 0.2, "factor": 3},
    "train__device_copy": {"bandwidth": "1 MB/s", "overlap": True},
    "train__parallelism": {"tensor": 2, "microbatches": 2, "pipeline": 1},
    "train__accumulate": 4,
    "train__sync": {"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s", "algorithm": "tree"},
}  # fmt: skip


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_ray_computes_copies_and_meets_as_the_virtual_clock_does(tmp_path: Path) -> None:
    wanted = scenario(**KEYS)
    here, there = simulated(wanted), rayio.run(wanted, engine="ray", out=str(tmp_path / "run"))
    assert there.result.ledger is not None
    assert there.result.ledger.even
    spans = there.spans()
    for name in ("compute", "copy_ahead"):
        ours = {row["batch"]: row["duration_ns"] for row in here.rows(name)}
        theirs = spans[spans.name == name]
        assert ours == dict(zip(theirs.batch.tolist(), theirs.duration_ns.tolist(), strict=True))
    syncs = spans[(spans.name == "sync") & (spans.duration_ns > 0)]
    ends = {
        (int(rank), int(step)): int(start + length)
        for rank, step, start, length in zip(syncs["rank"], syncs.step, syncs.start_ns, syncs.duration_ns, strict=True)
    }
    for step in (3, 7, 11, 15):  # all leave together, the all-reduce after the last one's compute
        assert len({ends[rank, step] for rank in range(4)}) == 1
    assert any(ends.get((0, step)) != ends.get((2, step)) for step in (0, 1, 2)), "replicas apart"
