"""Presets: each can be simulated, says where its numbers come from, and behaves as what it is named after."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pytest

from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError
from rayio.model.planning import plan_of
from rayio.storage.base import Opener, Requests
from rayio.storage.model import Device, Latencies, LocalArbiter, ModelStorage
from rayio.storage.presets import PRESETS, Preset
from scenarios import scenario, simulated


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_simulates_and_its_books_are_even(name: str) -> None:
    run = simulated(
        cluster={"nodes": 2, "ranks_per_node": 1},
        storage__model=name,
        checkpoint={"every": {"epochs": 1}, "path": "ck", "model": {"bytes": "1 MB"}},
    )
    assert run.ledger.even
    assert all(row["duration_ns"] > 0 for row in run.rows("read"))
    assert len(run.rows("write")) == 2


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_says_where_its_numbers_come_from(preset: Preset) -> None:
    assert len(preset.source) > 40
    assert str(preset).startswith(f"{preset.provenance}: ")
    assert "\n" not in str(preset)
    assert (preset.provenance == "published") == bool(preset.url) == bool(preset.retrieved)
    if preset.url:
        assert all(re.fullmatch(r"https://\S+\.\S+/\S+", url) for url in preset.url.split(" "))
        assert dt.date.fromisoformat(preset.retrieved) <= dt.datetime.now(dt.UTC).date()
        assert preset.url in str(preset)
    assert preset.requests_per_second is None or preset.opens_per_second is None


def no_files(opener: Opener) -> None:
    raise AssertionError("a model opens no files")


def rate(name: str, request_bytes: int, *, readers: int = 1, opens: int = 0, leases: int = 20) -> float:
    """Give the bytes per second that readers have from a preset, in leases of 100 requests."""
    plan = plan_of(scenario(storage__model=name), modelled=True)
    kernel, device = VirtualKernel(), Device(plan.device)
    latencies = Latencies(plan.first_byte.draw, 10, readers)

    async def reader(rank: int) -> None:
        mine = ModelStorage(LocalArbiter(device), plan.device, latencies, kernel)
        for step in range(leases):
            await mine.read(Requests((rank, 0, step), opens, np.full(100, request_bytes)), no_files)

    kernel.run(kernel.gather(*(reader(rank) for rank in range(readers))))
    return readers * leases * 100 * request_bytes / (kernel.now() / 1e9)


@pytest.mark.parametrize(
    ("name", "request_bytes", "readers", "expected"),
    [
        ("memory", 1 << 20, 1, 10e9),
        ("memory", 1 << 20, 8, 20e9),
        ("nvme", 1 << 30, 1, 3e9),
        ("nvme", 1 << 20, 8, 6e9),
        ("s3", 1 << 30, 1, 55 * 2**20),
        # published: a 256 KB request of sequential reading runs at 1.2 GB/s
        ("lustre-theta", 256 << 10, 1, 1.2e9),
        ("lustre-theta", 1 << 30, 1, 2.6e9),
        ("lustre-theta", 1 << 30, 200, 210e9),
        ("lustre-cori", 1 << 30, 1, 2e9),
    ],
)
def test_rates_are_those_that_the_preset_is_made_of(
    name: str, request_bytes: int, readers: int, expected: float
) -> None:
    assert rate(name, request_bytes, readers=readers) == pytest.approx(expected, rel=0.1)


def test_s3_answers_no_more_requests_than_a_prefix_has() -> None:
    assert rate("s3", 1, readers=2000, leases=4) == pytest.approx(5500, rel=0.2)
    assert rate("s3", 1, readers=1) == pytest.approx(1 / 0.058, rel=0.2), "alone it waits for first bytes"


@pytest.mark.parametrize("name", ["lustre-theta", "lustre-cori"])
def test_small_files_cost_lustre_an_open_each(name: str) -> None:
    assert rate(name, 100_000, opens=100) < 0.2 * rate(name, 100_000, opens=1)
    files = rate(name, 100_000, opens=100, readers=500, leases=2) / 100_000
    assert files == pytest.approx(20_000, rel=0.15), "the metadata server's rate"


@pytest.mark.parametrize("modelled", [True, False])
def test_an_unknown_preset_is_refused_with_those_there_are_before_anything_starts(modelled: bool) -> None:
    with pytest.raises(ScenarioError, match=r"storage\.model=lustre: .* there are azure-blob, .*lustre-theta, memory"):
        plan_of(scenario(storage__model="lustre"), modelled)
