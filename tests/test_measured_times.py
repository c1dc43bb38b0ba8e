"""Compute times from a file of measured times: read next to the scenario, kept as a table, equal on every engine."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayio.errors import ScenarioError
from rayio.scenario.derive import compute_times
from rayio.scenario.load import build, load
from rayio.scenario.write import to_yaml
from rayio.schema.empirical import Empirical, levels, table
from scenarios import run_locally, scenario, simulated

TEXT = """\
name: measured
cluster: {ranks_per_node: 2}
dataset: {path: model://small, num_files: 48, sample_bytes: 1000 B}
loader: {batch_size: 2, num_workers: 2}
train: {epochs: 1, compute: %s}
"""


def written(folder: Path, compute: str, **files: str) -> Path:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    (folder / "measured.yaml").write_text(TEXT % compute)
    return folder / "measured.yaml"


def compute_of(path: Path) -> Empirical:
    compute = load(path).train.compute
    assert isinstance(compute, Empirical)
    return compute


@pytest.mark.parametrize(
    ("compute", "files"),
    [
        ("{kind: empirical, file: t.txt}", {"t__txt": "# steps\n10 ms\n0.02\n\n30ms # slow\n"}),
        ("{kind: empirical, file: t.csv, column: s}", {"t__csv": "rank,s\n0,0.01\n1,20 ms\n0,30 ms\n"}),
        ("{kind: empirical, file: t.csv}", {"t__csv": "seconds\n0.01\n0.02\n0.03\n"}),
        ("{kind: empirical, file: t.csv}", {"t__csv": "0.01\n0.02\n0.03\n"}),
        ("{kind: empirical, file: t.csv}", {"t__csv": ".01\n.02\n.03\n"}),
        ("{kind: empirical, file: t.txt}", {"t__txt": "\ufeff0.01\r\n0.02\r\n0.03\r\n"}),
        ("{kind: empirical, file: t.csv, column: s}", {"t__csv": "\ufeffs,rank\n0.01,0\n0.02,0\n0.03,0\n"}),
        ("{kind: empirical, file: t.json}", {"t__json": '[0.01, "20 ms", 0.03]'}),
        ("{kind: empirical, file: t.json, column: s}", {"t__json": '[{"s": 0.01}, {"s": 0.02}, {"s": 0.03}]'}),
        ("{kind: empirical, values: [30 ms, 10 ms, 0.02]}", {}),
    ],
)  # fmt: skip
def test_values_are_read_next_to_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str, files: dict[str, str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert compute_of(written(tmp_path, compute, **files)).values == (0.01, 0.02, 0.03)


@pytest.mark.parametrize("number", [513, 900, 3000, 200_000])
def test_the_largest_of_many_draws_is_that_of_the_values(number: int) -> None:
    """A barrier waits for it. Of N values, the largest of n draws is at most the i-th with chance (i / N)^n."""
    values = np.sort(np.random.default_rng(number).lognormal(-3, 1, number))
    kept, known = table(values), levels(number)
    for ranks in (1, 8, 64, 512, 4096):
        chance = (np.arange(number + 1) / number) ** ranks
        wanted = float(values @ np.diff(chance))
        grid = np.concatenate([np.linspace(0, 1, 200_001), 1 - np.geomspace(1e-9, 1e-3, 20_000)[::-1]])
        grid.sort()
        middle = np.interp((grid[1:] + grid[:-1]) / 2, known, kept)
        assert float(middle @ np.diff(grid**ranks)) == pytest.approx(wanted, rel=0.02), ranks


def test_a_base_and_an_override_name_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    written(tmp_path, "{kind: empirical, file: a.txt}", a__txt="1 s")
    (tmp_path / "here" / "b.txt").write_text("2 s")
    (tmp_path / "here" / "mine.yaml").write_text("extends: ../measured.yaml\nname: mine\n")
    assert compute_of(tmp_path / "here" / "mine.yaml").values == (1.0,)
    assert compute_times(load("mine.yaml", ["train.compute.file=b.txt"])).expected == 2.0


def test_a_scenario_that_is_written_needs_the_file_no_more(tmp_path: Path) -> None:
    times = np.random.default_rng(1).gamma(4, 0.003, 30_000)
    path = written(tmp_path, "{kind: empirical, file: t.txt}", t__txt="\n".join(map(repr, times.tolist())))
    before = load(path)
    (tmp_path / "t.txt").unlink()
    again = build(yaml.safe_load(to_yaml(before)))
    assert again == before
    compute = again.train.compute
    assert isinstance(compute, Empirical)
    assert compute.measured == 30_000
    assert compute.expected == pytest.approx(times.mean(), rel=1e-3)
    assert len(pickle.dumps(compute)) < 4096
    wanted = scenario(train__compute=again.model_dump(mode="json")["train"]["compute"])
    taken = simulated(wanted).rows("compute")
    assert len({row["duration_ns"] for row in taken}) > 20


def test_the_wall_clock_draws_the_same(tmp_path: Path) -> None:
    wanted = scenario(train__compute={"kind": "empirical", "values": ["1 ms", "2 ms", "5 ms"]}, train__epochs=1)
    here, there = simulated(wanted), run_locally(wanted, Path(), modelled=True)
    ours, theirs = ({row["batch"]: row["duration_ns"] for row in run.rows("compute")} for run in (here, there))
    assert ours == theirs
    assert {*ours.values()} == {1_000_000, 2_000_000, 5_000_000}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "train.compute.file=": ("{kind: empirical, file: none.txt}", {}),
    "cannot be read: No such file": ("{kind: empirical, file: none.txt}", {}),
    "it is a folder, not a file": ("{kind: empirical, file: .}", {}),
    "has no values": ("{kind: empirical, file: t.txt}", {"t__txt": "# nothing\n"}),
    "line 2: soon: not a number with a unit": ("{kind: empirical, file: t.txt}", {"t__txt": "1 ms\nsoon\n"}),
    "line 1: -3: times must be 0 or more": ("{kind: empirical, file: t.txt}", {"t__txt": "-3\n"}),
    "line 2: nan: times must be 0 or more": ("{kind: empirical, file: t.txt}", {"t__txt": "1\nnan\n"}),
    "line 1: 3 GB: unknown unit 'GB'": ("{kind: empirical, file: t.txt}", {"t__txt": "3 GB\n"}),
    "line 1: 1e12: must be at most": ("{kind: empirical, file: t.txt}", {"t__txt": "1e12\n"}),
    "has several columns; give column: one of [a, b]": ("{kind: empirical, file: t.csv}", {"t__csv": "a,b\n1,2\n"}),
    "train.compute.column=c: no such column; the file has [a, b]": (
        "{kind: empirical, file: t.csv, column: c}", {"t__csv": "a,b\n1,2\n"}
    ),
    "train.compute.column=a: 2 columns have this name": (
        "{kind: empirical, file: t.csv, column: a}", {"t__csv": "a,a\n1,2\n"}
    ),
    "line 3: '': not a number with a unit": ("{kind: empirical, file: t.csv, column: b}", {"t__csv": "a,b\n1,2\n1\n"}),
    "is not JSON": ("{kind: empirical, file: t.json}", {"t__json": "[1,"}),
    "must be a list of values": ("{kind: empirical, file: t.json}", {"t__json": "{}"}),
    "[1] has no such key": ("{kind: empirical, file: t.json, column: s}", {"t__json": '[{"s": 1}, {}]'}),
    "t.json: [0]: true: not a number": ("{kind: empirical, file: t.json}", {"t__json": "[true]"}),
    "must have file or values, and not both": ("{kind: empirical}", {}),
    "must be a list of 1 to 512 values": ("{kind: empirical, values: []}", {}),
    "must have shape and scale, or mean and stdev": ("{kind: gamma, shape: 2, stdev: 1 s}", {}),
    "train.compute.shape=0: must be a number from 0.01": ("{kind: gamma, shape: 0, scale: 1 s}", {}),
    "stdev must be at most 10 times the mean": ("{kind: gamma, mean: 1 ms, stdev: 1 s}", {}),
    "train.compute.unit=0 s: must be greater than 0": ("{kind: poisson, mean: 1 s, unit: 0 s}", {}),
    "mean must be at most 10^6 units": ("{kind: poisson, mean: 1 h, unit: 1 us}", {}),
    "stdev must be at most 10^6 times the mean": ("{kind: lognormal, mean: 0 s, stdev: 1 s}", {}),
    "must have median and sigma, or mean and stdev": ("{kind: lognormal, median: 1 s, mean: 1 s}", {}),
}  # fmt: skip


@pytest.mark.parametrize(("line", "case"), REFUSED.items(), ids=REFUSED)
def test_what_is_no_distribution_is_refused_in_one_line(
    tmp_path: Path, line: str, case: tuple[str, dict[str, str]]
) -> None:
    path = written(tmp_path, case[0], **case[1])
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayio.schema import measured_values

    monkeypatch.setattr(measured_values, "MOST_VALUES", 10)
    path = written(tmp_path, "{kind: empirical, file: t.txt}", t__txt="1 s\n" * 11)
    with pytest.raises(ScenarioError, match="has 11 values; at most 10 are possible"):
        load(path)
    monkeypatch.setattr(measured_values, "MOST_BYTES", 20)
    (tmp_path / "t.txt").write_text("1 s\n" * 12)
    with pytest.raises(ScenarioError, match="is larger than 0 MiB"):
        load(path)
