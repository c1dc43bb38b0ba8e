"""The pages of compare, capacity and advise in a real browser: readable on a phone, nothing loaded, no error."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from test_report_browser import Seen, holds, seen_in

import rayio
from rayio.records.comparison import Comparison
from rayio.report import advice_page, capacity_page, compare_page

pytestmark = pytest.mark.browser

MODEL = {"first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "6 GB/s", "scope": "cluster"}
H100 = {"storage.model": MODEL, "train.epochs": 1, "checkpoint": None}


def looked(html: str, folder: Path) -> Seen:
    (folder / "report.html").write_text(html, encoding="utf-8")
    return seen_in(folder, folder)


def compared(folder: Path, groups: int, repeats: int) -> Comparison:
    folders = []
    for workers, seed in itertools.product(range(1, groups + 1), range(repeats)):
        keys = {"loader.num_workers": workers, "loader.decode": "30 ms", "seed": seed, "train.epochs": 2}
        folders.append(rayio.simulate("unet3d-small", keys, out=folder / f"a-rather-long-name-{workers}-{seed}").path)
    return rayio.compare(*folders)


@pytest.mark.parametrize(("groups", "repeats"), [(2, 3), (2, 1), (1, 3), (3, 2)])
def test_a_comparison_is_well_shown(groups: int, repeats: int, tmp_path: Path) -> None:
    holds(looked(compare_page.page(compared(tmp_path, groups, repeats)), tmp_path))


@pytest.mark.parametrize("storage", [{}, {"storage.model": "s3"}], ids=["some", "none"])
def test_a_capacity_is_well_shown(storage: dict[str, object], tmp_path: Path) -> None:
    found = rayio.capacity("unet3d-h100", H100 | storage, out=tmp_path / "found", most=6)
    seen = looked(capacity_page.page(found), tmp_path)
    holds(seen)
    assert all(any("accelerator" in tip for tip in each["tipped"]) for each in seen.values())


@pytest.mark.parametrize("reach", ["au=0.9", "au=0.999"])
def test_an_advice_is_well_shown(reach: str, tmp_path: Path) -> None:
    keys = H100 | {"cluster.ranks_per_node": 1, "train.steps": 40}
    found = rayio.advise("unet3d-h100", keys, vary="loader.num_workers=1..8,loader.io_depth=1..2", reach=reach,
                         out=tmp_path / "found")  # fmt: skip
    holds(looked(advice_page.page(found), tmp_path))
