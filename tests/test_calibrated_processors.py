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
