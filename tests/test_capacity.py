"""How many accelerators a storage feeds: by arithmetic, by trying every number, and on files that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import check

from rayio import storage
from rayio.analyze.compare import spread
from rayio.cli import main
from rayio.errors import RunError, ScenarioError, StorageError
from rayio.machine.cpu_time import processor_times
from rayio.machine.mounts import mount_of, mounts_here
from rayio.predict.calibrate import calibrate
from rayio.records import sizing_notes
from rayio.records.answers import answer_schema
from rayio.records.calibrated import NoBusyRun
from rayio.records.sizing import HOLDS, UNDECIDED, CapacityFound
from rayio.records.sizing_notes import SizingNote
from rayio.report.capacity_page import page
from rayio.report.text.sizing import command, fed, remedy, text, with_interval
from rayio.report.text.sizing_notes import worded
from rayio.reporter import Reporter
from rayio.scenario import derive
from rayio.scenario.derive import num_checkpoints, total_steps
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.storage import Storage
from rayio.session.calibration import Calibration
from rayio.session.conclude import in_memory
from rayio.session.execute import simulate
from rayio.study.sizing.capacity import capacity
from rayio.study.sizing.knee import shortened, widest
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import Bracket, falls, largest, smallest
from rayio.study.sizing.trials import mean_of
from rayio.study.sweeps.sweep_directory import SweepDirectory

BATCH, SIZE, COMPUTE = 4, 1 << 20, 0.05
#: Bytes per second that one accelerator asks for.
DEMAND = BATCH * SIZE / COMPUTE


def planted(bandwidth: float, **more: Any) -> dict[str, Any]:
    """A storage without latency that gives so many bytes per second to the whole cluster."""
    model = {"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": bandwidth, "scope": "cluster"}
    return {
        "dataset.path": "model://planted", "dataset.sample_bytes": SIZE, "dataset.num_files": 2 * BATCH * 100,
        "storage.model": model, "loader.batch_size": BATCH, "loader.num_workers": 1, "train.compute": COMPUTE,
        "train.epochs": 1, "train.steps": 60, "checkpoint": None,
    } | more  # fmt: skip


def found_in(folder: Path, overrides: dict[str, Any], **how: Any) -> CapacityFound:
    return capacity("unet3d-small", overrides, out=folder / "capacity", **how)


@pytest.mark.parametrize(
    ("accelerators", "target", "expected"),
    [(3.2, 0.9, 3), (2.3, 0.5, 4), (1.0, 0.9, 1), (5.2, 0.95, 5)],
)
def test_a_planted_bandwidth_feeds_what_arithmetic_says(
    tmp_path: Path, accelerators: float, target: float, expected: int
) -> None:
    """N ranks that need b each get min(1, B / (N b)) of it: the largest N is floor(B / (b target))."""
    assert int(accelerators / target) == expected
    found = found_in(tmp_path, planted(accelerators * DEMAND), target_au=target)
    assert found.accelerators == expected
    assert not found.is_at_least
    above = next(point for point in found.points if point.setting == expected + 1)
    assert above.au == pytest.approx(accelerators / (expected + 1), abs=0.02)
    assert above.bytes_per_second == pytest.approx(accelerators * DEMAND, rel=0.02)
    assert above.needed_bytes_per_second == pytest.approx((expected + 1) * DEMAND)
    best = found.changes[0]
    assert best.change == "twice the bandwidth of the storage"
    assert best.accelerators == int(2 * accelerators / target)


@pytest.mark.parametrize("target", [0.9, 0.55])
def test_trying_every_number_finds_the_same(tmp_path: Path, target: float) -> None:
    overrides = planted(2.7 * DEMAND, **{"train.compute": {"kind": "normal", "mean": 0.05, "stdev": 0.01}})
    question = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "virtual")
    each = [in_memory(question.scenario(number)).au or 0.0 for number in range(1, 7)]
    found = found_in(tmp_path, overrides, target_au=target, most=6)
    assert found.accelerators == sum(au >= target for au in each)
    assert all(point.au == pytest.approx(each[point.setting - 1]) for point in found.points if point.runs == 1)


def test_every_point_gives_an_accelerator_the_same_work(tmp_path: Path) -> None:
    whole = {"train.steps": None}
    question = Question.of("unet3d-small", planted(DEMAND, **whole), "cluster.ranks_per_node", "virtual")
    assert question.steps == 100
    for number in (1, 3, 8):
        assert question.scenario(number).dataset.num_files == number * BATCH * 100
    deep = planted(DEMAND, **whole, **{"loader.num_workers": 8})
    assert Question.of("unet3d-small", deep, "cluster.nodes", "virtual").steps == 400
    nodes = Question.of("unet3d-small", planted(DEMAND), "cluster.nodes", "virtual")
    assert nodes.accelerators(3) == 6
    capped = Question.of("unet3d-small", planted(DEMAND, **{"train.steps": 7}), "cluster.nodes", "virtual")
    assert capped.steps == 7


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("per_file", [1, 3, 100])
def test_files_that_workers_own_grow_with_their_number_too(workers: int, per_file: int) -> None:
    """Samples that fill no batch of a worker are left out, so a rank needs more files than its batches have samples."""
    owned = {
        "loader.assignment": "by_file", "loader.num_workers": workers, "loader.batch_size": 7, "loader.shuffle": "file",
        "dataset.samples_per_file": per_file, "dataset.num_files": 100,
    }  # fmt: skip
    question = Question.of("unet3d-small", planted(DEMAND, **owned), "cluster.ranks_per_node", "virtual")
    assert question.steps is not None
    for value in (1, 3, 50, 1000):
        assert question.refusal(value) is None
        grown = question.scenario(value)
        assert derive.steps_per_epoch(grown) == question.steps
        one_less = grown.dataset.num_files - derive.world_size(grown)
        fewer = grown.dataset.model_copy(update={"num_files": one_less})
        assert derive.steps_per_epoch(grown.model_copy(update={"dataset": fewer})) < question.steps


def test_a_small_dataset_of_a_model_grows_for_any_number_of_accelerators(tmp_path: Path) -> None:
    """Two batches of files at the scenario's own size are no bound: four ranks were refused for want of samples."""
    found = found_in(tmp_path, planted(4.4 * DEMAND, **{"dataset.num_files": 2 * BATCH}), most=8)
    assert (found.accelerators, found.is_at_least) == (4, False)
    assert not any("cannot be" in note for note in found.notes)


def test_what_cannot_be_searched_is_one_line(tmp_path: Path) -> None:
    def refused(match: str, overrides: dict[str, Any] | None = None, **how: Any) -> None:
        with pytest.raises(ScenarioError, match=match) as error:
            found_in(tmp_path, planted(DEMAND) | (overrides or {}), **how)
        assert "\n" not in str(error.value)

    refused("train.compute=0: without compute AU is 0 with any storage", {"train.compute": 0})
    refused("--over loader.shuffle: is global; give a key with a whole number", over="loader.shuffle")
    refused("--over loader.many: no such key", over="loader.many")
    refused("cluster.ranks_per_node is searched, and also set to 3", {"cluster.ranks_per_node": 3})
    refused("loader.num_workers has several values", {"loader.num_workers": [1, 2]})
    refused("--target-au 90: must be above 0 and at most 1", target_au=90)
    refused("--rules spec: must be mlperf", rules="spec")
    refused("--max 0: must be at least 1", most=0)
    refused("train.epochs=1: --rules mlperf needs 5", rules="mlperf")
    assert not (tmp_path / "capacity").exists()


def test_failures_are_left_out_of_every_number(tmp_path: Path) -> None:
    # AU counts no time lost to failures: bytes and changes that did would contradict it. Rank 3 is in no smaller point.
    events = [{"kind": "rank", "number": 3, "at_step": 20}, {"kind": "node", "at": "2 s"}]
    failing = planted(1.5 * DEMAND, failures={"events": events, "detect": "1 s", "restart": "2 s"})
    named = tmp_path / "failing.yaml"
    named.write_text("{extends: unet3d-small, name: failing, cluster: {ranks_per_node: 4}}")
    found = capacity(named, failing, out=tmp_path / "capacity")
    assert found.accelerators == 1
    assert sum("failures are left out" in note for note in found.notes) == 1
    for point in found.points:
        assert point.au is not None
        assert point.needed_bytes_per_second is not None
        assert point.bytes_per_second == pytest.approx(point.au * point.needed_bytes_per_second, rel=0.03)
    without = capacity(named, planted(1.5 * DEMAND, failures=None), out=tmp_path / "without")
    assert [point.au for point in found.points] == [point.au for point in without.points]
    assert found.changes == without.changes
    assert not any("failures" in note for note in without.notes)


def test_the_ends_of_the_search_are_said(tmp_path: Path) -> None:
    none = found_in(tmp_path / "none", planted(0.5 * DEMAND))
    assert (none.setting, none.accelerators, none.is_at_least) == (None, None, False)
    assert "does not feed one accelerator at AU ≥ 90 %: AU is 49." in text(none, 200)
    most = found_in(tmp_path / "most", planted(9 * DEMAND), most=4)
    assert (most.accelerators, most.is_at_least, most.binds) == (4, True, None)
    assert "feeds at least 4 accelerators at AU ≥ 90 %" in text(most, 100)


def test_the_same_search_goes_on_with_the_runs_that_are_there(tmp_path: Path) -> None:
    first = found_in(tmp_path, planted(2.5 * DEMAND))
    lines = (tmp_path / "capacity" / "points.jsonl").read_text().splitlines()
    again = found_in(tmp_path, planted(2.5 * DEMAND))
    assert (tmp_path / "capacity" / "points.jsonl").read_text().splitlines() == lines
    assert again == first
    lower = found_in(tmp_path, planted(2.5 * DEMAND), target_au=0.45)
    assert lower.accelerators == 5
    with pytest.raises(StorageError, match=r"holds a sweep with loader.num_workers=1, not 3"):
        found_in(tmp_path, planted(2.5 * DEMAND, **{"loader.num_workers": 3}))
    html = (tmp_path / "capacity" / "capacity.html").read_text(encoding="utf-8")
    assert "cluster.ranks_per_node" in html
    assert not (tmp_path / "capacity" / "sweep.html").exists()
    assert (tmp_path / "capacity" / "sweep.csv").read_text().count("\n") >= len(lines)


class _Heard(Reporter):
    """Keeps the texts of a search's progress, and the shares of it that are said to be done."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.shares: set[float | None] = set()

    def live(self, text: str, share: float | None = None) -> None:
        if text.startswith("ranks_per_node="):
            self.texts.append(text)
            self.shares.add(share)


def test_a_search_shows_its_points_and_no_time_left(tmp_path: Path) -> None:
    """Nobody knows how many points follow, and how often they are repeated."""
    heard = _Heard()
    found_in(tmp_path, planted(5.5 * DEMAND), reporter=heard)
    values = [int(re.findall(r"=(\d+)", text)[0]) for text in heard.texts]
    assert [*dict.fromkeys(values)][:4] == [1, 2, 4, 8]
    assert any("points so far, AU " in text for text in heard.texts)
    assert heard.texts[-1].endswith("; the answer is at least 6, below 8")
    assert heard.shares == {None}


class _Impatient(Reporter):
    """Presses Ctrl-C when three accelerators are tried."""

    def live(self, text: str, share: float | None = None) -> None:
        if text.startswith("ranks_per_node=3"):
            raise KeyboardInterrupt


def test_an_interrupted_search_leaves_the_points_that_it_found(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(3.2 * DEMAND), reporter=_Impatient())
    assert (found.is_finished, found.accelerators) == (False, 2)
    assert [point.setting for point in found.points] == [1, 2, 4]
    assert "feeds at least 2 and fewer than 4 accelerators at AU ≥ 90 % (search interrupted)" in text(found, 200)
    assert found_in(tmp_path, planted(3.2 * DEMAND)).accelerators == 3


class _MoreImpatient(Reporter):
    """Presses Ctrl-C at once."""

    def live(self, text: str, share: float | None = None) -> None:
        raise KeyboardInterrupt


def test_a_search_that_is_interrupted_at_once_claims_nothing(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(2.5 * DEMAND), reporter=_MoreImpatient())
    assert (found.is_finished, found.accelerators, found.points) == (False, None, ())
    assert text(found, 100) == "interrupted before the first point was over: nothing is known yet"


def test_many_more_workers_are_no_advice_where_they_add_nothing(tmp_path: Path) -> None:
    # Storage gives all that is wanted: the point reaches this target, and more workers do not change its AU.
    question = Question.of("unet3d-small", planted(9 * DEMAND), "cluster.ranks_per_node", "virtual")
    point = question.scenario(2)
    au = in_memory(point).au or 0.0
    assert widest(point, au - 0.01, "au", []) is None
    above_all = widest(point, 1.0 + 1e-6, "au", [])
    assert above_all is not None
    assert not above_all.holds


def test_checkpoints_are_changed_where_they_are_the_bottleneck(tmp_path: Path) -> None:
    saved = {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "100 MB"}, "writers": "sharded"}
    slow = planted(8 * DEMAND, checkpoint=saved)
    found = found_in(tmp_path, slow, most=4)
    assert found.bottleneck is not None
    assert found.bottleneck.bound == "checkpoint"
    best = next(change for change in found.changes if change.change == "checkpoint.asynchronous=true")
    made = in_memory(Question.of("unet3d-small", slow, "cluster.ranks_per_node", "virtual").scenario(1))
    assert (best.au_without or 0) == pytest.approx(made.au, abs=0.01)
    done = {**slow, "checkpoint": {**saved, "asynchronous": True}}
    made = in_memory(Question.of("unet3d-small", done, "cluster.ranks_per_node", "virtual").scenario(1))
    assert best.au == pytest.approx(made.au, abs=0.01)


@pytest.mark.parametrize(
    ("bandwidth", "compute", "fed_with"),
    [(1e9, 0.05, 3), (3.4e8, {"kind": "exponential", "mean": 0.1}, None)],
    ids=["runs are alike", "undecided"],
)
def test_what_a_change_feeds_is_judged_as_the_answer_is(
    bandwidth: float, compute: Any, fed_with: int | None, tmp_path: Path
) -> None:
    # The first run of one more accelerator reaches the target, and its interval contains the target: more runs decide.
    saved = {"every": {"steps": 20}, "path": "ck", "model": {"bytes": "100 MB"}, "writers": "sharded"}
    asked = {
        "dataset.path": "model://x", "dataset.sample_bytes": 4_000_000, "train.epochs": 1, "train.steps": 60,
        "train.compute": compute, "loader.batch_size": 4, "loader.num_workers": 2, "checkpoint": saved,
        "storage.model": {
            "first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": bandwidth, "scope": "cluster",
        },
    }  # fmt: skip
    found = found_in(tmp_path, asked, most=4)
    best = next(change for change in found.changes if change.holds)
    assert (best.change, best.accelerators) == ("checkpoint.asynchronous=true", fed_with)
    assert ("not sure whether that is enough" in " ".join(remedy(found))) is (fed_with is None)
    made = found_in(tmp_path / "made", asked | {"checkpoint": {**saved, "asynchronous": True}}, most=4)
    assert made.accelerators == fed_with


def test_undecided_numbers_are_a_range(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(2.5 * DEMAND))
    holds, fails = (next(p for p in found.points if (p.status == HOLDS) is wanted) for wanted in (True, False))
    unsure = [replace(fails, setting=n, accelerators=n, status=UNDECIDED) for n in (3, 4, 7)]
    assert "; 3 to 7: undecided" in fed(replace(found, points=(holds, *unsure)))
    between = replace(fails, setting=5, accelerators=5)
    assert "; 3 and 4 and 7: undecided" in fed(replace(found, points=(holds, *unsure, between)))


def test_a_target_within_the_noise_is_repeated_with_other_seeds_and_called_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is the AU itself, so that no number of runs can tell the two apart."""
    overrides = planted(1.5 * DEMAND, **{"train.compute": {"kind": "exponential", "mean": 0.05}})
    question = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "virtual")
    scenario = question.scenario(2)
    each = [in_memory(scenario.model_copy(update={"seed": scenario.seed + n})).au or 0.0 for n in range(4)]
    found = found_in(tmp_path, overrides, target_au=float(np.mean(each)), most=2)
    point = found.points[-1]
    assert (point.setting, point.status, point.runs, found.accelerators) == (2, UNDECIDED, 4, 1)
    assert point.au == pytest.approx(np.mean(each))
    assert "2: undecided" in text(found, 200)
    assert any(note.startswith("undecided: cluster.ranks_per_node=2: after 4 runs") for note in found.notes)

    def overtaking(calls: Sequence[Any], seconds: float) -> Iterator[tuple[int, Any]]:
        yield from [(number, call()) for number, call in enumerate(calls)][::-1]

    monkeypatch.setattr("rayio.machine.calls.answers", overtaking)
    together = found_in(tmp_path / "together", overrides, target_au=float(np.mean(each)), most=2)
    assert together.points == found.points, "whichever repeat ends first"


def test_an_undecided_first_number_is_not_called_too_much(tmp_path: Path) -> None:
    """A mean above the target, of which the interval still has the target: no "does not feed: AU is 90.6 %"."""
    overrides = planted(0.97 * DEMAND, **{"train.compute": {"kind": "exponential", "mean": 0.05}})
    question = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "virtual")
    scenario = question.scenario(1)
    each = [in_memory(scenario.model_copy(update={"seed": scenario.seed + n})).au or 0.0 for n in range(4)]
    found = found_in(tmp_path, overrides, target_au=float(np.mean(each)) - 1e-3, most=1)
    (point,) = found.points
    assert (point.status, found.accelerators) == (UNDECIDED, None)
    first = text(found, 300).splitlines()[0]
    assert "does not feed" not in first
    assert f"is undecided: AU is {with_interval(point.au, point.au_high)} with it" in first
    of_two_nodes = replace(found, points=(replace(point, accelerators=2),))
    assert fed(of_two_nodes).startswith("feeds 2 accelerators or none at AU ≥ ")
    assert fed(of_two_nodes).endswith(" with them")


def test_the_rules_of_mlperf(tmp_path: Path) -> None:
    """DLIO's AU leaves out the first step of an epoch, which is all that is lost here."""
    slow = {"loader.prefetch_factor": 1, "train.epochs": 5, "train.steps": None}
    overrides = planted(1.2 * DEMAND, **slow)
    question = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "virtual", "mlperf")
    assert (question.steps, question.base.train.epochs) == (500, 5)
    assert question.scenario(2).dataset.num_files == 2 * BATCH * 500
    memory = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "virtual", "mlperf", 4 << 30)
    assert memory.scenario(2).dataset.num_files == 5 * (4 << 30) // SIZE
    found = found_in(tmp_path, overrides, rules="mlperf", most=1)
    assert (found.accelerators, found.formula, found.target_au) == (1, "au_dlio", 0.9)
    assert found.points[0].au == pytest.approx(1.0, abs=0.01)
    assert "at AU as DLIO counts it ≥ 90 %" in " ".join(text(found, 100).split())
    assert any("give it with --host-memory" in note for note in found.notes)
    assert any("checked: AU by DLIO's formula (required: 90 %), 5 epochs" in note for note in found.notes)
    assert any("not checked: five runs after a warm-up run" in note for note in found.notes)


def test_the_interval_of_several_runs_covers_the_mean_in_nineteen_of_twenty() -> None:
    """Each run has an interval of its own, here Student's of ten normal numbers; their mean keeps the coverage."""
    random = np.random.default_rng(11)
    draws = random.normal(0.8, 0.05, (1000, 3, 10))
    covered = []
    for runs in draws:
        each = [spread(run.tolist()) for run in runs]
        found = mean_of([(one.mean, one.mean - (one.ci95 or 0.0), one.mean + (one.ci95 or 0.0)) for one in each])
        covered.append(found is not None and found.low <= 0.8 <= found.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)
    # On a machine with other work, runs differ by more than their own intervals say.
    apart = [mean_of([(au, au - 0.02, au + 0.02) for au in runs]) for runs in random.normal(0.8, 0.1, (1000, 3))]
    assert np.mean([found is not None and found.low <= 0.8 <= found.high for found in apart]) > 0.92
    # A checkpoint every few steps makes batches of steps differ, and runs alike: three runs tell their own scatter.
    alike = [mean_of([(au, au - 0.1, au + 0.1) for au in runs]) for runs in random.normal(0.8, 0.003, (1000, 4))]
    assert np.mean([found is not None and found.low <= 0.8 <= found.high for found in alike]) > 0.93
    assert np.median([found.high - found.low for found in alike if found is not None]) < 0.02
    assert mean_of([(0.8, 0.7, 0.9), (0.8, None, None)]) is None
    assert mean_of([]) is None


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "the model nvme (simulated)"),
        ({}, "the storage model of unet3d-small (simulated)"),
        ({"source": "our array's data sheet"}, "the storage model of our array's data sheet (simulated)"),
        ({"provenance": "fitted", "source": "fitted to the reads of r"}, "the model fitted to the reads of r (simul"),
    ],
    ids=["preset", "parameters", "with a source", "fitted"],
)
def test_the_headline_names_the_storage(tmp_path: Path, told: dict[str, str] | None, said: str) -> None:
    overrides = planted(9 * DEMAND, **{"train.steps": 20})
    overrides["storage.model"] = "nvme" if told is None else overrides["storage.model"] | told
    assert text(found_in(tmp_path, overrides, most=1), 100).startswith(said)


def test_what_is_before_the_model_is_no_part_of_its_name(tmp_path: Path) -> None:
    before = {"storage.cache": [[{"tier": "ram", "bytes": "1 MB"}]], "storage.throttle": {}}
    found = found_in(tmp_path, planted(9 * DEMAND, **{"train.steps": 20}, **before), most=1)
    assert found.storage_in_words == "the storage model of unet3d-small"


def test_a_point_has_the_interval_of_its_run(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(1.5 * DEMAND), most=2)
    (row,) = [row for row in SweepDirectory(tmp_path / "capacity").rows() if row.values == (2,)]
    point = next(point for point in found.points if point.setting == 2)
    assert row.result is not None
    assert row.result.au_interval_low is not None
    assert row.result.au_interval_high is not None
    half = (row.result.au_interval_high - row.result.au_interval_low) / 2
    assert half < 0.1, "cut at neither end"
    assert (point.au_low, point.au_high) == pytest.approx(((row.result.au or 0) - half, (row.result.au or 0) + half))


@pytest.mark.parametrize("most", [1, 2, 7, 30])
def test_the_search_finds_the_answer_whatever_is_guessed(most: int) -> None:
    for answer in range(40):
        check_search(answer, most)


def check_search(answer: int, most: int) -> None:
    expected = min(answer, most)
    for guess in (lambda known, failed: None, lambda known, failed: 10**9, lambda known, failed: 1):
        asked: list[int] = []

        def holds(number: int, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= answer

        found = largest(holds, most, guess=guess)
        assert found == Bracket(expected, answer + 1 if answer < most else None)
        assert len(asked) == len(set(asked)) <= 16
    wanted = smallest(lambda n: n >= answer, most)
    assert wanted == (answer if answer < most else None)


def test_what_should_fall_and_rises_is_told() -> None:
    assert falls([(4, 0.5, 0.01), (1, 0.9, 0.01), (2, 0.8, 0.02)]) == []
    assert falls([(1, 0.5, 0.01), (2, 0.6, 0.01), (3, 0.61, 0.02)]) == [(1, 2)]


def test_processors_that_are_busy(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 5 20 700 50 3 2 1 0 0\ncpu0 1 2 3\n")
    assert processor_times(stat) == (131, 881)
    stat.write_text("nothing of it\n")
    assert processor_times(stat) is None
    assert processor_times(tmp_path / "none") is None


def test_the_command_prints_the_answer_and_its_schema_holds(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")

    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["capacity", "unet3d-small", *arguments])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    given = [f"{key}={json.dumps(value)}" for key, value in planted(2.5 * DEMAND).items()]
    code, out, _ = command(*given, "--out", "found")
    assert code == 0
    assert "the storage model of unet3d-small (simulated) feeds 2 accelerators at AU ≥ 90 %" in out
    assert "With twice the bandwidth of the storage: 5 accelerators (AU of 3: " in " ".join(out.split())
    assert max(len(line) for line in out.splitlines() if "capacity.html" not in line) <= 100
    code, out, _ = command(*given, "--out", "found", "--json")
    content = json.loads(out)
    jsonschema.Draft202012Validator(answer_schema("capacity")).validate(content)
    assert (code, content["accelerators"], content["points"][0]["status"]) == (0, 2, HOLDS)
    code, _, err = command(*given, "--over", "name")
    assert (code, err.count("\n")) == (2, 1)
    code, out, _ = command(*given[:3], "storage.model=s3", "train.epochs=1", "--max", "1", "--out", "none")
    assert code == 3
    code, _, err = command(*given, "--host-memory", "1 GB")
    assert (code, err.count("\n")) == (2, 1)


def undisturbed(scenario: Scenario, *, engine: str, out: Path, root: Path, ended: Any, **_: Any) -> None:
    """Run as an engine whose wall clock no other work disturbs: the directory says that it did."""
    made = simulate(scenario, out=out, root=root)
    info = made.path / "run.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"engine": engine}))
    ended(made)


def test_on_a_wall_clock_the_run_that_missed_teaches_what_would_move_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By arithmetic 2.3 times what one needs feed two at 90 %, and twice that five."""
    monkeypatch.setattr("rayio.study.sizing.trials.run_one", undisturbed)
    overrides = planted(2.3 * DEMAND, **{"train.steps": 40})
    how: dict[str, Any] = {"engine": "local", "most": 8, "root": tmp_path}
    found = found_in(tmp_path, overrides, **how)
    assert found.accelerators == 2
    best = found.changes[0]
    assert (best.change, best.holds, best.accelerators) == ("twice the bandwidth of the storage", True, 5)
    assert not any(change.holds for change in found.changes[1:]), "no other limit binds"
    assert "With twice the bandwidth of the storage: 5 accelerators (AU of 3: " in text(found, 200)

    def forgets(run: Path, **_: Any) -> Calibration:
        """A calibration that has lost the limit."""
        learned = Calibration.of(calibrate(run))
        return replace(learned, scenario=learned.scenario.model_copy(update={"storage": Storage(model="memory")}))

    monkeypatch.setattr("rayio.study.sizing.knee.calibrated", forgets)
    again = found_in(tmp_path, overrides, **how)
    assert (again.accelerators, again.changes) == (2, ())
    doubt = next(doubt for doubt in again.doubts if doubt.code == "not_reproduced")
    assert doubt.sentence.startswith("No prediction: the model gives AU ")
    assert "the run had 7" in doubt.sentence

    def refuses(run: Path, **_: Any) -> Calibration:
        raise RunError("too few steps")

    assert "No single change" not in text(again, 200)
    monkeypatch.setattr("rayio.study.sizing.knee.calibrated", refuses)
    assert "No prediction: too few steps" in found_in(tmp_path, overrides, **how).notes


NOTES = [each for each in vars(sizing_notes).values() if isinstance(each, type) and issubclass(each, SizingNote)][1:]


@pytest.mark.parametrize("kind", NOTES)
def test_every_note_of_a_search_has_a_sentence_with_its_values(kind: type[SizingNote]) -> None:
    values = {
        "int": 3, "float": 0.75, "str": "loader.num_workers", "int | None": 7, "str | None": "gone",
        "tuple[int, ...]": (4, 5), "tuple[str, ...]": ("a.b", "c.d"), "NoBusyRun | NotFull": NoBusyRun("gone"),
    }  # fmt: skip
    given = {field.name: values[str(field.type)] for field in fields(kind)}
    text = " ".join(worded([kind(**given)]))
    assert text
    shown = [item for value in given.values() for item in (value if isinstance(value, tuple) else [value])]
    assert all(str(value) in text for value in shown if isinstance(value, int | str)), text


def test_the_runs_of_a_search_may_be_in_a_bucket_and_may_be_gone(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search itself is in the working folder; its runs start from the root, and the last one is explained."""
    monkeypatch.chdir(tmp_path)
    keys = planted(0.4 * DEMAND, **{"train.steps": 14, "train.compute": 0.02})
    found = capacity("unet3d-small", keys, engine="local", most=1, root=place)
    assert found.bottleneck is not None
    assert found.bottleneck.cause == "read"
    assert {name.split("-")[0] for name in storage.open(f"{place}/capacity/unet3d-small/runs").entries()} == {"00001"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = capacity("unet3d-small", keys, engine="local", most=1, root=place)
    assert again.points[0].runs, "the runs of another folder's search, of the same name, are left alone"

    storage.open(f"{place}/capacity/unet3d-small/runs").remove_all()
    gone = capacity("unet3d-small", keys, engine="local", most=1, root=place)
    assert (gone.points, gone.bottleneck) == (again.points, None)
    assert "No prediction: the run directory of cluster.ranks_per_node=1 was removed" in gone.notes


def test_files_that_are_there_are_read_and_the_page_cache_is_told(tmp_path: Path) -> None:
    """On the local engine: few small files, so that the page cache gives all; the storage is not named in that."""
    overrides = {
        "dataset.path": "data", "dataset.num_files": 48, "dataset.sample_bytes": 4096, "loader.batch_size": 2,
        "loader.num_workers": 1, "train.compute": 0.04, "train.epochs": 1, "checkpoint": None,
    }  # fmt: skip
    found = capacity(
        "unet3d-small", overrides, target_au=0.001, engine="local", most=2, root=tmp_path, out=tmp_path / "found"
    )
    share = found.points[-1].page_cache_share
    is_cached = share is not None and share > 0.05
    assert (found.accelerators, found.is_at_least, found.storage) == (None if is_cached else 2, not is_cached, "data")
    inside = mount_of(tmp_path / "data", mounts_here())
    assert inside is None or inside.point in found.storage_in_words, "a mount of the kernel's own table"
    if is_cached:
        answer = f"{found.storage_in_words} (engine local): no answer how many accelerators it feeds at AU ≥ 0.1 %"
        assert (found.changes, found.combination) == ((), None)
    else:
        answer = f"{found.storage_in_words} (engine local) feeds at least 2 accelerators"
    assert answer in " ".join(text(found, 100).split())
    assert [point.status for point in found.points] == [HOLDS, HOLDS]
    assert found.points[-1].steps is not None
    assert (tmp_path / "found" / "runs" / "00002-0" / "result.json").is_file()
    assert any(doubt.code == "page_cache" for doubt in found.doubts) == is_cached
    if (shares := [point.page_cache_share for point in found.points if point.page_cache_share is not None]) != []:
        said = f"at least {100 - 100 * max(shares):.1f} % came from the device or the server"
        assert said in " ".join(text(found, 100).split())
    small = Question.of("unet3d-small", overrides, "cluster.ranks_per_node", "local")
    assert small.scenario(2).train.epochs == 2  # 12 steps an epoch: two epochs for an interval
    assert "has 2 steps on 12 accelerators, but a point needs 3; use dataset.num_files=72" in str(small.refusal(12))
    limited = capacity(
        "unet3d-small", overrides, target_au=0.001, engine="local", root=tmp_path, out=tmp_path / "more", most=9
    )
    assert limited.points[-1].accelerators == 8
    assert limited.points[-1].status == HOLDS
    assert any("cluster.ranks_per_node=9 is invalid: " in note for note in limited.notes)


#: One connection gives a tenth of what an accelerator needs: two changes that each double it are not enough for one.
def slow_connections(**more: Any) -> dict[str, Any]:
    model = {"first_byte": 0, "connection_bandwidth": DEMAND / 10, "bandwidth": 100 * DEMAND, "scope": "cluster"}
    return planted(1.0) | {"storage.model": model, "train.steps": None, "loader.num_workers": 1} | more


def test_where_no_change_is_enough_a_pair_is_tried_and_holds_if_it_is_really_made(tmp_path: Path) -> None:
    """Two fifths of the need: twice the workers and twice the rate of a connection are 1.6 times it."""
    model = slow_connections()["storage.model"] | {"connection_bandwidth": 0.4 * DEMAND}
    found = found_in(tmp_path, slow_connections(**{"storage.model": model}), most=4)
    assert found.accelerators is None
    (pair,) = [change for change in found.changes if change.is_pair]
    assert pair.change == "loader.num_workers=2 and twice the bandwidth of a connection"
    assert pair.holds
    assert not any(change.holds for change in found.changes if not change.is_pair)
    sentences = " ".join(text(found, 200).split())
    assert "No single change is enough for 1. With loader.num_workers=2 and twice the bandwidth of a" in sentences
    doubled = model | {"connection_bandwidth": 0.8 * DEMAND}
    made = found_in(tmp_path / "made", slow_connections(**{"storage.model": doubled, "loader.num_workers": 2}), most=4)
    assert (pair.accelerators, pair.is_at_least) == (made.accelerators, made.is_at_least)
    assert pair.au == pytest.approx(made.points[0].au, abs=0.02)


def test_where_no_pair_is_enough_advise_is_named_and_finds_a_setting(tmp_path: Path) -> None:
    import shlex

    from rayio.study.sizing.advise import advise

    found = found_in(tmp_path, slow_connections(), most=2)
    assert found.accelerators is None
    assert not any(change.holds for change in found.changes)
    assert found.combination is not None
    assert found.combination.holds
    typed = shlex.split(command(found))
    assert typed[:3] == ["rayio", "advise", "unet3d-small"]
    assert "cluster.ranks_per_node=1" in typed
    assert " ".join(command(found).split()) in " ".join(text(found, 100).split())
    reach, vary = (typed[typed.index(option) + 1] for option in ("--reach", "--vary"))
    overrides = typed[3 : typed.index("--reach")]
    advised = advise("unet3d-small", overrides, vary=vary, reach=reach, out=tmp_path / "advised")
    assert advised.advice is not None, "the command that is named finds what it promises"
    workers, depth = advised.advice.values
    assert isinstance(workers, int)
    assert isinstance(depth, int)
    assert workers * depth >= 9


def test_on_a_wall_clock_advise_is_named_with_the_file_of_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 1 ms, and a connection that gives a tenth of what they need. Nothing is learned, as that takes load."""
    import shlex

    from rayio.study.sizing.advise import advise

    model = slow_connections()["storage.model"] | {"connection_bandwidth": 5 * DEMAND}
    keys = slow_connections(**{"storage.model": model, "train.compute": 0.001, "loader.prefetch_factor": 1})
    monkeypatch.setattr("rayio.study.sizing.capacity.learned", lambda *_: lambda scenario: scenario)
    found = found_in(tmp_path, keys, most=1, engine="local")
    typed = shlex.split(command(found))
    assert typed[:3] == ["rayio", "advise", str(tmp_path / "capacity" / "calibrated.yaml")]
    reach, vary = (typed[typed.index(option) + 1] for option in ("--reach", "--vary"))
    assert advise(typed[2], vary=vary, reach=reach, out=tmp_path / "advised").advice is not None


def test_what_no_setting_can_reach_names_no_command(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(0.2 * DEMAND), most=2)
    assert found.combination is not None
    assert not found.combination.holds
    assert command(found) == ""
    assert found.combination.au == pytest.approx(0.2, abs=0.01)
    assert "Even 16 workers with 8 requests in flight each reach only AU " in " ".join(text(found, 200).split())


def test_a_change_that_hardly_moves_au_is_no_advice(tmp_path: Path) -> None:
    """Of a step of 50 ms reading takes none that shows: 0.3 points would be gained with all storage in the world."""
    found = found_in(tmp_path, planted(3.2 * DEMAND), target_au=0.9)
    assert all((change.au or 0) - (change.au_without or 0) >= 0.01 for change in found.changes)
    assert all(1 - (change.au_without or 0) / (change.au or 1) >= 0.02 for change in found.changes)


def test_a_key_that_is_proposed_does_what_is_promised(tmp_path: Path) -> None:
    """Two workers where one reads as fast as half an accelerator needs: the same search with that key agrees."""
    model = slow_connections()["storage.model"] | {"connection_bandwidth": 0.6 * DEMAND}
    found = found_in(tmp_path, slow_connections(**{"storage.model": model}), most=4)
    best = next(change for change in found.changes if change.accelerators is not None)
    assert best.change == "loader.num_workers=2"
    made = found_in(tmp_path / "made", slow_connections(**{"storage.model": model, "loader.num_workers": 2}), most=4)
    assert (best.accelerators, best.is_at_least) == (made.accelerators, made.is_at_least)
    assert best.au == pytest.approx(made.points[0].au, abs=0.02)


RARE: dict[str, dict[str, Any]] = {
    "checkpoints": {"checkpoint": {"every": {"epochs": 2}, "path": "saved", "model": {"bytes": "1 GB"}}},
    "evaluations": {
        "train.evaluate": {"every": {"epochs": 1}, "compute": "50 ms"}, "dataset.eval": {"num_files": 80},
    },
}  # fmt: skip


@pytest.mark.parametrize("rare", RARE)
def test_a_longer_epoch_is_no_remedy_for_what_comes_by_epochs(rare: str, tmp_path: Path) -> None:
    """A tenth of the time goes to checkpoints or evaluations every so many epochs: no prefetching makes them fewer."""
    model = {"first_byte": 0, "connection_bandwidth": "100 MB/s", "bandwidth": "100 MB/s", "scope": "cluster"}
    keys = slow_connections(**{"storage.model": model, "train.epochs": 4} | RARE[rare])
    found = found_in(tmp_path, keys, target_au=0.95, most=1)
    au = found.points[0].au
    assert au is not None
    assert au < 0.92, "they cost a tenth"
    for change in found.changes:
        if (override := change.change).startswith("loader."):
            assert change.au_without == pytest.approx(au, abs=0.005)
            key, _, number = override.partition("=")
            made = in_memory(load("unet3d-small", keys | {key: int(number)})).au
            assert change.au == pytest.approx(made, abs=0.01), override


@pytest.mark.parametrize(
    ("steps", "epochs", "every"),
    [(40_000, 3, {"steps": 10_000}), (40_000, 3, {"epochs": 1}), (20_000, 3, {"epochs": 1}), (8_000, 9, {"epochs": 3})],
)
def test_a_run_that_is_shortened_keeps_the_rhythm_of_its_checkpoints(
    steps: int, epochs: int, every: dict[str, int]
) -> None:
    keys = planted(1e12) | {"dataset.num_files": BATCH * steps, "train.steps": None, "train.epochs": epochs}
    long = load("unet3d-small", keys | {"checkpoint": {"every": every, "path": "saved", "model": {"bytes": "1 GB"}}})
    short = shortened(long)
    assert total_steps(short) < total_steps(long)
    assert num_checkpoints(short) / total_steps(short) == num_checkpoints(long) / total_steps(long) > 0


@pytest.mark.parametrize("bandwidth", [2.5, 0.5])
def test_every_number_of_the_answer_is_the_same_on_the_page(tmp_path: Path, bandwidth: float) -> None:
    jitter = {"train.compute": {"kind": "normal", "mean": 0.05, "stdev": 0.01}, "train.steps": None}
    found = found_in(tmp_path, planted(bandwidth * DEMAND, **jitter), most=4)
    seen = check((tmp_path / "capacity" / "capacity.html").read_text(encoding="utf-8"))
    words = " ".join(seen.words.split())
    shown = text(found, 300)
    words = words.replace(" .", ".")
    lead, *lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lead.partition(") ")[2][1:] in words
    for line in lines:
        for cell in filter(None, (cell.strip("█ ") for cell in line.removeprefix("note: ").split("  "))):
            assert cell.replace("`", "") in words, cell
    assert "target: 90 %" in words


def test_the_bottleneck_names_no_rates_or_advice_of_another_model(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(2.5 * DEMAND))
    assert found.bottleneck is not None
    assert (found.bottleneck.bound, found.bottleneck.resource) == ("input", "bandwidth")
    assert found.binds == found.bottleneck.sentence
    assert "predicted" not in found.binds
    assert "need" not in found.binds


def test_names_in_a_capacity_page_are_escaped(tmp_path: Path) -> None:
    found = found_in(tmp_path, planted(2.5 * DEMAND), most=1)
    html = page(replace(found, scenario="<script>alert(1)</script>", storage_in_words="<b>", notes=("<i>",)))
    assert "<script>alert" not in html
    assert "<b>" not in html.partition("<header>")[2].partition("</p><div")[0].replace("<b>To do", "")
    check(html)
