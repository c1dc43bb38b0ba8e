"""Every format from scenario to books: real files, read by the local engine, as the virtual one says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk

from rayio.data.formats import FORMATS, layout_of
from rayio.data.formats.chunks import chunk_of
from rayio.errors import DataError, ScenarioError
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from scenarios import Outcome, run_locally, scenario, simulated

#: Formats that have files, and those whose library could outlive Python.
STORED = [name for name in FORMATS if getattr(FORMATS[name], "has_files", True)]
LIBRARIES = ("hdf5", "parquet")
WAYS = [*((format, None) for format in FORMATS), ("hdf5", "3 KB"), ("hdf5", 400)]


def wanted(format: str, chunk: Any) -> Scenario:
    return scenario(
        dataset__path="data",
        dataset__format=format,
        dataset__chunk=chunk,
        dataset__num_files=8,
        dataset__samples_per_file=6,
        train__compute="100 us",
    )


def reads(outcome: Outcome) -> list[tuple[Any, ...]]:
    return sorted((row["batch"], row["bytes"], row["requests"]) for row in outcome.rows("read"))


@pytest.mark.parametrize(("format", "chunk"), WAYS)
def test_real_files_are_delivered_in_the_order_and_with_the_requests_that_were_planned(
    format: str, chunk: Any, tmp_path: Path
) -> None:
    plan = wanted(format, chunk)
    here, there = simulated(plan), run_locally(on_disk(plan, tmp_path), tmp_path)
    assert there.ledger.even
    assert reads(here)
    assert reads(here) == reads(there)


@pytest.mark.parametrize("format", [name for name in STORED if getattr(FORMATS[name], "sizes_vary", False)])
def test_samples_that_differ_in_size_are_read_as_the_model_says(format: str, tmp_path: Path) -> None:
    plan = scenario(
        dataset__path="data", dataset__format=format, dataset__num_files=8, dataset__samples_per_file=6,
        dataset__sizes="per_sample", dataset__sample_bytes={"kind": "uniform", "low": "1 kB", "high": "9 kB"},
        train__compute="100 us",
    )  # fmt: skip
    here, there = simulated(plan), run_locally(on_disk(plan, tmp_path), tmp_path)
    assert there.ledger.even
    assert len({row["bytes"] for row in here.rows("read")}) > (6 if format == "json" else 10)
    assert reads(here) == reads(there)


@pytest.mark.parametrize(("format", "chunk"), [way for way in WAYS if way[0] in STORED])
def test_a_damaged_file_ends_the_run_by_file_and_sample(format: str, chunk: Any, tmp_path: Path) -> None:
    plan = on_disk(wanted(format, chunk), tmp_path)
    path = tmp_path / "data" / layout_of(plan).path(3)
    content = bytearray(path.read_bytes())
    for place in range(1000, 2000):
        content[place] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"000000003\.\w+: sample (18|19|2[0-3]) .*expected"):
        run_locally(plan, tmp_path)


@pytest.mark.parametrize(
    "format",
    [pytest.param(name, marks=[] if name in LIBRARIES else [pytest.mark.slow]) for name in STORED],
)
def test_a_run_of_its_own_process_ends_with_its_exit_code_whatever_its_files_hold(format: str, tmp_path: Path) -> None:
    """A library that is still called when Python has gone would end it with a signal instead."""
    plan = wanted(format, None)
    (tmp_path / "plan.yaml").write_text(to_yaml(plan))
    command = [sys.executable, "-m", "rayio", "run", "plan.yaml", "--engine", "local", "--out"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    for out, code, says in [("good", 0, ""), ("bad", 2, r"000000003\.\w+: sample (18|19|2[0-3]) .*expected")]:
        ended = subprocess.run(
            [*command, out], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == code, ended.stderr
        assert re.search(says, ended.stderr)
        path = tmp_path / "data" / layout_of(plan).path(3)
        path.write_bytes(path.read_bytes()[:200] + bytes(2000) + path.read_bytes()[2200:])


def test_chunks_are_part_of_the_scenario(tmp_path: Path) -> None:
    plan = wanted("hdf5", "3 KiB")
    assert chunk_of(layout_of(plan)) == 3072
    (tmp_path / "again.yaml").write_text(to_yaml(plan))
    assert load(tmp_path / "again.yaml") == plan
    assert chunk_of(layout_of(wanted("hdf5", "none"))) is None


@pytest.mark.parametrize(
    ("format", "chunk", "says"),
    [
        ("npz", "4 KiB", "dataset.chunk=4 KiB: only hdf5 has chunk, not npz"),
        ("tfrecord", 4096, "dataset.chunk=4096: only hdf5 has chunk, not tfrecord"),
        ("hdf5", 0, "dataset.chunk=0: must be greater than 0"),
        ("hdf5", "5 GiB", "dataset.chunk=5 GiB: must be less than 4 GiB"),
        ("hdf5", "auto", "dataset.chunk=auto: "),
    ],
)
def test_chunks_that_cannot_be_are_refused_in_one_line(format: str, chunk: Any, says: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        wanted(format, chunk)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
