"""Whole commands: what is left behind, what is said, and with which exit code they end."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayio
from rayio.cli import _exit_code
from rayio.engines.ray.cluster.connect import Connection, Node, in_flight_bytes, preflight
from rayio.engines.ray.placement import Place
from rayio.errors import ClusterError, DataError, ScenarioError
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.reporter import Reporter
from rayio.scenario.model import Trace
from rayio.scenario.write import to_yaml
from rayio.session import simulate
from scenarios import scenario


@pytest.fixture
def small(home: Path) -> Path:
    """Write a scenario on real files that takes a moment, and give its path."""
    path = home / "small.yaml"
    wanted = scenario(dataset__path="data", train__compute="1 ms", train__epochs=1, dataset__num_files=51)
    path.write_text(to_yaml(wanted))
    return path


def command(*arguments: str | Path) -> int:
    return _exit_code([str(a) for a in arguments])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Give the last line on standard error, and make sure that no traceback is there."""
    text = capsys.readouterr().err.strip()
    assert "Traceback" not in text
    return text.splitlines()[-1]


def test_a_run_leaves_its_scenario_its_spans_and_its_numbers(
    small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", small, "loader.num_workers=1", "--engine", "local", "--out", "r1") == 0
    assert sorted(p.name for p in (home / "r1").iterdir()) == [
        "report.html",
        "result.json",
        "run.json",
        "scenario.yaml",
        "spans",
    ]
    result = json.loads((home / "r1/result.json").read_text())
    assert result["ledger"]["even"] is True
    assert result["ledger"]["delivered_samples"] == 48
    assert result["dropped_samples_per_epoch"] == 3
    assert yaml.safe_load((home / "r1/scenario.yaml").read_text())["loader"]["num_workers"] == 1
    info = json.loads((home / "r1/run.json").read_text())
    assert (info["engine"], info["payload"]) == ("local", "real")
    printed = capsys.readouterr().out
    assert "drop_last dropped 3 samples per epoch" in printed
    assert str(home / "r1") in printed
    assert command("report", "r1") == 0
    assert capsys.readouterr().out == printed


def test_the_python_call_gives_utilisation_and_spans(home: Path) -> None:
    run = rayio.run(scenario(train__compute="1 ms"), engine="virtual", out="r")
    assert run.au is not None
    assert 0.9 < run.au <= 1
    spans = run.spans()
    assert set(spans["name"]) >= {"read", "data_wait", "compute"}
    assert (home / "r").is_dir()


@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_threads_are_said_to_be_for_ray(home: Path, engine: Any) -> None:
    wanted = scenario(loader__worker="thread", train__compute="100 us")
    notes = rayio.run(wanted, engine=engine).result["notes"]
    assert any(note.startswith(f"loader.worker=thread: applies to Ray only; on the {engine} engine") for note in notes)


def test_overrides_may_be_a_mapping(home: Path) -> None:
    run = rayio.run("unet3d-small", {"train.epochs": 1, "loader.num_workers": 1}, engine="virtual")
    assert "epochs: 1" in (run.directory.scenario or "")


def test_an_unmet_expectation_is_exit_code_3(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("simulate", small, "expect.au=> 1") == 3
    assert "is not > 1" in one_line(capsys)


def test_a_met_expectation_is_exit_code_0(small: Path) -> None:
    assert command("simulate", small, "expect.au=<= 1", "expect.data_wait_share=<= 1") == 0


def test_an_expectation_of_an_unknown_metric_is_refused_before_the_run(
    small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("simulate", small, "expect.ua=>= 2", "--out", "r") == 2
    assert "did you mean" in one_line(capsys)
    assert not (home / "r").exists()


def test_an_uneven_ledger_is_exit_code_4(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Plan.planned

    def one_more(self: Plan) -> list[Any]:
        tallies = honest(self)
        tallies[0].samples += 1
        return tallies

    monkeypatch.setattr(Plan, "planned", one_more)
    run = rayio.simulate(scenario())
    assert run.exit_code == 4
    assert "samples were not delivered exactly once: rank 0" in run.result["error"]


def test_a_run_directory_is_never_overwritten(small: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("simulate", small, "--out", "r") == 0
    before = (home / "r/result.json").read_bytes()
    assert command("simulate", small, "--out", "r") == 2
    assert "already holds a run" in one_line(capsys)
    assert (home / "r/result.json").read_bytes() == before


def test_a_dataset_path_that_is_a_file_is_refused(small: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "data").write_text("precious")
    assert command("run", small, "--engine", "local", "--out", "r") == 2
    assert "dataset.path=data is a file; choose a folder" in one_line(capsys)
    assert (home / "data").read_text() == "precious"
    assert not (home / "r").exists(), "a run that never began leaves nothing"


def test_a_dataset_of_another_scenario_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("generate", small) == 0
    assert command("run", small, "dataset.num_files=60", "--engine", "local") == 2
    line = one_line(capsys)
    assert "51" in line
    assert "60" in line


def test_a_truncated_file_is_named_with_sample_and_expectation(
    small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("generate", small) == 0
    victim = sorted((home / "data").rglob("*.npz"))[7]
    victim.write_bytes(victim.read_bytes()[:-40])
    assert command("run", small, "--engine", "local") == 2
    line = one_line(capsys)
    assert str(victim) in line
    assert "sample" in line
    assert "expected" in line


def test_a_dataset_is_generated_once_and_then_found(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("generate", small) == 0
    assert "generated 51 files" in one_line(capsys)
    assert command("generate", small) == 0
    assert "found 51 files" in one_line(capsys)


def test_modelled_data_cannot_be_generated(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("generate", "unet3d-small", "dataset.path=model://x") == 2
    assert "nothing to generate" in one_line(capsys)


def test_a_checkpoint_path_that_is_a_file_is_refused_before_the_run(
    small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "ck").write_text("precious")
    saved = ("checkpoint.every.epochs=1", "checkpoint.path=ck", "checkpoint.model.bytes=1 MB")
    assert command("run", small, *saved, "--engine", "local", "--out", "r") == 2
    assert "checkpoint.path" in one_line(capsys)
    assert not (home / "r").exists()


def test_checkpoints_are_whole_files_of_the_planned_size(small: Path, home: Path) -> None:
    saved = ("checkpoint.every.steps=5", "checkpoint.path=ck", "checkpoint.model.bytes=100 kB")
    assert command("run", small, *saved, "checkpoint.writers=all_ranks", "--engine", "local") == 0
    files = sorted(p for p in (home / "ck").rglob("*.bin") if p.is_file())
    assert [p.name for p in files] == ["rank-00000.bin", "rank-00001.bin"] * 2
    assert {p.stat().st_size for p in files} == {100_000}


def test_a_checkpoint_that_never_falls_due_is_said(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = ("checkpoint.every.epochs=2", "checkpoint.path=ck", "checkpoint.model.bytes=1 MB")
    assert command("simulate", small, *saved) == 0
    said = "checkpoint.every: no checkpoint falls due, the first would be after 24 of 12 steps"
    out, err = capsys.readouterr()
    assert said in out
    assert said not in err
    assert command("simulate", small, *saved, "failures={mtbf: 1000 h}") == 0
    assert f"rayio: warning: {said}; save more often, or set checkpoint=none" in capsys.readouterr().err
    assert command("validate", small, *saved) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.warmup_steps=12", "the run has 12 steps, so nothing is measured"),
        ("train.steps=99", "caps nothing, an epoch has 12 steps"),
        ("loader={batch_size: 2, num_workers: 0, prefetch_factor: 9}", "nothing is prefetched"),
        ("loader={batch_size: 2, num_workers: 0, queue: in_rank}", "loader.queue=in_rank: there is no queue"),
    ],
)
def test_a_key_that_has_nothing_to_do_in_this_run_is_said(
    override: str, said: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("simulate", small, override) == 0
    assert said in capsys.readouterr().out


def test_nothing_measured_is_unknown_and_meets_no_expectation(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("simulate", small, "train.warmup_steps=12", "expect.au=>= 0") == 3
    assert "au is not known" in one_line(capsys)


def test_an_address_goes_with_ray_alone(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", small, "--engine", "local", "--address", "auto") == 2
    assert "uses no cluster" in one_line(capsys)


def test_the_report_of_a_damaged_run_says_what_is_lost(
    small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("simulate", small, "--out", "r", "--no-report") == 0
    (part,) = (home / "r/spans").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    capsys.readouterr()
    assert command("report", "r") == 0
    assert f"{part.name}: damaged" in capsys.readouterr().out
    (home / "r/result.json").write_text("{}")
    assert command("report", "r") == 2
    assert "has version None" in one_line(capsys)


def test_emulated_nodes_that_share_a_real_one_are_said() -> None:
    plan = plan_of(scenario(cluster__nodes=3), modelled=True)
    (warning,) = preflight(plan, Connection(False, (node(free_bytes=1 << 40),), "1234"))
    assert "cluster.nodes=3 are emulated on 1 Ray node." in warning


def test_an_unknown_engine_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", small, "--engine", "spark") == 2
    assert "spark" in one_line(capsys)


@pytest.mark.parametrize("path", ["nowhere", "small.yaml"])
def test_what_is_not_a_run_cannot_be_reported(path: str, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", path) == 2
    assert "is not a run directory" in one_line(capsys)


def test_an_address_where_no_ray_is_ends_at_once(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # bound and not listening: every connection is refused
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert command("run", small, "--address", address, "--out", "r") == 2
    assert f"cannot reach a Ray cluster at {address}" in one_line(capsys)


def test_a_ray_client_address_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", small, "--address", "ray://127.0.0.1:10001") == 2
    assert "ray job submit" in one_line(capsys)
    assert command("run", small, "--address", "foo://x") == 2
    assert "must be auto, or the host:port" in one_line(capsys)


def test_inside_a_ray_job_relative_paths_need_a_root(
    small: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert command("run", small, "--engine", "local") == 2
    assert "--root" in one_line(capsys)
    assert command("run", small, "--engine", "local", "--root", home / "elsewhere") == 0
    assert (home / "elsewhere/data").is_dir()


def node(**changes: Any) -> Node:
    here = preflight_here()
    values = {name: getattr(here, name) for name in here.__slots__} | changes
    return Node(**values)


def preflight_here() -> Node:
    from rayio.engines.ray.cluster.connect import _describe

    return _describe("1234", 1 << 30)


def test_nodes_of_other_versions_are_refused() -> None:
    plan = plan_of(scenario(), modelled=True)
    for what, value in (("ray", "1.0.0"), ("rayio", "0.0.1"), ("python", "3.8.1")):
        connection = Connection(False, (node(), node(host="other", **{what: value})), "1234")
        with pytest.raises(ClusterError, match=f"node other has .* {value}.*install the same version"):
            preflight(plan, connection)


def test_actors_that_do_not_fit_in_memory_are_refused_with_the_key_to_change() -> None:
    plan = plan_of(scenario(cluster__nodes=4, loader__num_workers=8, cluster__roles_per_actor=1), modelled=True)
    with pytest.raises(ClusterError, match=r"actors of about 62.* raise cluster\.roles_per_actor"):
        preflight(plan, Connection(False, (node(free_bytes=1 << 30),), "1234"))
    (shared,) = preflight(plan, Connection(False, (node(free_bytes=1 << 40),), "1234"))
    assert "emulated" in shared


def test_a_window_beyond_the_bound_on_bytes_is_a_warning() -> None:
    wanted = scenario(dataset__path="data", dataset__sample_bytes="1 MB", loader__max_bytes_in_flight="1 MB")
    (warning,) = preflight(plan_of(wanted, modelled=False), Connection(False, (node(free_bytes=1 << 40),), "1234"))
    assert "memory_bound" in warning


def test_automatic_bytes_in_flight_are_a_share_of_the_object_store() -> None:
    def bytes_in_flight(stores: dict[Place, int], **cluster: Any) -> int:
        nodes = tuple(node(object_store_bytes=nbytes, place=place) for place, nbytes in stores.items())
        return in_flight_bytes(plan_of(scenario(cluster=cluster), modelled=True), Connection(True, nodes, "1234"))

    small, large, head, kept = Place(1), Place(2), Place(0), Place(is_for_readers=True)
    tier: dict[str, Any] = {"placement": "dedicated_readers"}
    assert bytes_in_flight({small: 1000}, nodes=1) == 300
    assert bytes_in_flight({small: 1000}, nodes=2) == 150
    assert bytes_in_flight({small: 1000, large: 2000}, nodes=2) == 300
    assert bytes_in_flight({head: 10, small: 1000}, nodes=2) == 150, "no batch lies on a head without processors"
    # Where readers have Ray nodes of their own, their stores hold the windows of all ranks, and those of ranks theirs.
    assert bytes_in_flight({head: 10, small: 1000, kept: 4000}, nodes=1, **tier) == 300
    assert bytes_in_flight({head: 10, small: 1000, large: 1000, kept: 1600}, nodes=2, **tier) == 240
    assert bytes_in_flight({small: 1000, kept: 1600}, nodes=2, reader_nodes=2, **tier) == 150


def test_overrides_do_not_apply_to_a_scenario_object() -> None:
    with pytest.raises(ScenarioError, match="overrides apply"):
        rayio.run(scenario(), {"seed": 1}, engine="virtual")


def test_an_unexpected_error_is_exit_code_1_and_keeps_its_traceback(
    small: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Plan, rank: int) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Plan, "training", broken)
    monkeypatch.setattr("tempfile.tempdir", str(home))  # where the command line keeps the traceback
    assert command("simulate", small, "--out", "r") == 1
    assert "a defect" in one_line(capsys)
    (kept,) = home.glob("rayio-*.log")
    assert "ZeroDivisionError: a defect" in kept.read_text()
    assert "ZeroDivisionError: a defect" in (home / "r/log.txt").read_text()
    assert json.loads((home / "r/result.json").read_text())["exit_code"] == 1


class Interrupted(Reporter):
    """Presses Ctrl-C as soon as a step is done."""

    def live(self, text: str, share: float | None = None) -> None:
        if share:
            raise KeyboardInterrupt


def test_ctrl_c_on_the_local_engine_leaves_a_readable_run(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = scenario(train__compute="100 ms", dataset__num_files=480)
    with pytest.raises(KeyboardInterrupt):
        rayio.run(wanted, engine="local", out="cut", reporter=Interrupted())
    gc.collect()
    assert caplog.records == [], "no task complains of the interrupt"
    left = rayio.Run.open(home / "cut")
    assert left.exit_code == 130
    assert left.result["ledger"]["delivered_steps"] > 0
    assert left.result["ledger"]["even"] is None


def test_help_and_validate_import_neither_ray_nor_torch_nor_arrow() -> None:
    code = (
        "import sys; from rayio.cli import _exit_code; assert _exit_code(['validate', 'unet3d-small']) == 0;"
        "sys.exit(', '.join({'ray', 'torch', 'pyarrow', 'pandas'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("level", ["none", "step", "batch", "sample", "io"])
def test_every_level_says_what_it_can_and_that_all_it_recorded_is_stored(
    level: str, small: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", small, "--engine", "local", "--trace", level, "--out", "r1", "trace.resolution=1 us") == 0
    run = rayio.Run.open(home / "r1")
    trace = run.result["trace"]
    assert (trace["level"], trace["resolution"]) == (level, "1 us")
    assert trace["recorded"] == trace["stored"] == len(run.spans()) > 0
    assert [path.name for path in (home / "r1/spans").iterdir()] == ["spans-00000.parquet"]
    assert not (run.spans()["duration_ns"] % 1000).any()
    printed = capsys.readouterr().out
    assert f"trace level {level}: {trace['stored']} spans recorded, all stored" in printed
    assert (run.au is None) == (level == "none")
    assert (run.result["mib_per_second"] is None) == (level in ("none", "step"))
    assert run.result["steps"] == 24
    assert run.result["wall_seconds"] > 0
    if level in ("none", "step"):
        assert f"trace.level is {level}" in printed


def test_spans_that_got_lost_are_counted_and_said(small: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayio.trace.parts import Parts

    keep = Parts.keep
    monkeypatch.setattr(Parts, "keep", lambda self, table: keep(self, table.slice(1)))
    result = rayio.run(small, engine="local", out="r1").result
    assert result["trace"]["stored"] < result["trace"]["recorded"]
    assert any("spans were recorded, " in note for note in result["notes"])


def test_without_spans_the_steps_and_samples_are_those_of_training(tmp_path: Path) -> None:
    evaluated = {"dataset__eval": {"num_files": 4}, "train__evaluate": {"compute": "1 ms"}}
    wanted = scenario(**evaluated, loader__drop_last=False, loader__batch_size=5, dataset__num_files=23)
    fine, none = (
        simulate(wanted.model_copy(update={"trace": Trace(level=level)}), root=tmp_path).result
        for level in ("batch", "none")
    )
    assert none["steps"] == fine["steps"]
    assert [row["steps"] for row in none["ranks"]] == [row["steps"] for row in fine["ranks"]]
    samples = 23 * wanted.train.epochs
    assert none["samples_per_second"] == pytest.approx(samples / none["wall_seconds"])
    assert fine["evaluation"]["rounds"] == wanted.train.epochs
    assert none.keys() == fine.keys()
    assert none["percentiles"].keys() == fine["percentiles"].keys()


def test_an_evaluation_dataset_that_is_another_is_told_by_its_own_keys(home: Path) -> None:
    def generated(files: int) -> Path | str:
        evaluated = {"dataset__eval": {"num_files": files}, "train__evaluate": {"compute": "1 ms"}}
        return rayio.generate(scenario(dataset__path="data", **evaluated), root=home)

    generated(4)
    with pytest.raises(DataError, match=r"has dataset.eval.num_files = 4, .* has 8; choose another dataset.eval.path"):
        generated(8)
