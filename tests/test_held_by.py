"""Files in memory once for the workers of a rank or of a node (``loader.held_by``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from walks import DATASET, bytes_read, opens, walking

import rayio
from rayio.data.formats import FORMATS, layout_of
from rayio.errors import ScenarioError
from rayio.model.kernel import WallKernel
from rayio.scenario.model import Scenario
from rayio.storage.layers.in_memory import Shelf
from scenarios import run_locally, simulated


def held(held_by: str, **overrides: Any) -> Scenario:
    """Give a scenario of 2 nodes × 2 ranks × 2 workers whose files are in memory."""
    base = {"cluster__ranks_per_node": 2, "cluster__nodes": 2, "loader__held_by": held_by}
    return walking("in_memory", **{**base, **overrides})


def size_of(wanted: Scenario) -> int:
    layout = layout_of(wanted)
    return int(FORMATS[wanted.dataset.format].file_bytes(layout, np.arange(layout.num_files)).sum())


def made(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Count the requests of each node, whoever of it made them."""
    columns = ("node", "name", "file", "offset", "bytes")
    return Counter(tuple(row[c] for c in columns) for row in rows if row["name"] in ("io.open", "io.read"))


@pytest.mark.parametrize(("held_by", "times"), [("worker", 8), ("rank", 4), ("node", 2)])
@pytest.mark.parametrize("num_workers", [2, 0])
def test_bytes_and_opens_of_storage_are_those_of_each_holder_once(held_by: str, times: int, num_workers: int) -> None:
    wanted = held(held_by, loader__num_workers=num_workers)
    times = min(times, 4) if not num_workers else times
    run = simulated(wanted)
    assert bytes_read(run.all_rows) == times * size_of(wanted)
    assert opens(run.all_rows) == times * 12
    assert run.tallies == simulated(held("worker", loader__num_workers=num_workers)).tallies


@pytest.mark.parametrize("held_by", ["rank", "node"])
@pytest.mark.parametrize("form", ["npz", "hdf5", "tfrecord", "parquet", "csv"])
def test_a_real_run_and_its_simulation_make_the_same_requests_on_each_node(
    form: str, held_by: str, tmp_path: Path
) -> None:
    wanted = held(held_by, dataset=DATASET | {"format": form}, loader__request_bytes="3 kB")
    real, model = run_locally(on_disk(wanted, tmp_path), tmp_path), simulated(wanted)
    assert real.ledger.even
    assert made(real.all_rows) == made(model.all_rows)
    for rank in range(4):
        assert real.delivered(rank) == model.delivered(rank)


def test_the_others_wait_as_long_as_the_first_one_reads() -> None:
    reads = simulated(held("node", trace__level="batch")).rows("read", epoch=0, step=0)
    assert len({row["start_ns"] + row["duration_ns"] for row in reads}) == 1, "both nodes read as fast"
    assert sorted(row["bytes"] > 0 for row in reads) == [False, False, True, True]
    assert all(row["duration_ns"] == 0 for row in simulated(held("node")).rows("read", epoch=1))


def test_evaluations_have_other_files_in_memory(tmp_path: Path) -> None:
    evaluate = {"every": {"steps": 4}, "compute": "100 us"}
    wanted = held("node", dataset=DATASET | {"eval": {"num_files": 3}}, train__evaluate=evaluate)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert made(real.all_rows) == made(simulated(wanted).all_rows)
    assert opens(real.all_rows) == 2 * (12 + 3)


def test_a_first_worker_that_was_killed_reads_and_another_gets_the_bytes() -> None:
    async def story() -> list[Any]:
        shelf, key = Shelf(WallKernel()), ("data", -1)
        log: list[Any] = [await shelf.take(key, (0, 0, 0))]
        waiting = asyncio.ensure_future(shelf.take(key, (1, 0, 0)))
        await asyncio.sleep(0)
        log += [await shelf.take(key, (0, 0, 0)), waiting.done()]  # it was started again
        await shelf.put(key, None)
        log += [await waiting, await shelf.take(key, (1, 0, 3)), await shelf.take(("data", 2), (2, 0, 0))]
        shelf.clear()
        return [*log, await shelf.take(key, (1, 0, 4))]

    mine, there = (False, None), (True, None)
    assert asyncio.run(story()) == [mine, mine, False, there, there, mine, mine]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"loader__held_by": "host"}, "loader.held_by=host: must be worker, rank or node"),
        ({"loader__kind": "torch"}, "loader.held_by=node: workers of loader.kind=torch cannot pass bytes on; use"),
        ({"cluster__memory": "50 KB"}, "loader.file_access=in_memory: the workers of a node keep .* of the files; a"),
        ({"cluster__memory": "150 KB", "loader__held_by": "rank"}, "a rank keeps .* and the 2 of a node"),
        ({"loader__file_access": "whole_file"}, "loader.held_by=node: .*in_memory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        held("node", **overrides)
    assert "\n" not in str(refused.value)


def test_a_node_needs_memory_once() -> None:
    wanted = held("node", cluster__memory="150 KB")
    assert size_of(wanted) < 150_000 < 2 * size_of(wanted)


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_actors_of_a_node_read_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = held("node", cluster__nodes=1, loader__num_workers=1, loader__queue="in_rank", train__sync="none")
    rows: Any = rayio.run(wanted, engine="ray", out="run").spans().to_dict("records")
    assert made(rows) == made(simulated(wanted).all_rows)
    assert opens(rows) == 12
