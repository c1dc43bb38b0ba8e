"""Calibrations of planted machines on which ranks take batches slowly: by bytes, and next to other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted import TRUTH, busy, made, recorded, seconds_per_step

from rayio.predict.calibrate import learn
from rayio.predict.ranges import error_of_next
from rayio.scenario.model import Scenario
from rayio.session.between import between
from rayio.session.calibration import Calibration
from rayio.session.conclude import in_memory

#: Ranks that map and free each batch: 1.8 ms with batches of 2.4 MB, and 0.7 ms with 200 kB.
MAPPED = TRUTH | {"receive": "600 us", "receive_bandwidth": "2 GB/s", "cpu": TRUTH["cpu"] | {"rank": "600 us"}}
#: Ranks that hold each other up when they take their batches.
CROWDED = TRUTH | {"receive": "800 us", "neighbour": "900 us"}


def taught(costs: dict[str, Any], *, alone: bool = True) -> Scenario:
    """Return a calibration of two sizes: idle runs of two ranks, busy runs, and runs of one worker alone."""
    sizes = ("600 kB", "100 kB")
    idle = [recorded(made(busy(size, 1, 2, "30 ms"), costs)) for size in sizes]
    full = [recorded(made(busy(size, 4, 2, "0 ms"), costs), 1.2) for size in sizes]
    lone = [recorded(made(busy(size, 1, 1, "20 ms"), costs)) for size in sizes] if alone else []
    first = idle[0]
    return learn(first.spans, first.scenario, first.info, more=idle[1:], full=full, alone=lone, is_cached=True).scenario


def off(found: Scenario, costs: dict[str, Any], *point: Any, batch: int) -> float:
    """Return the error of a prediction, relative to the planted machine."""
    true = made(busy(*point) | {"loader__batch_size": batch, "dataset__num_files": 40 * batch * point[2]}, costs)
    kept = {"dataset": true.dataset, "train": true.train, "loader": true.loader, "cluster": true.cluster}
    return seconds_per_step(found.model_copy(update=kept)) / seconds_per_step(true) - 1


@pytest.fixture(scope="module")
def mapped() -> Scenario:
    return taught(MAPPED)


@pytest.fixture(scope="module")
def crowded() -> Scenario:
    return taught(CROWDED)


@pytest.mark.parametrize(
    ("machine", "size", "workers", "ranks", "compute", "batch"),
    [
        # Batches of other sizes take what their bytes take.
        ("mapped", "100 kB", 2, 1, "20 ms", 2),
        ("mapped", "100 kB", 2, 2, "20 ms", 8),
        ("mapped", "2 MB", 4, 1, "60 ms", 4),
        ("mapped", "300 kB", 4, 1, "15 ms", 4),
        # Ranks next to others take longer, and one alone does not.
        ("crowded", "100 kB", 2, 1, "8 ms", 2),
        ("crowded", "100 kB", 2, 2, "20 ms", 2),
        ("crowded", "300 kB", 4, 1, "15 ms", 4),
        ("crowded", "1 MB", 2, 2, "40 ms", 4),
    ],
)
def test_what_ranks_take_is_predicted_for_other_sizes_and_other_numbers_of_ranks(
    machine: str, size: str, workers: int, ranks: int, compute: str, batch: int, request: pytest.FixtureRequest
) -> None:
    costs = {"mapped": MAPPED, "crowded": CROWDED}[machine]
    assert abs(off(request.getfixturevalue(machine), costs, size, workers, ranks, compute, batch=batch)) < 0.03


def test_two_sizes_separate_what_taking_a_batch_takes_by_bytes(mapped: Scenario) -> None:
    costs = mapped.charges
    assert costs.receive_bandwidth == pytest.approx(2e9, rel=0.02)
    assert costs.receive == pytest.approx(600e-6, rel=0.2)


def test_a_run_of_one_rank_names_what_it_cannot_know() -> None:
    first, full, lone = (
        recorded(made(busy("600 kB", workers, 1, compute), CROWDED))
        for workers, compute in ((1, "30 ms"), (4, "0 ms"), (1, "20 ms"))
    )
    learned = learn(first.spans, first.scenario, first.info, full=[full], alone=[lone], is_cached=True)
    assert any(note.startswith("costs.neighbour: this run has one rank") for note in Calibration.of(learned).notes)
    assert learned.scenario.charges.neighbour == 0


def test_busy_runs_that_took_longer_than_their_processor_time_make_predictions_less_sure() -> None:
    """Other programs used half a core during the busy runs alone, which looks like contention."""
    sizes = ("600 kB", "100 kB")
    idle = [recorded(made(busy(size, 1, 2, "30 ms"))) for size in sizes]
    lone = [recorded(made(busy(size, 1, 1, "20 ms"))) for size in sizes]
    disturbed = TRUTH | {"cpu": TRUTH["cpu"] | {"background": "500 ms"}}
    full = [recorded(made(busy(size, 4, 2, "0 ms"), disturbed), 1.2) for size in sizes]
    first = idle[0]
    learned = learn(first.spans, first.scenario, first.info, more=idle[1:], full=full, alone=lone, is_cached=True)
    true = made(busy("1 MB", 4, 2, "1 ms"))
    kept = {"dataset": true.dataset, "train": true.train, "loader": true.loader, "cluster": true.cluster}
    said = learned.scenario.model_copy(update=kept)
    limits = between(said, in_memory(said))
    assert limits is not None
    assert limits.time_low < seconds_per_step(true) / seconds_per_step(said) < limits.time_high


@pytest.mark.parametrize(("runs", "fitted"), [(2, 0), (4, 0), (2, 1), (6, 1)])
def test_an_interval_holds_six_of_seven_new_runs(runs: int, fitted: int) -> None:
    """Runs with noise: their mean error is fitted to them, as contention is, or to others; and one more run is made."""
    noise = np.random.default_rng(7).normal(0, 0.03, (4000, runs + 1))
    held = 0
    for *errors, new in noise:
        middle = float(np.mean(errors)) * fitted
        held += abs(new - middle) <= error_of_next([error - middle for error in errors], fitted)
    assert held / len(noise) == pytest.approx(0.85, abs=0.02)


def test_ranges_of_processor_times_are_as_wide_as_runs_are_from_their_simulations() -> None:
    """A machine that does what the model says has narrow ones; with work of others in one busy run they are wide."""
    sizes = ("600 kB", "100 kB")
    idle = [recorded(made(busy(size, 1, 2, "30 ms"))) for size in sizes]
    lone = [recorded(made(busy(size, 1, 1, "20 ms"))) for size in sizes]
    first, widths = idle[0], []
    for background in ("0 s", "600 ms"):
        costs = TRUTH | {"cpu": TRUTH["cpu"] | {"background": background}}
        full = [
            recorded(made(busy(size, 4, 2, "0 ms"), of), 1.2) for size, of in zip(sizes, (costs, TRUTH), strict=True)
        ]
        learned = learn(first.spans, first.scenario, first.info, more=idle[1:], full=full, alone=lone, is_cached=True)
        widths.append(learned.scenario.charges.cpu.at_most - 1)
    assert widths[0] < 0.06
    assert widths[1] > widths[0] + 0.1


def test_a_machine_that_differs_only_in_check_runs_has_wide_ranges() -> None:
    """Taking a batch takes longer where a rank never pauses: no other run shows that, and a prediction may need it."""
    sizes = ("600 kB", "100 kB")
    idle = [recorded(made(busy(size, 1, 2, "30 ms"))) for size in sizes]
    lone = [recorded(made(busy(size, 1, 1, "20 ms"))) for size in sizes]
    full = [recorded(made(busy(size, 4, 2, "0 ms")), 1.2) for size in sizes]
    first, limits = idle[0], []
    for slow in ({}, {"receive": "6 ms"}):
        check = [recorded(made(busy(size, 4, 1, "0 ms"), TRUTH | slow), 1.2) for size in sizes]
        learned = learn(
            first.spans, first.scenario, first.info, more=idle[1:], full=full, alone=lone, check=check, is_cached=True
        )
        limits.append(learned.scenario.charges.cpu.at_most)
    assert limits[0] < 1.06
    assert limits[1] > 1.1
