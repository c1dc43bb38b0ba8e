"""Result folders of DLIO without files of ranks, as most are published: what a summary says, and what it does not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pages import check

from rayio.analyze.compare import Compared, compare
from rayio.cli import main
from rayio.errors import DataError, RunError, ScenarioError
from rayio.predict.calibrate import calibrate
from rayio.records.explained import Explained
from rayio.records.run_result import RunResult
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text import explanation
from rayio.scenario.derive import compute_times
from rayio.scenario.load import load
from rayio.session.execute import simulate
from rayio.session.imported import import_dlio_results
from rayio.session.result import Run

SHARED = Path(__file__).parents[2] / "shared" / "mlperf-storage-v1.0"
PUBLISHED = sorted(path.name for path in SHARED.iterdir()) if SHARED.is_dir() else []
published = pytest.mark.skipif(not PUBLISHED, reason="the published runs are not here")

#: Four steps of 1 s in blocks of 10 s, of which the first takes 3.6 s: DLIO divides 3 s by the other 6.4 s.
STEPS, COMPUTE, BLOCK, FIRST, BATCH = 4, 1.0, 10.0, 3.6, 5
AU = 100 * (STEPS - 1) * COMPUTE / (BLOCK - FIRST)
RATE = 2 * STEPS * BATCH / BLOCK

CONFIG = """workload:
  model: mine
  framework: pytorch
  dataset: {format: npz, record_length: 8192, num_files_train: 40}
  reader: {data_loader: pytorch, batch_size: 5, read_threads: 3, prefetch_size: 7}
  train: {epochs: 2, computation_time: 1.0}
"""
OVERRIDES = """- workload=unet3d_h100
- ++workload.dataset.num_files_train=40
- ++workload.reader.batch_size=5
- +workload.reader.read_threads=3
- workload.train.computation_time=1.0
- ++hydra.run.dir=results
"""


def clock(seconds: float) -> str:
    return f"2024-09-02T13:{int(seconds) // 60:02d}:{seconds % 60:09.6f}"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two ranks, two epochs of four steps each, a checkpoint at the end; the configuration in a folder of its own."""
    folder = tmp_path / "results"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "config.yaml").write_text(CONFIG)
    stats: dict[str, dict[str, Any]] = {
        epoch: {"start": clock(at), "block1": {"start": clock(at + 1), "end": clock(at + 11), "duration": "10.00"},
                "end": clock(at + 11), "duration": "11.00"}
        for epoch, at in (("1", 2), ("2", 14))
    }  # fmt: skip
    stats["2"]["ckpt1"] = {"start": clock(26), "end": clock(26.5), "duration": "0.50"}
    (folder / "per_epoch_stats.json").write_text(json.dumps(stats))
    summary = {
        "start": clock(0), "end": clock(27), "num_accelerators": 2, "num_hosts": 1, "hostname": "h", "epochs": 2,
        "num_files_train": 40, "num_files_eval": 0, "num_samples_per_file": 1, "potential_caching": [0],
        "data_size_per_host_GB": 40 * 4096 / 2**30,
        "metric": {"train_au_percentage": [AU, AU], "train_au_mean_percentage": AU, "train_au_stdev_percentage": 0.0,
                   "train_au_meet_expectation": "fail", "train_throughput_samples_per_second": [RATE, RATE],
                   "train_throughput_mean_samples_per_second": RATE, "train_throughput_stdev_samples_per_second": 0.0,
                   "train_io_mean_MB_per_second": RATE * 8192 / 2**20, "train_io_stdev_MB_per_second": 0.0},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def changed(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))


def test_a_summary_gives_what_was_published_and_says_what_it_lacks(results: Path, tmp_path: Path) -> None:
    run = import_dlio_results(results, tmp_path / "run")
    result = Run.open(tmp_path / "run").result
    told = result.imported
    assert told is not None
    assert told.reduced is not None
    assert [result.au_dlio, told.au, told.published_au] == pytest.approx([AU] * 3)
    assert result.samples_per_second_dlio == RATE
    assert result.wall_seconds == 27
    assert result.steps == 2 * 2 * STEPS
    unknown = (result.au, result.window_steps, result.data_wait_share, result.time.compute, told.lost_points)
    assert unknown == (None, None, None, None, None)
    assert told.reduced.files == ("summary.json", "per_epoch_stats.json", "configs/config.yaml")
    assert "there is no RANK_output.json" in told.reduced.lacks[0]
    assert "DLIO reports train_au_meet_expectation fail" in result.notes
    text = run.summary()
    assert "mine, imported from a summary of DLIO: 16 steps of 2 ranks together, 27 s" in text
    assert f"  as DLIO              {AU:.2f} %  AU as published, mean of 2 epochs" in text
    assert "unknown" not in text.partition("note:")[0]
    assert max(map(len, text.partition("  note:")[0].splitlines())) <= 80


def test_the_formula_turned_round_gives_the_first_step_and_the_others(results: Path, tmp_path: Path) -> None:
    told = import_dlio_results(results, tmp_path / "run").result.imported
    assert told is not None
    for epoch in told.epochs:
        assert epoch.seconds == BLOCK
        assert epoch.first_step_seconds == pytest.approx(FIRST)
        assert epoch.step_seconds == pytest.approx((BLOCK - FIRST) / (STEPS - 1))
    assert [epoch.checkpoint_seconds for epoch in told.epochs] == [None, 0.5]


def test_the_configuration_fills_in_a_scenario_that_a_named_storage_predicts(results: Path, tmp_path: Path) -> None:
    import_dlio_results(results, tmp_path / "run")
    scenario = load(tmp_path / "run" / "scenario.yaml")
    assert (scenario.loader.batch_size, scenario.loader.num_workers, scenario.loader.prefetch_factor) == (BATCH, 3, 3)
    assert (scenario.train.epochs, scenario.train.steps, compute_times(scenario).expected) == (2, STEPS, COMPUTE)
    assert (scenario.cluster.ranks_per_node, scenario.dataset.format) == (2, "npz")
    assert scenario.dataset.sample_bytes.expected == 8192
    with pytest.raises(ScenarioError, match="nobody described the storage of mine"):
        simulate(tmp_path / "run" / "scenario.yaml", out=tmp_path / "out")
    made = simulate(tmp_path / "run" / "scenario.yaml", ["storage.model=nvme"], out=tmp_path / "out")
    assert made.result.steps == 16


def test_a_reduced_import_is_reported_explained_as_published_and_compared(results: Path, tmp_path: Path) -> None:
    run = import_dlio_results(results, tmp_path / "run")
    page = check(report(run.path).read_text(encoding="utf-8"))
    assert "Imported from a summary: it says nothing of single steps" in page.words
    assert f"{AU:.2f} %" in page.words
    assert "there is no RANK_output.json" in page.words
    before, _ = page.words.split("Configuration and environment")
    assert "unknown" not in before
    import_dlio_results(results, tmp_path / "again")
    both = [Compared(name, Run.open(tmp_path / name).result, {}, {}) for name in ("run", "again")]
    assert "au_dlio" in {row.name for row in compare(both).metrics}
    found = explain(run.path)
    assert found.sentence.startswith(f"AU {AU:.2f} % by DLIO's formula, as published. The causes of the other ")
    assert found.verdict.bound is None
    shown = explanation.text(found)
    assert "epochs as published" in shown
    assert "unknown" not in shown
    assert Explained.of_json(found.as_json()) == found, "what is printed with --json is read again"
    with pytest.raises(RunError, match="was imported: its results say nothing of workers"):
        calibrate(run.path)


def test_the_summary_alone_is_enough(results: Path, tmp_path: Path) -> None:
    (results / "per_epoch_stats.json").unlink()
    shutil.rmtree(results / "configs")
    run = import_dlio_results(results, tmp_path / "run")
    told = run.result.imported
    assert told is not None
    assert told.reduced is not None
    assert told.au == pytest.approx(AU)
    assert told.reduced.files == ("summary.json",)
    assert any("no per_epoch_stats.json" in line for line in told.reduced.lacks)
    assert run.directory.scenario is None
    missing = "the batch size (reader.batch_size), the compute time (train.computation_time)"
    assert f"no scenario.yaml: not in the results: {missing}" in run.result.notes
    assert run.result.steps is None
    assert "imported from a summary of DLIO: 2 ranks together, 27 s" in run.summary()
    assert "The causes of the other" in explain(run.path).sentence
    check(report(run.path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", ["", "configs", ".hydra_config", ".hydra"])
@pytest.mark.parametrize("name", ["config.yaml", "overrides.yaml", "hydra.yaml"])
def test_the_configuration_is_found_where_dlio_and_hydra_put_it(
    results: Path, tmp_path: Path, place: str, name: str
) -> None:
    shutil.rmtree(results / "configs")
    (results / place).mkdir(exist_ok=True)
    task = "hydra:\n  overrides:\n    hydra: []\n    task:\n" + "".join(f"    {x}\n" for x in OVERRIDES.splitlines())
    content = {"config.yaml": CONFIG, "overrides.yaml": OVERRIDES, "hydra.yaml": task}[name]
    (results / place / name).write_text(content)
    result = import_dlio_results(results, tmp_path / "run").result
    scenario = load(tmp_path / "run" / "scenario.yaml")
    assert (scenario.loader.batch_size, scenario.loader.num_workers) == (BATCH, 3)
    assert scenario.name == ("mine" if name == "config.yaml" else "unet3d_h100")
    assert any("only the overrides of" in note for note in result.notes) == (name != "config.yaml")
    # Without a record length in the overrides, the bytes per host say it.
    assert scenario.dataset.sample_bytes.expected == (8192 if name == "config.yaml" else 4096)


def _metric(**entries: Any) -> Callable[[Any], object]:
    return lambda summary: summary["metric"].update(entries)


def _without(*keys: str) -> Callable[[Any], object]:
    return lambda value: [value.pop(key) for key in keys]


#: What other versions and submitters write, and the AU that comes of it.
LAYOUTS: dict[str, tuple[str, Callable[[Any], object], float]] = {
    "lists as text": ("summary.json", _metric(train_au_percentage=f"[{AU}, {AU}]"), AU),
    "lists as text without commas": ("summary.json", _metric(train_au_percentage=f"[{AU} {AU}]"), AU),
    "numbers as text": ("summary.json", _metric(train_au_mean_percentage=str(AU)), AU),
    "an epoch that is no number": (
        "summary.json", _metric(train_au_percentage=[float("nan"), AU], train_au_mean_percentage=float("nan")), AU
    ),
    "no mean": ("summary.json", lambda v: v["metric"].pop("train_au_mean_percentage"), AU),
    "the mean alone": ("summary.json", lambda v: v["metric"].pop("train_au_percentage"), AU),
    "no throughput": (
        "summary.json", lambda v: [v["metric"].pop(key) for key in [*v["metric"]] if "throughput" in key], AU
    ),
    "world size as text": ("summary.json", lambda v: v.update(num_accelerators="2"), AU),
    "no hosts": ("summary.json", _without("num_hosts", "hostname", "potential_caching"), AU),
    "no times": ("summary.json", _without("start", "end"), AU),
    "no epochs": ("summary.json", _without("epochs"), AU),
    "no samples per file": ("summary.json", _without("num_samples_per_file"), AU),
    "no files": ("summary.json", _without("num_files_train"), AU),
    "evaluation too": ("summary.json", _metric(eval_au_mean_percentage=77.0, eval_au_percentage=[77.0, 77.0]), AU),
    "a block without times": (
        "per_epoch_stats.json", lambda v: [v["1"]["block1"].pop(key) for key in ("start", "end")], AU
    ),
    "a block without end": (
        "per_epoch_stats.json", lambda v: [v["1"]["block1"].pop(key) for key in ("end", "duration")], AU
    ),
    "two blocks": (
        "per_epoch_stats.json",
        lambda v: v["1"].update({f"block{n}": {"start": clock(5 * n - 2), "end": clock(5 * n + 3)} for n in (1, 2)}),
        AU,
    ),
    "an evaluation in an epoch": (
        "per_epoch_stats.json", lambda v: v["1"].update(eval={"start": clock(13), "end": clock(14)}), AU
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_are_imported_as_published(results: Path, tmp_path: Path, layout: str) -> None:
    name, change, au = LAYOUTS[layout]
    changed(results, name, change)
    run = import_dlio_results(results, tmp_path / "run")
    assert run.result.au_dlio == pytest.approx(au, abs=0.05)
    run.summary()


#: What cannot be: the file that is changed, how, and what the line says.
DAMAGE: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "no metric": ("summary.json", _without("metric"), "summary.json: has no metric, so there is no AU"),
    "no AU": (
        "summary.json", lambda v: v.update(metric={}), "AU of training to import: the run failed before its"
    ),
    "checkpoints alone": (
        "summary.json", lambda v: v.update(metric={"save_checkpoint_duration_mean_seconds": 3.0}),
        "save_checkpoint_duration_mean_seconds is 3, but that of rank 0's times is 0.5: files of different runs?",
    ),
    "no world size": ("summary.json", _without("num_accelerators"), "num_accelerators is null; expected a whole"),
    "no number at all": (
        "summary.json", _metric(train_au_percentage=[float("nan")] * 2, train_au_mean_percentage=float("nan")),
        "train_au_percentage has no number, and train_au_mean_percentage is missing",
    ),
    "more than all": ("summary.json", _metric(train_au_percentage=[AU, 134.2]), "is 134.2 in epoch 2; expected"),
    "less than nothing": ("summary.json", _metric(train_au_mean_percentage=-3.0), "is -3; expected percent, 0 to 100"),
    "a mean of others": ("summary.json", _metric(train_au_mean_percentage=AU + 1), "values of different runs?"),
    "other epochs": (
        "summary.json", lambda v: v.update(epochs=3),
        "summary.json says epochs 3, train_au_percentage has 2, train_throughput_samples_per_second has 2, "
        "per_epoch_stats.json has 2: files of different runs?",
    ),
    "a fraction": (
        "summary.json", _metric(train_au_percentage=[AU / 100] * 2, train_au_mean_percentage=AU / 100),
        "AU is 0.47 %, but 4 steps of 1 s (configs/config.yaml) are at least 30.00 % of its 10.0 s: a fraction",
    ),
    "a throughput of others": (
        "summary.json", _metric(train_throughput_samples_per_second=[8.0, 4.0]),
        "epoch 1: 8.0 samples/s over 10.0 s are 80 samples; by summary.json and configs/config.yaml it has 40: files",
    ),
    "a backward clock": (
        "per_epoch_stats.json", lambda v: v["2"]["block1"].update(end=clock(1)), "epoch 2 block1: ends at 2024-09-02"
    ),
    "an epoch that is none": ("per_epoch_stats.json", lambda v: v.update({"2": [1]}), "epoch 2: holds list, expected"),
    "epochs from 0": ("per_epoch_stats.json", lambda v: v.update({"0": v.pop("1")}), "has epochs 0, 2; expected them"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_is_refused_in_a_line_and_nothing_is_written(results: Path, tmp_path: Path, damage: str) -> None:
    name, change, said = DAMAGE[damage]
    changed(results, name, change)
    with pytest.raises(DataError) as refused:
        import_dlio_results(results, tmp_path / "run")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [None, "[1, [", True, 10**400, float("nan"), [None], {}, 1e300])
def test_whatever_an_entry_holds_it_is_imported_or_refused_in_one_line(
    results: Path, tmp_path: Path, value: object
) -> None:
    summary = json.loads((results / "summary.json").read_text())
    ways = [("summary.json", key) for key in summary] + [("summary.json", "metric", key) for key in summary["metric"]]
    ways += [
        ("per_epoch_stats.json", *way) for way in (("1",), ("1", "block1"), ("1", "block1", "end"), ("2", "ckpt1"))
    ]
    lines: list[str] = []
    for name, *way in ways:
        before = (results / name).read_text()
        changed(results, name, partial(_put, way, value))
        try:
            lines += import_dlio_results(results, tmp_path / "run").result.notes
            Run.open(tmp_path / "run").summary()
        except DataError as error:
            lines.append(str(error))
            assert not (tmp_path / "run").exists()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (results / name).write_text(before)
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def _put(way: list[str], value: object, tree: Any) -> None:
    for key in way[:-1]:
        tree = tree[key]
    tree[way[-1]] = value


def test_files_of_ranks_are_used_unless_the_summary_alone_is_asked_for(
    results: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    (results / "1_output.json").write_text("{}")
    code, out, err = command("import", "dlio-results", str(results))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "rank 0 is missing" in err
    assert "(use --reduced to read only the summary)" in err
    code, out, err = command("import", "dlio-results", str(results), "--reduced")
    assert (code, err) == (0, "")
    assert "AU as published" in out
    code, out, _ = command("import", "dlio-results", str(results), "--reduced", "--json", "--out", "runs/other")
    told = json.loads(out)["result"]
    assert RunResult.of_json(told).au_dlio == told["imported"]["published_au"] == pytest.approx(AU)


def test_results_below_a_folder_are_named(results: Path, tmp_path: Path) -> None:
    above = tmp_path / "submission"
    for run in ("run1", "run2"):
        shutil.copytree(results, above / run / "c002")
    with pytest.raises(DataError, match=r"there are results in .*submission/run1/c002 and 1 more folders"):
        import_dlio_results(above, tmp_path / "run")


@published
@pytest.mark.parametrize("name", PUBLISHED)
def test_each_published_folder_is_imported_with_its_published_au(name: str, tmp_path: Path) -> None:
    run = import_dlio_results(SHARED / name, tmp_path / "run", reduced=True)
    metric = json.loads((SHARED / name / "summary.json").read_text())["metric"]
    told = run.result.imported
    assert told is not None
    assert told.au == pytest.approx(metric["train_au_mean_percentage"], abs=0.05)
    assert [epoch.au for epoch in told.epochs] == pytest.approx(metric["train_au_percentage"], abs=0.05)
    scenario = load(tmp_path / "run" / "scenario.yaml")
    text = (SHARED / name / "config.yaml").read_text()
    assert scenario.loader.batch_size == int((re.search(r" batch_size: (\d+)", text) or [0, 0])[1])
    assert scenario.loader.num_workers == int((re.search(r"read_threads: (\d+)", text) or [0, 0])[1])
    assert scenario.cluster.nodes * scenario.cluster.ranks_per_node == run.result.world_size


@published
def test_what_the_summary_says_of_steps_is_what_the_files_of_ranks_say(tmp_path: Path) -> None:
    """The one folder that has both: the first step and the others, turned out of AU, against every rank's record."""
    folder = SHARED / "hpe-unet3d-h100-run-1"
    told = import_dlio_results(folder, tmp_path / "run", reduced=True).result.imported
    assert told is not None
    outputs = [json.loads((folder / f"{rank}_output.json").read_text()) for rank in range(15)]
    for epoch in told.epochs:
        firsts = [output[str(epoch.epoch)]["proc"]["block1"][0] for output in outputs]
        steps = len(outputs[0]["1"]["proc"]["block1"])
        mean = sum(firsts) / len(firsts)
        assert epoch.first_step_seconds == pytest.approx(mean, abs=0.1)
        assert epoch.seconds is not None
        assert epoch.step_seconds == pytest.approx((epoch.seconds - mean) / (steps - 1), rel=1e-3)
