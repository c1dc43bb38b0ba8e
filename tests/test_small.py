"""Each published workload has a variant for a laptop, which behaves like the full one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import rayio
from rayio.scenario.load import load, packaged
from rayio.scenario.source import packaged_folder
from rayio.study.facts.observing import observed

SMALL = "-small"
#: Examples of rayio's own, not of published workloads.
OTHERS = {"s3-autoscaled", "unet3d-small"}
FULL = [name for name in packaged() if not name.endswith(SMALL) and name not in OTHERS]
#: Workloads whose simulation in full takes half a second or more.
LONG = {
    "candle_nt3",
    "climate",
    "climate_seg",
    "cosmic_tagger",
    "cosmoflow",
    "cosmoflow-h100",
    "cosmoflow-v100",
    "imagenet",
    "dlrm-b200",
    "ffn",
    "hepcnn",
    "llama3-1t",
    "llama3-405b",
    "webdataset-laion",
    "resnet50-a100",
    "resnet50-h100",
    "resnet50-v100",
    "llm-pretrain",
    "megatron-deepspeed",
    "mummi",
}
#: The longest run and the largest dataset of a laptop, and how far from the full workload its shares may be.
SECONDS, BYTES, POINTS = 10, 1e9, 0.05


@cache
def shares(name: str) -> tuple[float, float, float, float]:
    """Return AU, share of time in reads and writes, seconds and dataset bytes of a simulated scenario."""
    o = observed(load(name), requests=False)
    assert o.au is not None
    return o.au, (o.read_seconds + o.write_seconds) / o.ranks / o.seconds, o.seconds, o.files * o.file_bytes


@pytest.mark.parametrize("name", FULL)
def test_a_workload_has_a_variant_for_a_laptop_that_says_by_how_much_it_is_smaller(name: str) -> None:
    text = (packaged_folder() / f"{name}{SMALL}.yaml").read_text()
    assert f"extends: {name}.yaml\n" in text
    assert "divided by" in text or f" of {load(name).dataset.num_files:,} ".replace(",", " ") in text
    assert not any(line.startswith("#") for line in text.splitlines()[1:])
    small = load(f"{name}{SMALL}")
    assert small.dataset.path in (f"data/{name}{SMALL}", f"model://{name}{SMALL}"), "a separate dataset"
    assert small.cluster.nodes == 1
    assert small.cluster.most_ranks <= 8
    _, _, seconds, nbytes = shares(f"{name}{SMALL}")
    assert seconds <= SECONDS
    assert nbytes <= BYTES


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG), id=name) for name in FULL]
)
def test_its_shares_of_time_are_those_of_the_full_workload(name: str) -> None:
    full, small = shares(name)[:2], shares(f"{name}{SMALL}")[:2]
    assert small[0] == pytest.approx(full[0], abs=POINTS), "AU"
    assert small[1] == pytest.approx(full[1], abs=POINTS), "I/O share"


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_it_runs_on_this_machine(name: str, tmp_path: Path) -> None:
    """Files in a folder, or modelled storage; every sample is delivered once."""
    run = rayio.run(f"{name}{SMALL}", engine="local", root=tmp_path)
    assert run.result.ledger is not None
    assert run.result.ledger.even


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", FULL)
def test_it_runs_on_ray(name: str, tmp_path: Path, local_ray: None) -> None:
    run = rayio.run(f"{name}{SMALL}", root=tmp_path)
    assert run.result.ledger is not None
    assert run.result.ledger.even
