"""``loader.decode_threads``: samples of a batch that are decoded together, on every engine, and DLIO's keys for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from dlio_workloads import written
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.data.decode import Checksum
from rayio.errors import DataError, ScenarioError
from rayio.model.decode_threads import runs, shares
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.decode import UndecodableError
from rayio.scenario.load import load
from scenarios import run_locally, scenario, simulated

ONE_RANK: dict[str, Any] = {
    "cluster__ranks_per_node": 1, "loader__num_workers": 1, "loader__batch_size": 8, "train__epochs": 1,
    "storage__model": "memory", "costs": "none",
}  # fmt: skip
LATENCY = {"first_byte": "10 ms", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 40))
def test_threads_share_all_of_the_work_and_none_is_idle_while_samples_wait(times: list[float], threads: int) -> None:
    each = shares(times, threads)
    assert len(each) <= threads
    assert sum(each) == pytest.approx(sum(times))
    assert max(sum(times) / threads, *times) - 1e-9 <= each[0] <= sum(times) / threads + max(times) + 1e-9
    assert each[0] - each[-1] <= max(times) + 1e-9


@given(st.lists(st.integers(16, 5000), min_size=1, max_size=30), st.integers(1, 40))
def test_runs_have_every_sample_once_and_about_equal_bytes(sizes: list[int], threads: int) -> None:
    parts = runs(np.array(sizes), threads)
    assert [n for first, last in parts for n in range(first, last)] == [*range(len(sizes))]
    assert len(parts) <= threads
    assert max(sum(sizes[a:b]) for a, b in parts) <= sum(sizes) / threads + max(sizes)


@pytest.mark.parametrize(("threads", "milliseconds"), [(1, 80), (2, 40), (3, 30), (8, 10), (50, 10)])
def test_eight_samples_of_ten_milliseconds_take_rounds_of_the_threads(threads: int, milliseconds: int) -> None:
    keys = ONE_RANK | {"loader__decode": "10 ms", "loader__decode_threads": threads}
    decodes = simulated(scenario(**keys)).rows("decode")
    assert {row["duration_ns"] for row in decodes} == {milliseconds * 1_000_000}


def test_drawn_times_are_those_of_one_thread_dealt_among_the_threads() -> None:
    keys = ONE_RANK | {"loader__decode": {"kind": "exponential", "mean": "10 ms"}, "loader__batch_size": 2}
    one, two = (
        [row["duration_ns"] for row in simulated(scenario(**keys, loader__decode_threads=n)).rows("decode")]
        for n in (1, 2)
    )
    # of two samples the longer one counts: more than half of both, and less than both
    assert all(whole / 2 <= longer < whole for whole, longer in zip(one, two, strict=True))


@pytest.mark.parametrize(("cores", "milliseconds"), [(4, 20), (2, 40), (1, 80)])
def test_threads_that_work_share_the_cores_of_their_node(cores: int, milliseconds: int) -> None:
    """Eight samples of 10 kB at 1 MB/s are 80 ms of work, on four threads."""
    keys = ONE_RANK | {
        "dataset__sample_bytes": "10 kB", "loader__decode": {"kind": "checksum", "rate": "1 MB/s"},
        "loader__decode_threads": 4, "cluster__cores": cores,
    }  # fmt: skip
    decodes = simulated(scenario(**keys)).rows("decode")
    assert decodes
    assert all(row["duration_ns"] == pytest.approx(milliseconds * 1e6, rel=1e-6) for row in decodes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_run_decodes_every_byte_once(workers: int, tmp_path: Path) -> None:
    keys = {"loader__decode": {"kind": "checksum"}, "loader__decode_threads": 3, "loader__num_workers": workers,
            "dataset__path": "data"}  # fmt: skip
    wanted = on_disk(scenario(**keys, loader__batch_size=4, train__compute="100 us"), tmp_path)
    run = run_locally(wanted, tmp_path)
    assert run.ledger.even
    assert [row["bytes"] for row in run.rows("decode")] == [4000] * (2 * 48 // 4)


def test_a_sample_that_cannot_be_decoded_is_named_by_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth of six samples, which is the first of the third thread."""
    keys = {
        "loader__decode": {"kind": "checksum"}, "loader__decode_threads": 3, "loader__batch_size": 6,
        "loader__num_workers": 1, "cluster__ranks_per_node": 1, "loader__shuffle": "none", "dataset__path": "data",
        "dataset__num_files": 6,
    }  # fmt: skip

    def refuse(self: Any, samples: np.ndarray[Any, Any], nbytes: np.ndarray[Any, Any]) -> int:
        raise UndecodableError(0, "planted")

    monkeypatch.setattr(Checksum, "__call__", refuse)
    loaded = plan_of(scenario(**keys), modelled=False).loading(1, tmp_path).of(Where(0, 0, 0, 0))
    calls = loaded.decodings((np.zeros(6000, np.uint8), np.arange(6)))
    assert len(calls) == 3
    with pytest.raises(DataError, match=r"000000004.*cannot be decoded: planted"):
        calls[2]()


def test_it_is_refused_or_a_note_where_it_cannot_act() -> None:
    with pytest.raises(ScenarioError, match="decode_threads=2: PyTorch's workers decode one sample after the other"):
        load("unet3d-small", ["loader.kind=torch", "loader.decode_threads=2"])
    wanted = scenario(loader__decode_threads=2)
    assert any("nothing is decoded without loader.decode" in line for line in wanted.loader.idle())


# ---- DLIO

TENSORFLOW = """
framework: tensorflow
dataset: {format: hdf5, num_files_train: 64, record_length_bytes: 1000}
reader: {batch_size: 8, preprocess_time: 0.01, read_threads: %d, computation_threads: %d}
train: {computation_time: 0.001}
"""
DALI = """
framework: pytorch
dataset: {format: %s, num_files_train: 64, record_length_bytes: 1000}
reader: {data_loader: %s, batch_size: 8, read_threads: 4, prefetch_size: 3, preprocess_time: 0.02}
train: {computation_time: 0.001}
"""


@pytest.mark.parametrize(
    ("reads", "threads", "each"), [(1, 1, 1), (1, 4, 4), (2, 4, 2), (2, 5, 3), (4, 2, 1), (0, 4, 4)]
)
def test_threads_of_a_rank_are_those_of_its_workers(reads: int, threads: int, each: int, tmp_path: Path) -> None:
    wanted = load(written(tmp_path, TENSORFLOW % (reads, threads)))
    assert (wanted.loader.num_workers, wanted.loader.decode_threads) == (max(reads, 1), each)


def test_dali_reads_and_prepares_the_samples_of_a_batch_together(tmp_path: Path) -> None:
    """With 10 ms a request, 4 processes read 8 samples in 20 ms, and prepare them in 2 × 20 ms, where PyTorch's one
    worker takes 80 and 160 ms. Three batches are prefetched."""
    source = written(tmp_path, DALI % ("npy", "dali"))
    overrides = {"storage.model": LATENCY, "dataset.format": "raw", "costs": "none"}
    run = rayio.simulate(source, overrides, out=tmp_path / "dali")
    spans = run.spans()
    durations = {name: {*spans[spans["name"] == name]["duration_ns"] // 1_000_000} for name in ("read", "decode")}
    assert durations == {"read": {20}, "decode": {40}}
    wanted = load(source)
    assert (wanted.loader.num_workers, wanted.loader.prefetch_factor) == (1, 3)


@pytest.mark.parametrize(("form", "access"), [("npy", "per_sample"), ("tfrecord", "streamed")])
def test_dalis_own_readers_read_one_sample_after_the_other(form: str, access: str, tmp_path: Path) -> None:
    wanted = load(written(tmp_path, DALI % (form, "native_dali")))
    loader = wanted.loader
    assert (loader.num_workers, loader.io_depth, loader.decode_threads, loader.prefetch_factor) == (1, 1, 1, 3)
    assert loader.file_access == access


@pytest.mark.parametrize(
    ("form", "loader", "line"),
    [
        ("tfrecord", "dali", "DLIO's DALI loader reads no tfrecord"),
        ("csv", "native_dali", "DALI reads no csv; use tfrecord, npy, jpeg or png, or dali"),
        ("npy", "synthetic", "it reads no files"),
        ("npy", "none", "DLIO has no loader for it"),
        ("npy", "dalli", "did you mean dali"),
    ],
)
def test_loaders_that_cannot_be_are_one_line(form: str, loader: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, DALI % (form, loader)))
    assert len(refused.value.problems) == 1
    assert line in refused.value.problems[0]
