"""Predictions on storage whose limit the calibrated run never reached, against planted devices with such limits."""

from __future__ import annotations

from typing import Any

import pytest
from planted import busy, made, recorded, seconds_per_step

from rayio.predict.calibrate import learn
from rayio.scenario.model import Scenario
from rayio.session.between import between
from rayio.session.conclude import in_memory

#: One connection reads 200 MB/s.
CONNECTION = {"first_byte": "1 ms", "connection_bandwidth": "200 MB/s"}


def machine(bandwidth: str, workers: int, compute: str) -> Scenario:
    keys = {"storage__model": CONNECTION | {"bandwidth": bandwidth}}
    return made(busy("2 MB", workers, 1, compute) | keys)


def ends(said: Scenario) -> tuple[float, float, float]:
    """Return the predicted time of a step, and its interval (s)."""
    limits = between(said, in_memory(said))
    assert limits is not None
    each = seconds_per_step(said)
    return each, each * limits.time_low, each * limits.time_high


@pytest.mark.parametrize("bandwidth", ["220 MB/s", "500 MB/s", "1 GB/s", "100 GB/s"])
def test_a_limit_that_no_run_reached_is_in_the_interval_wherever_it_is(bandwidth: str) -> None:
    run = recorded(machine(bandwidth, 1, "60 ms"))
    said = learn(run.spans, run.scenario, run.info).scenario
    for workers in (1, 8):
        true = machine(bandwidth, workers, "2 ms")
        _, low, high = ends(said.model_copy(update={"train": true.train, "loader": true.loader}))
        assert low <= seconds_per_step(true) <= high


def test_the_run_itself_is_still_predicted_narrowly() -> None:
    run = recorded(machine("1 GB/s", 1, "60 ms"))
    each, low, high = ends(learn(run.spans, run.scenario, run.info).scenario)
    assert high - low < 0.2 * each
    assert low <= seconds_per_step(run.scenario) <= high


def test_a_limit_that_the_run_reached_is_no_guess() -> None:
    run = recorded(machine("300 MB/s", 6, "1 ms"))
    model: Any = learn(run.spans, run.scenario, run.info).scenario.storage.model
    assert model.reached is None
    assert model.bandwidth == pytest.approx(300e6, rel=0.1)
