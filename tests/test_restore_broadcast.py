"""After a restore rank 0 sends a state that it alone has read to all others, on the links of the all-reduce."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_restore import wanted

import rayio
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from scenarios import scenario, simulated

#: A device that reads 10 MB in 10 ms.
DEVICE = {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1000 GB/s"}


def restoring(
    ranks: int, bandwidth: float, latency: float, algorithm: str, period: int = 1, **checkpoint: Any
) -> Scenario:
    section = {
        "every": {"epochs": 1}, "path": "ck", "model": {"bytes": 10_000_000}, "request_bytes": "1 GB",
        "restore": "newest", "fsync": False,
    }  # fmt: skip
    sync = {
        "kind": "allreduce", "bytes": 1000, "bandwidth": bandwidth, "latency": latency, "algorithm": algorithm,
        "every": period,
    }  # fmt: skip
    return scenario(
        cluster={"nodes": 1, "ranks_per_node": ranks}, dataset__num_files=4 * ranks, loader__batch_size=1,
        train__epochs=1, train__sync=sync, train__compute="1 ms", storage__model=DEVICE,
        checkpoint=section | checkpoint,
    )  # fmt: skip


@given(
    st.integers(1, 33), st.integers(10**6, 10**12), st.sampled_from([0.0, 1e-3]), st.sampled_from(["ring", "tree"]),
    st.sampled_from([1, 3]),
)  # fmt: skip
def test_it_takes_bytes_by_bandwidth_and_a_latency_for_each_hop(
    ranks: int, bandwidth: int, latency: float, algorithm: str, every: int
) -> None:
    done = simulated(restoring(ranks, bandwidth, latency, algorithm, every))
    sent = done.rows("broadcast")
    hops = ranks - 1 if algorithm == "ring" else ceil(log2(ranks))
    assert len(sent) == (ranks if ranks > 1 else 0)
    assert {row["duration_ns"] for row in sent} == (
        {round((1e7 / bandwidth + hops * latency) * 1e9)} if sent else set()
    )
    (load,) = done.rows("load")
    read = load["start_ns"] + load["duration_ns"]
    assert all(row["start_ns"] == read for row in sent), "it begins once rank 0 has the state"
    ends = {row["start_ns"] + row["duration_ns"] for row in sent} or {read}
    restored = done.rows("restore")
    assert {row["start_ns"] + row["duration_ns"] for row in restored} == ends
    waits = [row["start_ns"] for row in done.rows("data_wait") if row["step"] == 0]
    if ranks > 1:
        assert {*waits} == ends, "nobody begins before"


def test_each_rank_that_reads_for_itself_waits_for_nobody() -> None:
    for writers in ("all_ranks", "sharded"):
        assert not simulated(restoring(4, 1e6, 0.0, "ring", writers=writers)).rows("broadcast")
    alone = restoring(4, 1e6, 0.0, "ring", phases={"writes": 1, "reads": 1}, restore="none", every=None)
    assert not simulated(alone).rows("broadcast"), "phases measure storage"
    barrier = restoring(4, 1e6, 0.0, "ring")
    without = barrier.model_copy(update={"train": scenario().train})
    assert not simulated(without).rows("broadcast"), "links without a bandwidth"


def test_a_real_run_waits_as_long(tmp_path: Path) -> None:
    """10 kB at 100 kB/s are 100 ms."""
    links = {"kind": "allreduce", "bytes": 1000, "bandwidth": "100 kB/s"}
    first, then = (wanted(writers="rank_zero", restore=restore) for restore in ("none", "newest"))
    run(first, engine="local", root=tmp_path, out="first")
    train = type(then.train).model_validate({"epochs": 1, "compute": "1 ms", "sync": links})
    done = run(then.model_copy(update={"train": train}), engine="local", root=tmp_path, out="then")
    spans = done.spans()
    sent = spans[spans.name == "broadcast"]
    assert sorted(sent["rank"]) == [0, 1]
    assert np.unique(sent["duration_ns"]) == [100_000_000]
    restored = spans[spans.name == "restore"]
    assert (restored["duration_ns"] >= 100_000_000).all()
    assert done.result.time.restore is not None
    assert done.result.time.restore >= 0.2, "of both ranks"


def test_a_restart_sends_it_again() -> None:
    death = {"events": [{"kind": "rank", "number": 1, "at_step": 3}], "detect": 1.0, "restart": 2.0}
    section: dict[str, Any] = {"every": {"steps": 2}, "restore": "none"}
    wanted = restoring(4, 1e9, 0.0, "tree", **section).model_copy(
        update={"failures": scenario(failures=death).failures}
    )
    done = rayio.simulate(wanted)
    assert done.result.failures is not None
    spans = done.spans()
    sent = spans[spans.name == "broadcast"]
    assert {*sent["attempt"]} == {1}
    assert {*sent["duration_ns"]} == {10_000_000}
    assert done.result.failures.restore_seconds == pytest.approx(0.02), "reading and sending"
