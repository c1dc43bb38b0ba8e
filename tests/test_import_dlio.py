"""Result folders of DLIO, made here by hand and one that was published: what comes out, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pages import check

from rayio.cli import main
from rayio.errors import DataError, RunError, StorageError
from rayio.imports.dlio_losses import LOSSES, batch_size, losses
from rayio.imports.dlio_results import read
from rayio.kinds import STORAGE_MODELS
from rayio.predict.calibrate import calibrate
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text import explanation
from rayio.scenario.derive import compute_times
from rayio.scenario.load import load
from rayio.session.imported import import_dlio_results
from rayio.session.result import Run

PUBLISHED = Path(__file__).parents[2] / "shared" / "mlperf-storage-v1.0" / "hpe-unet3d-h100-run-1"

STEPS, COMPUTE = 4, 1.0
#: Seconds of load per step, and what each rank's bookkeeping adds to a step.
LOADS = [[3.0, 0.1, 0.1, 0.1], [2.0, 0.2, 0.3, 0.1]]
BOOKKEEPING = 0.1
#: The slowest rank's steps take 4.1 + 1.3 + 1.4 + 1.2 s of a block of 10 s: 2 s are in no record.
BLOCK = 10.0


def clock(seconds: float) -> str:
    return f"2024-09-02T13:{int(seconds) // 60:02d}:{seconds % 60:09.6f}"


def au(rank: int) -> float:
    """DLIO's formula: Σ compute[1:] / (block - proc[0])."""
    return 100 * (STEPS - 1) * COMPUTE / (BLOCK - (LOADS[rank][0] + COMPUTE + BOOKKEEPING))


def entry(rank: int, blocks: int = 1) -> dict[str, Any]:
    names = [f"block{number + 1}" for number in range(blocks)]
    proc = [load + COMPUTE + BOOKKEEPING for load in LOADS[rank]]
    return {
        "load": dict.fromkeys(names, LOADS[rank]),
        "proc": dict.fromkeys(names, proc),
        "compute": {name: [COMPUTE] * STEPS for name in names},
        "au": {name: au(rank) for name in names},
        "throughput": dict.fromkeys(names, STEPS * 5 / BLOCK),
    }


def bomb() -> str:
    """Nine lines that stand for a billion values."""
    return "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two ranks, two epochs of one block of four steps each, a checkpoint at the end."""
    folder = tmp_path / "results"
    folder.mkdir()
    epochs = ("1", "2")
    for rank in range(2):
        write(folder, f"{rank}_output.json", {"hostname": "h", **{epoch: entry(rank) for epoch in epochs}})
    stats: dict[str, dict[str, Any]] = {
        epoch: {"start": clock(at), "block1": {"start": clock(at + 1), "end": clock(at + 11)}, "end": clock(at + 11)}
        for epoch, at in zip(epochs, (2, 14), strict=True)
    }
    stats["2"]["ckpt1"] = {"start": clock(26), "end": clock(26.5), "duration": "0.50"}
    write(folder, "per_epoch_stats.json", stats)
    mean = (au(0) + au(1)) / 2
    summary = {
        "start": clock(0), "end": clock(27), "num_accelerators": 2, "num_hosts": 1, "hostname": "h", "epochs": 2,
        "num_files_train": 40, "num_samples_per_file": 1, "data_size_per_host_GB": 40 * 4096 / 2**30,
        "metric": {"train_au_percentage": [mean, mean], "train_au_mean_percentage": mean,
                   "train_throughput_mean_samples_per_second": 4.0, "train_throughput_stdev_samples_per_second": 0.0},
    }  # fmt: skip
    write(folder, "summary.json", summary)
    return folder


def changed(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    value = json.loads((folder / name).read_text())
    change(value)
    write(folder, name, value)


def test_the_lost_points_are_what_a_hand_finds_and_sum_to_100(results: Path) -> None:
    table = losses(read(results))
    total = [BLOCK - 4.1, BLOCK - 3.1]  # each rank's T
    by_hand = {
        "au": (3 / total[0] + 3 / total[1]) / 2,
        "data_wait": (0.3 / total[0] + 0.6 / total[1]) / 2,
        "bookkeeping": (0.3 / total[0] + 0.3 / total[1]) / 2,
        "barrier_skew": (0.3 / total[0] + 0.0) / 2,
        "first_step_wait": (0.0 + 1.0 / total[1]) / 2,
        "unrecorded": (2 / total[0] + 2 / total[1]) / 2,
    }
    for row in table:
        assert row == pytest.approx({name: 100 * share for name, share in by_hand.items()})
        assert sum(row.values()) == pytest.approx(100, abs=1e-9)


def test_an_import_is_a_run_that_can_be_opened_and_read(results: Path, tmp_path: Path) -> None:
    run = import_dlio_results(results, tmp_path / "run")
    result = Run.open(tmp_path / "run").result
    told = result["imported"]
    assert run.directory.info["imported"]["from"] == "dlio-results"
    assert result["steps"] == 2 * 2 * STEPS
    assert result["time"]["compute"] == 2 * 2 * STEPS * COMPUTE
    assert result["time"]["data_wait"] == pytest.approx(2 * (3.3 + 2.6))
    assert result["time"]["sync"] == pytest.approx(2 * (0.3 + 1.0))
    assert result["time"]["checkpoint"] == 0.5
    assert result["mib_per_second"] is None
    assert result["samples_per_second_dlio"] == 4.0
    assert result["au_dlio"] == told["au"] == pytest.approx(told["published_au"])
    text = run.summary()
    assert "imported from results of DLIO: 16 steps of 2 ranks" in text
    assert "in no record of the results" in text
    assert all(f"\n  {name} " in text for name in LOSSES)


def test_the_report_of_an_import_charges_nothing_to_rayio(results: Path, tmp_path: Path) -> None:
    run = import_dlio_results(results, tmp_path / "r")
    page = check(report(run.path).read_text(encoding="utf-8"))
    assert "imported from results of DLIO" in page.words
    assert "barrier_skew" in page.words
    assert {"slices", "heat-pace", "loss"} <= {*page.ids}
    assert "access" not in page.ids
    before, _ = page.words.split("What colours and numbers mean")
    assert "rayio's own" not in before
    assert "in no record of the results" in before


def test_an_import_is_explained_without_blaming_rayio(results: Path, tmp_path: Path) -> None:
    made = import_dlio_results(results, tmp_path / "run")
    found = explain(made.path)
    other = next(row for row in found["verdict"]["table"] if row["cause"] == "other")
    assert other["meaning"] == "in no record of the results"
    assert "overhead" not in found["sentence"]
    assert not any("trace.level" in note for note in found["notes"])
    assert found["simulated"] is None
    assert (found.origin and found.origin.kind) == "imported"
    named = f"rayio simulate {made.path}/scenario.yaml storage.model=NAME ({', '.join(STORAGE_MODELS)},"
    assert f"to predict from it, name its storage: {named} or parameters)" in found["notes"]
    assert explanation.text(found).startswith("results, imported from results of DLIO\n")
    assert found["imported"]["lost_points"] == made.result["imported"]["lost_points"]
    shown = explanation.text(found)
    assert all(f"\n  {name} " in shown for name in LOSSES)


def test_an_import_leads_with_the_split_of_its_own_benchmark(results: Path, tmp_path: Path) -> None:
    made = import_dlio_results(results, tmp_path / "run")
    found, told = explain(made.path), made.result.imported
    assert told is not None
    assert told.lost_points is not None
    assert told.au is not None
    points = {name: getattr(told.lost_points, name) for name in LOSSES}
    most = max(points, key=lambda name: points[name])
    assert found.sentence.startswith(f"AU {told.au:.2f} % by DLIO's formula; of the {100 - told.au:.2f} points")
    assert f"{points[most]:.2f} are {most} ({LOSSES[most]})" in found.sentence
    assert "-bound" not in found.sentence
    shown = explanation.text(found)
    assert shown.index("where DLIO's AU lost its points") < shown.index("of step time went")
    assert shown.count("\n  unrecorded ") == 1, "one meaning on a screen"
    waited = next(row for row in found.verdict.table if row.cause == "data_wait")
    assert waited.share == pytest.approx(1 - (found.verdict.au or 0) - sum(
        row.share or 0 for row in found.verdict.table if row.cause != "data_wait"))  # fmt: skip
    html = report(made.path).read_text(encoding="utf-8")
    assert html.index("as DLIO counts") < html.index("as rayio counts")
    assert html.partition("as rayio counts")[2].count('data-cause="unrecorded"') == 0
    assert f"<b>{points[most]:.2f} points</b>" in html


def test_an_import_is_not_calibrated(results: Path, tmp_path: Path) -> None:
    made = import_dlio_results(results, tmp_path / "run")
    with pytest.raises(RunError, match="was imported: its results say nothing of workers"):
        calibrate(made.path)


def test_the_phases_of_a_rank_do_not_overlap_and_lie_in_their_block(results: Path, tmp_path: Path) -> None:
    spans = import_dlio_results(results, tmp_path / "run").spans()
    for rank in range(2):
        lane = spans[(spans["rank"] == rank) & (spans["lane"] == 0)].sort_values("start_ns")
        starts, ends = lane["start_ns"].to_numpy(), (lane["start_ns"] + lane["duration_ns"]).to_numpy()
        assert (starts[1:] >= ends[:-1]).all()
    steps = spans[spans["name"].isin(["data_wait", "compute", "sync"])]
    assert steps["start_ns"].min() == 1725282003 * 10**9  # 13:00:03 UTC
    # Both ranks go into a step together: the barrier before it let them go.
    waits = spans[spans["name"] == "data_wait"].groupby(["epoch", "step"])["start_ns"].nunique()
    assert (waits == 1).all()


def test_the_scenario_has_what_the_results_know(results: Path, tmp_path: Path) -> None:
    run = import_dlio_results(results, tmp_path / "run")
    scenario = load(tmp_path / "run" / "scenario.yaml")
    assert (scenario.cluster.nodes, scenario.cluster.ranks_per_node) == (1, 2)
    assert (scenario.loader.batch_size, scenario.train.steps, scenario.train.epochs) == (5, STEPS, 2)
    assert scenario.dataset.sample_bytes.expected == 4096
    assert compute_times(scenario).expected == COMPUTE
    assert any("loader.num_workers" in note for note in run.result["notes"])


def test_the_configuration_beside_the_results_is_used(results: Path, tmp_path: Path) -> None:
    (results / ".hydra_config").mkdir()
    (results / ".hydra_config" / "config.yaml").write_text(
        "workload: {model: {name: mine}, dataset: {record_length_bytes: 8192},"
        " reader: {batch_size: 5, read_threads: 2, prefetch_size: 3}}"
    )
    import_dlio_results(results, tmp_path / "run")
    scenario = load(tmp_path / "run" / "scenario.yaml")
    assert (scenario.name, scenario.loader.num_workers, scenario.loader.prefetch_factor) == ("mine", 2, 2)
    assert scenario.dataset.sample_bytes.expected == 8192


def test_too_little_for_a_scenario_is_said_and_the_rest_is_imported(results: Path, tmp_path: Path) -> None:
    changed(results, "summary.json", lambda value: value.pop("num_files_train"))
    run = import_dlio_results(results, tmp_path / "run")
    assert run.directory.scenario is None
    assert any("no scenario.yaml: " in note for note in run.result["notes"])
    assert run.au is not None


@pytest.mark.parametrize("formula", ["v1.0", "later"])
def test_the_batch_size_is_found_by_either_formula_of_the_throughput(results: Path, formula: str) -> None:
    rate = {"v1.0": STEPS * 5 / BLOCK, "later": (STEPS - 2) * 5 / (BLOCK - 3.6)}[formula]
    for rank in range(2):
        changed(results, f"{rank}_output.json", lambda v: [v[e]["throughput"].update(block1=rate) for e in "12"])
    assert batch_size(read(results)) == 5


def test_without_a_batch_size_there_are_no_samples_per_second(results: Path, tmp_path: Path) -> None:
    for rank in range(2):
        changed(results, f"{rank}_output.json", lambda v: [v[e].pop("throughput") for e in "12"])
    run = import_dlio_results(results, tmp_path / "run")
    assert run.result["samples_per_second"] is None
    assert any("batch size" in note for note in run.result["notes"])


def _ends(epoch: str, end: str, stats: Any) -> None:
    stats[epoch]["block1"]["end"] = end


def test_a_run_without_a_barrier_charges_none_to_it(results: Path, tmp_path: Path) -> None:
    # The slowest ranks' steps take 8 s together, each rank's own 7.7 s at most.
    for epoch, end in (("1", clock(10.8)), ("2", clock(22.8))):
        changed(results, "per_epoch_stats.json", partial(_ends, epoch, end))
    changed(results, "summary.json", lambda v: v.pop("metric"))
    for rank in range(2):
        changed(results, f"{rank}_output.json", lambda v: [v[e].pop("au") for e in "12"])
    row = losses(read(results))[0]
    assert row["barrier_skew"] == row["first_step_wait"] == 0
    assert sum(row.values()) == pytest.approx(100)
    run = import_dlio_results(results, tmp_path / "run")
    assert run.result["time"]["sync"] == 0
    assert run.directory.info["imported"]["barrier_each_step"] is False


def test_blocks_of_an_epoch_count_by_their_steps(results: Path) -> None:
    for rank in range(2):
        write(results, f"{rank}_output.json", {epoch: entry(rank, 2) for epoch in "12"})
    second = {"start": clock(40), "end": clock(50)}
    changed(results, "per_epoch_stats.json", lambda v: [v[e].update(block2=second) for e in "12"])
    read_back = read(results)
    assert [(block.epoch, block.first_step) for block in read_back.blocks] == [(0, 0), (0, STEPS), (1, 0), (1, STEPS)]
    assert losses(read_back)[0]["au"] == pytest.approx((au(0) + au(1)) / 2)


def cut(folder: Path, name: str) -> None:
    path = folder / name
    path.write_text(path.read_text()[:-40])


def _longer(value: Any) -> None:
    for key in ("load", "proc", "compute"):
        value["2"][key]["block1"].append({"load": 4.0, "compute": 5.0}.get(key, 9.0))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no summary": (lambda f: (f / "summary.json").unlink(), "summary.json: no such file; results need"),
    "no stats": (lambda f: (f / "per_epoch_stats.json").unlink(), "per_epoch_stats.json: no such file"),
    "a rank is missing": (
        lambda f: (f / "0_output.json").unlink(),
        "0_output.json: no such file: rank 0 is missing; summary.json says num_accelerators 2, so ranks 0 to 1",
    ),
    "a rank too many": (
        lambda f: shutil.copy(f / "1_output.json", f / "7_output.json"),
        "7_output.json: rank 7 belongs to another run; summary.json says num_accelerators 2",
    ),
    "another world size": (
        lambda f: changed(f, "summary.json", lambda v: v.update(num_accelerators=10**9)),
        "2_output.json: no such file: rank 2 is missing (and 999999997 more)",
    ),
    "world size is text": (
        lambda f: changed(f, "summary.json", lambda v: v.update(num_accelerators="2")),
        "summary.json: num_accelerators is 2; expected a whole number",
    ),
    "truncated": (lambda f: cut(f, "1_output.json"), "1_output.json (rank 1): is truncated: not JSON from line 1"),
    "not JSON": (lambda f: (f / "1_output.json").write_text("{]"), "1_output.json (rank 1): is "),
    "bytes": (lambda f: (f / "1_output.json").write_bytes(b"{\x80}"), "1_output.json (rank 1): is damaged"),
    "a list": (lambda f: write(f, "1_output.json", []), "1_output.json (rank 1): holds list, expected an object"),
    "epochs of the summary": (
        lambda f: changed(f, "summary.json", lambda v: v.update(epochs=3)),
        "per_epoch_stats.json: has epochs 1, 2; summary.json says epochs 3",
    ),
    "a rank's epochs": (
        lambda f: changed(f, "1_output.json", lambda v: v.pop("2")),
        "1_output.json (rank 1): has epochs 1; per_epoch_stats.json has 1, 2",
    ),
    "a rank's blocks": (
        lambda f: changed(f, "1_output.json", lambda v: v.update({"2": entry(1, 2)})),
        "1_output.json (rank 1): epoch 2: has block1, block2; per_epoch_stats.json has block1",
    ),
    "a rank's steps": (
        lambda f: changed(f, "1_output.json", _longer),
        "1_output.json (rank 1): epoch 2 block1: has 5 steps, rank 0 4",
    ),
    "lists of other lengths": (
        lambda f: changed(f, "1_output.json", lambda v: v["2"]["proc"]["block1"].pop()),
        "1_output.json (rank 1): epoch 2 block1: has 4 of load, 3 of proc, 4 of compute; expected one of each per step",
    ),
    "no compute": (
        lambda f: changed(f, "1_output.json", lambda v: v["2"].pop("compute")),
        "1_output.json (rank 1): epoch 2: expected load, proc, compute, each by block",
    ),
    "text for seconds": (
        lambda f: changed(f, "1_output.json", lambda v: v["2"]["load"]["block1"].__setitem__(2, "x")),
        "1_output.json (rank 1): epoch 2 block1: load: step 2 is x; expected seconds",
    ),
    "not a number": (
        lambda f: changed(f, "1_output.json", lambda v: v["2"]["load"]["block1"].__setitem__(2, float("nan"))),
        "load: step 2 is nan; expected seconds",
    ),
    "less than its part": (
        lambda f: changed(f, "1_output.json", lambda v: v["2"]["load"]["block1"].__setitem__(2, 5.0)),
        "1_output.json (rank 1): epoch 2 block1: step 2: proc 1.4 s is less than its load 5 s",
    ),
    "no end": (
        lambda f: changed(f, "per_epoch_stats.json", lambda v: v["2"]["block1"].pop("end")),
        "per_epoch_stats.json: epoch 2 block1: has no end: the run failed",
    ),
    "ends before it starts": (
        lambda f: changed(f, "per_epoch_stats.json", lambda v: v["2"]["block1"].update(end=clock(1))),
        "per_epoch_stats.json: epoch 2 block1: ends at 2024-09-02T13:00:01.000000, not after its start",
    ),
    "a time that is none": (
        lambda f: changed(f, "summary.json", lambda v: v.update(start="yesterday")),
        "summary.json: start is yesterday; expected a time like",
    ),
    "the year 1": (
        lambda f: changed(f, "summary.json", lambda v: v.update(start="0001-01-01T00:00:00+23:00")),
        "summary.json: start is 0001-01-01T00:00:00+23:00; expected a time between 1970 and 2200",
    ),
    "the year 9999": (
        lambda f: changed(f, "per_epoch_stats.json", lambda v: v["2"]["block1"].update(end="9999-12-31T23:59:59")),
        "per_epoch_stats.json: epoch 2 block1: end is 9999-12-31T23:59:59; expected a time between 1970 and 2200",
    ),
    "nested too deeply": (
        lambda f: (f / "per_epoch_stats.json").write_text("[" * 100_000),
        "per_epoch_stats.json: is damaged: it is nested too deeply",
    ),
    "a bomb for a configuration": (
        lambda f: (f / "config.yaml").write_text(bomb()),
        "config.yaml: is damaged: more than 10000 values, aliases counted as what they stand for",
    ),
    "no block": (
        lambda f: changed(f, "per_epoch_stats.json", lambda v: v["1"].pop("block1")),
        "per_epoch_stats.json: epoch 1: has no block1",
    ),
    "a rank of a longer run": (
        lambda f: changed(f, "1_output.json", lambda v: v["1"]["au"].update(block1=20.0)),
        "1_output.json (rank 1): epoch 1 block1: its au 20.00 and times fit a block of 18.1 s, "
        "per_epoch_stats.json says 10.0 s: files of different runs?",
    ),
    "a rank of a run like it": (
        lambda f: changed(f, "1_output.json", lambda v: v["1"]["au"].update(block1=au(1) + 0.5)),
        "1_output.json (rank 1, which differs most): epoch 1: the ranks' mean au is ",
    ),
    "another run's summary": (
        lambda f: changed(f, "summary.json", lambda v: v["metric"].update(train_au_percentage=[1.0])),
        "summary.json: train_au_percentage is not 2 numbers",
    ),
    "a configuration that is none": (
        lambda f: (f / "config.yaml").write_text("a: b: c"),
        "config.yaml: is damaged: not YAML; repair or remove it",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_by_file_and_rank_and_nothing_is_written(results: Path, tmp_path: Path, damage: str) -> None:
    do, said = DAMAGE[damage]
    do(results)
    with pytest.raises(DataError) as caught:
        import_dlio_results(results, tmp_path / "run")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [None, "x", True, 10**400, float("nan"), -1, [], {}, "9" * 5000, 1e300, 5e-324])
def test_whatever_an_entry_holds_it_is_imported_or_refused_in_one_line(
    results: Path, tmp_path: Path, value: object
) -> None:
    """Each key of the summary and of one epoch's statistics and outputs in turn."""
    imported, refused = 0, []
    for name, *way in _entries(results):
        before = (results / name).read_text()
        changed(results, name, partial(_put, way, value))
        try:
            import_dlio_results(results, tmp_path / "run").summary()
            imported += 1
        except DataError as error:
            refused.append(str(error))
            assert not (tmp_path / "run").exists()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (results / name).write_text(before)
    assert imported
    assert refused
    assert all(line.isprintable() and len(line) < 600 for line in refused)


def _entries(results: Path) -> list[tuple[str, ...]]:
    """Name files and the ways to entries in them, from the top."""
    summary = json.loads((results / "summary.json").read_text())
    ways: list[tuple[str, ...]] = [("summary.json", key) for key in summary]
    ways += [("summary.json", "metric", key) for key in summary["metric"]]
    ways += [
        ("per_epoch_stats.json", *way) for way in (("1",), ("1", "block1"), ("1", "block1", "end"), ("2", "ckpt1"))
    ]
    lists = ("load", "proc", "compute", "au", "throughput")
    ways += [("1_output.json", "2", *way) for key in lists for way in ((key,), (key, "block1"))]
    return [("1_output.json", "2"), *ways]


def _put(way: list[str], value: object, tree: Any) -> None:
    for key in way[:-1]:
        tree = tree[key]
    tree[way[-1]] = value


def test_a_copy_of_another_ranks_file_is_named(results: Path, tmp_path: Path) -> None:
    content = (results / "0_output.json").read_bytes()
    (results / "1_output.json").write_bytes(content)
    mean = au(0)
    changed(results, "summary.json", lambda summary: summary["metric"].update(train_au_percentage=[mean, mean]))
    with pytest.raises(DataError, match=r"1_output\.json \(rank 1\): has exactly the times of 0_output\.json"):
        import_dlio_results(results, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_above_the_results_is_told_where_they_are(results: Path) -> None:
    with pytest.raises(DataError, match=r"there are results in .*results"):
        read(results.parent)
    with pytest.raises(DataError, match="is not a folder"):
        read(results / "nowhere")


def test_the_commands_import_and_report_or_end_with_one_line(
    results: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    code, out, err = command("import", "dlio-results", str(results))
    assert (code, err) == (0, "")
    assert "where DLIO's AU lost its points" in out
    assert (home / "runs" / "results" / "result.json").is_file()
    assert command("report", "runs/results")[:2] == (0, out)
    (results / "0_output.json").unlink()
    code, out, err = command("import", "dlio-results", str(results), "--out", "runs/other")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (home / "runs" / "other").exists()


def test_a_run_that_is_there_is_not_overwritten(results: Path, tmp_path: Path) -> None:
    import_dlio_results(results, tmp_path / "run")
    with pytest.raises(StorageError, match="already holds a run"):
        import_dlio_results(results, tmp_path / "run")
    assert Run.open(tmp_path / "run").result["steps"] == 16


def test_what_fails_while_writing_leaves_nothing(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr("rayio.trace.run_directory.RunDirectory.write_result", full)
    with pytest.raises(StorageError, match="no space left"):
        import_dlio_results(results, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published run is not here")
def test_the_published_run_comes_out_as_published_and_its_lost_points_sum(tmp_path: Path) -> None:
    run = import_dlio_results(PUBLISHED, tmp_path / "run")
    told = run.result["imported"]
    assert [round(row["published_au"], 2) for row in told["epochs"]] == [92.71, 90.83, 90.97, 90.66, 90.95]
    for row in told["epochs"]:
        assert row["au"] == pytest.approx(row["published_au"], abs=0.05)
        assert sum(row[name] for name in ("au", *LOSSES)) == pytest.approx(100, abs=1e-9)
    lost = told["lost_points"]
    assert lost["data_wait"] == pytest.approx(1.0, abs=0.1)
    assert lost["barrier_skew"] + lost["first_step_wait"] == pytest.approx(0.5, abs=0.1)
    assert lost["bookkeeping"] == pytest.approx(0.1, abs=0.05)
    assert lost["unrecorded"] == pytest.approx(7, abs=0.3)
    assert run.result["steps"] == 15 * 5 * 571
    scenario = load(tmp_path / "run" / "scenario.yaml")
    assert (scenario.loader.batch_size, scenario.loader.num_workers, scenario.train.steps) == (7, 8, 571)
