"""Laws of every checkpoint kind: every rank's state is saved once, in files whose sizes are those that were planned."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import assume, given
from hypothesis import strategies as st
from options import drawn
from registered import every

from rayio import storage
from rayio.kinds import CHECKPOINTS, STATES
from rayio.model.manifest import NAME, parse, search
from rayio.place import checkpoint_folder
from rayio.scenario import checks, derive
from rayio.scenario.state import FlatState, State
from rayio.scenario.topology import Topology
from rayio.scenario.transformer import DATATYPES, Transformer
from rayio.scenario.writers import Writers
from scenarios import Outcome, run_locally, scenario, simulated

every_kind = every(CHECKPOINTS)
ALONE = Topology(nodes=1, ranks_per_node=1)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    nodes = draw(st.integers(1, 7))
    per_node = draw(st.integers(1, 9) | st.tuples(*[st.integers(1, 9)] * nodes))
    ranks = Topology(nodes=nodes, ranks_per_node=per_node).ranks
    cuts = [cut for cut in range(1, ranks + 1) if ranks % cut == 0]
    tensor = draw(st.sampled_from(cuts))
    stages = draw(st.sampled_from([cut for cut in cuts if ranks // tensor % cut == 0]))
    zero = draw(st.integers(0, 3))
    return Topology(
        nodes=nodes, ranks_per_node=per_node, tensor_parallel=tensor, pipeline_parallel=stages, zero_stage=zero
    )


def transformers() -> st.SearchStrategy[Transformer]:
    """Draw transformers whose heads most numbers of ranks divide, and whose tensors hardly one does."""
    return st.builds(
        Transformer, layers=st.integers(1, 70), hidden=st.integers(5040, 5100), ffn=st.integers(1, 200),
        vocabulary=st.integers(1, 200), heads=st.just(5040), kv_heads=st.sampled_from([None, 1, 720, 5040]),
        datatype=st.sampled_from([*DATATYPES]), optimizer_datatype=st.sampled_from([*DATATYPES]),
    )  # fmt: skip


def states(writers: Writers) -> st.SearchStrategy[State]:
    """Draw states of every kind that these writers can save."""
    kinds = {name: drawn(kind) for name, kind in STATES.usable().items()} | {"transformer": transformers()}
    small = st.builds(FlatState, bytes=st.integers(1, 40) | st.sampled_from([997, 10_001, 2**40 + 1]))
    return transformers() if [*writers.refusals(FlatState(bytes=1 << 20), ALONE)] else st.one_of(small, *kinds.values())


@every_kind
@given(data=st.data(), topology=topologies())
def test_the_state_is_cut_without_a_byte_lost_and_every_part_has_one_rank(  # type: ignore[no-untyped-def]
    name, data, topology
) -> None:
    writers: Writers = data.draw(drawn(CHECKPOINTS[name]))
    state: State = data.draw(states(writers))
    refused = [*writers.refusals(state, topology)]
    assert all(line and "\n" not in line for line in refused)
    assume(not refused and not [*state.contradictions()])
    loads = writers.loads(state, topology)
    numbers = range(len(loads))
    files = {number: writers.files(number, state, topology) for number in numbers}
    assert {number: sum(part.num_bytes for part in some) for number, some in files.items()} == dict(enumerate(loads))
    names = [part.name for some in files.values() for part in some]
    assert len({*names}) == len(names), "one file overwrites another"
    assert all(Path(file).name == file for file in names)
    contents = writers.contents(state, topology)
    assert sum(number for number, _ in contents.values()) == len(names)
    assert sum(nbytes for _, nbytes in contents.values()) == sum(loads)
    if (copies := writers.copies(topology)) is not None:
        assert sum(loads) == copies * state.num_bytes, "not the whole state, or more of it"
        assert 1 <= copies <= topology.ranks
    assert min(loads) >= 0
    sent = [number for rank in range(topology.ranks) for number in writers.of_rank(rank, topology)]
    assert sorted(sent) == [*numbers], "a part that no rank sends, or two do"
    homes = {number: writers.node(number, topology) for number in numbers}
    assert {*homes.values()} <= {*range(topology.nodes)}
    for rank in range(topology.ranks):
        own = [*writers.of_rank(rank, topology)]
        if len(own) == 1:  # several are spread over the nodes
            assert homes[own[0]] == topology.node_of(rank), "the rank's only writer is on another node"


def written(run: Outcome) -> dict[tuple[int, str], int]:
    """Bytes that each writer wrote, by batch and writer."""
    found = Counter[tuple[int, str]]()
    for row in run.rows("write"):
        found[row["batch"], row["index"]] += row["bytes"]
    return dict(found)


#: States: flat ones, files of which some are smaller than the number of ranks, and a shape.
STATES_OF_RUNS = (
    {"bytes": 11}, {"files": {"graph.pbtxt": 3, "weights": 10_007}},
    {"kind": "transformer", "layers": 5, "hidden": 9, "ffn": 6, "vocabulary": 7, "heads": 6, "kv_heads": 3},
)  # fmt: skip


@every_kind
@pytest.mark.parametrize(
    "cluster", [{"nodes": 1, "ranks_per_node": 3}, {"nodes": 3, "ranks_per_node": [3, 1, 2]}], ids=str
)
@pytest.mark.parametrize(
    ("state", "is_behind"), [*zip(STATES_OF_RUNS, (False, True, False), strict=True)],
    ids=["waiting", "behind", "shape"],
)  # fmt: skip
def test_sizes_are_those_on_disk_those_shown_and_those_simulated(
    name: str, cluster: dict[str, Any], state: dict[str, Any], is_behind: bool, tmp_path: Path
) -> None:
    section = CHECKPOINTS[name].model_json_schema()
    said: Any = {"kind": name} | dict.fromkeys(section.get("required", []), 5)  # as many writers as no rank's number
    if "kind" not in state and [*CHECKPOINTS[name].model_validate(said).refusals(FlatState(bytes=1 << 20), ALONE)]:
        state = STATES_OF_RUNS[-1]
    checkpoint = {
        "every": {"steps": 2}, "path": "ck", "model": state, "writers": said, "fsync": False, "asynchronous": is_behind,
    }  # fmt: skip
    divided = {"tensor": 3, "pipeline": 1, "zero_stage": 1}
    if "bytes" in state:
        divided = {"tensor": 1, "pipeline": cluster["nodes"], "zero_stage": cluster["nodes"] - 1}
    wanted = on_disk(
        scenario(
            checkpoint=checkpoint, cluster=cluster, dataset__path="data", train__compute="100 us", train__epochs=1,
            train__steps=4, train__parallelism=divided,
        ),
        tmp_path,
    )  # fmt: skip
    here, there = simulated(wanted), run_locally(wanted, tmp_path)
    assert wanted.checkpoint is not None
    writers, sizes = wanted.checkpoint.writers, derive.checkpoint_shards(wanted)
    topology = wanted.topology
    assert sum(sizes) == checks.table(wanted)["checkpoint_bytes"]
    assert len(sizes) == checks.table(wanted)["num_writers"] == there.plan.num_writers
    folders = [checkpoint_folder(epoch, step) for epoch, step in derive.checkpoint_steps(wanted)]
    files = [writers.files(number, wanted.checkpoint.model, topology) for number in range(len(sizes))]
    planned = {f"{at}/{part.name}": part.num_bytes for at in folders for some in files for part in some}
    assert len(planned) == len(folders) * checks.table(wanted)["checkpoint_files"]
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
    assert sorted(row["bytes"] for row in there.rows("write")) == sorted(planned.values())
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
