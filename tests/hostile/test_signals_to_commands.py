"""Signals at random moments to the commands other than ``run``: an exit code, a line, and whole files or none."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from commands import Command
from stories import KEPT

import rayio
from rayio.scenario.write import to_yaml
from scenarios import scenario

pytestmark = pytest.mark.slow

#: What each is told in a folder with a scenario (s.yaml) and two runs of it (a, b). What it makes is called ``made``.
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": ("simulate", "s.yaml", "--out", "made"),
    "report": ("report", "a", "--out", "made.html"),
    "export": (
        "export", "a", "--csv", "made.csv", "--perfetto", "made.pftrace.gz", "--otlp-json", "made.jsonl",
    ),
    "calibrate": ("calibrate", "a", "--out", "made.yaml"),
    "explain": ("explain", "a"),
    "compare": ("compare", "a", "b"),
    "query": ("query", "a", "select count(*) from spans x, spans y where x.start_ns < y.start_ns"),
    "sweep": ("sweep", "s.yaml", "loader.num_workers=1,2,3,4", "train.epochs=1,2,3", "--out", "made"),
    "sweep on the local engine": (
        "sweep", "s.yaml", "loader.num_workers=1,2,3,4", "train.compute=1 ms", "train.steps=50", "--engine", "local",
        "--out", "made",
    ),
    "capacity": ("capacity", "s.yaml", "--max", "16", "--target-au", "0.5", "--out", "made"),
    "advise": ("advise", "s.yaml", "--vary", "loader.num_workers=1..4,loader.prefetch_factor=1..3", "--out", "made"),
    "generate": ("generate", "s.yaml", "dataset.path=made", "dataset.sample_bytes=100 kB"),
    "generate --verify": ("generate", "s.yaml", "dataset.path=data", "dataset.sample_bytes=2 kB", "--verify"),
    "validate": ("validate", "s.yaml"),
    "schema": ("schema",),
}  # fmt: skip
SIGNALS = 4


def _rows(path: Path) -> None:
    with path.open() as file:
        assert len({len(row) for row in csv.reader(file)}) == 1
    assert path.read_text().endswith("\n")


def _lines(path: Path) -> None:
    assert path.read_text()[-1:] in ("", "\n")
    for line in path.read_text().splitlines():
        json.loads(line)


def _page(path: Path) -> None:
    assert path.read_text().rstrip().endswith("</html>")


#: How to see of a file that it is whole.
IS_WHOLE: dict[str, Callable[[Path], object]] = {
    ".csv": _rows,
    ".gz": lambda path: gzip.decompress(path.read_bytes()),
    ".html": _page,
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": _lines,
    ".npz": lambda path: [array.shape for array in np.load(path).values()],
    ".parquet": lambda path: pq.read_table(path),
    ".txt": lambda path: path.read_text(),
    ".yaml": lambda path: yaml.safe_load(path.read_text())["name"],
}


def made(home: Path) -> list[Path]:
    """Every file that a command has made."""
    return [
        path for one in home.glob("made*") for path in (one.rglob("*") if one.is_dir() else [one]) if path.is_file()
    ]


def clear(home: Path) -> None:
    for one in home.glob("made*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()


@pytest.mark.parametrize("name", COMMANDS)
def test_signals_at_random_moments_leave_whole_files_and_a_line(name: str, command: Command) -> None:
    chance, home = random.Random(name), command.home
    wanted = scenario(dataset__num_files=1200)
    (home / "s.yaml").write_text(to_yaml(wanted))
    if "--verify" in COMMANDS[name]:
        rayio.generate(scenario(dataset__num_files=1200, dataset__path="data", dataset__sample_bytes="2 kB"), root=home)
    if name == "calibrate":  # a simulated run teaches nothing
        rayio.run(scenario(train__compute="1 ms"), engine="local", out=home / "a")
    else:
        rayio.simulate(wanted, out=home / "a")
    rayio.simulate(scenario(dataset__num_files=1200, loader__num_workers=1), out=home / "b")
    command.begin(*COMMANDS[name])
    command.until_it_listens()
    began = time.monotonic()
    assert command.code() == 0, command.errors()
    took = time.monotonic() - began
    for path in made(home):
        IS_WHOLE[path.suffix](path)
    for _ in range(SIGNALS):
        clear(home)
        command.begin(*COMMANDS[name])
        command.until_it_listens()
        time.sleep(chance.uniform(0, took))
        for _ in range(chance.randint(1, 3)):
            command.send(chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
            time.sleep(chance.choice([0, 0.05, 0.3]))
        code = command.code()
        assert code in (0, 130), command.errors()
        if code:
            assert command.last_line() == "rayio: interrupted"
        assert "Traceback" not in command.errors(), command.errors()
        for path in made(home):
            IS_WHOLE[path.suffix](path)
        if (home / "made/result.json").exists():
            command.run("made")
        command.did[KEPT] += 1
    if name == "simulate":
        clear(home)
    command.begin(*COMMANDS[name], *(["--force"] if name == "export" else []))
    assert command.code() == 0, f"it does not go on: {command.errors()}"
    for path in made(home):
        IS_WHOLE[path.suffix](path)
    command.nothing_lives()
