"""Nodes that come for readers and go with them, in virtual time: held against a load that is known."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml

from rayio.analyze.arrays import RunArrays
from rayio.analyze.scaling import scaling as scaling_of
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError
from rayio.model.pool import NodePool
from rayio.records.scaling import PoolUse, Scaling
from rayio.report import sections
from rayio.report.content import Content
from rayio.report.explain import explain
from rayio.report.text.summary import summary
from rayio.scenario.load import load
from rayio.scenario.reader_pool import ReaderPool
from rayio.session import Run, run
from rayio.trace.recorder import Recorder
from scenarios import scenario

#: A batch takes a reader 400 ms, and a rank asks for one every 100 ms: four readers are enough, one is a quarter.
READ, COMPUTE, STEPS = 0.4, 0.1, 600


def planted(root: Path, pool: dict[str, Any] | None, **overrides: Any) -> Run:
    """A run with one rank on the virtual clock, whose reads take the same whoever else reads."""
    given: dict[str, Any] = {
        "cluster__ranks_per_node": 1,
        "dataset__path": "model://planted",
        "dataset__num_files": STEPS,
        "dataset__sample_bytes": "1000 B",
        "train__epochs": 1,
        "train__sync": "none",
        "train__compute": f"{COMPUTE} s",
        "loader__batch_size": 1,
        "loader__decode": f"{READ} s",
        "loader__num_workers": {"min": 1, "max": 5, "every": "2 s", "calm": "20 s"},
        "storage__model": {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "100 GB/s"},
    }
    if pool is not None:
        given["cluster__reader_pool"] = pool
    return run(scenario(**given | overrides), engine="virtual", root=root)


def lasted(done: Run) -> float:
    spans = done.spans()
    return float(((spans["start_ns"] + spans["duration_ns"]).max() - spans["start_ns"].min()) / 1e9)


def used(done: Run) -> tuple[Scaling, PoolUse]:
    scaling = done.result.scaling
    assert scaling is not None
    assert scaling.pool is not None
    assert done.result.ledger is not None
    assert done.result.ledger.even
    return scaling, scaling.pool


def test_what_nodes_bought_is_what_a_run_without_them_takes_longer(tmp_path: Path) -> None:
    with_nodes = planted(tmp_path, {"nodes": 8, "slots": 1, "start": "10 s", "idle_timeout": "5 s"})
    alone = planted(tmp_path, None, loader__num_workers=1)
    _, pool = used(with_nodes)
    longer = lasted(alone) - lasted(with_nodes)
    assert longer > 100
    assert pool.spared_seconds == pytest.approx(longer, rel=0.02)
    spans = with_nodes.spans()
    reads = spans[spans["name"] == "read"]
    there = int((reads["node"] > 0).sum())
    assert pool.batches == there
    assert pool.batch_share == pytest.approx(there / STEPS)


def test_a_change_tells_of_the_node_then_the_reader_then_its_first_batch(tmp_path: Path) -> None:
    rules = {"min": 1, "max": 5, "every": "2 s", "calm": "20 s", "start": "3 s"}
    done = planted(tmp_path, {"nodes": 8, "slots": 2, "start": "10 s"}, loader__num_workers=rules)
    scaling, pool = used(done)
    first, second, third = scaling.changes[:3]
    assert (first.before, first.after, second.before, second.after) == (0, 1, 1, 2)
    assert second.node_seconds == pytest.approx(10)
    assert second.seconds == pytest.approx(13)
    assert second.first_batch_seconds is not None
    assert READ <= second.first_batch_seconds < 3 * READ
    assert pool.slowest_seconds == pytest.approx(10)
    assert pool.capacity_seconds is not None
    assert pool.capacity_seconds >= second.seconds + second.first_batch_seconds - 1e-6
    # two readers have room on a node: of the next two, one takes the slot that is free, the other has a node come
    assert (third.before, third.after) == (2, 4)
    spans = done.spans()
    reads = spans[spans["name"] == "read"]
    on = dict(zip(reads["index"].tolist(), reads["node"].tolist(), strict=True))
    assert (on["0-0"], on["0-1"], on["0-2"], on["0-3"]) == (0, 1, 1, 2)


def test_nodes_go_once_nobody_has_been_there_for_a_time_and_are_paid_until_then(tmp_path: Path) -> None:
    ramp = {"kind": "ramp", "begin": "100 ms", "end": "1.5 s", "steps": STEPS}
    done = planted(tmp_path, {"nodes": 8, "start": "10 s", "idle_timeout": "7 s"}, train__compute=ramp)
    scaling, pool = used(done)
    spans = done.spans()
    assert scaling.changes[-1].after == 1
    assert pool.most == 1
    there = spans[spans["name"] == "node_up"]
    starts = spans[spans["name"] == "node_start"]
    paid = (there["duration_ns"].sum() + starts["duration_ns"].sum()) / 1e9
    assert pool.node_seconds == pytest.approx(paid)
    begin = spans["start_ns"].min()
    last = scaling.changes[-1]
    gone = (there["start_ns"] + there["duration_ns"]).max() - begin
    assert gone / 1e9 == pytest.approx(last.at_seconds + last.seconds + 7, abs=0.01)
    assert gone < (spans["start_ns"] + spans["duration_ns"]).max() - begin
    over = [period.nodes for period in scaling.over_time]
    assert over[-1] == 0
    total = sum(period.seconds * (period.nodes or 0) for period in scaling.over_time)
    assert total == pytest.approx(pool.node_seconds)


def test_a_run_goes_on_where_no_node_comes_in_time_and_asks_again(tmp_path: Path) -> None:
    done = planted(tmp_path, {"nodes": 8, "start": "1 h", "deadline": "15 s"})
    scaling, pool = used(done)
    assert {change.after for change in scaling.changes} == {1}
    asked = [change.at_seconds for change in scaling.changes[1:]]
    assert len(asked) >= 3
    assert pool.given_up == len(asked)
    assert all(change.seconds == pytest.approx(15) for change in scaling.changes[1:])
    assert pool.batches == 0
    assert pool.slowest_seconds is None


def test_readers_that_asked_in_vain_are_counted_where_no_node_was_ever_seen(tmp_path: Path) -> None:
    done = planted(tmp_path, {"nodes": 8, "start": "1 h", "deadline": "15 s"})
    spans = done.directory.spans()  # on Ray nobody knows of nodes that did not come
    spans = spans.filter(pc.not_equal(spans["role"], "pool"))
    found = scaling_of(spans, RunArrays.of_spans(spans))
    assert found is not None
    assert found.pool is not None
    asked = [change for change in found.changes if change.node_seconds is not None]
    assert found.pool.given_up == len(asked) >= 3
    assert (found.num_changes, found.most) == (0, 1), "nobody came and nobody went"
    assert (found.pool.node_seconds, found.pool.came, found.pool.most) == (0, 0, 0)
    assert {period.nodes for period in found.over_time} == {0}
    assert done.result.scaling is not None
    told = replace(done.result, scaling=found)
    assert f"{len(asked)} workers got none in time" in " ".join(summary(told).split())
    page = sections.readers(replace(Content.of(done.directory, simulate=False), result=told))
    assert f"{len(asked)} workers got none in time" in page


def test_no_more_readers_come_than_there_is_room_for(tmp_path: Path) -> None:
    done = planted(tmp_path, {"nodes": 1, "slots": 2, "start": "5 s", "deadline": "10 s"})
    scaling, pool = used(done)
    assert max(change.after for change in scaling.changes) == 3
    assert (pool.most, pool.came) == (1, 1)
    assert pool.given_up > 0


def test_never_more_readers_ask_than_may_and_each_in_its_turn() -> None:
    kernel, told = VirtualKernel(), list[tuple[int, int | None, float]]()
    pool = NodePool(kernel, ReaderPool(nodes=9, pending=2, start=10, deadline=25), 1, Recorder())

    async def story() -> None:
        for number in range(7):

            def hear(node: int | None, worker: int = number) -> None:
                told.append((worker, node, kernel.now() / 1e9))

            pool.want((0, number), hear)
        await kernel.sleep_until(60 * 10**9)

    kernel.run(story())
    came = [(0, 1, 10.0), (1, 2, 10.0), (2, 3, 20.0), (3, 4, 20.0)]
    assert told[:4] == came
    assert sorted(told[4:]) == [(4, None, 25.0), (5, None, 25.0), (6, None, 25.0)]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.reader_pool={slots: 2}", "cluster.reader_pool.nodes: is required and missing"),
        ("cluster.reader_pool={nodes: 0}", "cluster.reader_pool.nodes"),
        ("cluster.reader_pool={nodes: 2, resource: CPU}", "is a resource of Ray's own"),
        ("cluster.reader_pool={nodes: 2, resource: '{x}'}", "must be the name of a custom resource"),
        ("cluster.reader_pool={nodes: 2, resource: bundle_group_1}", "is a resource of Ray's own"),
        ("cluster.reader_pool={nodes: 2, deadline: 0 s}", "cluster.reader_pool.deadline"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_in_a_line(override: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("s3-autoscaled", [override])
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_pool_for_readers_that_are_always_as_many_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"cluster\.reader_pool: .*loader\.num_workers=4 is always as many"):
        load("s3-autoscaled", ["cluster.reader_pool={nodes: 2}", "loader.num_workers=4"])


def test_resources_that_only_begin_as_rays_own_do_are_custom_ones() -> None:
    assert load("s3-autoscaled", ["cluster.reader_pool={nodes: 2, resource: CPU_readers}"]).cluster.reader_pool


def test_a_loader_whose_workers_cannot_change_is_refused_for_that() -> None:
    with pytest.raises(ScenarioError) as refused:
        load("s3-autoscaled", ["cluster.reader_pool={nodes: 2}", "loader.kind=torch"])
    assert "cannot change its workers" in str(refused.value)
    assert "placement" not in str(refused.value)


def test_requests_in_vain_are_in_the_summary(tmp_path: Path) -> None:
    done = planted(tmp_path, {"nodes": 4, "start": "100 s", "deadline": "10 s"})
    _, pool = used(done)
    assert pool.given_up > 0
    assert f"{pool.given_up} workers got none in time" in " ".join(summary(done.result).split())


def test_cores_that_were_there_for_a_while_are_not_counted(tmp_path: Path) -> None:
    work = {"cluster__cores": 1, "costs": {"cpu": {"sample": "10 ms"}}}
    stages = {
        bool(pool): {row.stage for row in explain(planted(tmp_path, pool, **work).path, simulate=False).capacity.stages}
        for pool in (None, {"nodes": 4})
    }
    assert "processors" in stages[False]
    assert "processors" not in stages[True]


def test_a_ray_of_our_own_has_no_autoscaler_and_the_command_says_so_before_it_starts_one(tmp_path: Path) -> None:
    wanted = ["dataset.path=model://none", "cluster.reader_pool={nodes: 2}", "loader.num_workers={min: 1, max: 2}"]
    command = [sys.executable, "-m", "rayio", "run", "unet3d-small", *wanted, "--root", str(tmp_path), "--out", "out"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if "cluster.reader_pool" in line)
    assert "a local Ray has no autoscaler" in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_pool_is_written_as_it_is_read(tmp_path: Path) -> None:
    wanted = load("s3-autoscaled", ["cluster.reader_pool={nodes: 2, slots: 3, start: 90 s}"])
    path = tmp_path / "again.yaml"
    done = run(wanted, engine="virtual", root=tmp_path, out="out")
    path.write_text((done.directory.path / "scenario.yaml").read_text())
    assert yaml.safe_load(path.read_text())["cluster"]["reader_pool"]["nodes"] == 2
    assert load(str(path), []).cluster.reader_pool == wanted.cluster.reader_pool


def test_readers_come_and_go_without_a_pool_as_they_did(tmp_path: Path) -> None:
    done = planted(tmp_path, None)
    scaling = done.result.scaling
    assert scaling is not None
    assert scaling.most > scaling.least
    assert scaling.pool is None
    assert {period.nodes for period in scaling.over_time} == {None}


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_run_whose_background_work_fails_fails(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody awaits the start of a node: an error there ended a simulation without a word, and a run with a warning."""
    comes = NodePool._come

    async def fails(pool: NodePool, node: Any) -> None:
        await comes(pool, node)
        raise ZeroDivisionError("behind")

    monkeypatch.setattr(NodePool, "_come", fails)
    short = {"dataset__num_files": 30, "loader__decode": "40 ms", "train__compute": "10 ms"}
    many = {"min": 1, "max": 3, "every": "100 ms", "calm": "2 s"}
    wanted = scenario(
        **short, cluster__ranks_per_node=1, cluster__reader_pool={"nodes": 2, "start": "1 ms"}, train__epochs=1,
        train__sync="none", loader__batch_size=1, loader__num_workers=many,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError, match="behind"):
        run(wanted, engine=engine, root=tmp_path)
