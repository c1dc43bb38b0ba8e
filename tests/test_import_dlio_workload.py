"""Workload files of DLIO: what becomes of them by its own arithmetic, which keys act, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dlio_workloads import EVALUATED, RECORDS, VOLUMES, WORKLOADS, dlio_arithmetic, written
from hypothesis import given, settings
from hypothesis import strategies as st

import rayio
from rayio.cli import main
from rayio.errors import ScenarioError
from rayio.imports.dlio_source import to_text
from rayio.scenario import derive
from rayio.scenario.derive import compute_times
from rayio.scenario.dlio_keys import ACTS, IDLE, KEYS, ONLY, REFUSED, table
from rayio.scenario.evaluation import num_evaluations
from rayio.scenario.foreign import converted
from rayio.scenario.load import build, load
from rayio.scenario.model import Scenario
from rayio.units import format_bytes, format_rate

ROOT = Path(__file__).parents[1]
THEIRS = sorted((ROOT.parent / "shared" / "dlio-workloads").glob("*.yaml"))
#: Deletes the credentials of a published file.
WITHOUT_CREDENTIALS = [f"~workload.storage.storage_options.{key}" for key in ("access_key_id", "secret_access_key")]


def as_dlio(scenario: Scenario) -> dict[str, float]:
    """The numbers of :func:`dlio_arithmetic`, of a scenario."""
    size = scenario.dataset.sample_bytes
    record = getattr(size, "mean", None) or size.expected  # the mean of a normal, before negative sizes are redrawn
    step_bytes = scenario.loader.batch_size * record
    return {
        "steps": derive.steps_per_epoch(scenario),
        "files": derive.num_files(scenario),
        "samples": derive.num_samples(scenario),
        "epochs": scenario.train.epochs,
        "step_bytes": step_bytes,
        "demand": step_bytes / compute_times(scenario).expected,
        "window": derive.window_steps(scenario),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_comes_to_what_dlio_documents(name: str, ranks: int, tmp_path: Path) -> None:
    scenario = load(written(tmp_path, WORKLOADS[name]), [f"cluster.ranks_per_node={ranks}"])
    assert as_dlio(scenario) == pytest.approx(dlio_arithmetic(WORKLOADS[name], ranks))


def test_sixteen_files_of_four_samples_are_eight_steps_where_dlio_trains_none(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, RECORDS), ["cluster.ranks_per_node=2"])
    assert derive.steps_per_epoch(scenario) == 16 * 4 // (4 * 2) == 8
    assert rayio.simulate(scenario, out=tmp_path / "run").result.steps == 2 * 2 * 8


@pytest.mark.parametrize("path", THEIRS or [None], ids=lambda path: path.stem if path else "none")
def test_published_files_import_simulate_and_come_to_their_documented_numbers(
    path: Path | None, tmp_path: Path
) -> None:
    if path is None:
        pytest.skip("DLIO's own files are not here")
    text = path.read_text()
    overrides: list[str] = []
    if "num_checkpoints_read" in text:
        comes_to_checkpoints(path, yaml.safe_load(text), tmp_path)
        return
    if "secret_access_key" in text:
        with pytest.raises(ScenarioError, match=r"access_key_id=\*\*\*: credentials belong in the environment") as told:
            load(f"dlio:{path}")
        assert len(told.value.problems) == 2
        assert "secret-key" not in "".join(told.value.problems)
        overrides = WITHOUT_CREDENTIALS
    ranks = 2
    if "layer_parameters" in text:  # a state of 32 ranks
        ranks, overrides = 32, ["checkpoint=none"]
    else:
        overrides = [*overrides, "cluster.ranks_per_node=2"]
    scenario = load(f"dlio:{path}", overrides)
    assert as_dlio(scenario) == pytest.approx(dlio_arithmetic(text, ranks))
    small = [*overrides, "train.steps=4", "train.epochs=1"]
    assert rayio.simulate(f"dlio:{path}", small, out=tmp_path / "run").result.steps == ranks * 4
    out = tmp_path / "scenario.yaml"
    main_exits(0, "import", "dlio", str(path), *overrides, "--out", str(out))
    assert without_source(load(out)) == without_source(scenario)


def comes_to_checkpoints(path: Path, theirs: dict[str, Any], folder: Path) -> None:
    """Check the numbers of a file that writes and reads checkpoints without training."""
    overrides = ["++workload.workflow.train=False"] if theirs["workflow"]["train"] else []
    if overrides:
        with pytest.raises(ScenarioError, match="DLIO's PyTorch loader reads no tfrecord, its default format"):
            load(f"dlio:{path}")
    scenario = load(f"dlio:{path}", overrides)
    saved, split = theirs["checkpoint"], theirs["model"]["parallelism"]
    assert scenario.checkpoint is not None
    assert scenario.checkpoint.phases is not None
    assert scenario.checkpoint.phases.writes == derive.num_checkpoints(scenario) == saved["num_checkpoints_write"]
    assert scenario.checkpoint.phases.reads == saved["num_checkpoints_read"]
    assert derive.world_size(scenario) == split["tensor"] * split["pipeline"]
    short = [*overrides, "checkpoint.phases={writes: 2, reads: 1}", "checkpoint.request_bytes=1 GB"]
    done = rayio.simulate(f"dlio:{path}", short, out=folder / "run").spans()
    assert [(done.name == name).sum() / derive.world_size(scenario) for name in ("checkpoint", "restore")] == [2, 1]


def without_source(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"source": ""})


def main_exits(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == code


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_written_file_is_the_same_scenario_and_names_the_source_of_every_key(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = written(tmp_path, WORKLOADS[name]), tmp_path / "mine.yaml"
    main_exits(0, "import", "dlio", source.removeprefix("dlio:"), "cluster.nodes=3", "--out", str(out))
    lines = capsys.readouterr().err.splitlines()
    assert without_source(load(out)) == without_source(load(source, ["cluster.nodes=3"]))
    text = out.read_text()
    made = converted(source, [])
    assert made is not None
    assert lines == [f"rayio: {remark}" for remark in made.remarks()]
    for remark in (*made.changed, *made.idle):
        assert f"#   {remark.removeprefix(f'{tmp_path}/')}\n" in text
    named = [line for line in text.splitlines() if line.startswith("  ") and not line.endswith(":")]
    assert named
    assert all("  # " in line or line == "  nodes: 3" for line in named), named
    main_exits(0, "import", "dlio", source.removeprefix("dlio:"), "--out", str(out))  # replaces its own file
    out.write_text("mine: 1")
    main_exits(2, "import", "dlio", source.removeprefix("dlio:"), "--out", str(out))
    assert out.read_text() == "mine: 1"


def test_the_keys_of_an_example_become_those_of_a_scenario(tmp_path: Path) -> None:
    made = converted(written(tmp_path, VOLUMES), [])
    assert made is not None
    data = {key: value for key, value in made.layer.data.items() if key != "source"}
    assert data == {
        "name": "volumes",
        "seed": 123,
        "dataset": {
            "format": "npz", "num_files": 48, "samples_per_file": 1,
            "sample_bytes": {"kind": "normal", "mean": 1500000, "stdev": 300000}, "path": "data/volumes/train",
        },
        "storage": {"model": "nvme"},
        "loader": {"batch_size": 3, "num_workers": 4, "prefetch_factor": 1, "shuffle": "global"},
        "train": {"epochs": 4, "compute": 0.05},
        "checkpoint": {
            "every": {"epochs": 4}, "path": "checkpoints/volumes", "model": {"bytes": 4000000}, "writers": "rank_zero",
            "fsync": False,
        },
        "expect": {"au_dlio": ">= 80"},
    }  # fmt: skip
    assert derive.num_checkpoints(load(written(tmp_path, VOLUMES))) == 1
    assert [remark.partition(": ")[2] for remark in made.changed] == [
        "reader.file_shuffle=seed: it acts here; in DLIO's PyTorch loader it does nothing",
        "reader.sample_shuffle=seed: it acts here; in DLIO's PyTorch loader it does nothing",
        "model.model_size=4000000: DLIO ignores this name, and saves 10240 bytes",
    ]


def test_an_evaluation_is_as_often_as_in_dlio(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, EVALUATED))
    assert (scenario.dataset.eval.num_files, scenario.dataset.eval.path) == (6, "data/evaluated/valid")
    assert (num_evaluations(scenario), scenario.dataset.files_per_folder) == (3, 5)
    assert (scenario.loader.num_workers, scenario.loader.shuffle, scenario.train.steps) == (0, "none", 7)


@pytest.mark.parametrize(
    ("after", "between", "epochs", "due"),
    [(1, 1, 3, 3), (5, 2, 5, 1), (2, 2, 7, 3), (4, 9, 7, 1), (6, 1, 5, 0), (1, 2, 5, 3), (5, 2, 9, 3), (3, 1, 8, 6)],
)
def test_checkpoints_and_evaluations_are_due_as_in_dlio(
    after: int, between: int, epochs: int, due: int, tmp_path: Path
) -> None:
    """DLIO's are due after the epochs ``after``, ``after + between``, …: counted here."""
    theirs = [epoch for epoch in range(1, epochs + 1) if epoch >= after and (epoch - after) % between == 0]
    saves, tries = "++workload.checkpoint", "++workload.evaluation"
    overrides = {
        "++workload.workflow.checkpoint": True, "++workload.train.epochs": epochs,
        f"{saves}.checkpoint_after_epoch": after, f"{tries}.eval_after_epoch": after,
        f"{saves}.epochs_between_checkpoints": between, f"{tries}.epochs_between_evals": between,
    }  # fmt: skip
    scenario = load(written(tmp_path, EVALUATED), overrides)
    assert derive.num_checkpoints(scenario) == num_evaluations(scenario) == len(theirs) == due
    per_epoch = derive.steps_per_epoch(scenario)
    assert [epoch + 1 for epoch, step in derive.checkpoint_steps(scenario) if step == per_epoch - 1] == theirs
    spans = rayio.simulate(scenario, out=tmp_path / "run").spans()
    for name in ("checkpoint", "evaluate"):
        assert sorted({epoch + 1 for epoch in spans[spans.name == name].epoch}) == theirs, name


def test_all_that_cannot_be_is_listed_at_once(tmp_path: Path) -> None:
    """Interpolations and overrides without a target are listed with the keys that are refused."""
    text = VOLUMES.replace("batch_size: 3", "batch_size: '${workload.reader.nothing}', shuffle_size: x, wrong: 1")
    text = text.replace("epochs: 4", "epochs: '${.none}'")
    with pytest.raises(ScenarioError) as told:
        load(written(tmp_path, text), ["~workload.storage", "++workload.reader.prefetch_size=many"])
    found = [line.partition("workload.yaml:")[2] or line for line in told.value.problems]
    expected = (
        "reader.batch_size: ${workload.reader.nothing}: there is no such key", "reader.wrong=1: is no key",
        "train.epochs: ${.none}: there", "~workload.storage: there is no", "prefetch_size=many: must be",
    )  # fmt: skip
    for key in expected:
        assert [line for line in found if key in line], key
    assert len(found) == 5


def test_what_a_scenario_cannot_be_names_the_keys_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as told:
        load(written(tmp_path, VOLUMES), ["++workload.reader.batch_size=49"])
    (line,) = told.value.problems
    assert "loader.batch_size=49: 1 rank needs 49 samples" in line
    assert line.endswith("(in that file: dataset.num_files_train, dataset.num_samples_per_file, reader.batch_size)")


def test_an_empty_section_is_one(tmp_path: Path) -> None:
    text = VOLUMES + "profiling: {}\nevaluation: {}\noutput:\n"
    assert load(written(tmp_path, text)) == load(written(tmp_path, VOLUMES))


@pytest.mark.parametrize("form", ["npy", "png", "indexed_binary"])
def test_formats_that_dlio_never_compresses_are_not_compressed(form: str, tmp_path: Path) -> None:
    name = written(tmp_path, VOLUMES)
    plain = [f"++workload.dataset.format={form}", "++workload.dataset.record_length_bytes_stdev=0"]
    made = converted(name, [*plain, "++workload.dataset.compression=gzip"])
    assert made is not None
    assert [line for line in made.idle if "dataset.compression=gzip: as in DLIO" in line]
    assert load(name, [*plain, "++workload.dataset.compression=gzip"]).dataset == load(name, plain).dataset


#: A value of each key that acts, other than its default.
ACTING: dict[str, Any] = {
    "model.name": "another", "model.type": "transformer", "model.model_size_bytes": 5, "model.model_size": 5,
    "framework": "pytorch", "workflow.train": False, "workflow.evaluation": True, "workflow.checkpoint": True,
    "dataset.data_folder": "x", "dataset.format": "csv", "dataset.num_files_train": 99, "dataset.num_files_eval": 3,
    "dataset.num_samples_per_file": 5, "dataset.record_length_bytes": 777, "dataset.record_length": 777,
    "dataset.record_length_bytes_stdev": 5, "dataset.record_length_stdev": 5, "dataset.record_dims": [9, 30],
    "dataset.record_element_type": "float64", "dataset.num_subfolders_train": 3, "dataset.compression": "gzip",
    "dataset.compression_level": 7,
    "dataset.enable_chunking": True, "dataset.chunk_size": 40, "dataset.hdf5.chunk_dims": [20],
    "reader.data_loader": "dali", "model.optimization_groups": [400, 80], "model.layer_parameters": [50, 70],
    "reader.computation_threads": 4, "checkpoint.time_between_checkpoints": 5,
    "reader.batch_size": 2, "reader.batch_size_eval": 2, "reader.read_threads": 3,
    "reader.prefetch_size": 9, "reader.file_shuffle": "seed", "reader.sample_shuffle": "random",
    "reader.read_type": "memory", "reader.transfer_size": 4096, "reader.preprocess_time": 0.5,
    "reader.preprocess_time_stdev": 0.5, "reader.odirect": True, "train.epochs": 3,
    "train.computation_time": {"type": "exponential", "scale": 2}, "train.computation_time_stdev": 0.5,
    "train.total_training_steps": 2, "train.seed": 5, "evaluation.eval_time": 2, "evaluation.eval_time_stdev": 2,
    "evaluation.eval_after_epoch": 2, "evaluation.epochs_between_evals": 2, "checkpoint.checkpoint_folder": "c",
    "checkpoint.checkpoint_after_epoch": 3, "checkpoint.epochs_between_checkpoints": 2,
    "checkpoint.steps_between_checkpoints": 3, "checkpoint.model_size": 5, "checkpoint.type": "all_ranks",
    "checkpoint.fsync": True, "storage.storage_type": "direct_fs", "storage.storage_root": "/mnt",
    "storage.storage_options.endpoint_url": "http://localhost:9000", "storage.storage_options.region": "eu-west-1",
    "storage.storage_options.s3_force_path_style": True, "storage.storage_options.s3_max_attempts": 3,
    "metric.au": 0.7, "checkpoint.num_checkpoints_write": 4, "checkpoint.num_checkpoints_read": 2,
    "model.num_layers": 5, "model.model_datatype": "fp32", "model.optimizer_datatype": "fp16",
    "model.parallelism.tensor": 2, "model.parallelism.pipeline": 2, "model.parallelism.zero_stage": 3,
    "model.transformer.vocab_size": 9, "model.transformer.hidden_size": 64, "model.transformer.ffn_hidden_size": 9,
    "model.transformer.num_attention_heads": 16, "model.transformer.num_kv_heads": 4,
    "checkpoint.mode": "subset", "checkpoint.recovery_rank_shift": True, "model.parallelism.data": 4,
}  # fmt: skip
SAVED = {"workflow.checkpoint": True}
TRIED = {"workflow.evaluation": True, "dataset.num_files_eval": 8}
BUCKET = {"storage.storage_type": "s3", "storage.storage_root": "bucket"}
SHAPED = SAVED | {"model.type": "transformer", "model.num_layers": 4}
ONCE = SAVED | {"workflow.train": False, "checkpoint.num_checkpoints_write": 1}
TORCH = {"framework": "pytorch", "dataset.format": "hdf5"}
#: Other keys that a key needs to act, by the beginning of its name; the last one that fits is taken.
NEEDED: dict[str, dict[str, Any]] = {
    "checkpoint.": SAVED, "model.": SAVED, "evaluation.": TRIED, "storage.storage_options.": BUCKET,
    "dataset.record_element_type": {"dataset.record_dims": [80]},
    "dataset.enable_chunking": TORCH | {"dataset.chunk_size": 50}, "dataset.hdf5.": TORCH,
    "dataset.chunk_size": TORCH | {"dataset.enable_chunking": True},
    "dataset.compression_level": TORCH
    | {"dataset.enable_chunking": True, "dataset.chunk_size": 99, "dataset.compression": "gzip"},
    "dataset.num_files_eval": {"workflow.evaluation": True}, "workflow.evaluation": {"dataset.num_files_eval": 8},
    "reader.batch_size_eval": TRIED, "reader.sample_shuffle": {"framework": "pytorch", "dataset.format": "npz"},
    "evaluation.eval_after_epoch": TRIED | {"train.epochs": 2},
    "checkpoint.checkpoint_after_epoch": SAVED | {"train.epochs": 3},
    "checkpoint.num_checkpoints": SAVED | {"workflow.train": False, "checkpoint.num_checkpoints_write": 3},
    "reader.computation_threads": {"reader.preprocess_time": 1}, "model.num_layers": SHAPED,
    "model.transformer.": SHAPED, "model.parallelism.": SHAPED, "model.model_datatype": SHAPED,
    "checkpoint.mode": SHAPED | ONCE | {"model.parallelism.data": 2}, "checkpoint.recovery_rank_shift": ONCE,
    "checkpoint.model_size": SAVED, "checkpoint.time_between": ONCE, "model.optimization_groups": SAVED,
    "reader.data_loader": {"dataset.format": "npy"},
    "model.layer_parameters": SAVED
    | {"model.num_layers": 4, "model.optimization_groups": [400], "model.layer_parameters": [1]},
    "model.optimizer_datatype": SHAPED, "model.type": SAVED | {"model.model_size": 3},
}  # fmt: skip
#: A value without effect, and a value that cannot be, of keys with one possible value.
SINGLE: dict[str, tuple[Any, Any]] = {
    "dataset.hdf5.num_dset_per_record": (1, 3),
    "checkpoint.rank_sync": (False, True),
    "output.metric.exclude_start_steps": (1, 2), "metric.exclude_end_steps": (0, 1),
    "output.metric.exclude_end_steps": (0, 1), "metric.exclude_start_steps": (1, 0),
}  # fmt: skip
#: Keys whose value is refused, or is a line, in place of a key of the scenario.
REFUSED_VALUE, ONLY_LINE = ("model.type", "framework"), ("workflow.train",)
#: Keys that go with another one, see the test of what is due.
IN_PAIRS = ("evaluation.epochs_between_evals", "checkpoint.epochs_between_checkpoints")
#: The workload that the keys are tried on.
PLAIN = "framework: tensorflow\ntrain: {computation_time: 1}\n"


def read(folder: Path, keys: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the scenario's keys, and the lines on differences and on keys without effect."""
    made = converted(written(folder, PLAIN), {f"++workload.{key}": value for key, value in keys.items()})
    assert made is not None
    return {k: v for k, v in made.layer.data.items() if k != "source"}, [*made.changed], [*made.idle]


def needed(key: str) -> dict[str, Any]:
    """The keys that a key needs to act."""
    return next((NEEDED[name] for name in reversed(NEEDED) if key.startswith(name)), {})


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].fate == ACTS and key not in IN_PAIRS])
def test_a_key_that_acts_changes_the_scenario(key: str, tmp_path: Path) -> None:
    needs = needed(key)
    keys, differences, _ = read(tmp_path, needs)
    if key in REFUSED_VALUE:
        with pytest.raises(ScenarioError, match=rf"{re.escape(key)}={ACTING[key]}: "):
            read(tmp_path, {**needs, key: ACTING[key]})
        return
    after, lines, unused = read(tmp_path, {**needs, key: ACTING[key]})
    assert not [line for line in unused if f"{key}=" in line]
    assert (keys == after) == (key in ONLY_LINE)
    assert key not in ONLY_LINE or [line for line in lines if line not in differences and f"{key}=" in line]


#: Workloads that a key may meet.
MET: dict[str, dict[str, Any]] = {
    "records": {}, "volumes": {"framework": "pytorch", "dataset.format": "npz"}, "chunks": TORCH, "evaluated": TRIED,
    "saved": SAVED, "shaped": SHAPED, "alone": SHAPED | ONCE, "bucket": BUCKET, "generated": {"workflow.train": False},
}  # fmt: skip


@pytest.mark.parametrize("name", MET)
def test_no_key_is_passed_over_in_silence(name: str, tmp_path: Path) -> None:
    """Every value other than the default changes the scenario, or is a line on its key."""
    met = {"train.epochs": 4} | MET[name]
    before, *noted = read(tmp_path, met)
    known = [line for lines in noted for line in lines]
    tried = {**ACTING, **{key: other for key, (_, other) in SINGLE.items()}, "reader.file_access": "shared"}
    values = [*tried.items(), ("storage.storage_type", "parallel_fs"), ("dataset.compression", "bz2")]
    silent = []
    for key, value in values:
        if met.get(key, "framework") == value or key == "framework":
            continue
        try:
            after, *lines = read(tmp_path, {**met, key: value})
        except ScenarioError as refused:
            named = {key, "dataset.format", *met}
            if not any(name in problem for name in named for problem in refused.problems):
                silent.append(f"{key}={value}")
            continue
        if before == after and not any(f"{key}=" in line for part in lines for line in part if line not in known):
            silent.append(f"{key}={value}")
    assert not silent


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].fate == ONLY])
def test_a_key_with_one_value_has_that_one(key: str, tmp_path: Path) -> None:
    needs, (same, other) = needed(key), SINGLE[key]
    assert read(tmp_path, needs)[0] == read(tmp_path, {**needs, key: same})[0]
    with pytest.raises(ScenarioError, match=rf"{re.escape(key)}={other}: ".replace("True", "true")):
        read(tmp_path, {**needs, key: other})


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].fate == IDLE])
def test_a_key_without_effect_is_a_line_and_changes_nothing(key: str, tmp_path: Path) -> None:
    value = {"reader.file_access": "collective", "train.seed_change_epoch": False}.get(key, 3)
    before, after = read(tmp_path, needed(key)), read(tmp_path, {**needed(key), key: value})
    assert before[0] == after[0]
    assert len([line for line in after[2] if f"{key}=" in line and KEYS[key].why in line]) == 1


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].fate == REFUSED])
def test_a_refused_key_is_refused_by_its_name_with_the_reason(key: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        read(tmp_path, {**SAVED, key: 7})
    lines = [line for line in refused.value.problems if f"{key}=" in line]
    assert len(lines) == 1
    assert KEYS[key].why in lines[0]


@pytest.mark.parametrize("key", [key for key in KEYS if KEYS[key].fate in (ACTS, ONLY)])
def test_any_value_of_a_key_imports_or_is_a_line_on_that_key(key: str, tmp_path: Path) -> None:
    for value in (0, -1, True, 0.5, "0"):
        problems: tuple[str, ...] = ()
        try:
            read(tmp_path, {**needed(key), key: value})
        except ScenarioError as refused:
            problems = refused.problems
        assert not problems or [line for line in problems if f"{key}=" in line], (value, problems)


@pytest.mark.parametrize(
    ("key", "needs"),
    [
        ("checkpoint.epochs_between_checkpoints", SAVED), ("checkpoint.checkpoint_after_epoch", SAVED),
        ("evaluation.eval_after_epoch", TRIED), ("evaluation.epochs_between_evals", TRIED),
        ("reader.batch_size", {}), ("train.epochs", {}),
    ],
)  # fmt: skip
def test_a_number_below_the_least_is_one_line(key: str, needs: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        read(tmp_path, {**needs, key: 0})
    assert [line.partition(f"{key}=")[2] for line in refused.value.problems] == ["0: must be a number of at least 1"]


@pytest.mark.parametrize(
    ("time", "line"),
    [
        ({"type": "exponential", "rate": 10}, "rate is no key of type exponential; use scale"),
        ({"type": "exponential", "scale": -1}, "scale must be a number of at least 0, not -1"),
        ({"type": "normal", "mean": 1, "scale": 2}, "scale is no key of type normal; use mean or stdev"),
    ],
)
def test_a_distribution_that_cannot_be_says_why(time: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f": {line}$"):
        read(tmp_path, {"train.computation_time": time})


def test_two_names_of_a_section_must_agree(tmp_path: Path) -> None:
    """DLIO takes ``data_reader`` whole where it is given, and nothing of ``reader``."""
    text = PLAIN + "data_reader: {batch_size: 2, read_threads: 3}\nreader: {batch_size: %s, prefetch_size: 7}\n"
    made = converted(written(tmp_path, text % 2), [])
    assert made is not None
    assert made.layer.data["loader"]["batch_size"] == 2
    assert [line.partition(": ")[2] for line in made.idle] == [
        "reader.prefetch_size=7: data_reader is given, and wins as in DLIO"
    ]
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, text % 4))
    assert [line.partition(": ")[2] for line in refused.value.problems] == [
        "reader.batch_size=4: data_reader.batch_size=2 is given too, and wins in DLIO; remove one of the two"
    ]


def test_a_size_of_the_state_under_another_name_is_a_line(tmp_path: Path) -> None:
    sizes = {"model.model_size_bytes": 7, "checkpoint.model_size": 9}
    keys, _, unused = read(tmp_path, {**SAVED, **sizes})
    assert keys["checkpoint"]["model"] == {"bytes": 7}
    assert [line for line in unused if "checkpoint.model_size=9: model.model_size_bytes is given" in line]


def test_the_page_has_the_table_of_the_code() -> None:
    assert table() in (ROOT / "docs" / "dlio.md").read_text()


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**6),
    st.floats(-1, 1e9),
    st.sampled_from(["", "npz", "seed", "abc", "1e-3", "s3", *ACTING.values()]),
    st.lists(st.integers(-1, 9), max_size=3),
    st.dictionaries(st.sampled_from(["type", "mean", "stdev", "min"]), st.floats(0, 9), max_size=3),
)


@settings(max_examples=150)
@given(mix=st.dictionaries(st.sampled_from([*KEYS]), _VALUES, max_size=12))
def test_any_mix_of_documented_keys_imports_or_is_refused_in_lines(
    mix: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    nested: dict[str, Any] = {"model": {"name": "mix"}}
    for key, value in mix.items():
        *sections, last = key.split(".")
        holder = nested
        for section in sections:
            holder = holder.setdefault(section, {})
        holder[last] = value
    path = tmp_path_factory.getbasetemp() / "mix.yaml"
    path.write_text(yaml.safe_dump(nested))
    problems: tuple[str, ...] = ()
    try:
        scenario = load(f"dlio:{path}")
        assert derive.steps_per_epoch(scenario) > 0
        made = converted(f"dlio:{path}", [])
        assert made is not None
        again = build(yaml.safe_load(to_text(made, {})), str(path))
        assert again == scenario, "the written file is the same scenario"
    except ScenarioError as refused:
        problems = refused.problems or ("",)
    assert all(str(path) in line and "\n" not in line for line in problems)


GiB = 1 << 30
#: Sizes of a transformer as published, and what DLIO's formulas make of them: GiB in all, and files.
TRANSFORMERS = [
    ("llama-8b", {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv": 8}, (1, 1, 3), 8, 104.70, 16),
    ("llama-70b", {"layers": 80, "hidden": 8192, "ffn": 28672, "heads": 128, "kv": 8}, (8, 1, 3), 64, 911.21, 128),
    ("llama-405b", {"layers": 126, "hidden": 16384, "ffn": 53248, "heads": 128, "kv": 8}, (8, 32, 1), 512, 5292.25,
     1544),
    ("llama-1t", {"layers": 128, "hidden": 25872, "ffn": 98304, "heads": 192, "kv": 32}, (8, 64, 1), 1024, 15426.59,
     2072),
]  # fmt: skip


@pytest.mark.parametrize("published", TRANSFORMERS, ids=[row[0] for row in TRANSFORMERS])
def test_a_transformer_has_the_published_size(published: tuple[Any, ...], tmp_path: Path) -> None:
    name, shape, parallel, ranks, size, files = published
    tensor, pipeline, zero = parallel
    text = f"""
model:
  name: {name}
  type: transformer
  num_layers: {shape["layers"]}
  parallelism: {{tensor: {tensor}, pipeline: {pipeline}, zero_stage: {zero}}}
  transformer: {{vocab_size: 128256, hidden_size: {shape["hidden"]}, ffn_hidden_size: {shape["ffn"]},
                num_attention_heads: {shape["heads"]}, num_kv_heads: {shape["kv"]}}}
framework: pytorch
workflow: {{checkpoint: True}}
dataset: {{format: npz, num_files_train: 2048}}
train: {{computation_time: 1}}
"""
    scenario = load(written(tmp_path, text), [f"cluster.ranks_per_node={ranks // pipeline}"])
    assert derive.world_size(scenario) == ranks
    assert derive.checkpoint_bytes(scenario) / GiB == pytest.approx(size, abs=0.006)
    assert scenario.checkpoint is not None
    topology = scenario.saving_topology
    state = scenario.checkpoint.model
    assert sum(len(scenario.checkpoint.writers.files(rank, state, topology)) for rank in range(ranks)) == files
    alone = load(written(tmp_path, text))
    assert derive.world_size(alone) == tensor * pipeline, "one replica is assumed"


ALONE = """
framework: pytorch
model: {name: alone, model_size_bytes: 3000000}
workflow: {train: False, checkpoint: True}
checkpoint:
  {checkpoint_folder: saved, num_checkpoints_write: 3, num_checkpoints_read: 2, time_between_checkpoints: 0.02}
"""


def test_checkpoints_without_training_are_written_and_read(tmp_path: Path) -> None:
    source = written(tmp_path, ALONE)
    run = rayio.run(source, ["cluster.ranks_per_node=2"], engine="local", root=tmp_path, out=tmp_path / "run")
    spans = run.spans()
    assert [(spans.name == name).sum() for name in ("checkpoint", "restore")] == [3, 2], "of rank 0 alone"
    assert spans[spans.name == "write"].bytes.sum() == 3 * 3000000
    assert [*spans[spans.name == "gap"].duration_ns] == [20_000_000] * (2 * 5), "before each, on both ranks"
    assert not (spans.name == "read").any()
    assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*.bin")) == 3 * 3000000
    for key, value, line in [
        ("num_checkpoints_read", 4, "num_checkpoints_read=4: must be a whole number, at most num_checkpoints_write"),
        ("num_checkpoints_write", 0, "num_checkpoints_write must be a whole number of at least 1"),
        ("mode", "subset", "mode=subset: only of a state of layers; give model.num_layers, or leave"),
    ]:
        with pytest.raises(ScenarioError) as refused:
            load(source, {f"++workload.checkpoint.{key}": value})
        assert any(line in problem for problem in refused.value.problems)


def test_times_have_the_means_of_their_distributions(tmp_path: Path) -> None:
    """The means of numpy's distributions of these parameters, which DLIO draws from."""
    means = {
        "{type: gamma, shape: 2, scale: 0.25}": 2 * 0.25,
        "{type: exponential, scale: 0.25}": 0.25,
        "{type: uniform, min: 1, max: 2}": 1.5,
        "{type: poisson, lam: 3}": 3.0,
        "{type: normal, mean: 4, stdev: 0.001}": 4.0,
        "{mean: 5}": 5.0,
    }
    for text, mean in means.items():
        scenario = load(written(tmp_path, f"framework: tensorflow\ntrain: {{computation_time: {text}}}\n"))
        assert derive.compute_seconds(scenario) == pytest.approx(mean), text


def shown_workloads() -> dict[str, list[str]]:
    """The rows of the page's table by workload."""
    page = (ROOT / "docs" / "dlio.md").read_text()
    table = page.partition("<!-- workloads -->")[2].partition("<!-- end workloads -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {name.strip("`"): cells for name, *cells in rows}


@pytest.mark.parametrize("path", THEIRS or [None], ids=lambda path: path.stem if path else "none")
def test_the_page_shows_what_a_published_file_comes_to(path: Path | None) -> None:
    rows = shown_workloads()
    assert len(rows) >= 10
    if path is None:
        pytest.skip("DLIO's own files are not here")
    text = path.read_text()
    if path.stem not in rows:
        assert "num_checkpoints_read" in text, "it has no training to show"
        return
    theirs = dlio_arithmetic(text, 1)
    overrides = WITHOUT_CREDENTIALS if "secret_access_key" in text else []
    if "layer_parameters" in text:  # a state of 32 ranks
        overrides = ["checkpoint=none", "cluster.nodes=1", "cluster.ranks_per_node=1"]
    scenario = load(f"dlio:{path}", overrides)
    wanted = [
        ("{:,}".format, theirs["steps"], derive.steps_per_epoch(scenario)),
        (format_bytes, theirs["step_bytes"], derive.batch_bytes(scenario)),
        (format_rate, theirs["demand"], derive.read_demand(scenario)),
    ]
    cells = [(form(first), form(second)) for form, first, second in wanted]
    assert rows[path.stem] == [
        f"{theirs['files']:,} × {theirs['samples'] // theirs['files']:,}",
        *(first if first == second else f"{first}, here {second}" for first, second in cells),
    ]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("dlio:", "dlio: names no file; write dlio:FILE"),
        ("dlio:nothere.yaml", "nothere.yaml: no such file"),
        ("dlio:{here}", "is a folder"),
        ("dlio:{here}/mine.yaml", "mine.yaml: is a scenario of rayio (loader), not a workload of DLIO; leave dlio:"),
        ("dlio:{here}/empty.yaml", "empty.yaml: is empty; a workload of DLIO has sections such as dataset"),
        ("dlio:{here}/text.yaml", "text.yaml: must be a mapping with keys, not hello"),
        ("dlio:{here}/near.yaml", "near.yaml:2: reader.batch_sice=5: is no key of DLIO; did you mean reader.batch_s"),
        ("dlio:{here}/moved.yaml", "moved.yaml:1: train.batch_size=5: is no key of DLIO; did you mean reader.batch"),
        ("dlio:{here}/bucket.yaml", "is missing, the name of the bucket"),
        ("{here}/near.yaml", "use loader"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_workload_is_one_line(source: str, line: str, tmp_path: Path) -> None:
    texts = {
        "mine": "name: x\nloader: {batch_size: 3}\n", "empty": "", "text": "hello\n",
        "near": "framework: pytorch\nreader: {batch_sice: 5}\n", "moved": "train: {batch_size: 5}\n",
        "bucket": "storage: {storage_type: s3}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load(source.format(here=tmp_path))
    assert any(line in problem for problem in refused.value.problems)
    assert all("\n" not in problem for problem in refused.value.problems)


def test_credentials_are_never_shown_and_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hush-hush"
    bucket = ["++workload.storage.storage_type=s3", "++workload.storage.storage_root=b"]
    key = "++workload.storage.storage_options.secret_access_key"
    source = written(tmp_path, VOLUMES)
    with pytest.raises(ScenarioError, match=r"=\*\*\*: credentials belong in the environment") as refused:
        load(source, [*bucket, f"{key}={secret}"])
    assert secret not in "".join(refused.value.problems)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    told = [*bucket, key + "=${oc.env:AWS_SECRET_ACCESS_KEY}"]
    made = converted(source, told)
    assert made is not None
    assert any("rayio reads AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from" in line for line in made.idle)
    assert secret not in repr(made)
    assert load(source, told).dataset.path == "s3://b/data/volumes/train"


def test_commands_take_a_workload_where_they_take_a_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = written(tmp_path, VOLUMES)
    small = ["++workload.dataset.record_length_bytes=3000", "~workload.dataset.record_length_bytes_stdev"]
    main_exits(0, "run", source, *small, "--engine", "local", "--no-report", "expect.au_dlio=>= 0")
    assert "keys act otherwise here" in capsys.readouterr().err
    main_exits(0, "sweep", source, *small, "++workload.reader.read_threads=1,2", "train.steps=4", "--out", "swept")
    assert (tmp_path / "swept" / "sweep.csv").read_text().count("\n") == 3
    main_exits(0, "show", source, *small)
    shown = capsys.readouterr().out
    assert "source: DLIO's workload.yaml ++workload.dataset.record_length_bytes=3000 ~workload" in shown
    scenario = load(source, {"++workload.reader.batch_size": 5, "~workload.metric": None, "cluster.nodes": 2})
    assert (scenario.loader.batch_size, dict(scenario.expect), scenario.cluster.nodes) == (5, {}, 2)


def test_compressed_records_are_read_whole(tmp_path: Path) -> None:
    source = written(tmp_path, RECORDS)
    scenario = load(source, ["++workload.dataset.compression=gzip"])
    assert (scenario.loader.file_access, scenario.dataset.format) == ("whole_file", "tfrecord")
    assert load(source).loader.file_access == "streamed"


def test_lzf_of_hdf5_is_passed_on_as_dlio_passes_it_to_h5py(tmp_path: Path) -> None:
    chunked = ["enable_chunking=True", "chunk_size=4096", "compression=lzf", "format=hdf5"]
    source = written(tmp_path, VOLUMES)
    scenario = load(source, [f"++workload.dataset.{key}" for key in chunked])
    assert scenario.dataset.options.model_dump(exclude_defaults=True) == {"chunk": 4096, "compression": "lzf"}


def test_the_keys_are_no_json_and_a_workload_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    main_exits(0, "import", "dlio", "--keys")
    assert capsys.readouterr().out == f"{table()}\n"
    for arguments, line in ((["--keys", "--json"], "--keys prints Markdown"), ([], "Missing argument 'WORKLOAD'")):
        main_exits(2, "import", "dlio", *arguments)
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        assert line in said.err


def test_the_command_says_the_fate_of_every_key_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key with a value that is not its default, through ``rayio import dlio``: its fate is the table's."""
    path, out = tmp_path / "workload.yaml", tmp_path / "mine.yaml"
    path.write_text(PLAIN)

    def imported(keys: dict[str, Any]) -> tuple[int | str | None, dict[str, Any], str]:
        overrides = [f"++workload.{key}={json.dumps(value)}" for key, value in keys.items()]
        out.unlink(missing_ok=True)
        with pytest.raises(SystemExit) as ended:
            main(["import", "dlio", str(path), *overrides, "--out", str(out)])
        scenario = yaml.safe_load(out.read_text()) if out.exists() else {}
        return (
            ended.value.code,
            {key: value for key, value in scenario.items() if key != "source"},
            capsys.readouterr().err,
        )

    fates, without = dict.fromkeys((ACTS, ONLY, IDLE, REFUSED), 0), dict[str, dict[str, Any]]()
    idle = {"reader.file_access": "collective", "train.seed_change_epoch": False}
    for key, fate in ((key, KEYS[key].fate) for key in KEYS):
        needs = SAVED if fate == REFUSED else needed(key)
        value = ACTING[key] if fate == ACTS else SINGLE[key][1] if fate == ONLY else idle.get(key, 3)
        code, scenario, lines = imported({**needs, key: value})
        fates[fate] += 1
        if key in REFUSED_VALUE or fate in (ONLY, REFUSED):
            assert (code, scenario) == (2, {}), key
            assert f"{key}=" in lines, (key, lines)
            continue
        assert code == 0, (key, lines)
        if key in IN_PAIRS:
            continue
        plain = without.get(str(needs)) or without.setdefault(str(needs), imported(needs)[1])
        changes = scenario != plain
        assert changes == (fate == ACTS and key not in ONLY_LINE), key
        assert fate != IDLE or f"{key}=" in lines, (key, lines)
    assert sum(fates.values()) == len(KEYS)
    assert min(fates[ACTS], fates[IDLE]) > 25
