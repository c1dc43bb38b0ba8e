"""A subset of ranks saves its parts of a large model, as MLPerf Storage's subset mode does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayio.errors import RayioError
from rayio.scenario import checks, derive
from rayio.scenario.load import build, load
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from scenarios import scenario, simulated

GIB = 1 << 30
SMALL = {"kind": "transformer", "layers": 4, "hidden": 256, "ffn": 1024, "vocabulary": 3200, "heads": 8, "kv_heads": 4}


def subset(of: int | None, nodes: int = 1, per_node: Any = 2, *, path: str = "model://x", **more: Any) -> Scenario:
    section = {
        "path": "ck", "model": SMALL, "writers": "parallel", "subset_of": of, "fsync": False,
        "phases": {"writes": 2, "reads": 2},
    }  # fmt: skip
    return scenario(
        cluster={"nodes": nodes, "ranks_per_node": per_node}, dataset__path=path,
        checkpoint=section | more.pop("checkpoint", {}),
        train__parallelism=more.pop("parallelism", {"tensor": 2, "pipeline": 2, "zero_stage": 1}), **more,
    )  # fmt: skip


def files_on_disk(root: Path) -> dict[str, int]:
    folder = root / "ck" / "epoch-0000-step-00000000"
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix == ".bin"}


@pytest.mark.parametrize(
    ("name", "published", "apart"),
    [("llama3-70b", 114, 0), ("llama3-405b", 94, 128256 * 16384 * 2)], ids=["70b", "405b"],
)  # fmt: skip
def test_eight_ranks_save_what_mlperf_published_of_eight(name: str, published: int, apart: int) -> None:
    """Sizes of MLPerf Storage's Table 2, "Subset: 8-Process Size", in GiB.

    It leaves out the embedding, which the first eight ranks have by DLIO's formula if there are stages.
    """
    whole = load(name)
    ranks = derive.world_size(whole)
    eight = load(
        name, {"cluster.nodes": 1, "checkpoint.subset_of": ranks, "checkpoint.phases": {"writes": 1, "reads": 1}}
    )
    assert derive.world_size(eight) == derive.num_writers(eight) == 8
    assert (derive.checkpoint_bytes(eight) - apart) / GIB == pytest.approx(published, abs=0.7)
    assert derive.checkpoint_bytes(whole) > 8 * derive.checkpoint_bytes(eight) / 1.01


@pytest.fixture(scope="module", params=[0, 1, 3], ids="zero {}".format)
def whole_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, int]]:
    """Give a way to divide a model over 8 ranks, and the files that they write."""
    parallelism, root = {"tensor": 2, "pipeline": 2, "zero_stage": request.param}, tmp_path_factory.mktemp("whole")
    run(subset(None, nodes=8, per_node=1, path="data", parallelism=parallelism), engine="local", root=root, out="run")
    return parallelism, files_on_disk(root)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_files_are_those_that_the_same_ranks_write_in_a_whole_run(ranks: int, whole_run: Any, tmp_path: Path) -> None:
    parallelism, all_files = whole_run
    some = subset(8, nodes=ranks, per_node=1, path="data", parallelism=parallelism)
    done = run(some, engine="local", root=tmp_path / "some", out="run")
    files = files_on_disk(tmp_path / "some")
    mine = {f"rank-{rank:05d}" for rank in range(ranks)}
    assert files == {name: size for name, size in all_files.items() if any(rank in name for rank in mine)}
    assert sum(files.values()) == derive.checkpoint_bytes(some) == checks.table(some)["checkpoint_bytes"]
    assert len(files) == derive.checkpoint_files(some)
    restored = done.result.restored
    assert restored is not None
    assert restored.bytes == 2 * sum(files.values())
    here = simulated(some)
    assert sum(row["bytes"] for row in here.rows("write")) == 2 * sum(files.values())


def test_unequal_nodes_have_the_files_of_equal_ones(whole_run: Any, tmp_path: Path) -> None:
    (parallelism, all_files), each = whole_run, [1, 2, 1]
    some = subset(8, nodes=3, per_node=each, path="data", parallelism=parallelism)
    run(some, engine="local", root=tmp_path, out="run")
    mine = {f"rank-{rank:05d}" for rank in range(4)}
    theirs = {name: size for name, size in all_files.items() if any(rank in name for rank in mine)}
    assert files_on_disk(tmp_path) == theirs
    nodes = {row["rank"]: row["node"] for row in simulated(some).rows("checkpoint")}
    assert nodes == {0: 0, 1: 1, 2: 1, 3: 2}
    assert some.saving_topology.ranks_per_node == (1, 2, 1, 2, 2), "so phases.shift=node is that of the run's nodes"


def training(of: int | None, nodes: int, **more: Any) -> Scenario:
    """Give ranks that all read different batches, and checkpoints after 2 and 4 of 5 steps."""
    divided = {"parallelism": {"tensor": 2, "pipeline": 2, "zero_stage": 1}, "phases": None, "every": {"steps": 2}}
    more |= {"checkpoint": divided | more.pop("checkpoint", {}), "train__epochs": 1, "train__steps": 5}
    return subset(of, nodes=nodes, per_node=1, parallelism={}, **more)


def test_a_subset_that_trains_saves_its_part_and_goes_on_from_it(tmp_path: Path) -> None:
    whole, part = training(None, 8, path="data"), training(8, 2, path="data")
    files: list[dict[str, bytes]] = []
    for wanted, root in ((whole, tmp_path / "whole"), (part, tmp_path / "part")):
        assert run(wanted, engine="local", root=root, out="run").result.exit_code == 0
        files.append({file.name: file.read_bytes()[256:] for file in (root / "ck").glob("*/*.bin")})
    assert files[1] == {name: there for name, there in files[0].items() if "rank-00000" in name or "rank-00001" in name}
    again = run(training(8, 2, path="data", checkpoint={"restore": "newest"}), engine="local", root=tmp_path / "part")
    assert again.result.restored is not None
    assert again.result.restored.bytes == sum(derive.checkpoint_shares(part))
    dying = {"events": [{"kind": "rank", "number": 1, "at_step": 4}], "detect": 0, "restart": 0}
    lived = simulated(training(8, 2, failures=dying))
    assert lived.ledger.even
    assert sum(row["bytes"] for row in lived.rows("load")) == sum(derive.checkpoint_shares(part))


def test_a_subset_of_whole_replicas_reads_as_they_do() -> None:
    """Two of four replicas of two tensor ranks: each pair reads the same batches, and saves its part of all four."""
    some = subset(8, nodes=2, parallelism={"tensor": 2, "zero_stage": 1}, checkpoint={
        "phases": None, "every": {"steps": 4}
    })  # fmt: skip
    whole = subset(None, nodes=4, parallelism={"tensor": 2, "zero_stage": 1})
    assert derive.checkpoint_shares(some) == derive.checkpoint_shares(whole)[:4]
    taken = {rank: [row["bytes"] for row in simulated(some).rows("data_wait", rank=rank)] for rank in range(4)}
    assert some.topology.data_parallel == 2
    assert len(taken[0]) == len(taken[3]) > 0


def test_ranks_read_what_the_next_of_them_saved(tmp_path: Path) -> None:
    shifted = subset(
        8, nodes=2, path="data", parallelism={"tensor": 2, "pipeline": 2, "zero_stage": 3},
        checkpoint={"phases": {"writes": 1, "reads": 1, "shift": 2}},
    )  # fmt: skip
    done = run(shifted, engine="local", root=tmp_path, out="run")
    spans = done.spans()
    read = spans[spans.name == "restore"].set_index("rank")["bytes"]
    wrote = spans[spans.name == "checkpoint"].set_index("rank")["bytes"]
    assert [read[rank] for rank in range(4)] == [wrote[(rank + 2) % 4] for rank in range(4)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"subset_of": 9, "tensor": 1}, "checkpoint.subset_of=9: must be a multiple of cluster.ranks_per_node"),
        ({"subset_of": 6}, "pipeline: 1}: a replica of the model takes 4 ranks, which do not divide the 6"),
        ({"writers": "rank_zero"}, "checkpoint.subset_of=8: with checkpoint.writers=rank_zero, one rank saves for"),
        ({"phases": None, "every": {"steps": 1}}, "of cluster.nodes × cluster.ranks_per_node; checkpoint.parallelism"),
    ],
    ids=["multiple", "parts", "writers", "training"],
)  # fmt: skip
def test_what_cannot_be_a_subset_is_refused_in_a_line(keys: dict[str, Any], said: str) -> None:
    tensor = keys.get("tensor", 4)
    section = {key: value for key, value in keys.items() if key != "tensor"}
    with pytest.raises(RayioError) as refused:
        subset(8, checkpoint=section, parallelism={"tensor": tensor})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("per_node", [2, [2, 2, 2]])
def test_a_subset_of_fewer_ranks_than_those_of_the_run_is_refused_in_a_line(per_node: Any) -> None:
    with pytest.raises(RayioError, match=r"checkpoint\.subset_of=2: must be .*at least the 6 ranks of the run"):
        subset(2, 3, per_node, checkpoint={"writers": "sharded"}, parallelism={})


def test_a_subset_s_checkpoint_is_no_checkpoint_of_all_ranks(tmp_path: Path) -> None:
    run(subset(8, path="data"), engine="local", root=tmp_path, out="run")
    whole = build(
        subset(None, nodes=4, path="data").model_dump(mode="json", exclude_none=True)
        | {
            "checkpoint": {
                "path": "ck",
                "model": SMALL,
                "writers": "parallel",
                "every": {"steps": 1},
                "restore": "newest",
            }
        }
    )
    with pytest.raises(RayioError, match=r"another layout: it has first ranks=2, the run none"):
        run(whole, engine="local", root=tmp_path, out="run-2")


DLIO = """
framework: pytorch
model:
  name: llama3-405b
  type: transformer
  num_layers: 126
  parallelism: {tensor: 8, pipeline: 32, data: 2, zero_stage: 1}
  transformer:
    {vocab_size: 128256, hidden_size: 16384, ffn_hidden_size: 53248, num_attention_heads: 128, num_kv_heads: 8}
workflow: {train: False, checkpoint: True}
checkpoint:
  {checkpoint_folder: saved, num_checkpoints_write: 2, num_checkpoints_read: 2, mode: MODE, recovery_rank_shift: True}
"""


@pytest.mark.parametrize("mode", ["default", "subset"])
def test_a_workload_of_dlio_has_its_subset_and_its_shift(mode: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(DLIO.replace("MODE", mode))
    made = load(f"dlio:{tmp_path / 'w.yaml'}")
    ranks = 8 if mode == "subset" else 512
    assert derive.world_size(made) == derive.num_writers(made) == ranks
    ours = load("llama3-405b", {"checkpoint.phases": {"writes": 1, "reads": 1}})
    if mode == "subset":
        ours = load("llama3-405b", {
            "cluster.nodes": 1, "checkpoint.subset_of": 512, "checkpoint.phases": {"writes": 1, "reads": 1}
        })  # fmt: skip
    assert derive.checkpoint_bytes(made) == derive.checkpoint_bytes(ours)
    assert derive.checkpoint_files(made) == derive.checkpoint_files(ours)
    assert made.checkpoint is not None
    assert made.checkpoint.phases is not None
    assert made.checkpoint.phases.shifted(8) == 8


def test_a_subset_of_dlio_needs_the_replicas_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(DLIO.replace("MODE", "subset").replace("data: 2, ", ""))
    with pytest.raises(RayioError, match=r"mode=subset: a subset needs model\.parallelism\.data"):
        load(f"dlio:{tmp_path / 'w.yaml'}")


TRAINING = """
framework: pytorch
model:
  type: transformer
  num_layers: 4
  parallelism: {tensor: 2, pipeline: 2, data: 4, zero_stage: 1}
  transformer:
    {vocab_size: 3200, hidden_size: 256, ffn_hidden_size: 1024, num_attention_heads: 8, num_kv_heads: 4}
workflow: {train: True, checkpoint: True}
dataset: {data_folder: data, format: npz, num_files_train: 16, num_samples_per_file: 1, record_length_bytes: 400}
reader: {batch_size: 2, read_threads: 1}
train: {epochs: 1, computation_time: 0.001}
checkpoint: {checkpoint_folder: saved, steps_between_checkpoints: 2, mode: subset}
"""


def of_dlio(*, tensor: int, pipeline: int, replicas: int) -> dict[str, int]:
    """Return the bytes of the files of the first ``tensor`` ranks, by DLIO's formula (model fp16, optimizer fp32)."""
    hidden, ffn, vocabulary, layers, heads, kv_heads = 256, 1024, 3200, 4, 8, 4
    key_value = hidden // heads * kv_heads
    layer = hidden * (hidden + 2 * key_value) + hidden**2 + 3 * hidden * ffn + 2 * hidden
    shares = [hidden * (hidden + 2 * key_value), hidden**2, 2 * hidden * ffn, hidden * ffn]
    of_layer = 2 * hidden + sum(each // tensor for each in shares)
    group = (2 * vocabulary * hidden + hidden + layers * layer) // (replicas * tensor * pipeline)
    first = {"layer-00000": hidden * vocabulary // tensor, "layer-00001": of_layer, "layer-00002": of_layer}
    sizes = {f"model-rank-{rank:05d}-{name}.bin": 2 * each for rank in range(tensor) for name, each in first.items()}
    return sizes | {f"optimizer-rank-{rank:05d}.bin": 4 * 3 * (group + 5 * hidden) for rank in range(tensor)}


def test_a_workload_of_dlio_trains_with_a_subset_of_its_ranks(tmp_path: Path) -> None:
    """Two of 16 ranks train, on their own batches. They save their parts of the model of all 16."""
    (tmp_path / "w.yaml").write_text(TRAINING)
    made = load(f"dlio:{tmp_path / 'w.yaml'}")
    assert made.checkpoint is not None
    assert (made.checkpoint.subset_of, made.topology.data_parallel, derive.world_size(made)) == (16, 2, 2)
    done = run(made, engine="local", root=tmp_path, out="run")
    assert done.result.exit_code == 0
    assert done.result.ledger is not None
    assert done.result.ledger.delivered_samples == 16, "each rank has half of the samples"
    wanted = of_dlio(tensor=2, pipeline=2, replicas=4)
    there = sorted((tmp_path / "saved").iterdir())
    assert [folder.name for folder in there] == ["epoch-0000-step-00000001", "epoch-0000-step-00000003"]
    for folder in there:
        assert {file.name: file.stat().st_size for file in folder.glob("*.bin")} == wanted
    assert sum(row["bytes"] for row in simulated(made).rows("write")) == 2 * sum(wanted.values())
