"""What numbers are: measured, predicted or imported; on which models they rest, and whose time was lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import check
from test_results import OLD

import rayio
from rayio.analyze.stages import OF_LOADER
from rayio.cli import main
from rayio.errors import ScenarioError
from rayio.kinds import COSTS, STORAGE_MODELS
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text.explanation import text
from rayio.scenario.costs import Costs
from rayio.scenario.load import build, load
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.scenario.write import to_yaml
from scenarios import scenario, simulated

NO_LOADER = "  costs                   none  loader overhead not modelled"
#: Storage so quick that nothing waits for it.
QUICK = {"first_byte": 0, "connection_bandwidth": "100 GB/s", "bandwidth": "100 GB/s"}
PUT = {"lease": "1 ms", "put": "12 ms", "take": "1 ms"}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def predicted(root: Path, **overrides: Any) -> rayio.Run:
    return rayio.simulate(scenario(**overrides), out=root / "predicted", root=root)


@pytest.mark.parametrize(
    ("path", "model", "cpu", "is_left_out"),
    [
        ("model://x", "nvme", {}, False),
        ("model://x", "s3", {}, True),
        ("s3://bucket/x", "nvme", {}, True),
        ("model://x", "s3", {"costs": {"cpu": {"sample": "300 us"}}, "cluster__cores": 2}, False),
    ],
)
def test_processor_time_of_a_buckets_requests_is_left_out_until_it_is_known(
    path: str, model: str, cpu: dict[str, Any], is_left_out: bool
) -> None:
    wanted = scenario(**{"dataset__path": path, "storage__model": model} | cpu)
    left_out = origin_of(wanted, is_virtual=True, modelled=True).leaves_out
    assert ("processor time of requests" in left_out) == is_left_out


# --- kinds of results -----------------------------------------------------------------------------------------------


def test_a_prediction_says_so_first_with_its_models_and_what_it_leaves_out(tmp_path: Path) -> None:
    run = predicted(tmp_path)
    lines = run.summary().splitlines()
    assert lines[0].startswith("small, predicted on the virtual engine: 48 steps of 2 ranks together, ")
    assert lines[1] == "  storage                 nvme  modelled, numbers assumed"
    assert lines[2] == NO_LOADER
    assert lines[3].startswith("  not in it: messages and copies of the loader, contention for processors,")
    assert "  note: storage.model nvme: assumed: a PCIe 4.0 NVMe drive" in run.summary()
    assert len(run.summary().splitlines()) <= 40
    told = json.loads((run.path / "result.json").read_text())["origin"]
    assert (told["kind"], told["storage"]) == ("predicted", "modelled")
    assert told["model"]["name"] == "nvme"
    assert told["model"]["provenance"] == "assumed"
    assert told["costs"]["name"] == "none"
    assert any("contention" in what for what in told["leaves_out"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("s3", "  storage                   s3  modelled, numbers published"),
        (QUICK, "  storage           parameters  modelled, numbers assumed"),
        (
            {**QUICK, "provenance": "fitted", "source": "fitted to the reads of one (ray engine)"},
            "  storage           parameters  modelled, numbers fitted to the reads of one (ray engine)",
        ),
        (
            {**QUICK, "provenance": "published", "source": "the vendor's data sheet"},
            "  storage           parameters  modelled, numbers published",
        ),
    ],
)
def test_where_the_numbers_of_a_model_come_from_is_said(tmp_path: Path, model: Any, said: str) -> None:
    run = predicted(tmp_path, storage__model=model)
    assert said in run.summary().splitlines()
    assert ("note: storage.model parameters: published: the vendor's data sheet" in run.summary()) == (
        "vendor" in str(model)
    )


def test_a_run_on_a_wall_clock_is_measured_and_says_when_its_storage_is_a_model(tmp_path: Path) -> None:
    real = rayio.run(scenario(dataset__path="data", train__epochs=1), engine="local", root=tmp_path)
    lines = real.summary().splitlines()
    assert lines[0].startswith("small, measured on the local engine: 24 steps")
    assert not any("model" in line for line in lines[:4])
    assert real.result["origin"] == {"kind": "measured", "storage": "real", "leaves_out": []}
    modelled = rayio.run(scenario(train__epochs=1), engine="local", root=tmp_path, out="modelled")
    lines = modelled.summary().splitlines()
    assert lines[0].startswith("small, measured on the local engine: 24 steps")
    assert lines[1] == "  measured are ranks, queues and messages; storage is a model"
    assert lines[2] == "  storage                 nvme  modelled, numbers assumed"
    assert lines[3].startswith("  not in it: processor time of reading and decoding real bytes, page caches")
    assert modelled.result.origin is not None
    assert (modelled.result.origin.kind, modelled.result.origin.storage) == ("measured", "modelled")
    assert modelled.result.origin.costs is None


def test_results_that_do_not_say_it_are_told_by_their_engine(tmp_path: Path) -> None:
    assert "origin" not in json.loads((OLD / "result.json").read_text())
    old = rayio.Run.open(OLD)
    assert old.result.origin is not None
    assert (old.result.origin.kind, old.result.origin.storage) == ("predicted", "modelled")
    assert ", predicted on the virtual engine: " in old.summary()
    for engine, kind in (("ray", "measured"), ("local", "measured"), ("dlio", "imported")):
        folder = tmp_path / engine
        folder.mkdir()
        for file in ("run.json", "result.json"):
            (folder / file).write_text((OLD / file).read_text().replace('"virtual"', f'"{engine}"'))
        origin = rayio.Run.open(folder).result.origin
        assert origin is not None
        assert (origin.kind, origin.storage) == (kind, "unknown")


def test_the_reports_head_says_it(tmp_path: Path) -> None:
    head, _, _ = check(report(predicted(tmp_path).path).read_text(encoding="utf-8")).words.partition("Where the step")
    assert "predicted on the virtual engine" in head
    assert "storage nvme: modelled, numbers assumed" in head
    assert "costs none: loader overhead not modelled" in head


def test_explain_says_it_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = predicted(tmp_path)
    _, shown, _ = printed(capsys, "explain", str(run.path))
    first = " ".join(shown.partition("\n\n")[0].split())
    assert first.startswith("small, predicted on the virtual engine; storage nvme: modelled, numbers assumed")
    _, out, _ = printed(capsys, "explain", str(run.path), "--json")
    assert json.loads(out)["origin"] == run.result["origin"]


def test_comparing_unlike_kinds_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(predicted(tmp_path).path)
    ran = str(rayio.run(scenario(train__epochs=1), engine="local", root=tmp_path, out="ran").path)
    again = str(rayio.simulate(scenario(seed=11), root=tmp_path, out="again").path)
    unlike = "unlike kinds: A is predicted, B is measured; what differs is also the way in which the numbers were found"
    _, shown, _ = printed(capsys, "compare", made, ran)
    assert shown.splitlines()[2:4] == [f"  A  predicted  {made}", f"  B  measured   {ran}"]
    assert f"  note: {unlike}" in shown.splitlines()
    found = json.loads(printed(capsys, "compare", made, ran, "--json")[1])
    assert [group["kind"] for group in found["groups"]] == ["predicted", "measured"]
    assert unlike in found["notes"]
    assert "unlike kinds" not in printed(capsys, "compare", made, again)[1]


def test_a_calibrated_scenario_remembers_its_run_and_its_prediction_names_it(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", loader__num_workers=1, loader__decode="6 ms", train__compute="2 ms")
    run = rayio.run(wanted, engine="local", root=tmp_path, out="taught")
    rayio.calibrate(run).write(tmp_path / "learned.yaml")
    told = rayio.simulate(tmp_path / "learned.yaml", root=tmp_path, out="then").result.origin
    assert told is not None
    assert told.model is not None
    assert told.costs is not None
    assert told.model.provenance == "fitted"
    assert told.model.source.startswith("fitted to the reads of taught (local engine, ")
    assert (told.costs.name, told.costs.source.partition(",")[0]) == (
        "parameters",
        "calibrated from taught (local engine",
    )


# --- costs ----------------------------------------------------------------------------------------------------------


def test_costs_are_none_unless_a_scenario_names_some() -> None:
    for name in ("unet3d-small", "unet3d-h100", "unet3d-a100", "unet3d-v100"):
        assert load(name).costs == "none"
    assert scenario().costs == "none"
    assert scenario().charges == Costs()


def test_every_name_says_how_where_and_when_its_numbers_were_measured() -> None:
    assert [*COSTS][:5] == ["none", "ray", "ray_in_rank", "ray_calls", "torch"]
    for name in COSTS:
        found = COSTS[name]
        assert found.source
        assert (name == "none") == (not found.costs.of_loader) == (not found.date)
        if found.date:
            assert "cores" in found.machine
            assert "benchmarks/" in found.source
            assert str(found).startswith(f"measured {found.date} on ")
            assert not any((found.costs.barrier, found.costs.step, found.costs.checkpoint)), "those are no loader's"


@pytest.mark.parametrize(
    "costs", ["none", "ray", "ray_in_rank", "torch", {"lease": "1 ms"}, {"put_bandwidth": "2 GB/s", "source": "x"}]
)
def test_costs_are_written_back_as_they_were_read(costs: Any) -> None:
    wanted = scenario(costs=costs)
    assert build(yaml.safe_load(to_yaml(wanted))) == wanted
    assert hash(wanted) == hash(scenario(costs=costs))


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ("rayy", "costs=rayy: must be none, ray, ray_in_rank, ray_calls or torch"),
        (3, "costs=3: must be none, ray, ray_in_rank, ray_calls or torch"),
        (False, "costs=false: write none"),
        ({"lesae": 1}, "costs.lesae=1: no such key; did you mean lease?"),
        ({"lease": "3 GB"}, "costs.lease=3 GB: unknown unit"),
    ],
)
def test_costs_that_are_none_of_these_are_refused_in_one_line(costs: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(costs=costs)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_number_replaces_no_name_unseen(tmp_path: Path) -> None:
    (tmp_path / "named.yaml").write_text("extends: unet3d-small\nname: named\ncosts: ray\n")
    with pytest.raises(ScenarioError, match=r"costs\.lease=3 ms: costs is ray, not a mapping"):
        load(tmp_path / "named.yaml", ["costs.lease=3 ms"])
    assert load(tmp_path / "named.yaml", ["costs={lease: 3 ms}"]).charges == Costs(lease=0.003)
    assert load("unet3d-small", ["costs.lease=3 ms"]).charges == Costs(lease=0.003)


def test_bytes_keep_a_reader_busy_unless_batches_have_none() -> None:
    def put(**overrides: Any) -> set[int]:
        return {row["duration_ns"] for row in simulated(train__epochs=1, **overrides).rows("put")}

    # Batches of 2 x 1000 B at 1 MB/s, beside 3 ms.
    assert put(costs={"put": "3 ms", "put_bandwidth": "1 MB/s"}) == {5_000_000}
    assert put(costs={"put": "3 ms", "put_bandwidth": "1 MB/s"}, loader__payload="none") == {3_000_000}
    assert put(costs={"put_bandwidth": "1 MB/s"}) == {2_000_000}


def test_named_costs_are_charged_and_named_with_their_machine(tmp_path: Path) -> None:
    run = predicted(tmp_path, costs="ray", train__compute="2 ms", storage__model=QUICK)
    known = COSTS["ray"]
    assert f"  costs                    ray  loader overhead, measured {known.date}, {known.machine}" in run.summary()
    assert run.result.origin is not None
    assert run.result.origin.costs is not None
    assert run.result.origin.costs.as_json() == {
        "name": "ray", "source": known.source, "machine": known.machine, "date": known.date,
    }  # fmt: skip
    assert not any("loader" in what for what in run.result.origin.leaves_out)


# --- whose time was lost --------------------------------------------------------------------------------------------


def of_loader(run: rayio.Run) -> float:
    """The share of step time that the stages of the loader took in the table of explain."""
    return sum(row.share or 0.0 for row in explain(run.path).verdict.table if row.cause in OF_LOADER)


def test_a_loss_to_the_loader_is_called_that(tmp_path: Path) -> None:
    # One worker needs 12 ms a batch for its messages and nothing else, where ranks compute for 10 ms.
    run = predicted(tmp_path, costs=PUT, storage__model=QUICK, loader__num_workers=1, dataset__num_files=240)
    found = explain(run.path)
    assert found["verdict"]["bound"] == "loader"
    assert found["verdict"]["cause"] == "put"
    assert found["sentence"].startswith("Loader-bound: ")
    assert "the loader's messages and copies take " in found["sentence"]
    assert ", most of it for `transfer`." in found["sentence"]
    assert "Input-bound" not in text(found)
    meanings = {row["cause"]: row["meaning"] for row in found["verdict"]["table"]}
    assert all(meanings[cause].startswith("loader's cost: ") for cause in OF_LOADER)
    assert run.result.loader_share == pytest.approx(of_loader(run), abs=1e-12)
    assert run.result.loader_share == pytest.approx(run.result.data_wait_share, abs=0.02)
    assert "of step time, its messages and copies, as costs charge it" in run.summary()
    (without,) = [row for row in found["simulated"]["changes"] if row["change"] == "loader = 0"]
    assert without["au"] == pytest.approx(1, abs=0.01)


def test_storage_and_decode_are_not_called_the_loaders(tmp_path: Path) -> None:
    run = predicted(
        tmp_path, costs={"put": "1 ms"}, storage__model=QUICK, loader__decode="15 ms", dataset__num_files=240
    )
    found = explain(run.path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "decode")
    assert run.result.loader_share is not None
    assert 0 < run.result.loader_share < 0.1


@pytest.mark.parametrize(
    "overrides",
    [
        {"loader__decode": "15 ms"},
        {"loader__assignment": "dynamic", "loader__decode": {"kind": "exponential", "mean": "9 ms"}},
        {"loader__num_workers": 0, "loader__decode": "3 ms"},
        {"loader__prefetch_factor": 1, "loader__decode": "4 ms", "loader__drop_last": False, "loader__batch_size": 5},
        {"storage__model": "s3", "train__epochs": 3},
    ],
)
def test_without_costs_nothing_is_the_loaders(overrides: dict[str, Any], tmp_path: Path) -> None:
    run = predicted(tmp_path, **overrides)
    assert of_loader(run) == 0
    assert run.result.loader_share is None
    assert "of it loader" not in run.summary()


def test_what_costs_charge_a_step_is_not_called_overhead_of_rayio(tmp_path: Path) -> None:
    run = predicted(tmp_path, costs={"step": "2 ms"}, storage__model=QUICK)
    said = run.summary() + text(explain(run.path))
    assert "rayio's own" not in said
    assert "charged by costs: barrier, end of a step" in said
    assert "Overhead-bound: 17 % of step time is charged by costs: barrier, end of a step." in said
    assert "rayio's own" not in check(report(run.path).read_text(encoding="utf-8")).words.partition(" definitions ")[0]


# --- storage that nobody described ----------------------------------------------------------------------------------


def unknown() -> Scenario:
    return scenario(storage__model="unknown")


def test_storage_that_nobody_described_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "theirs.yaml").write_text(to_yaml(unknown()))
    theirs = str(tmp_path / "theirs.yaml")
    line = (
        "storage.model=unknown: nobody described the storage of small, so nothing can be predicted with it; "
        f"set storage.model to a preset ({', '.join(STORAGE_MODELS)}) or to parameters\n"
    )
    for command in (
        ["simulate", theirs], ["run", theirs, "--engine", "local"], ["validate", theirs],
        ["sweep", theirs, "loader.num_workers=1,2"],
    ):  # fmt: skip
        code, out, err = printed(capsys, *command, *(["--root", str(tmp_path)] if command[0] != "validate" else []))
        assert (code, out) == (2, ""), command
        assert err == f"rayio: {line}", command
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.yaml"]
    assert "# storage.model unknown: not described" in printed(capsys, "show", theirs)[1]
    assert rayio.simulate(theirs, ["storage.model=nvme"], root=tmp_path).au is not None
