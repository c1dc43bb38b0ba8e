"""What a program or a notebook meets: names, one line for each thing, figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import Page

import rayio
from rayio import errors
from rayio.errors import ScenarioError
from rayio.session.result import Run
from rayio.trace.run_directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return rayio.simulate("unet3d-small", {"train.epochs": 1}, out=tmp_path_factory.mktemp("run") / "one")


def test_dir_lists_the_public_names_and_importing_stays_light() -> None:
    program = """
import sys
import rayio
names = dir(rayio)
public = {"run", "simulate", "generate", "explain", "calibrate", "compare"}
public |= {"sweep", "capacity", "advise", "check_published", "datasize", "Run", "Sweep", "errors", "__version__"}
public |= {"watch", "step", "reading", "pause"}
assert public == {*names}, names
heavy = {"ray", "torch", "numpy", "pydantic", "pandas", "pyarrow"} & {*sys.modules}
assert not heavy, heavy
assert rayio.errors.RayioError
assert not {"ray", "torch", "numpy"} & {*sys.modules}
for name in names:
    getattr(rayio, name)
assert not {"ray", "torch"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        rayio.simulat  # noqa: B018


def test_a_run_is_one_helpful_line(run: Run, tmp_path: Path) -> None:
    said = repr(run)
    assert said.startswith("<rayio.Run unet3d-small")
    assert f"AU {100 * (run.au or 0):.1f} %" in said
    assert run.address in said
    assert "\n" not in said
    broken = Run(RunDirectory.create(tmp_path / "broken", {}))
    assert repr(broken) == (
        f"<rayio.Run {broken.address}: {broken.address} has no result.json: the run failed, or is still running>"
    )


def test_a_notebook_shows_a_runs_summary(run: Run, tmp_path: Path) -> None:
    shown = Page(run._repr_html_())
    assert not shown.loads
    assert run.summary().split() == shown.words.split()
    broken = Run(RunDirectory.create(tmp_path / "<b>", {}))
    assert "has no result.json" in Page(broken._repr_html_()).words


def test_a_run_draws_the_reports_figures(run: Run, tmp_path: Path) -> None:
    drawn = run.plot()
    page = Page(drawn.save(tmp_path / "figures.html").read_text())
    assert not page.loads
    assert not page.links, "there is nothing on this page that a word could lead to"
    for words in ("share of the ranks' time, by phase", "throughput", "batches per queue", "step times"):
        assert words in page.words
    assert page.text.count("<svg") >= 4
    framed = drawn._repr_html_()
    assert framed.count("<iframe") == 1
    assert '"' not in framed.partition('srcdoc="')[2].partition('" style=')[0], "the page ends where its frame does"
    assert "save(" in repr(drawn)


def test_figures_of_a_run_without_spans_say_why(tmp_path: Path) -> None:
    empty = rayio.simulate("unet3d-small", {"train.epochs": 1, "trace.level": "none"}, out=tmp_path / "none")
    assert "trace.level is none" in Page(empty.plot().html).words


def test_a_sweep_is_one_helpful_line(tmp_path: Path) -> None:
    found = rayio.sweep("unet3d-small", {"loader.num_workers": [1, 2], "train.epochs": 1}, out=tmp_path / "s")
    said = repr(found)
    assert said.startswith("<rayio.Sweep unet3d-small over loader.num_workers on the virtual engine: 2 runs, AU ")
    assert str(found.path) in said


def test_errors_of_users_are_where_the_documentation_says() -> None:
    with pytest.raises(rayio.errors.RayioError, match="no scenario is named"):
        rayio.simulate("nothing-like-it")
    assert rayio.errors is errors


def test_a_scenario_may_be_a_mapping(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "name": "x", "dataset": {"path": "model://x", "num_files": 8, "sample_bytes": "1 KB"},
        "loader": {"batch_size": 1}, "train": {"epochs": 1, "compute": "1 ms"},
    }  # fmt: skip
    run = rayio.simulate(keys, {"train.epochs": 2}, root=tmp_path)
    assert run.result.ledger is not None
    assert run.result.ledger.delivered_samples == 16
    assert keys["train"]["epochs"] == 1
    for source, overrides, line in (
        (keys | {"train": {"epochs": 1}}, (), "scenario: train.compute: is required and missing"),
        (
            {key: keys[key] for key in keys if key != "train"},
            ["train.epochs=1"],
            "scenario: train.compute: is required",
        ),
        (keys | {"loader": {"batch_size": 0}}, ["train.epochs=2"], "scenario: loader.batch_size=0: must be"),
        (keys, ["train.epochs=0"], "scenario: override: train.epochs=0: must be"),
    ):
        with pytest.raises(ScenarioError) as refused:
            rayio.simulate(source, overrides, root=tmp_path)
        assert str(refused.value).startswith(line)
