"""``train.warmup``, ``speeds``, ``stragglers`` and tables by batch size: factors that follow from the step alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayio.errors import ScenarioError
from rayio.place import Start
from rayio.report.explain import explain
from rayio.scenario import checks, derive
from rayio.scenario.load import build, load
from rayio.scenario.write import to_yaml
from rayio.session import simulate
from scenarios import Outcome, run_locally, scenario, simulated

#: Four ranks on two nodes, with six steps in each of two epochs.
FOUR: dict[str, Any] = {"cluster": {"nodes": 2, "ranks_per_node": 2}, "storage__model": "memory"}
#: Everything that changes compute times.
ALL: dict[str, Any] = {
    "train__warmup": {"steps": 3, "factor": 2},
    "train__speeds": {"nodes": {1: 0.5}, "ranks": {0: 2}},
    "train__stragglers": {"probability": 0.3, "factor": 3},
    "train__compute": {"kind": "gamma", "mean": "3 ms", "stdev": "1 ms"},
}


def taken(run: Outcome) -> dict[tuple[int, int, int], int]:
    """The compute time of each rank, epoch and step, in ns."""
    return {(row["rank"], row["epoch"], row["step"]): row["duration_ns"] for row in run.rows("compute")}


def test_the_first_steps_of_each_rank_take_longer_and_no_others() -> None:
    times = taken(simulated(scenario(**FOUR, train__warmup={"steps": 8, "factor": 5})))
    assert {ns for (_, epoch, step), ns in times.items() if 6 * epoch + step < 8} == {50_000_000}
    assert {ns for (_, epoch, step), ns in times.items() if 6 * epoch + step >= 8} == {10_000_000}


def test_a_rank_s_speed_multiplies_that_of_its_node() -> None:
    times = taken(simulated(scenario(**FOUR, train__speeds={"nodes": {1: 0.5}, "ranks": {3: 0.5, 0: 2}})))
    assert {rank: {ns for (r, _, _), ns in times.items() if r == rank} for rank in range(4)} == {
        0: {5_000_000}, 1: {10_000_000}, 2: {20_000_000}, 3: {40_000_000},
    }  # fmt: skip


def test_accelerators_are_as_unequal_in_evaluations() -> None:
    evaluated = {"every": {"epochs": 1}, "compute": "10 ms"}
    keys = FOUR | {"train__evaluate": evaluated, "dataset__eval__num_files": 16, "train__speeds": {"nodes": {1: 0.5}}}
    rows = simulated(scenario(**keys)).rows("eval_compute")
    assert {(row["node"], row["duration_ns"]) for row in rows} == {(0, 10_000_000), (1, 20_000_000)}


def test_a_node_s_ranks_are_stragglers() -> None:
    times = taken(simulated(scenario(**FOUR, train__stragglers={"nodes": [1], "ranks": [0], "factor": 3})))
    assert {rank for (rank, _, _), ns in times.items() if ns == 30_000_000} == {0, 2, 3}


def test_each_step_is_slow_with_the_probability_that_is_given() -> None:
    keys = {"dataset__num_files": 8000, "train__epochs": 2, "storage__model": "memory"}
    times = taken(simulated(scenario(**keys, train__stragglers={"probability": 0.1, "factor": 2})))
    slow = {place for place, ns in times.items() if ns == 20_000_000}
    assert len(slow) / len(times) == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / len(times)))
    assert {(rank, epoch) for rank, epoch, _ in slow} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    both = len({(e, s) for _, e, s in slow if (0, e, s) in slow and (1, e, s) in slow})
    assert both / 4000 == pytest.approx(0.01, abs=0.005), "ranks are slow apart"


def test_a_slow_interval_comes_every_so_often_and_lasts_as_long() -> None:
    keys = {"dataset__num_files": 800, "train__epochs": 2, "storage__model": "memory"}
    slow = {"every": "500 ms", "lasts": "100 ms", "factor": 4, "ranks": [1]}
    times = taken(simulated(scenario(**keys, train__stragglers=slow)))
    assert {ns for (rank, _, _), ns in times.items() if rank == 0} == {10_000_000}
    hit = [200 * epoch + step for (rank, epoch, step), ns in times.items() if rank == 1 and ns == 40_000_000]
    assert len(hit) == pytest.approx(400 / 5, abs=10)
    begins = [step for step in hit if step - 1 not in hit and step > 0]
    assert np.diff(begins).tolist() == [50] * (len(begins) - 1), "steps of 10 ms, 500 ms of them"
    assert all({*range(begin, begin + 10)} <= {*hit} for begin in begins[:-1])


def test_the_wall_clock_has_the_same_times() -> None:
    wanted = scenario(**FOUR, **ALL)
    assert taken(simulated(wanted)) == taken(run_locally(wanted, Path(), modelled=True))


@pytest.mark.parametrize("begin", [(0, 2), (1, 0), (1, 4)])
def test_a_run_that_begins_later_has_the_times_of_the_tail(begin: tuple[int, int]) -> None:
    wanted = scenario(**FOUR, **ALL)
    whole, tail = taken(simulated(wanted)), taken(simulated(wanted, Start(*begin, attempt=1)))
    assert tail == {place: ns for place, ns in whole.items() if place[1:] >= begin}


def test_an_explanation_replays_recorded_times_once(tmp_path: Path) -> None:
    found = explain(simulate(scenario(**FOUR | {"dataset__num_files": 480}, **ALL), root=tmp_path).path)
    assert found.simulated is not None
    assert found.verdict.au is not None
    assert found.simulated.au == pytest.approx(found.verdict.au, abs=0.01)


def test_everything_is_written_back_and_read_again() -> None:
    wanted = scenario(**FOUR, **ALL | {"train__stragglers": {"every": "1 s", "lasts": "50 ms", "factor": 3}})
    assert build(yaml.safe_load(to_yaml(wanted))) == wanted
    table = scenario(train__compute={"by_batch_size": {2: "10 ms", 8: {"kind": "normal", "mean": 1, "stdev": 0.1}}})
    assert build(yaml.safe_load(to_yaml(table))) == table


def test_a_table_replaces_a_distribution_and_a_distribution_a_table(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\ndataset: {path: model://d, num_files: 64, sample_bytes: 1 KiB}\nloader: {batch_size: 3}\n"
        "train: {compute: {kind: normal, mean: 1 s, stdev: 1 ms}}\n"
    )
    (tmp_path / "t.yaml").write_text("extends: s.yaml\ntrain: {compute: {by_batch_size: {2: 10 ms, 4: 20 ms}}}\n")
    assert derive.compute_seconds(load(tmp_path / "t.yaml")) == pytest.approx(0.015)
    assert derive.compute_seconds(load(tmp_path / "t.yaml", ["train.compute.by_batch_size.4=40 ms"])) == 0.025
    assert derive.compute_seconds(load(tmp_path / "t.yaml", ["train.compute={kind: exponential, mean: 1 s}"])) == 1
    assert derive.compute_seconds(load(tmp_path / "s.yaml", ["train.compute.mean=2 s"])) == 2


@pytest.mark.parametrize(("batch", "milliseconds"), [(2, 20), (4, 40), (6, 46), (8, 52), (12, 64), (16, 76)])
def test_compute_is_linear_between_the_batch_sizes_of_a_table(batch: int, milliseconds: float) -> None:
    compute = {"by_batch_size": {4: "40 ms", 2: "20 ms", 16: "76 ms"}}
    wanted = scenario(train__compute=compute, loader__batch_size=batch)
    assert {*taken(simulated(wanted)).values()} == {milliseconds * 1e6}
    assert derive.ideal_seconds(wanted) == pytest.approx(milliseconds / 1e3 * derive.total_steps(wanted))


def test_random_times_between_two_batch_sizes_have_the_mean_and_the_spread_between() -> None:
    normal = [{"kind": "normal", "mean": mean, "stdev": stdev} for mean, stdev in ((1, 0.1), (3, 0.5))]
    wanted = scenario(train__compute={"by_batch_size": {2: normal[0], 10: normal[1]}}, loader__batch_size=4)
    drawn = derive.compute_times(wanted).draw(7, np.arange(100_000))
    assert (drawn.mean(), drawn.std()) == pytest.approx((1.5, 0.2), rel=0.01)


def test_an_evaluation_has_its_own_table() -> None:
    evaluated = {"every": {"epochs": 1}, "batch_size": 4, "compute": {"by_batch_size": {2: "10 ms", 6: "30 ms"}}}
    run = simulated(scenario(train__evaluate=evaluated, dataset__eval__num_files=16))
    assert {row["duration_ns"] for row in run.rows("eval_compute")} == {20_000_000}


REFUSED: dict[str, dict[str, Any]] = {
    "loader.batch_size=12: train.compute.by_batch_size has times of 2 or 4; add 12, or use a size from 2 to 4": {
        "loader__batch_size": 12, "train__compute": {"by_batch_size": {2: "1 ms", 4: "2 ms"}}
    },
    "train.evaluate.batch_size=16: train.evaluate.compute.by_batch_size has times of 2; add 16": {
        "train__evaluate": {"batch_size": 16, "compute": {"by_batch_size": {2: "1 ms"}}},
        "dataset__eval__num_files": 64,
    },
    "train.compute.by_batch_size.0=1 ms: must be a batch size": {"train__compute": {"by_batch_size": {0: "1 ms"}}},
    "train.compute.by_batch_size.2=soon: not a number with a unit": {"train__compute": {"by_batch_size": {2: "soon"}}},
    "train.compute.by_batch_size={}: must be a mapping of batch sizes": {"train__compute": {"by_batch_size": {}}},
    "train.warmup.factor: is required and missing": {"train__warmup": {"steps": 3}},
    "train.speeds.nodes={2: 0.5}: no node 2; ": {"train__speeds": {"nodes": {2: 0.5}}},
    "train.speeds.ranks={4: 0.5}: no rank 4; ": {"train__speeds": {"ranks": {4: 0.5}}},
    "train.speeds.ranks.1=0: must be a number greater than 0": {"train__speeds": {"ranks": {1: 0}}},
    "train.speeds.ranks=[1, 2]: must be a mapping of numbers": {"train__speeds": {"ranks": [1, 2]}},
    "train.stragglers.nodes=[2]: no node 2; ": {"train__stragglers": {"nodes": [2], "factor": 2}},
    "must have ranks, nodes, probability, or every and lasts": {"train__stragglers": {"factor": 2}},
    "must have both every and lasts": {"train__stragglers": {"factor": 2, "every": "1 s"}},
    "must be greater than 0 and less than every": {"train__stragglers": {"factor": 2, "every": "1 s", "lasts": "2 s"}},
    "train.stragglers.probability=1.5: must be a number": {"train__stragglers": {"factor": 2, "probability": 1.5}},
    "train.stragglers.every: train.compute takes no time": {
        "train__stragglers": {"factor": 2, "every": "1 s", "lasts": "1 ms"}, "train__compute": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("line", "keys"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_line(line: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**FOUR, **keys)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_changes_nothing_is_named() -> None:
    keys = {"train__warmup": {"steps": 2, "factor": 1}, "train__speeds": {"ranks": {1: 1}}}
    notes = checks.idle(scenario(**keys))
    assert "train.warmup.factor=1: changes nothing" in notes
    assert "train.speeds: all are 1, so nothing changes" in notes
