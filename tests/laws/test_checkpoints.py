"""Laws of every checkpoint kind: every rank's state is saved once, in files whose sizes are those that were planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import assume, given
from hypothesis import strategies as st
from options import drawn
from registered import every

from rayio import storage
from rayio.kinds import CHECKPOINTS
from rayio.model.manifest import NAME, parse, search
from rayio.place import checkpoint_folder
from rayio.scenario import checks, derive
from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers
from scenarios import Outcome, run_locally, scenario, simulated

every_kind = every(CHECKPOINTS)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    nodes, per_node = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    cuts = [cut for cut in range(1, nodes * per_node + 1) if nodes * per_node % cut == 0]
    tensor = draw(st.sampled_from(cuts))
    stages = draw(st.sampled_from([cut for cut in cuts if nodes * per_node // tensor % cut == 0]))
    return Topology(nodes=nodes, ranks_per_node=per_node, tensor_parallel=tensor, pipeline_parallel=stages)


@every_kind
@given(data=st.data(), topology=topologies(), state=st.integers(1, 40) | st.sampled_from([997, 10_001, 2**40 + 1]))
def test_the_state_is_cut_without_a_byte_lost_and_every_part_has_one_rank(  # type: ignore[no-untyped-def]
    name, data, topology, state
) -> None:
    writers: Writers = data.draw(drawn(CHECKPOINTS[name]))
    refused = [*writers.refusals(state, topology)]
    assert all(line and "\n" not in line for line in refused)
    assume(not refused)
    sizes, copies = writers.sizes(state, topology), writers.copies(topology)
    assert sum(sizes) == copies * state, "not the whole state, or more of it"
    assert 1 <= copies <= topology.ranks
    assert min(sizes) >= 0
    numbers = range(len(sizes))
    sent = [number for rank in range(topology.ranks) for number in writers.of_rank(rank, topology)]
    assert sorted(sent) == [*numbers], "a part that no rank sends, or two do"
    names = {writers.file_name(number) for number in numbers}
    assert len(names) == len(sizes), "one file overwrites another"
    assert all(Path(file).name == file for file in names)
    assert {writers.node(number, topology) for number in numbers} <= {*range(topology.nodes)}


def written(run: Outcome) -> dict[tuple[int, str], int]:
    """Bytes that each writer wrote, by batch and writer."""
    return {(row["batch"], row["index"]): row["bytes"] for row in run.rows("write")}


@every_kind
@pytest.mark.parametrize("cluster", [{"nodes": 1, "ranks_per_node": 3}, {"nodes": 3, "ranks_per_node": 2}], ids=str)
@pytest.mark.parametrize(("state", "is_behind"), [(11, False), (10_007, True)], ids=["waiting", "behind"])
def test_sizes_are_those_on_disk_those_shown_and_those_simulated(
    name: str, cluster: dict[str, int], state: int, is_behind: bool, tmp_path: Path
) -> None:
    section = CHECKPOINTS[name].model_json_schema()
    said: Any = {"kind": name} | dict.fromkeys(section.get("required", []), 5)  # as many writers as no rank's number
    checkpoint = {
        "every": {"steps": 2}, "path": "ck", "model": {"bytes": state}, "writers": said, "fsync": False,
        "asynchronous": is_behind,
    }  # fmt: skip
    wanted = on_disk(
        scenario(
            checkpoint=checkpoint, cluster=cluster, dataset__path="data", train__compute="100 us", train__epochs=1,
            train__steps=4,
        ),
        tmp_path,
    )  # fmt: skip
    here, there = simulated(wanted), run_locally(wanted, tmp_path)
    assert wanted.checkpoint is not None
    writers, sizes = wanted.checkpoint.writers, derive.checkpoint_shards(wanted)
    topology = wanted.topology
    assert sum(sizes) == writers.copies(topology) * state == checks.table(wanted)["checkpoint_bytes"]
    assert len(sizes) == checks.table(wanted)["num_writers"] == there.plan.num_writers
    folders = [checkpoint_folder(epoch, step) for epoch, step in derive.checkpoint_steps(wanted)]
    planned = {f"{at}/{writers.file_name(number)}": size for at in folders for number, size in enumerate(sizes)}
    root = tmp_path / "ck"
    left = {str(file.relative_to(root)): file.stat().st_size for file in root.rglob("*") if file.is_file()}
    manifests = {f"{at}/{NAME}": parse((root / at / NAME).read_bytes()) for at in folders}
    assert left == planned | {path: left[path] for path in manifests}
    assert {f"{one.folder}/{name}": size for one in manifests.values() for name, size in one.files.items()} == planned
    assert search(storage.open(root)).passed == {}
    for run in (here, there):
        rows = run.rows("manifest")
        assert [checkpoint_folder(row["epoch"], row["step"]) for row in rows] == folders
        for row in rows:
            at = [each for each in run.rows("write") if (each["epoch"], each["step"]) == (row["epoch"], row["step"])]
            assert max(each["start_ns"] + each["duration_ns"] for each in at) <= row["start_ns"], "not the last file"
    assert written(here) == written(there)
    assert sorted(written(there).values()) == sorted(planned.values())
    for run in (here, there):
        asked = {rank: sum(row["bytes"] for row in run.rows("checkpoint", rank=rank)) for rank in range(topology.ranks)}
        assert asked == {
            rank: len(folders) * sum(sizes[number] for number in writers.of_rank(rank, topology))
            for rank in range(topology.ranks)
        }
        over = [max(row["start_ns"] + row["duration_ns"] for row in run.rows(kind)) for kind in ("write", "life")]
        assert over == sorted(over), "a run is over before its files are there"
        assert run.ledger.even
        homes = {int(row["index"]): row["node"] for row in run.rows("write")}
        assert homes == {number: writers.node(number, topology) for number in homes}
