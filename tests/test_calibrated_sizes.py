"""Learneds of planted machines from one sample size, on samples of another, against the same machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planted import STORAGE, TRUTH, busy, made, recorded, seconds_per_step

from rayio.analyze import gate
from rayio.predict.calibrate import Learned, learn
from rayio.predict.learnable import Learnable
from rayio.records.doubts import CAPACITY, SETTING
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.between import between
from rayio.session.conclude import in_memory
from rayio.study.sizing.advise import advise

#: Machines: where bytes count for nothing, as in truth, and where they are all that counts.
BY_SAMPLE = TRUTH | {"cpu": TRUTH["cpu"] | {"bandwidth": None, "sample": "3 ms"}}
BY_BYTE = TRUTH | {"put": "200 us", "cpu": TRUTH["cpu"] | {"bandwidth": "100 MB/s", "sample": "10 us"}}
MACHINES = {"by sample": BY_SAMPLE, "both": TRUTH, "by byte": BY_BYTE}
#: Storage that is the bottleneck of one worker: by requests, by both, and by bytes.
SLOW = {
    "requests": STORAGE | {"first_byte": "8 ms"},
    "both": STORAGE | {"first_byte": "4 ms", "connection_bandwidth": "100 MB/s"},
    "bytes": STORAGE | {"first_byte": "50 us", "connection_bandwidth": "50 MB/s"},
}
DECODES: dict[str, Any] = {
    "work": {"kind": "checksum", "rate": "100 MB/s", "per_sample": "2 ms"},
    "slept": {"kind": "lognormal", "median": "5 ms", "sigma": 0.2},
}


def taught(first: Learnable, *more: Learnable, is_cached: bool = True) -> Learned:
    return learn(first.spans, first.scenario, first.info, more=more, is_cached=is_cached)


@cache
def of_large(ranks: int, costs: str = "both", storage: str = "", decode: str = "") -> Learned:
    """Return a calibration of samples of 600 kB; without storage named, memory serves them."""
    return taught(recorded(machine("600 kB", ranks, costs, storage, decode)), is_cached=not storage)


def machine(size: str, ranks: int, costs: str = "both", storage: str = "", decode: str = "") -> Scenario:
    keys = ({"storage__model": SLOW[storage]} if storage else {}) | (
        {"loader__decode": DECODES[decode]} if decode else {}
    )
    return made(busy(size, ranks, ranks, "1 ms") | keys, MACHINES[costs])


def ends(said: Scenario) -> tuple[float, float]:
    """Return the shortest and the longest time of a step in the prediction's interval."""
    found = between(said, in_memory(said))
    assert found is not None
    each = seconds_per_step(said)
    return each * found.time_low, each * found.time_high


def asked(found: Learned, true: Scenario) -> Scenario:
    return found.scenario.model_copy(update={"dataset": true.dataset, "train": true.train})


@pytest.mark.parametrize("size", ["100 kB", "300 kB", "2 MB"])
@pytest.mark.parametrize("costs", MACHINES)
def test_full_processors_with_other_samples_are_in_the_interval(costs: str, size: str) -> None:
    true = machine(size, 2, costs)
    low, high = ends(asked(of_large(2, costs), true))
    assert low <= seconds_per_step(true) <= high


@pytest.mark.parametrize("size", ["100 kB", "2 MB"])
@pytest.mark.parametrize("storage", SLOW)
def test_storage_with_other_samples_is_in_the_interval(storage: str, size: str) -> None:
    true = machine(size, 1, storage=storage)
    low, high = ends(asked(of_large(1, storage=storage), true))
    assert low <= seconds_per_step(true) <= high


@pytest.mark.parametrize("size", ["100 kB", "2 MB"])
@pytest.mark.parametrize("decode", DECODES)
def test_decoding_of_other_samples_is_in_the_interval(decode: str, size: str) -> None:
    true = machine(size, 1, decode=decode)
    low, high = ends(asked(of_large(1, decode=decode), true))
    assert low <= seconds_per_step(true) <= high


def test_the_same_size_two_sizes_and_almost_the_same_size_leave_nothing_open() -> None:
    first = recorded(made(busy("600 kB", 1, 1, "1 ms")))
    one, two = taught(first), taught(first, recorded(made(busy("100 kB", 1, 1, "1 ms"))))
    assert one.scenario.charges.sample_bytes == pytest.approx(600e3)
    assert two.scenario.charges.sample_bytes is None
    usual, other = (made(busy(size, 1, 1, "1 ms")) for size in ("600 kB", "2 MB"))
    widths = [high / low for low, high in (ends(asked(*pair)) for pair in ((one, usual), (two, other), (one, other)))]
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
    assert widths[2] > 1.5 * widths[0]


@pytest.mark.parametrize(("stdev", "is_one"), [("10 kB", True), ("300 kB", False)])
def test_sizes_that_vary_within_a_run_tell_bytes_apart(stdev: str, is_one: bool) -> None:
    varied = {"dataset__sample_bytes": {"kind": "normal", "mean": "600 kB", "stdev": stdev}}
    found = taught(recorded(made(busy("600 kB", 1, 1, "1 ms") | varied)))
    assert (found.scenario.charges.sample_bytes is not None) == is_one


def test_other_samples_are_a_doubt_with_its_remedy() -> None:
    costs = {"put": "1 ms", "sample_bytes": "600 kB"}
    said = in_memory(build({**_plain("100 kB"), "costs": costs}))
    (doubt,) = [doubt for doubt in said.doubts or () if doubt.code == gate.OTHER_SIZE]
    assert {*doubt.invalidates} == {CAPACITY, SETTING}
    assert doubt.sentence == (
        "Its costs are from samples of 586 KiB, and these have 97.7 KiB: what grows with bytes is not known, so the "
        "interval is wide. Calibrate with a second short run, of samples of this size"
    )
    same = in_memory(build({**_plain("650 kB"), "costs": costs}))
    assert not [doubt for doubt in same.doubts or () if doubt.code == gate.OTHER_SIZE]


def test_the_cheapest_setting_for_other_samples_is_not_advised(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(to_yaml(build({**_plain("100 kB"), "costs": {"sample_bytes": "600 kB"}})))
    found = advise(tmp_path / "one.yaml", vary="loader.num_workers=1..2", root=tmp_path)
    assert found.advice is None
    assert [doubt.code for doubt in found.doubts] == [gate.OTHER_SIZE]


def _plain(size: str) -> dict[str, Any]:
    return {
        "name": "plain", "dataset": {"path": "data", "num_files": 400, "sample_bytes": size},
        "loader": {"batch_size": 2, "num_workers": 2}, "train": {"compute": "10 ms", "epochs": 1},
        "storage": {"model": "nvme"},
    }  # fmt: skip
