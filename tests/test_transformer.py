"""Checkpoints of transformers: published sizes to the byte, which rank saves what, and what is impossible."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from datasets import on_disk

from rayio.errors import ScenarioError
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from scenarios import run_locally, scenario, simulated

#: Layers, hidden, ffn, vocabulary, heads, heads of keys and values.
LLAMA_8B = (32, 4096, 14336, 128256, 32, 8)
LLAMA_70B = (80, 8192, 28672, 128256, 128, 8)
LLAMA_405B = (126, 16384, 53248, 128256, 128, 8)
LLAMA_1T = (128, 25872, 98304, 128256, 192, 32)
SMALL = (4, 256, 1024, 32000, 8, 4)


class Published(NamedTuple):
    """A checkpoint of DLIO: ranks, tensor, pipeline, stage of ZeRO; then GiB and files that it counts."""

    shape: tuple[int, ...]
    ranks: int
    tensor: int
    pipeline: int
    zero: int
    model: float | None
    optimizer: float | None
    total: float
    files: int


#: Sizes that DLIO's own formula gives, and of its runs. The last is also of a published run of 1024 ranks.
#: For ZeRO 2 DLIO reports 0.302835. It has 0.265008 on disk, 26 kB more than the formula in its six files of torch.
PUBLISHED = {
    "llama 8B": Published(LLAMA_8B, 8, 1, 1, 3, 14.96, 89.75, 104.70, 16),
    "llama 70B": Published(LLAMA_70B, 64, 8, 1, 3, 130.18, 781.03, 911.21, 128),
    "llama 405B": Published(LLAMA_405B, 512, 8, 32, 1, 756.01, 4536.23, 5292.25, 1544),
    "llama 1T": Published(LLAMA_1T, 1024, 8, 64, 1, 2203.66, 13222.93, 15426.59, 2072),
    "ZeRO 0": Published(SMALL, 4, 2, 1, 0, None, None, 0.264956, 4),
    "ZeRO 1": Published(SMALL, 4, 2, 1, 1, None, None, 0.264984, 6),
    "ZeRO 2": Published(SMALL, 4, 2, 1, 2, None, None, 0.264984, 6),
    "ZeRO 3": Published(SMALL, 4, 2, 1, 3, None, None, 0.264984, 8),
    "ZeRO 1, stages": Published(SMALL, 4, 1, 2, 1, None, None, 0.264980, 11),
}


def shape_of(numbers: tuple[int, ...], **more: Any) -> dict[str, Any]:
    keys = ("layers", "hidden", "ffn", "vocabulary", "heads", "kv_heads")
    return {"kind": "transformer"} | dict(zip(keys, numbers, strict=True)) | more


def saving(shape: tuple[int, ...], ranks: int, writers: Any = "parallel", **divided: int) -> Scenario:
    checkpoint = {"every": {"epochs": 1}, "path": "ck", "model": shape_of(shape), "writers": writers, "fsync": False}
    return scenario(
        dataset__path="data", cluster__ranks_per_node=ranks, dataset__num_files=2 * ranks, train__parallelism=divided,
        train__epochs=1, train__compute="100 us", loader__num_workers=1, checkpoint=checkpoint,
    )  # fmt: skip


def of(case: Published) -> Scenario:
    return saving(case.shape, case.ranks, tensor=case.tensor, pipeline=case.pipeline, zero_stage=case.zero)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_files_are_the_published_ones(name: str) -> None:
    case = PUBLISHED[name]
    table = checks.table(of(case))
    gib = {key: table[f"checkpoint_{key}bytes"] / 2**30 for key in ("", "model_", "optimizer_")}
    assert table["checkpoint_files"] == case.files
    if case.model is not None and case.optimizer is not None:
        assert round(gib[""], 2) == case.total
        assert round(gib["model_"], 2) == case.model
        assert round(gib["optimizer_"], 2) == case.optimizer
    assert round(gib[""], 6) == case.total or case.model is not None


@pytest.mark.parametrize("name", [name for name, case in PUBLISHED.items() if case.shape is SMALL])
def test_a_real_run_leaves_these_files_and_bytes_on_disk(name: str, tmp_path: Path) -> None:
    case = PUBLISHED[name]
    wanted = on_disk(of(case), tmp_path)
    assert wanted.checkpoint is not None
    run = run_locally(wanted, tmp_path)
    files = [*(tmp_path / "ck").rglob("*.bin")]  # and the manifest
    assert len(files) == case.files
    nbytes = sum(path.stat().st_size for path in files)
    assert round(nbytes / 2**30, 6) == case.total
    assert nbytes == derive.checkpoint_bytes(wanted)
    assert (
        nbytes == sum(row["bytes"] for row in run.rows("write")) == sum(row["bytes"] for row in run.rows("checkpoint"))
    )
    assert nbytes == sum(row["bytes"] for row in simulated(wanted).rows("write"))
    shutil.rmtree(tmp_path / "ck")


def test_which_rank_saves_what() -> None:
    """Two tensors, two stages, two replicas. The stages have 2 and 1 of 3 layers, and what is before and after."""
    model = shape_of((3, 8, 16, 32, 4, 4))
    divided = {"tensor": 2, "pipeline": 2}
    for zero, saves_model, saves_optimizer in ((0, 4, 4), (1, 4, 8), (2, 4, 8), (3, 8, 8)):
        wanted = scenario(
            cluster__ranks_per_node=8, dataset__num_files=64, train__parallelism={**divided, "zero_stage": zero},
            checkpoint={"every": {"epochs": 1}, "path": "ck", "model": model, "writers": "parallel"},
        )  # fmt: skip
        assert wanted.checkpoint is not None
        writers, state = wanted.checkpoint.writers, wanted.checkpoint.model
        saved = {
            rank: [part for number in writers.of_rank(rank, wanted.topology)
                   for part in writers.files(number, state, wanted.topology)]
            for rank in range(8)
        }  # fmt: skip
        layers = {rank: [part.name for part in parts if part.of == "model"] for rank, parts in saved.items()}
        assert [rank for rank in saved if layers[rank]] == [*range(saves_model)]
        assert [rank for rank in saved if any(p.of == "optimizer" for p in saved[rank])] == [*range(saves_optimizer)]
        if 0 < zero < 3:
            assert layers[1] == [f"model-rank-00001-layer-{number:05d}.bin" for number in (0, 1, 2)]
            assert layers[2] == [f"model-rank-00002-layer-{number:05d}.bin" for number in (3, 4, 5)]
        else:  # in one file of a rank's layers
            assert layers[3] == ["model-rank-00003.bin"]
        # by hand: a layer of 2 norms of 8, and tensors 8·24, 8·8, 2·8·16 and 8·16 of which each rank has a half
        layer, embedding = 2 * (2 * 8 + (192 + 64 + 256 + 128) // 2), 2 * (8 * 32 // 2)
        if 0 < zero < 3:
            assert [p.num_bytes for p in saved[0] if p.of == "model"] == [embedding, layer, layer]
            assert [p.num_bytes for p in saved[3] if p.of == "model"] == [layer, embedding, 2 * 8]
        elif not zero:
            assert [p.num_bytes for p in saved[0] if p.of == "model"] == [embedding + 2 * layer]
        parameters = 2 * 32 * 8 + 8 + 3 * (2 * 8 + 192 + 64 + 3 * 8 * 16)
        share = parameters // (8 if zero else 4)
        assert saved[0][-1].num_bytes == 4 * 3 * (share + 5 * 8)


def test_a_shape_is_a_state_for_every_writer() -> None:
    """One process has the whole model and optimizer, as a rank does that nobody shares with."""
    alone, whole = saving(SMALL, 1), saving(SMALL, 3, "rank_zero")
    assert derive.checkpoint_bytes(alone) == derive.checkpoint_bytes(whole)
    assert derive.checkpoint_contents(alone) == derive.checkpoint_contents(whole)
    assert derive.checkpoint_bytes(saving(SMALL, 3, "all_ranks")) == 3 * derive.checkpoint_bytes(alone)
    cut = saving(SMALL, 3, "sharded")
    assert derive.checkpoint_bytes(cut) == derive.checkpoint_bytes(alone)
    assert derive.checkpoint_files(cut) == 6


def test_datatypes_are_bytes_of_each_number() -> None:
    def sizes(model: str, optimizer: str) -> tuple[int, int]:
        changed = shape_of(SMALL, datatype=model, optimizer_datatype=optimizer)
        section = {"every": {"epochs": 1}, "path": "ck", "model": changed, "writers": "parallel"}
        contents = derive.checkpoint_contents(scenario(checkpoint=section, cluster__ranks_per_node=1))
        return contents["model"][1], contents["optimizer"][1]

    usual = sizes("fp16", "fp32")
    assert sizes("bf16", "fp32") == usual
    assert sizes("fp32", "fp32") == (2 * usual[0], usual[1])
    assert sizes("fp8", "fp16") == (usual[0] // 2, usual[1] // 2)


@pytest.mark.parametrize(
    ("model", "divided", "said"),
    [
        ({"datatype": "fp12"}, {}, "checkpoint.model.datatype=fp12: must be fp64, fp32, fp16, bf16, fp8 or int8"),
        ({"optimizer_datatype": 4}, {}, "checkpoint.model.optimizer_datatype=4: must be fp64,"),
        ({"heads": 300}, {}, "checkpoint.model.heads=300: more heads than checkpoint.model.hidden=256 is wide"),
        ({"kv_heads": 3}, {}, "checkpoint.model.kv_heads=3: must divide checkpoint.model.heads=8"),
        ({"layers": 0}, {}, "checkpoint.model.layers=0: must be a whole number of at least 1"),
        ({}, {"pipeline": 8}, "train.parallelism.pipeline=8: more stages than checkpoint.model.layers=4; use"),
        ({"heads": 2, "kv_heads": 1}, {"tensor": 4}, "parallelism.tensor=4: must divide checkpoint.model.heads=2"),
        ({"ffn": 66}, {"tensor": 4}, "parallelism.tensor=4: must divide checkpoint.model.ffn=66; use 2, or another"),
        ({}, {"tensor": 3}, "a replica of the model takes 3 ranks, which do not divide the 8 of"),
        ({"width": 3}, {}, "checkpoint.model.width=3: no such key; checkpoint.model has datatype, each_rank, ffn,"),
    ],
)  # fmt: skip
def test_an_impossible_shape_is_one_line(model: dict[str, Any], divided: dict[str, int], said: str) -> None:
    for writers in ("parallel", "sharded"):
        section = {"every": {"epochs": 1}, "path": "ck", "model": shape_of(SMALL) | model, "writers": writers}
        with pytest.raises(ScenarioError) as told:
            scenario(checkpoint=section, cluster__ranks_per_node=8, train__parallelism=divided)
        assert said in str(told.value)
        assert "\n" not in str(told.value)


def test_a_vocabulary_that_tensor_ranks_do_not_divide_is_named() -> None:
    """Megatron pads it: eleven tokens on four ranks become twelve."""
    section = {"every": {"epochs": 1}, "path": "ck", "model": shape_of(SMALL) | {"vocabulary": 11}}
    wanted = scenario(checkpoint=section, cluster__ranks_per_node=8, train__parallelism={"tensor": 4})
    (note,) = [note for note in checks.idle(wanted) if "vocabulary" in note]
    assert note.endswith("each rank has 2, and frameworks add tokens up to 12")


def test_a_state_without_a_shape_cannot_be_saved_by_its_parts() -> None:
    for model in ({"bytes": "1 GB"}, {"files": ["1 KB"]}):
        section = {"every": {"epochs": 1}, "path": "ck", "model": model, "writers": "parallel"}
        with pytest.raises(ScenarioError, match=r"checkpoint\.writers=parallel: follows the shape of a model; give ch"):
            scenario(checkpoint=section)


def test_a_shape_without_its_kind_is_refused_with_what_may_stand_there() -> None:
    with pytest.raises(ScenarioError, match=r"checkpoint\.model=.*must be {bytes: \.\.\.}, {files: \[\.\.\.\]}, {kin"):
        scenario(checkpoint={"every": {"epochs": 1}, "path": "ck", "model": {"layers": 3}})


def test_heads_that_do_not_divide_the_width_are_named() -> None:
    """The published shape of 1T has such heads: 134 each, and 144 of 25872 left over."""
    wanted = of(PUBLISHED["llama 1T"])
    assert [note for note in checks.idle(wanted) if "heads" in note] == [
        "checkpoint.model.heads=192: do not divide checkpoint.model.hidden=25872; each head has 134, and 144 belong to "
        "none"
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "must be a list of sizes"),
        (3, "must be a list of sizes"),
        ([0], "must be a whole number of bytes greater than 0"),
        ({"a": 0.5}, "checkpoint.model.files.a=0.5: must be a whole number of bytes greater than 0"),
        ({"a": "1 GBs"}, "checkpoint.model.files.a=1 GBs: unknown unit"),
        ({"a/b": 1}, "must be at most 100 letters, digits, dots, dashes and underscores"),
        ([1] * 5000, "has 5000 files; 4096 are the most"),
    ],
)  # fmt: skip
def test_an_impossible_list_of_files_is_one_line(files: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as told:
        scenario(checkpoint={"every": {"epochs": 1}, "path": "ck", "model": {"files": files}})
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_a_checkpoint_of_several_files_has_them_by_name(tmp_path: Path) -> None:
    """A writer writes its files one after another, so nothing overlaps."""
    files = {"checkpoint": "1 KB", "graph.pbtxt": "70 KB", "weights": "320 KB"}
    section = {"every": {"epochs": 1}, "path": "ck", "model": {"files": files}}
    wanted = on_disk(scenario(checkpoint=section, dataset__path="data", train__epochs=1), tmp_path)
    run = run_locally(wanted, tmp_path)
    found = {path.name: path.stat().st_size for path in (tmp_path / "ck").rglob("*.bin")}
    assert found == {
        "checkpoint-shard-00000.bin": 1000, "graph.pbtxt-shard-00000.bin": 70_000, "weights-shard-00000.bin": 320_000
    }  # fmt: skip
    rows = run.rows("write")
    assert [row["bytes"] for row in rows] == [1000, 70_000, 320_000]
    ends = [row["start_ns"] + row["duration_ns"] for row in rows]
    assert all(end <= row["start_ns"] for end, row in zip(ends, rows[1:], strict=False))


def test_samples_that_need_no_storage_never_wait_for_checkpoints() -> None:
    """Rank 1 asks for its samples while rank 0 still writes."""
    checkpoint = {"every": {"steps": 1}, "path": "ck", "model": {"bytes": "3 GB"}, "writers": "rank_zero"}
    wanted = scenario(
        dataset__format="synthetic", loader__num_workers=0, train__epochs=1, train__steps=3, train__sync="none",
        checkpoint=checkpoint,
    )  # fmt: skip
    run = simulated(wanted)
    assert max(row["duration_ns"] for row in run.rows("checkpoint")) > 100e6
    assert max(row["duration_ns"] for row in run.rows("read")) == 0
    assert max(row["duration_ns"] for row in run.rows("data_wait")) == 0
