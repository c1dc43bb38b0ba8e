"""Pipes, sockets, devices and folders in the place of files that are read: one line at once, wherever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from not_files import KINDS, in_place_of
from test_trace_store import spans

from rayio.data.formats import FORMATS
from rayio.data.generate import prepare
from rayio.data.layout import Layout
from rayio.errors import RayioError
from rayio.imports import dlio_results as dlio
from rayio.report.build import report
from rayio.scenario.load import load
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from rayio.study.sweeps import points
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.trace.query import query
from rayio.trace.run_directory import RunDirectory

SCENARIO = "name: x\nextends: base.yaml\n"
LAYOUT = Layout(2, 3, Constant(value=300), 5, ".npz")


def scenario(folder: Path) -> Callable[[], object]:
    (folder / "x.yaml").write_text(SCENARIO)
    (folder / "base.yaml").write_text("extends: unet3d-small\n")
    return lambda: load(folder / "x.yaml")


def dataset(folder: Path) -> Callable[[], object]:
    prepare(LAYOUT, "npz", folder, threads=1)
    return lambda: prepare(LAYOUT, "npz", folder, threads=1)


def run(folder: Path) -> RunDirectory:
    made = RunDirectory.create(folder)
    made.write_scenario("name: x\n")
    made.write_spans(spans([1, 2]), "part-00000")
    return made


def opened_run(folder: Path) -> Callable[[], object]:
    run(folder)
    (folder / "result.json").write_text("{}")
    return lambda: RunDirectory.open(folder).result


def reported_run(folder: Path) -> Callable[[], object]:
    run(folder)
    return lambda: report(folder)


def queried_run(folder: Path) -> Callable[[], object]:
    run(folder)
    return lambda: query(RunDirectory.open(folder), "select * from spans")


def dlio_results(folder: Path) -> Callable[[], object]:
    (folder / "summary.json").write_text(json.dumps({"num_accelerators": 1, "epochs": 1}))
    (folder / "per_epoch_stats.json").write_text(json.dumps({"1": {}}))
    (folder / "0_output.json").write_text("{}")
    return lambda: dlio.read(folder)


def sweep_points(folder: Path) -> Callable[[], object]:
    (folder / "points.csv").write_text("train.epochs\n1\n")
    return lambda: points.listed(folder / "points.csv", ())


def sweep(folder: Path) -> Callable[[], object]:
    def again() -> None:
        with SweepDirectory.open(folder, {}) as opened:
            [*opened.rows()]

    again()
    return again


#: What reads a file, and the files that it reads.
READERS: dict[str, tuple[Callable[[Path], Callable[[], object]], tuple[str, ...]]] = {
    "scenario": (scenario, ("x.yaml", "base.yaml")),
    "dataset": (dataset, ("rayio-dataset.json", LAYOUT.path(1))),
    "run": (opened_run, ("run.json", "result.json")),
    "report": (reported_run, ("spans/part-00000.parquet",)),
    "query": (queried_run, ("spans/part-00000.parquet",)),
    "import": (dlio_results, ("summary.json", "per_epoch_stats.json", "0_output.json", "config.yaml")),
    "points": (sweep_points, ("points.csv",)),
    "sweep": (sweep, ("sweep.json", "points.jsonl")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("reader", "name"), [(reader, name) for reader, (_, names) in READERS.items() for name in names]
)
def test_what_is_no_file_is_told_at_once(tmp_path: Path, reader: str, name: str, kind: str) -> None:
    path = tmp_path / "there" / name
    path.parent.parent.mkdir(exist_ok=True)
    (tmp_path / "there").mkdir(exist_ok=True)
    read = READERS[reader][0](tmp_path / "there")
    if kind == "folder" and name.endswith(".parquet"):
        pytest.skip("a folder there is none of the span files")
    with in_place_of(path, kind), pytest.raises(RayioError) as told:
        read()
    said = str(told.value)
    assert str(path) in said or path.name in said
    assert kind in said
    assert "\n" not in said
    assert told.value.exit_code == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", [name for name in FORMATS if getattr(FORMATS[name], "has_files", True)])
def test_a_sample_whose_file_is_none_is_told_at_once(tmp_path: Path, format: str, kind: str) -> None:
    layout = Layout(2, 3, Constant(value=500), 5, FORMATS[format].extension, options_of(FORMATS[format])())
    prepare(layout, format, tmp_path, threads=1)
    path = tmp_path / layout.path(1)
    batch = layout.whole_file(1)
    with in_place_of(path, kind), pytest.raises(RayioError, match=rf"sample 3 \(row 0\): it is a {kind}, not a file"):
        FORMATS[format].read(
            lambda name: PosixStore(tmp_path).open(name, Traffic()),
            layout,
            batch,
            np.empty(batch.total_bytes, np.uint8),
        )


def test_links_to_files_are_files(tmp_path: Path) -> None:
    scenario(tmp_path)
    (tmp_path / "base.yaml").rename(tmp_path / "other.yaml")
    (tmp_path / "base.yaml").symlink_to(tmp_path / "other.yaml")
    assert load(tmp_path / "x.yaml").name == "x"


def test_a_link_to_itself_or_to_nothing_is_named(tmp_path: Path) -> None:
    again, path = dataset(tmp_path), tmp_path / LAYOUT.path(1)
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(RayioError, match=rf"^{path}: this symbolic link leads back to itself; remove it"):
        again()
    loose = tmp_path / "loose"
    loose.symlink_to("gone")
    with pytest.raises(RayioError, match=rf"^{loose}: this symbolic link leads nowhere; remove it"):
        PosixStore(loose).prepare()
