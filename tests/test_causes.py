"""Causes that mix: what was planted is found with its share, wherever in the batch's way it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import Trace

from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import attribute
from rayio.trace.span import schema
from scenarios import Outcome, run_locally, scenario, simulated

#: Points by which a found share may miss the planted one.
POINTS = 0.03
#: Storage that takes no time but for what is planted.
QUICK = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}

#: What is planted, in ms for each batch of one sample in one request: open, read, decode, put.
MIXES: dict[str, dict[str, int]] = {
    "read before decode": {"read": 180, "decode": 100},
    "little read before much decode": {"read": 40, "decode": 240},
    "much read before little decode": {"read": 240, "decode": 40},
    "open, read and decode": {"open": 60, "read": 120, "decode": 100},
    "much open before little read": {"open": 160, "read": 20, "decode": 100},
    "read, decode and transfer": {"read": 90, "decode": 90, "put": 100},
    "transfer after little of both": {"read": 30, "decode": 30, "put": 220},
}


def planted(mix: dict[str, int], workers: int, compute: float, *, scale: float = 1, **overrides: Any) -> Any:
    """A scenario of one rank whose batches take so many ms in each stage (times ``scale``)."""
    # tfrecord: a batch of one sample is one request of one file.
    storage = {**QUICK, "first_byte": f"{mix['read'] * scale} ms"}
    if opening := mix.get("open"):
        storage["open"] = f"{opening * scale} ms"
    base: dict[str, Any] = {
        "cluster__ranks_per_node": 1, "dataset__num_files": 72, "dataset__format": "tfrecord",
        "loader__batch_size": 1, "loader__num_workers": workers, "loader__decode": f"{mix['decode'] * scale} ms",
        "train__epochs": 1, "train__compute": f"{compute * scale} ms", "storage__model": storage,
        "trace__level": "io" if opening else "batch", "costs": {"put": f"{mix.get('put', 0) * scale} ms"},
    }  # fmt: skip
    return scenario(**(base | overrides))


def found_shares(run: Outcome) -> dict[str, float]:
    """What each stage has of the waiting for batches, but for that of the first step."""
    waits = attribute(run.spans).waits[1:].sum(axis=0)
    return dict(zip(STAGES, waits / waits.sum(), strict=True))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("part", [0.9, 0.5], ids=["mostly hidden", "half hidden"])
def test_planted_shares_are_found_whatever_comes_first(mix: dict[str, int], workers: int, part: float) -> None:
    """``part`` of the time between two batches is compute."""
    whole = sum(mix.values())
    run = simulated(planted(mix, workers, part * whole / workers))
    shares = found_shares(run)
    for stage, planted_ms in mix.items():
        assert shares[stage] == pytest.approx(planted_ms / whole, abs=POINTS), shares
    assert sum(shares[stage] for stage in mix) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_read_of_180_ms_and_decode_of_100_are_64_to_36_under_50_ms_of_compute(workers: int) -> None:
    shares = found_shares(simulated(planted(MIXES["read before decode"], workers, 50)))
    assert shares["read"] == pytest.approx(0.643, abs=POINTS)
    assert shares["decode"] == pytest.approx(0.357, abs=POINTS)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ranks_that_wait_for_each_other_find_the_same_shares(workers: int) -> None:
    mix = MIXES["read before decode"]
    wanted = planted(mix, workers, 0.6 * 280 / workers, cluster__ranks_per_node=3, dataset__num_files=150)
    charged = attribute(simulated(wanted).spans)
    found = charged.losses[charged.steps.step > 0].sum(axis=0)[: len(STAGES)]
    read, decode = (found[[*STAGES].index(stage)] / found.sum() for stage in ("read", "decode"))
    assert read == pytest.approx(180 / 280, abs=POINTS)
    assert decode == pytest.approx(100 / 280, abs=POINTS)


def test_on_the_wall_clock_the_shares_are_those_of_the_time_that_the_stages_took() -> None:
    # A busy machine sleeps longer than it is asked to, now here and now there: the truth is what was slept.
    wanted = planted(MIXES["read before decode"], 2, 90, scale=0.25, dataset__num_files=24)
    for _ in range(5):
        run = run_locally(wanted, Path(), modelled=True)
        worked = [row for row in run.spans.to_pylist() if row["role"] == "reader" and row["lane"] == 0]
        read = decode = 0
        for batch in {row["batch"] for row in worked}:
            mine = {row["name"]: row["start_ns"] for row in worked if row["batch"] == batch}
            ended = max(row["start_ns"] + row["duration_ns"] for row in worked if row["batch"] == batch)
            read, decode = read + mine["decode"] - mine["read"], decode + ended - mine["decode"]
        shares = found_shares(run)
        found = shares["read"] / (shares["read"] + shares["decode"])
        if found == pytest.approx(read / (read + decode), abs=POINTS):
            break
    assert found == pytest.approx(read / (read + decode), abs=POINTS)


def test_a_batch_that_lay_ready_is_delayed_by_its_delivery_alone() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 80), ("compute", 10), ("data_wait", 20), ("compute", 10)])
    for step, (start, end) in enumerate(((0, 70), (0, 60))):
        trace.add("reader", "read", start, end, rank=step, epoch=0, step=step)  # each of a worker of its own
    spans = trace.spans.to_pylist()
    for row in spans:
        row["rank"] = 0
    charged = attribute(pa.Table.from_pylist(spans, schema=schema()))
    assert charged.waits[1].tolist() == [20 * (stage == "handoff") for stage in STAGES]


def test_where_the_bound_on_bytes_keeps_workers_idle_it_has_its_part() -> None:
    # One batch at a time, though 4 workers could each have one: a worker is kept idle three times as long as it works.
    run = simulated(planted({"read": 20, "decode": 20}, 4, 10, loader__max_bytes_in_flight=1500))
    shares = found_shares(run)
    assert shares["memory_bound"] == pytest.approx(0.75, abs=POINTS)
    assert shares["read"] == pytest.approx(shares["decode"], abs=POINTS)


def test_a_window_that_was_closed_is_no_cause() -> None:
    # Uneven batches: a worker is often idle because the window is closed; what it does once that opens is the cause.
    uneven = {"kind": "uniform", "low": "0 ms", "high": "80 ms"}
    run = simulated(planted({"read": 40, "decode": 0}, 2, 50, loader__decode=uneven, loader__prefetch_factor=1))
    shares = found_shares(run)
    assert shares["read"] + shares["decode"] == pytest.approx(1, abs=0.001)
    waited = attribute(run.spans).steps.parts["data_wait"][1:]
    assert np.count_nonzero(waited) < len(waited)
