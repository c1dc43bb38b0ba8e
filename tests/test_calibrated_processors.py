"""Calibrations of planted machines whose processors are busy, against the same machine with the change made."""

from __future__ import annotations

from typing import Any

import pytest
from planted import busy, made, recorded, seconds_per_step

from rayio.predict.calibrate import Calibration, learn
from rayio.predict.learnable import Learnable


def taught(first: Learnable, *more: Learnable) -> Calibration:
    return learn(first.spans, first.scenario, first.info, more=more, is_cached=True)


#: Two ranks of two workers, whose decoding keeps both cores busy with samples of 600 kB.
DECODES = {
    "checksum": {"kind": "checksum", "algorithm": "sha256", "rate": "200 MB/s"},
    "passes": {"kind": "checksum", "passes": 2, "rate": "400 MB/s"},
    "decompress": {"kind": "decompress", "ratio": 3, "rate": "200 MB/s", "per_sample": "100 us"},
}


@pytest.fixture(scope="module", params=DECODES)
def decoding(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    decode = DECODES[request.param]
    runs = [recorded(made(busy(size, 2, 2, "5 ms") | {"loader__decode": decode})) for size in ("600 kB", "100 kB")]
    return taught(*runs).scenario, decode


@pytest.mark.parametrize("compute", ["5 ms", "20 ms", "60 ms"])
@pytest.mark.parametrize("size", ["100 kB", "600 kB", "2 MB"])
def test_decoding_is_learned_as_work_on_bytes(decoding: Any, size: str, compute: str) -> None:
    found, decode = decoding
    true = made(busy(size, 2, 2, compute) | {"loader__decode": decode})
    said = found.model_copy(update={"dataset": true.dataset, "train": true.train})
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.03)


#: Two ranks whose workers keep both cores busy while their steps end: ends of steps wait for cores.
WAITING = [("1 MB", 1), ("1 MB", 2), ("4 MB", 1), ("100 kB", 2)]


@pytest.fixture(scope="module", params=WAITING, ids=lambda case: f"{case[0]}-{case[1]}")
def waiting(request: pytest.FixtureRequest) -> tuple[Any, str]:
    size, workers = request.param
    run = recorded(made(busy(size, workers, 2, "8 ms")))
    return taught(run).scenario, size


@pytest.mark.parametrize("compute", ["40 ms", "60 ms", "100 ms"])
def test_waits_for_cores_are_no_cost_of_a_step(waiting: Any, compute: str) -> None:
    """Where longer compute leaves cores free, nothing waits for them any more."""
    found, size = waiting
    costs = found.charges
    assert costs.step < 1e-3, "a step's own cost is 0.3 ms"
    true = made(busy(size, 1, 2, compute))
    said = found.model_copy(update={"train": true.train, "loader": true.loader})
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.03)
