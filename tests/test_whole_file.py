"""Files that are read whole, one by one or all at the start (``loader.file_access: whole_file``, ``in_memory``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from datasets import on_disk
from walks import DATASET, bytes_read, opens, requests, walking

import rayio
from rayio.data.formats import FORMATS, layout_of
from rayio.errors import ScenarioError
from rayio.report.explain import explain
from rayio.scenario.model import Scenario
from scenarios import run_locally, simulated

EVERY = [name for name in FORMATS if name in ("npz", "hdf5", "tfrecord", "parquet")]


def sizes(wanted: Scenario) -> list[int]:
    """Give the sizes of all files."""
    layout = layout_of(wanted)
    of_files: list[int] = FORMATS[wanted.dataset.format].file_bytes(layout, np.arange(layout.num_files)).tolist()
    return of_files


@pytest.mark.parametrize("access", ["whole_file", "in_memory"])
@pytest.mark.parametrize("request_bytes", [None, "3000 B"])
@pytest.mark.parametrize("form", EVERY)
def test_a_real_run_and_its_simulation_make_the_same_list_of_requests(
    form: str, request_bytes: str | None, access: str, tmp_path: Path
) -> None:
    wanted = walking(
        access, dataset=DATASET | {"format": form}, loader__request_bytes=request_bytes, loader__shuffle="global"
    )
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_a_whole_file_is_one_request_and_stays_until_the_next() -> None:
    wanted = walking(
        "whole_file", loader__num_workers=1, loader__batch_size=3, cluster__ranks_per_node=1, train__epochs=1
    )
    rows = [row for row in simulated(wanted).all_rows if row["name"] == "io.read"]
    assert [row["bytes"] for row in rows] == sizes(wanted)
    assert {row["offset"] for row in rows} == {0}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_in_memory_is_read_once_by_every_reader_and_then_never(num_workers: int) -> None:
    wanted = walking("in_memory", loader__num_workers=num_workers, loader__shuffle="global", train__epochs=3)
    made, readers = requests(simulated(wanted).all_rows), 2 * max(1, num_workers)
    assert len(made) == readers, "the first batch of each reader has requests, and no other"
    rows = simulated(wanted).all_rows
    assert bytes_read(rows) == readers * sum(sizes(wanted))
    assert opens(rows) == readers * 12


def test_candle_reads_its_file_in_256_kb_by_every_rank_and_then_never() -> None:
    """As published: read at the start by every rank, in requests of 256 KB (600 MB; here a tenth of the records)."""
    wanted = walking(
        "in_memory", loader={
            "file_access": "in_memory", "request_bytes": "256 KiB", "num_workers": 0, "batch_size": 2,
            "shuffle": "none",
        },
        dataset={"path": "model://candle", "num_files": 1, "samples_per_file": 112, "sample_bytes": "241936 B"},
        cluster={"nodes": 8}, train={"epochs": 60, "compute": "1 s"}, trace={"level": "batch"},
    )  # fmt: skip
    run = simulated(wanted)
    size, reads = sizes(wanted)[0], [row for row in run.rows("read") if row["requests"]]
    assert [row["bytes"] for row in reads] == 8 * [size]
    assert [row["requests"] for row in reads] == 8 * [-(-size // (256 << 10))]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"loader__file_access": "in_memory", "cluster__memory": "300 KB"},
            r"loader.file_access=in_memory: a worker keeps 99.9 KiB of the files, and the 4 of a node 39[0-9.]* KiB; a "
            r"node has 293 KiB \(cluster.memory\); use fewer, or loader.file_access=per_sample",
        ),
        (
            {"loader__file_access": "in_memory", "cluster__memory": "150 KB", "loader__num_workers": 0},
            r"a rank keeps 99.9 KiB of the files, and the 2 of a node 200 KiB; a node has 146 KiB",
        ),
        (
            {"loader__file_access": "whole_file", "cluster__memory": "20 KB"},
            r"loader.file_access=whole_file: a worker keeps 8.3[0-9] KiB of the files, and the 4 of a node 33.3 KiB",
        ),
        (
            {
                "loader__file_access": "streamed", "cluster__memory": "20 KB", "loader__buffer_bytes": "8 KiB",
                "dataset__format": "tfrecord",
            },
            r"loader.buffer_bytes=8 KiB: a worker keeps 8 KiB of the files, and the 4 of a node 32 KiB",
        ),
        (
            {"loader__file_access": "in_memory", "loader__request_bytes": "1 B", "dataset__num_files": 1000},
            "loader.file_access=in_memory: a worker starts with 8[0-9]* requests; at most 4194304 are possible",
        ),
    ],
)  # fmt: skip
def test_more_than_the_memory_of_a_node_is_refused_with_the_number(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        walking("per_sample", **{"dataset": dict(DATASET), **overrides})
    assert "\n" not in str(refused.value)


def test_a_real_run_has_the_memory_of_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = walking("in_memory")
    free = psutil.virtual_memory()._replace(available=200_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(
        ScenarioError, match=r"the 4 of a node 39[0-9.]* KiB; a node has 195 KiB \(free on this machine\)"
    ):
        rayio.run(wanted, engine="local", out="run")


def test_batches_from_memory_take_no_time_and_are_not_missed(tmp_path: Path) -> None:
    wanted = walking(
        "in_memory", dataset=DATASET | {"path": "model://memory"}, loader__shuffle="global", trace__level="batch",
        train__compute="1 ms", train__epochs=5, loader__num_workers=1, cluster__ranks_per_node=1,
    )  # fmt: skip
    explained = explain(rayio.simulate(wanted, root=tmp_path).path)
    assert not any("no spans of workers" in str(note) for note in explained.notes)
