"""Processor time of requests in flight together: a worker serves answers one by one while others are under way."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planted import busy, made, recorded, seconds_per_step

from rayio.predict.calibrate import learn
from rayio.predict.replay import UNLIMITED
from rayio.report.text.calibration import worded
from rayio.scenario.model import Costs, Scenario

LATENCY = 0.02
BUCKET: dict[str, Any] = {"first_byte": LATENCY, "connection_bandwidth": "10 GB/s"}


def batch_seconds(number: int, depth: int, latency: float, work: float) -> float:
    """Return when a batch is complete: ``depth`` requests in flight, whose answers one thread works on in turn."""
    answers: list[float] = []
    for _ in range(min(number, depth)):
        heappush(answers, latency)
    left, free = number - len(answers), 0.0
    while answers:
        free = max(free, heappop(answers)) + work
        if left:
            left -= 1
            heappush(answers, free + latency)
    return free


@pytest.mark.parametrize("work", [0.0, 300e-6, 2e-3, 8e-3, 40e-3], ids=lambda work: f"{1000 * work:g} ms")
@pytest.mark.parametrize(("number", "depth"), [(8, 1), (8, 4), (8, 16), (64, 16), (9, 8), (20, 8), (3, 2)])
def test_work_on_an_answer_hides_behind_the_requests_in_flight(number: int, depth: int, work: float) -> None:
    wanted = made(
        {
            "dataset__num_files": number * 20, "dataset__sample_bytes": "20 kB", "cluster__ranks_per_node": 1,
            "loader__batch_size": number, "loader__num_workers": 1, "loader__io_depth": depth, "train__compute": 0,
            "dataset__path": "s3://bucket/data", "cluster__cores": 4, "train__epochs": 1,
            "storage__model": {"first_byte": LATENCY, "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"},
        },
        {"cpu": {"sample": work}},
    )  # fmt: skip
    expected = batch_seconds(number, depth, LATENCY, work)
    assert seconds_per_step(wanted) == pytest.approx(expected, rel=0.03)
    # Requests in flight, and a worker's one thread, are the two limits.
    assert expected >= max(number * work, number / max(depth, 1) * LATENCY * (depth <= number))


def test_the_definition_keeps_both_limits() -> None:
    assert batch_seconds(4000, 16, LATENCY, 1e-4) / 4000 == pytest.approx((LATENCY + 1e-4) / 16, rel=0.02)
    assert batch_seconds(4000, 16, LATENCY, 5e-3) / 4000 == pytest.approx(5e-3, rel=0.02)


def bucket(depth: int, cpu: dict[str, Any], bandwidth: str = "10 GB/s", workers: int = 1, **more: Any) -> Scenario:
    """Workers that read a bucket of 20 ms a request."""
    keys = busy("20 kB", workers, 1, "0 ms") | {
        "dataset__path": "s3://bucket/data", "loader__batch_size": 16, "loader__io_depth": depth, "train__epochs": 1,
        "dataset__num_files": 16 * 100,
        "storage__model": BUCKET | {"bandwidth": bandwidth},
    }  # fmt: skip
    return made(keys | more, {"cpu": cpu})


@pytest.mark.parametrize(("recorded_depth", "depth"), [(1, 4), (1, 16), (5, 1), (5, 8)])
def test_a_run_with_some_requests_in_flight_predicts_runs_with_others(recorded_depth: int, depth: int) -> None:
    cpu = {"sample": 300e-6, "format": "npz"}
    run = recorded(bucket(recorded_depth, cpu))
    learned = learn(run.spans, run.scenario, run.info).scenario
    true = bucket(depth, cpu)
    predicted = learned.model_copy(update={"loader": true.loader})
    assert seconds_per_step(predicted) == pytest.approx(batch_seconds(16, depth, LATENCY, 300e-6), rel=0.05)


def test_latencies_that_vary_do_not_make_requests_in_flight_slower_than_they_were() -> None:
    varied = {"first_byte": {"kind": "lognormal", "median": LATENCY, "sigma": 0.6}, "bandwidth": "10 GB/s"}
    run = recorded(bucket(16, {"sample": 300e-6, "format": "npz"}, storage__model=BUCKET | varied))
    assert seconds_per_step(learn(run.spans, run.scenario, run.info).scenario) == pytest.approx(
        seconds_per_step(run.scenario), rel=0.05
    )


def test_a_service_that_showed_no_limit_gets_none_but_its_interval_goes_down_to_what_was_reached() -> None:
    run = recorded(bucket(1, {"sample": 300e-6, "format": "npz"}))
    learned = learn(run.spans, run.scenario, run.info)
    model: Any = learned.scenario.storage.model
    assert model.bandwidth == UNLIMITED
    assert model.reached == pytest.approx(20e3 / LATENCY, rel=0.05)
    assert "showed no limit" in " ".join(worded(note) for note in learned.records)


def test_a_limit_that_a_service_showed_is_kept() -> None:
    cpu = {"sample": 300e-6, "format": "npz"}
    uneven = {"dataset__sample_bytes": {"kind": "uniform", "low": "1 kB", "high": "200 kB"}, "loader__batch_size": 2}
    run = recorded(bucket(16, cpu, "5 MB/s", 4, **uneven))
    model: Any = learn(run.spans, run.scenario, run.info).scenario.storage.model
    assert model.reached is None
    assert model.bandwidth == pytest.approx(5e6, rel=0.1)


def test_workers_that_start_late_are_no_cost_of_every_message() -> None:
    """A worker that is never idle shows one way of an assignment alone, that of its first batch."""
    late = 60_000_000
    keys = bucket(1, {}, workers=2).model_copy(update={"costs": Costs(lease=1e-3, put=5e-4, take=1e-3)})
    run = recorded(keys)
    spans: Any = run.spans
    begin, length = (spans[name].to_numpy() for name in ("start_ns", "duration_ns"))
    is_first = begin == 0  # the first wait of the rank, and the leases that it sends
    moved = {
        "start_ns": 1_000_000_000 + np.where(is_first, begin, begin + late),
        "duration_ns": np.where(is_first, length + late, length),
    }
    for name, values in moved.items():
        place = spans.schema.get_field_index(name)
        spans = spans.set_column(place, spans.schema.field(place), pa.array(values, spans.schema.field(place).type))
    assert learn(spans, run.scenario, run.info).scenario.charges.lease <= 2e-3
