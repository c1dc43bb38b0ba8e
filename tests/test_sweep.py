"""A scenario at many points: which they are, that each is what ``rayio simulate`` says, and what they come to."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
from handmade import result
from hypothesis import given
from hypothesis import strategies as st
from pages import check
from test_failures import FREE

import rayio
from rayio.cli import main
from rayio.errors import ScenarioError, StorageError
from rayio.machine import calls
from rayio.records.metric_names import METRICS, lookup
from rayio.records.sweeps import DONE, FAILED, IMPOSSIBLE, UNMET
from rayio.report.text.sweep import conclusions
from rayio.scenario import derive
from rayio.scenario.load import load
from rayio.scenario.write import to_yaml
from rayio.study.sweeps.choices import front, knee, memory, workers
from rayio.study.sweeps.points import grid, listed, number_of, split
from rayio.study.sweeps.sweep_rows import Point, Row, axis
from rayio.study.sweeps.sweep_table import table_of
from scenarios import scenario

SMALL = """
name: small
cluster: {ranks_per_node: 2}
dataset: {path: "model://small", num_files: 48, sample_bytes: 1 MB}
storage: {model: {first_byte: 1 ms, connection_bandwidth: 60 MB/s, bandwidth: 1 GB/s}}
loader: {batch_size: 2, num_workers: 2, decode: {kind: exponential, mean: 5 ms}}
train: {epochs: 1, compute: 10 ms, sync: barrier}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


# --- which points ---------------------------------------------------------------------------------------------------


def test_lists_make_every_combination_and_single_values_hold() -> None:
    found = grid(["loader.num_workers=1,2", "train.epochs=3", "seed=5,6,7"])
    assert found.keys == ("loader.num_workers", "seed")
    assert found.rows == ((1, 5), (1, 6), (1, 7), (2, 5), (2, 6), (2, 7))
    assert found.overrides((2, 7)) == {"train.epochs": 3, "loader.num_workers": 2, "seed": 7}
    assert grid({"loader.num_workers": [1, 2], "train.epochs": 3}).rows == ((1,), (2,))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2", ["1", "2"]),
        ("{kind: normal, mean: 1}", ["{kind: normal, mean: 1}"]),
        ("barrier,{kind: allreduce, bytes: 1}", ["barrier", "{kind: allreduce, bytes: 1}"]),
        ("[0, 1],[2]", ["[0, 1]", "[2]"]),
        ("'a, b',c", ["'a, b'", "c"]),
        ("", [""]),
    ],
)
def test_commas_inside_brackets_and_quotes_belong_to_a_value(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@given(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
def test_a_list_that_is_written_is_read(values: list[int]) -> None:
    found = grid([f"seed={','.join(map(str, values))}"])
    assert found.rows == (tuple((value,) for value in values) if len(values) > 1 else ((),))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed"], "seed: no '='"),
        (["seed=1,,2"], "seed=1,,2: a value between commas is empty"),
        (["seed=1,2,1"], "seed: 1 is given twice; give"),
        (["train.compute=10 ms,10ms"], "train.compute: 10ms is given twice .it equals 10 ms.; give each"),
        (
            [f"seed={','.join(map(str, range(400)))}", f"train.epochs={','.join(map(str, range(1, 400)))}"],
            "159600 points",
        ),
    ],
)
def test_lists_that_cannot_be_are_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        grid(overrides)


def test_points_of_a_file_are_those_of_the_same_lists(home: Path) -> None:
    wanted = ((1, "barrier"), (2, {"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s"}))
    (home / "p.csv").write_text(
        'loader.num_workers, train.sync\n1, barrier\n\n2, "{kind: allreduce, bytes: 1 MB, bandwidth: 1 GB/s}"\n'
    )
    (home / "p.yaml").write_text(
        "- {loader.num_workers: 1, train.sync: barrier}\n"
        "- loader: {num_workers: 2}\n  train.sync: {kind: allreduce, bytes: 1 MB, bandwidth: 1 GB/s}\n"
    )
    for name in ("p.csv", "p.yaml"):
        found = listed(name, ["seed=5"])
        assert (found.keys, found.rows, found.fixed) == (("loader.num_workers", "train.sync"), wanted, {"seed": 5})


def test_a_file_of_points_may_be_one_that_a_spreadsheet_wrote(home: Path) -> None:
    (home / "p.csv").write_text("seed,train.epochs\r\n1,2\r\n", encoding="utf-8-sig")
    found = listed("p.csv", [])
    assert (found.keys, found.rows) == (("seed", "train.epochs"), ((1, 2),))


def test_a_point_of_a_file_leaves_alone_what_it_does_not_say(home: Path) -> None:
    (home / "p.yaml").write_text("- {seed: 1}\n- {seed: 2, train.epochs: 3}\n")
    found = listed("p.yaml", [])
    assert [found.overrides(row) for row in found.rows] == [{"seed": 1}, {"seed": 2, "train.epochs": 3}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", "seed\n1,2\n", "p.csv:2: 2 cells under 1 keys"),
        ("p.csv", "seed,\n1,2\n", "p.csv:1: column 2 has no key"),
        ("p.csv", "seed,train.epochs,seed\n1,2,3\n", "p.csv:1: seed heads two columns"),
        ("p.csv", "", "has no points"),
        ("p.yaml", "seed: 1", "must be a list of mappings"),
        ("p.yaml", "- 3", "point 1 is 3"),
        ("p.yaml", "- {seed: [}", "p.yaml:1: not YAML"),
        ("p.yaml", "", "has no points"),
        ("p.csv", "seed,train.epochs\n1,2\n2,2\n1,2\n", "p.csv: point 3 equals point 1; give each once"),
        ("p.yaml", "- {seed: 1}\n- {seed: 1}\n", "p.yaml: point 2 equals point 1; give each once"),
        ("none.csv", None, "cannot be read: No such file"),
    ],
)
def test_a_file_of_points_that_cannot_be_read_is_one_line(
    home: Path, name: str, content: str | None, said: str
) -> None:
    if content is not None:
        (home / name).write_text(content)
    with pytest.raises(ScenarioError) as refused:
        listed(name, [])
    assert said in str(refused.value)


def test_values_lie_on_an_axis_by_what_they_mean() -> None:
    assert axis(["1 MiB", "300 KB", "2 KiB"]) == ["2 KiB", "300 KB", "1 MiB"]
    assert axis(["100 ms", "2 s", "1 us"]) == ["1 us", "100 ms", "2 s"]
    assert axis(["s3", "nvme"]) == ["s3", "nvme"]
    assert [number_of(value) for value in (True, None, "global", [1])] == [None] * 4


# --- every point is what rayio simulate says ------------------------------------------------------------------------

KEYS: dict[str, Any] = {"loader.num_workers": [0, 1, 3], "train.compute": ["5 ms", "20 ms"], "train.warmup_steps": 2}


def equal(found: rayio.Sweep, home: Path) -> None:
    """Hold the first run of every point to a simulation with the same overrides: to the last digit and note."""
    for point in found.points:
        overrides = {"train.warmup_steps": 2, **dict(zip(found.keys, point.values, strict=True))}
        name = "-".join(map(str, point.values)).replace(" ", "")
        alone = rayio.simulate("small.yaml", overrides, out=home / "alone" / name).result
        assert point.first.result == alone
        assert alone.au is not None


def test_points_equal_simulations_exactly(home: Path) -> None:
    found = rayio.sweep("small.yaml", KEYS, processes=1, out="here")
    assert len(found.rows) == 6
    assert {row.status for row in found.rows} == {DONE}
    equal(found, home)


def test_processes_change_no_number(home: Path) -> None:
    seeds = {"seed": [1, 2]}
    one, two = (rayio.sweep("small.yaml", KEYS | seeds, processes=n, out=f"with-{n}") for n in (1, 2))
    assert len(one.rows) == 12
    assert {row.identity: row for row in one.rows} == {row.identity: row for row in two.rows}


@pytest.mark.parametrize(
    "more", [["trace.level=none"], ["trace.level=io", "trace.resolution=1 us"], ["trace.level=step"]]
)
def test_what_is_traced_changes_nothing_of_that(more: list[str], home: Path) -> None:
    found = rayio.sweep("small.yaml", [*more, "loader.num_workers=1,2"])
    for point in found.points:
        alone = rayio.simulate(
            "small.yaml", [*more, f"loader.num_workers={point.values[0]}"], out=f"r{point.values[0]}"
        )
        assert point.first.result == alone.result


def test_the_frame_has_every_metric_and_what_a_point_costs(home: Path) -> None:
    found = rayio.sweep("small.yaml", {"loader.num_workers": [1, 2]})
    frame = found.frame()
    assert frame["loader.num_workers"].tolist() == [1, 2]
    assert {*METRICS} < {*frame.columns}
    assert frame["workers"].tolist() == [2, 4]
    # Two ranks, so many workers, two batches each, of two samples of 1 MB.
    assert frame["window_bytes"].tolist() == [2 * 1 * 2 * 2 * 1e6, 2 * 2 * 2 * 2 * 1e6]
    of_rows = [lookup(row.result, "percentiles.read.p99") for row in found.rows if row.result is not None]
    assert frame["percentiles.read.p99"].tolist() == of_rows
    pd.testing.assert_frame_equal(pq.read_table(found.path / "sweep.parquet").to_pandas(), frame, check_dtype=False)
    with (found.path / "sweep.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [float(row["au"]) for row in rows] == frame["au"].tolist()


def test_memory_is_bounded_by_what_may_be_in_flight() -> None:
    text = ["loader.max_bytes_in_flight=3 MB", "loader.payload=none"]
    wide = load("small.yaml")
    assert derive.world_size(wide) * derive.window_bytes(wide) > 3e6
    found = rayio.sweep("small.yaml", [*text, "loader.num_workers=2,4"])
    assert [row.window_bytes for row in found.rows] == [3e6, 3e6]


def test_repeats_have_seeds_of_their_own_and_an_interval(home: Path) -> None:
    found = rayio.sweep("small.yaml", ["loader.num_workers=1,2", "seed=40"], repeat=3)
    (first, second) = found.points
    au = [row.result.au for row in first.rows if row.result is not None]
    seeds = ((n, [f"seed={40 + n}", "loader.num_workers=1"]) for n in range(3))
    alone = [rayio.simulate("small.yaml", one, out=f"s{n}").au or 0.0 for n, one in seeds]
    assert au == alone
    assert len({*au}) == 3
    spread = first.spread("au")
    assert spread is not None
    # By NumPy and the t of 2 degrees of freedom.
    assert spread[0] == pytest.approx(np.mean(alone))
    assert spread[1] == pytest.approx(4.303 * np.std(alone, ddof=1) / 3**0.5)
    other = ((n, [f"seed={40 + n}", "loader.num_workers=2"]) for n in range(3))
    assert [row.result.au for row in second.rows if row.result is not None] == [
        rayio.simulate("small.yaml", one, out=f"t{n}").au for n, one in other
    ], "each repeat has the same seed at every point: what was drawn does not tell points apart"


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_a_point_that_cannot_be_is_a_row_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sweep", "small.yaml", "loader.batch_size=2,4,4000", "--out", "s") == 0
    out = capsys.readouterr().out
    assert "1 point cannot be: small.yaml: " in out
    assert "loader.batch_size" in out
    found = rayio.sweep("small.yaml", ["loader.batch_size=2,4,4000"], out="s")
    assert [point.status for point in found.points] == [DONE, DONE, IMPOSSIBLE]
    assert found.points[2].first.result is None
    assert command("sweep", "small.yaml", "loader.batch_size=4000,5000", "--out", "t") == 2
    assert "2 points cannot be" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loader.num_wrokers=1,2"], "num_wrokers"),
        (["loader.num_workers=1,two"], "loader.num_workers=two"),
        (["loader.num_workers=1"], "nothing to sweep"),
        (["loader.num_workers=4..1"], "loader.num_workers=4..1: must rise"),
        (["expect.aau=>= 0.5", "seed=1,2"], "aau"),
        (["seed=1,2", "--engine", "warp"], "warp"),
        (["seed=1,2", "--out", "s3://bucket/s"], "not yet"),
        (["seed=1,2", "--out", "small.yaml"], "is a file"),
    ],
)
def test_bad_keys_are_refused_before_anything_runs(
    arguments: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", "small.yaml", *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (home / "sweeps" / "small" / "points.jsonl").exists()


def test_expectations_choose_points_and_only_where_none_meets_them_is_that_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = ["sweep", "small.yaml", "loader.num_workers=1,2,4,8"]
    assert command(*keys, "expect.au=>= 0.9", "--out", "a") == 0
    out = capsys.readouterr().out
    found = rayio.sweep("small.yaml", ["loader.num_workers=1,2,4,8", "expect.au=>= 0.9"], out="a")
    met = [point.values[0] for point in found.points if (point.mean("au") or 0.0) >= 0.9]
    assert met
    assert [point.values[0] for point in found.points if point.status == DONE] == met
    assert f"it is: num_workers={met[0]}\n" in out
    assert command(*keys, "expect.au=> 1", "--out", "b") == 3
    assert "0 points meet it, 4 do not" in capsys.readouterr().out
    assert {row.status for row in rayio.sweep("small.yaml", [*keys[2:], "expect.au=> 1"], out="b").rows} == {UNMET}


# --- going on -------------------------------------------------------------------------------------------------------


def lines(home: Path) -> list[str]:
    return (home / "sweeps" / "small" / "points.jsonl").read_text().splitlines()


def test_the_same_command_again_runs_nothing_and_more_values_only_themselves(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", "small.yaml", "loader.num_workers=1,2") == 0
    first = lines(home)
    assert command("sweep", "small.yaml", "loader.num_workers=1,2") == 0
    assert "2 of 2 runs are in" in capsys.readouterr().err
    assert lines(home) == first
    assert command("sweep", "small.yaml", "loader.num_workers=4,1", "--repeat", 2) == 0
    assert lines(home)[:2] == first
    assert [(row["values"], row["repeat"]) for row in map(json.loads, lines(home)[2:])] == [
        ([4], 0), ([4], 1), ([1], 1),
    ]  # fmt: skip
    assert " 2  " in capsys.readouterr().out, "the point of before is in the table"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["train.compute=11 ms"], "train.compute=10 ms, not 11 ms"),
        (["--engine", "local"], "engine=virtual, not local"),
        (["seed=1,2"], "swept keys=loader.num_workers, not loader.num_workers,seed"),
    ],
)
def test_a_sweep_of_something_else_is_refused_by_name(
    change: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sweep", "small.yaml", "loader.num_workers=1,2") == 0
    before = lines(home)
    capsys.readouterr()
    assert command("sweep", "small.yaml", "loader.num_workers=1,2", "--out", "sweeps/small", *change) == 2
    assert said in capsys.readouterr().err
    assert lines(home) == before


def test_a_line_that_was_cut_off_is_made_again_and_one_that_is_damaged_is_named(home: Path) -> None:
    whole = rayio.sweep("small.yaml", ["loader.num_workers=1,2"])
    file = home / "sweeps" / "small" / "points.jsonl"
    text = file.read_text()
    file.write_text(text[:-100])
    again = rayio.sweep("small.yaml", ["loader.num_workers=1,2"])
    assert {row.identity: row for row in again.rows} == {row.identity: row for row in whole.rows}
    assert file.read_text() == text
    file.write_text("{}\n" + text)
    with pytest.raises(StorageError, match=r"points\.jsonl:1 is damaged"):
        rayio.sweep("small.yaml", ["loader.num_workers=1,2"])


def test_a_sweep_that_was_stopped_goes_on_where_it_was(home: Path) -> None:
    keys = ["loader.num_workers=1,2,3,4", "seed=1,2,3,4,5,6", "dataset.num_files=1200"]
    folder = home / "sweeps" / "small"
    file, done = folder / "points.jsonl", list[str]()
    for how in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-m", "rayio", "sweep", "small.yaml", *keys, "--processes", "2"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        enough = len(done) + 2
        wait_for(lambda enough=enough: file.exists() and file.read_text().count("\n") >= enough)  # type: ignore[misc]
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        before, done = done, file.read_text().splitlines()
        assert len(before) + 2 <= len(done) < 24
        assert done[: len(before)] == before
    assert process.returncode == 130
    assert f"has {len(done) - len(before)} of {24 - len(before)} runs" in err
    assert "Traceback" not in err
    check((folder / "sweep.html").read_text())
    assert len((folder / "sweep.csv").read_text().splitlines()) == len(done) + 1
    found = rayio.sweep("small.yaml", keys)
    assert len(found.rows) == 24
    assert file.read_text().splitlines()[: len(done)] == done
    assert found.exit_code == 0


def test_a_process_that_has_just_started_leaves_ctrl_c_to_the_one_that_asked() -> None:
    process = calls._start()
    try:
        for _ in range(10):  # as it imports what it needs
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_local_engine_runs_points_in_turn_and_keeps_their_runs(home: Path) -> None:
    keys = ["loader.num_workers=1,2", "train.compute=1 ms", "loader.decode=0", "train.steps=4"]
    found = rayio.sweep("small.yaml", keys, engine="local")
    assert [row.status for row in found.rows] == [DONE, DONE]
    runs = sorted((found.path / "runs").iterdir())
    assert [rayio.Run.open(path).result for path in runs] == [row.result for row in found.rows]
    assert rayio.sweep("small.yaml", keys, engine="local").rows == found.rows


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_ray_runs_points_in_turn_and_keeps_their_runs(home: Path) -> None:
    keys = ["loader.num_workers=1,2", "train.compute=1 ms", "loader.decode=0", "train.steps=4", "train.epochs=1"]
    found = rayio.sweep("small.yaml", keys, engine="ray")
    assert [row.status for row in found.rows] == [DONE, DONE], [row.error for row in found.rows]
    runs = [rayio.Run.open(path) for path in sorted((found.path / "runs").iterdir())]
    assert [run.result for run in runs] == [row.result for row in found.rows]
    assert {run.directory.info["engine"] for run in runs} == {"ray"}
    assert all(run.result.ledger is not None and run.result.ledger.even for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 1])
def test_runs_of_a_sweep_share_a_ray_and_one_that_dies_ends_it_in_order(kills: int, home: Path) -> None:
    keys = ["loader.num_workers=1,2,3", "train.compute=50 ms", "train.epochs=1"]
    command = [sys.executable, "-m", "rayio", "sweep", "small.yaml", *keys, "--engine", "ray", "--out", "s"]
    rows = home / "s" / "points.jsonl"
    told: dict[str, Any] = {"text": True, "env": os.environ | {"HOME": str(home)}, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **told) as process:
        wait_for(lambda: rows.exists() and rows.read_text().count("\n") >= 1, 300)
        below = psutil.Process(process.pid).children(recursive=True)
        servers = [one for one in below if "gcs_server" in one.name()]
        assert len(servers) == 1, "it stays between two runs"
        for server in servers[:kills]:
            server.kill()
        said, _ = process.communicate(timeout=300)
    assert "Traceback" not in said
    assert not psutil.wait_procs(below, timeout=300)[1]
    ended = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(ended) == 3, said
    assert [row["status"] for row in (ended[0], ended[-1])] == [DONE, FAILED if kills else DONE], said
    if kills:
        assert "the same command goes on" in ended[-1]["error"]
        subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300, **told)
    nodes = [rayio.Run.open(path).directory.info.get("nodes") for path in sorted((home / "s" / "runs").iterdir())]
    assert len({node["id"] for one in nodes if one for node in one}) == 1 + kills


# --- what they come to ----------------------------------------------------------------------------------------------


def test_the_knee_of_a_broken_line_is_where_it_breaks() -> None:
    for at in range(2, 9):
        x = [float(n) for n in range(1, 11)]
        y = [min(n, at) / at for n in x]
        found = knee(x, y)
        assert found is not None
        assert x[found.index] == at


def test_the_knee_of_a_saturating_curve_is_where_its_slope_is_that_of_the_chord() -> None:
    """1 - exp(-x / s) from 0 to X: scaled, its distance to the chord is largest where its slope is one."""
    s, end = 3.0, 20.0
    x = np.linspace(0, end, 20001)
    found = knee([*x], [*(1 - np.exp(-x / s))])
    assert found is not None
    theory = s * np.log(end / s / (1 - np.exp(-end / s)))
    assert x[found.index] == pytest.approx(theory, abs=2e-3)


@pytest.mark.parametrize(
    "y", [[1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.4], [4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.1, 1.0], [1.0]]
)
def test_flat_straight_falling_and_hollow_curves_have_no_knee(y: list[float]) -> None:
    assert knee([float(n) for n in range(len(y))], y) is None


def a_point(au: float, workers: int, held: float) -> Point:
    return Point((workers, held), (Row((workers, held), 0, DONE, None, workers, held, result(au=au)),))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 5)), max_size=30))
def test_the_front_is_what_nothing_beats_by_definition(entries: list[tuple[int, int, int]]) -> None:
    points = [a_point(au / 10, workers, float(held)) for au, workers, held in entries]
    found = front(points, workers, memory)

    def beats(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        return a != b and a[0] >= b[0] and a[1] <= b[1] and a[2] <= b[2]

    for place, entry in enumerate(entries):
        is_beaten = any(beats(other, entry) for other in entries) or entry in entries[:place]
        assert (place in found) != is_beaten
    if len(entries) > 1:
        table = table_of(("workers", "held"), points, None, ())
        most = max(au for au, _, _ in entries)
        cost, chosen = min((entry[1:], place) for place, entry in enumerate(entries) if entry[0] == most)
        assert table.sufficient == chosen
        lines = conclusions(table)
        if min(entries)[0] == most:
            equal = f"AU is {10 * most:.1f} % at every point"
            assert lines[0].startswith(equal), "equal numbers are written once"
            assert ("cheapest" in lines[0]) == (len({entry[1:] for entry in entries}) > 1)
        else:
            assert lines[0].startswith(f"most AU: {10 * most:.1f} % with workers=")
            first = next(entry for entry in entries if entry[0] == most)
            assert lines[1:] == [
                f"cheapest within a point of it: workers={cost[0]}, held={float(cost[1])}, {10 * most:.1f} %"
            ] * (first[1:] != cost)


def test_more_workers_help_until_they_suffice_and_the_page_says_so(home: Path) -> None:
    found = rayio.sweep("small.yaml", {"loader.num_workers": [1, 2, 3, 4, 6, 8, 12, 16]}, repeat=2)
    au = [point.mean("au") or 0.0 for point in found.points]
    assert au[0] < 0.5 < au[-1]
    assert found.knee is not None
    assert (found.knee.mean("au") or 0.0) > 0.7 * max(au)
    page = check((found.path / "sweep.html").read_text())
    assert {"curves", "cost", "points", "scenario", "definitions"} <= {*page.ids}
    assert f"knee: num_workers={found.knee.values[0]}" in page.words
    assert "95 % interval" in page.words
    assert page.text.count('class="band l-') == 3
    assert ".plot svg { overflow: visible; }" in page.text, "a dot at AU 100 % is a whole dot"
    for point in found.points:
        assert f"{100 * (point.mean('au') or 0.0):.1f} ±" in page.words


def test_two_keys_make_a_heat_map_and_what_was_written_cannot_break_the_page(home: Path) -> None:
    evil = "</script><img src=x>"
    (home / "small.yaml").write_text(SMALL + f"source: {json.dumps(evil)}\n")
    found = rayio.sweep("small.yaml", {"loader.num_workers": [1, 2], "loader.prefetch_factor": [1, 2, 4]})
    text = (found.path / "sweep.html").read_text()
    page = check(text)
    assert "<img" not in text
    assert evil in page.words
    assert text.count('<td class="heat') == 6
    for point in found.points:
        assert f"{100 * (point.mean('au') or 0.0):.1f}" in page.words


def test_a_table_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    seeds = ",".join(map(str, range(60)))
    assert command("sweep", "small.yaml", f"seed={seeds}", "dataset.num_files=8", "--processes", 1) == 0
    out = capsys.readouterr().out
    table = out.partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 70
    assert "and 20 more points" in table[-1]


def test_long_values_leave_room_for_the_numbers(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sync = "train.sync=barrier,{kind: allreduce, bytes: 100 MB, bandwidth: 10 GB/s, latency: 1 ms}"
    assert command("sweep", "small.yaml", sync, "--processes", 1) == 0
    head, *rows = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert head.split()[0] == "sync", "the swept key, and not the waits of the same name"
    assert "barrier" in rows[0]
    assert "memory" in head
    assert max(map(len, [head, *rows])) <= 80
    assert all(" MiB" in row and not row.endswith("…") for row in rows)


def test_shares_of_a_row_add_up_with_waits_for_other_ranks_unless_a_swept_key_would_be_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("sweep", "small.yaml", "loader.num_workers=1,2", "loader.prefetch_factor=1,2", "--processes", 1)
    for width in (120, 95):
        monkeypatch.setenv("COLUMNS", str(width))
        assert command(*sweep, "--out", "swept") == 0
        head, *rows = capsys.readouterr().out.partition("\n\n")[0].splitlines()
        assert head.split()[:2] == ["num_workers", "prefetch_factor"]
        assert ("sync" in head) == (width == 120)
        shares = [sum(float(share) for share in re.findall(r"([\d.]+) %", row)) for row in rows]
        assert len(shares) == 4
        assert (max(abs(share - 100) for share in shares) < 0.2) == (width == 120)


def test_a_sweep_with_failures_has_a_column_for_goodput_and_one_without_has_none(home: Path) -> None:
    saved = {"path": "ck", "model": {"bytes": 1000}, "every": {"steps": 4}, "fsync": False}
    dies = {"events": [{"kind": "rank", "at": "10.5 s"}], "detect": "3 s", "restart": "7 s"}
    failing = scenario(checkpoint=saved, failures=dies, train__compute="1 s", storage__model=FREE)
    (home / "failing.yaml").write_text(to_yaml(failing))
    swept = rayio.sweep("failing.yaml", {"checkpoint.every.steps": [4, 12]}, processes=1, out="swept")
    head, *lines = str(swept).splitlines()
    assert head.split()[:3] == ["steps", "AU", "goodput"]
    # 24 steps of 1 s, 10 s until the restart, and the steps after the checkpoint: 2.5, or all 10.5
    for line, point, wall in zip(lines, swept.table.points, (36.5, 44.5), strict=False):
        assert point.goodput == pytest.approx(24 / wall, rel=1e-3)
        assert line.split()[3:5] == [f"{2400 / wall:.1f}", "%"]
    assert "goodput</th>" in (swept.path / "sweep.html").read_text()
    free = rayio.sweep(
        "failing.yaml", {"checkpoint.every.steps": [4, 12], "failures": ["none"]}, processes=1, out="free"
    )
    assert "goodput" not in str(free)


def test_another_sweep_of_a_scenario_has_a_directory_of_its_own(home: Path) -> None:
    (home / "s.yaml").write_text(to_yaml(scenario()))
    first = rayio.sweep("s.yaml", {"loader.num_workers": [1, 2]}, processes=1)
    other = rayio.sweep("s.yaml", {"loader.prefetch_factor": [1, 2]}, processes=1)
    third = rayio.sweep("s.yaml", {"train.compute": ["1 ms", "2 ms"]}, processes=1)
    assert [each.path.name for each in (first, other, third)] == ["small", "small-2", "small-3"]
    again = rayio.sweep("s.yaml", {"loader.prefetch_factor": [1, 2, 3]}, processes=1)
    assert (again.path, len(again.rows)) == (other.path, 3)
    with pytest.raises(StorageError, match=r"holds a sweep with swept keys=.*; choose another --out"):
        rayio.sweep("s.yaml", {"train.compute": ["1 ms", "2 ms"]}, processes=1, out="sweeps/small")


def test_a_sweep_below_an_address_is_kept_in_the_working_directory(home: Path) -> None:
    (home / "s.yaml").write_text(to_yaml(scenario()))
    values = {"loader.num_workers": [1, 2]}
    swept = rayio.sweep("s.yaml", values, processes=1, root="s3://nowhere/me")
    assert (home / swept.path).resolve() == home / "sweeps/small"
    with pytest.raises(
        ScenarioError, match=r"not yet: --out s3://nowhere/me/mine; give the full path of a folder, such as /"
    ):
        rayio.sweep("s.yaml", values, processes=1, root="s3://nowhere/me", out="mine")


def drawn_fronts(page: str, name: str) -> list[int]:
    """Give the number of points of each front in a scatter plot, by the corners of its line."""
    plot = page.split(f">{name} <small>")[1].split('class="line l-au" d="')[1].split('"')[0]
    return [1 + line.count("H") + line.count("L") for line in plot.split("M")[1:]]


def test_a_scatter_plot_has_a_front_for_each_number_of_accelerators(tmp_path: Path) -> None:
    slow = {"loader.decode": ["10 ms"], "loader.num_workers": [1, 2, 3], "cluster.ranks_per_node": [1, 2]}
    (tmp_path / "s.yaml").write_text(to_yaml(scenario(dataset__num_files=96)))
    swept = rayio.sweep(tmp_path / "s.yaml", slow, processes=1, out=tmp_path / "sweep")
    page = (swept.path / "sweep.html").read_text()
    assert drawn_fronts(page, "AU against workers") == [3, 3]
    assert "each line is the Pareto front of one number of accelerators" in page
    assert sum(drawn_fronts(page, "AU against workers")) == len(swept.front)
    # Of those that meet a goal none is called the cheapest, as fewer accelerators need fewer workers.
    goal = {**slow, "expect.au": ">= 0.9"}
    met = rayio.sweep(tmp_path / "s.yaml", goal, processes=1, out=tmp_path / "goal").table
    assert {point.values[1] for point in met.points if point.status == DONE} == {"1", "2"}
    assert met.cheapest is None
    # Points with one setting for each number of accelerators have nothing to choose from.
    alone = rayio.sweep(tmp_path / "s.yaml", {"cluster.ranks_per_node": [1, 2, 4]}, processes=1, out=tmp_path / "b")
    assert "AU against workers" not in (alone.path / "sweep.html").read_text()


def test_the_front_of_a_sweep_with_failures_has_the_fastest_interval(tmp_path: Path) -> None:
    """The slowest point has the highest AU, because it saves least; what it lost is in no step."""
    deaths = {"events": [{"kind": "rank", "number": 1, "at": "20.5 s"}], "detect": "1 s", "restart": "1 s"}
    free = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    saved = {"every": {"steps": 4}, "path": "ck", "model": {"bytes": "200 MB"}, "fsync": False}
    wanted = scenario(train__compute="1 s", storage__model=free, checkpoint=saved, failures=deaths)
    file = tmp_path / "failing.yaml"
    file.write_text(to_yaml(wanted))
    swept = rayio.sweep(file, {"checkpoint.every.steps": [4, 100]}, out=tmp_path / "sweep")
    often, rarely = swept.points
    assert (often.mean("au") or 0) < (rarely.mean("au") or 0)
    assert (often.mean("wall_seconds") or 0) < (rarely.mean("wall_seconds") or 0)
    assert swept.front == [often]
    most = f"most goodput: steps=4, {100 * (often.mean('goodput') or 0):.1f} % of wall time (one run each"
    assert most in str(swept)
    # The page shows the same metric.
    page = (swept.path / "sweep.html").read_text()
    assert "Goodput over the swept keys" in page
    assert "AU, %" not in page
    assert f"{100 * (often.mean('goodput') or 0):.1f}" in page
