"""Files that some ranks read for the others (``loader.file_access: collective``)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from walks import DATASET, bytes_read, opens, requests, walking

import rayio
from rayio.errors import ScenarioError
from rayio.model.kernel import WallKernel
from rayio.report.explain import explain
from rayio.scenario import checks
from rayio.scenario.model import Scenario
from rayio.storage.layers.collective import Board
from rayio.storage.layers.network import NetworkSpec
from scenarios import run_locally, simulated


def together(aggregators: int = 1, **overrides: Any) -> Scenario:
    """Give a scenario of 4 ranks on 2 nodes that all read the same samples."""
    base = {
        "loader__partition": "replicated", "loader__aggregators": aggregators, "loader__shuffle": "global",
        "cluster__ranks_per_node": 2, "cluster__nodes": 2,
    }  # fmt: skip
    return walking("collective", **{**base, **overrides})


def apart(**overrides: Any) -> Scenario:
    """Give the same without groups."""
    return together(**overrides, loader__file_access="per_sample", loader__aggregators=None)


@pytest.mark.parametrize(("num_workers", "aggregators"), [(0, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("form", ["npz", "hdf5", "tfrecord", "parquet"])
def test_a_real_run_and_its_simulation_make_the_same_list_of_requests(
    form: str, num_workers: int, aggregators: int, tmp_path: Path
) -> None:
    wanted = together(aggregators, dataset=DATASET | {"format": form}, loader__num_workers=num_workers)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    made = requests(simulated(wanted).all_rows)
    assert requests(real.all_rows) == made
    assert {index.partition("-")[0] for _, index, _, _ in made} == {
        str(n * 4 // aggregators) for n in range(aggregators)
    }


def test_workers_that_own_files_shuffle_the_same_way_on_every_rank(tmp_path: Path) -> None:
    dealt: dict[str, Any] = {"loader__assignment": "by_file", "loader__shuffle": "buffer", "loader__shuffle_buffer": 9}
    wanted = together(**dealt, loader__num_workers=2)
    assert run_locally(on_disk(wanted, tmp_path), tmp_path).ledger.even


@pytest.mark.parametrize("aggregators", [1, 2, 4])
def test_bytes_and_opens_of_storage_fall_by_the_size_of_a_group(aggregators: int) -> None:
    group, alone = 4 // aggregators, simulated(apart())
    run = simulated(together(aggregators))
    assert bytes_read(run.all_rows) * group == bytes_read(alone.all_rows)
    assert opens(run.all_rows) * group == opens(alone.all_rows)
    assert run.tallies == alone.tallies


def test_what_crosses_nodes_takes_the_time_of_the_network() -> None:
    def waited(run: Any, rank: int) -> int:
        first = run.rows("read", rank=rank, epoch=0, step=0)[0]
        return int(first["duration_ns"])

    run = simulated(together(cluster__nic_bandwidth="1 MB/s", cluster__nic_latency="1 ms", trace__level="batch"))
    nbytes = run.rows("read", rank=0, epoch=0, step=0)[0]["bytes"]
    assert waited(run, 1) == waited(run, 0)
    assert waited(run, 2) == waited(run, 0) + 1_000_000 + nbytes * 1000


@pytest.mark.parametrize("num_workers", [1, 4])
def test_a_node_gets_no_more_than_its_interface_gives_however_many_workers_and_ranks_read(
    num_workers: int, tmp_path: Path
) -> None:
    slow = DATASET | {"path": "model://shared", "num_files": 40, "sample_bytes": "100 kB", "format": "raw"}
    wanted = together(dataset=slow, cluster__nic_bandwidth="20 MB/s", loader__num_workers=num_workers)
    seconds = rayio.simulate(wanted, out=tmp_path / "run").result.wall_seconds
    assert seconds == pytest.approx(wanted.train.epochs * 160 * 100e3 / 20e6, rel=0.02)


def test_a_slow_network_is_told_from_slow_storage_and_what_explain_says_of_it_is_what_the_change_gives(
    tmp_path: Path,
) -> None:
    slow: dict[str, Any] = {
        "dataset": DATASET | {"path": "model://shared", "num_files": 40, "sample_bytes": "100 kB"},
        "cluster__nic_bandwidth": "20 MB/s", "trace__level": "batch", "train__compute": "5 ms",
    }  # fmt: skip
    wanted = together(**slow)
    run = rayio.simulate(wanted, out=tmp_path / "run")
    explained = explain(run.path)
    assert explained.verdict.cause == "broadcast"
    assert explained.simulated is not None
    said = {row.change: row.au for row in explained.simulated.changes}
    made = {
        "network = ∞": wanted.model_copy(update={"cluster": wanted.cluster.model_copy(update={"nic_bandwidth": None})}),
        "aggregators 2": together(aggregators=2, **slow),
    }
    for change, scenario in made.items():
        assert said[change] == pytest.approx(rayio.simulate(scenario, out=tmp_path / change).au, abs=1e-3)


def test_evaluations_are_read_together_too(tmp_path: Path) -> None:
    evaluate = {"every": {"steps": 4}, "compute": "100 us"}
    wanted = together(dataset=DATASET | {"eval": {"num_files": 3}}, train__evaluate=evaluate)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"loader__aggregators": 3}, "loader.aggregators=3: does not divide 4 ranks; use 2 or 4"),
        ({"loader__aggregators": 8}, "loader.aggregators=8: does not divide 4 ranks; use 2 or 4"),
        ({"loader__partition": "contiguous"}, "loader.file_access=collective: with loader.partition=contiguous ranks "
         "read different samples; use loader.partition=replicated, or"),
        ({"loader__kind": "torch"}, "loader.file_access=collective: workers of loader.kind=torch cannot pass bytes on"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_are_refused_in_one_line(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        together(**overrides)
    assert "\n" not in str(refused.value)


def test_groups_of_one_are_noted() -> None:
    assert any("every one of the 4 ranks is an aggregator" in note for note in checks.idle(together(4)))
    assert not any("aggregator" in note for note in checks.idle(together(2)))


def test_a_rank_whose_batch_is_lost_reads_by_itself() -> None:
    async def story() -> list[Any]:
        board = Board(WallKernel(), followers=2, window=2, network=NetworkSpec(None))
        waiting = asyncio.ensure_future(board.obtain(1, 0, 0, 0))  # published before a restart, which lost it
        await asyncio.sleep(0)
        board.publish(0, 0, 2, None)
        assert not waiting.done()
        board.publish(0, 0, 3, {})
        log: list[Any] = [await waiting]
        log += [await board.obtain(rank, 0, 0, 3) for rank in (1, 1, 2, 1)]  # a worker that is killed asks again
        board.publish(0, 0, 3, {})
        return [*log, await board.obtain(2, 0, 0, 3)]

    gone, there = (False, None, ()), (True, dict[Any, Any](), ())
    assert asyncio.run(story()) == [gone, there, there, there, gone, gone]


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_actors_pass_bytes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = together(cluster__nodes=1, loader__num_workers=1, loader__queue="in_rank", train__sync="none")
    rows: Any = rayio.run(wanted, engine="ray", out="run").spans().to_dict("records")
    assert requests(rows) == requests(simulated(wanted).all_rows)
