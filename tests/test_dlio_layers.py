"""States by lists of sizes: DLIO's arithmetic by hand, its files on disk, and what is impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import on_disk
from dlio_workloads import written

from rayio.errors import ScenarioError
from rayio.scenario import checks, derive
from rayio.scenario.foreign import converted
from rayio.scenario.load import load
from scenarios import run_locally

MEGATRON = Path(__file__).parents[2] / "shared" / "dlio-workloads" / "megatron_deepspeed_LLNL.yaml"
GROUPS, TENSORS, FLAT, LAYERS = [400, 80, 0], [70, 90], 33, 5
TRAINED = "framework: pytorch\ndataset: {format: npy, num_files_train: 64}\ntrain: {computation_time: 0.001}\n"


def by_hand(ranks: int, tensor: int, pipeline: int, zero: int, layers: int = LAYERS) -> dict[int, list[int]]:
    """The bytes of each rank's files as DLIO saves them, from its description.

    A group is saved twice, and once in a tensor of all groups. A tensor of a layer is divided by ``tensor``, rounded
    down. Layers have files of their own if stages divide them and ZeRO is 1 or 2. Without ZeRO one replica saves.
    """
    files: dict[int, list[int]] = {}
    for rank in range(ranks):
        stage, replica = rank // tensor % pipeline, rank // (tensor * pipeline)
        if zero == 0 and replica:
            continue
        own = layers // pipeline + (stage < layers % pipeline)
        layer = sum(size // tensor for size in TENSORS)
        if replica == 0 or zero == 3:
            files[rank] = [layer] * own if pipeline > 1 and zero in (1, 2) else [own * layer]
        files[rank] = [*files.get(rank, []), FLAT, 3 * sum(GROUPS)]
    return files


def workload(tensor: int, pipeline: int, zero: int, replicas: int) -> str:
    model: dict[str, Any] = {
        "name": "lists", "num_layers": LAYERS, "model_size_bytes": FLAT, "optimization_groups": GROUPS,
        "layer_parameters": TENSORS,
        "parallelism": {"tensor": tensor, "pipeline": pipeline, "zero_stage": zero, "data": replicas},
    }  # fmt: skip
    saved = {"checkpoint_folder": "ck", "checkpoint_after_epoch": 1}
    return TRAINED + yaml.safe_dump({"model": model, "workflow": {"checkpoint": True}, "checkpoint": saved})


@pytest.mark.parametrize("shape", [(1, 1, 0, 2), (2, 1, 1, 2), (2, 2, 1, 1), (1, 3, 2, 2), (2, 2, 0, 2), (2, 2, 3, 2)])
def test_lists_of_sizes_are_the_bytes_and_files_that_dlio_saves(
    shape: tuple[int, int, int, int], tmp_path: Path
) -> None:
    tensor, pipeline, zero, replicas = shape
    scenario = load(written(tmp_path, workload(*shape)))
    ranks = tensor * pipeline * replicas
    wanted = by_hand(ranks, tensor, pipeline, zero)
    assert scenario.checkpoint is not None
    assert derive.world_size(scenario) == ranks
    assert derive.steps_per_epoch(scenario) == 64 // ranks  # each rank reads batches of its own, as in DLIO
    writers, state = scenario.checkpoint.writers, scenario.checkpoint.model
    topology = scenario.saving_topology
    saved = {
        rank: [part.num_bytes for number in writers.of_rank(rank, topology)
               for part in writers.files(number, state, topology)]
        for rank in range(ranks)
    }  # fmt: skip
    assert {rank: sizes for rank, sizes in saved.items() if sizes} == wanted
    table = checks.table(scenario)
    assert table["checkpoint_bytes"] == sum(map(sum, wanted.values()))
    assert table["checkpoint_files"] == sum(map(len, wanted.values()))


def test_a_run_leaves_these_files_on_disk(tmp_path: Path) -> None:
    overrides = {"dataset.path": "data", "dataset.sample_bytes": 500, "train.steps": 3}
    run_locally(on_disk(load(written(tmp_path, workload(2, 2, 1, 1)), overrides), tmp_path), tmp_path)
    left = sorted(path.stat().st_size for path in (tmp_path / "ck").rglob("*.bin"))
    assert left == sorted(size for sizes in by_hand(4, 2, 2, 1).values() for size in sizes)


def test_the_published_file_comes_to_its_arithmetic() -> None:
    """Eight nodes of four ranks; 40 layers in 8 stages, each tensor in 4 parts; 3 times the groups on each rank."""
    if not MEGATRON.exists():
        pytest.skip("DLIO's own files are not here")
    scenario = load(f"dlio:{MEGATRON}")
    table = checks.table(scenario)
    rank = 5 * (52583936 + 209715200) // 4 + 3 * (1009254400 + 865075200 + 793600) + 30102
    assert (scenario.cluster.nodes, scenario.cluster.ranks_per_node) == (8, 4)
    assert table["checkpoint_bytes"] == 32 * rank
    assert table["checkpoint_most_rank_bytes"] == table["checkpoint_fewest_rank_bytes"] == rank
    assert table["checkpoint_files"] == 32 * (5 + 2)
    assert derive.steps_per_epoch(scenario) == 1000
    assert scenario.train.parallelism.bubble == 0
    assert derive.num_checkpoints(scenario) == 3


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({"optimization_groups": [4, "x"]}, "must be a list of whole numbers of bytes, one of them above 0"),
        ({"optimization_groups": [0]}, "must be a list of whole numbers of bytes, one of them above 0"),
        ({"optimization_groups": [1.5]}, "must be a list of whole numbers of bytes, one of them above 0"),
    ],
)
def test_lists_that_cannot_be_are_one_line(model: dict[str, Any], line: str, tmp_path: Path) -> None:
    text = TRAINED + yaml.safe_dump({"model": model, "workflow": {"checkpoint": True}})
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, text))
    assert line in str(refused.value)


#: A shape: hidden, ffn, vocabulary, heads and kv heads.
H, F, V, A, K = 64, 128, 1000, 8, 4


@pytest.mark.parametrize(
    ("tensor", "pipeline", "zero", "replicas"), [(1, 1, 0, 1), (2, 1, 1, 2), (2, 2, 3, 2), (1, 2, 1, 2)]
)
@pytest.mark.parametrize("given", ["layer_parameters", "optimization_groups"])
def test_what_a_list_leaves_out_is_of_the_shape(
    given: str, tensor: int, pipeline: int, zero: int, replicas: int, tmp_path: Path
) -> None:
    """By hand, from the description of DLIO's formulas: lists are bytes, a shape is elements of 2 and of 4 bytes."""
    model = {
        "type": "transformer", "num_layers": LAYERS, given: TENSORS if given == "layer_parameters" else GROUPS,
        "parallelism": {"tensor": tensor, "pipeline": pipeline, "zero_stage": zero, "data": replicas},
        "transformer": {"vocab_size": V, "hidden_size": H, "ffn_hidden_size": F, "num_attention_heads": A,
                        "num_kv_heads": K},
    }  # fmt: skip
    scenario = load(written(tmp_path, TRAINED + yaml.safe_dump({"model": model, "workflow": {"checkpoint": True}})))
    kv, shares = H // A * K, replicas if zero == 3 else 1
    tensors = [H * (H + 2 * kv), H * H, 2 * H * F, H * F]
    all_parameters = 2 * V * H + H + LAYERS * (2 * H + sum(tensors))
    of_rank = all_parameters // ((replicas if zero else 1) * tensor * pipeline)
    optimizer = 3 * sum(GROUPS) if given == "optimization_groups" else 4 * 3 * (of_rank + 5 * H)
    layer = 2 * (2 * (H // shares) + sum(size // tensor // shares for size in tensors))
    ends = 2 * (2 * (H * V // tensor // shares) + H // shares)
    if given == "layer_parameters":
        layer, ends = sum(size // tensor for size in TENSORS), 0
    savers = 1 if zero < 3 else replicas
    writers = 1 if zero == 0 else replicas
    wanted = savers * tensor * (LAYERS * layer + ends) + writers * tensor * pipeline * optimizer
    assert derive.checkpoint_bytes(scenario) == wanted


def test_layers_by_shape_have_the_flat_state_too_unless_the_type_is_transformer(tmp_path: Path) -> None:
    keys = {"num_layers": 2, "model_size_bytes": 777, "transformer": {"hidden_size": 64, "ffn_hidden_size": 128}}
    sizes = {}
    for kind in ("transformer", "other"):
        text = TRAINED + yaml.safe_dump({"model": keys | {"type": kind}, "workflow": {"checkpoint": True}})
        sizes[kind] = derive.checkpoint_bytes(load(written(tmp_path, text)))
    assert sizes["other"] == sizes["transformer"] + 777


def test_more_stages_than_layers_and_layers_without_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"checkpoint.parallelism.pipeline=6: more stages than .*layers=5"):
        load(written(tmp_path, workload(1, 6, 1, 1)))
    made = converted(written(tmp_path, workload(2, 2, 1, 1)), [])
    assert made is not None
    with pytest.raises(ScenarioError, match=r"checkpoint\.model\.layers=5: goes with checkpoint\.model\.layer"):
        load(written(tmp_path, workload(2, 2, 1, 1)), ["checkpoint.model.layer=[]"])
