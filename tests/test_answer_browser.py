"""The pages of compare, capacity and advise in a real browser: readable on a phone, nothing loaded, no error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from test_report_browser import Seen, holds, seen_in

import rayio
from rayio.report import advice_page, capacity_page, compare_page

pytestmark = pytest.mark.browser

MODEL = {"first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "6 GB/s", "scope": "cluster"}
H100 = {"storage.model": MODEL, "train.epochs": 1, "checkpoint": None}


def comparison(groups: int, repeats: int, folder: Path) -> str:
    """Return the page that compares so many groups of runs."""
    folders = []
    for workers, seed in itertools.product(range(1, groups + 1), range(repeats)):
        keys = {"loader.num_workers": workers, "loader.decode": "30 ms", "seed": seed, "train.epochs": 2}
        folders.append(rayio.simulate("unet3d-small", keys, out=folder / f"a-rather-long-name-{workers}-{seed}").path)
    return compare_page.page(rayio.compare(*folders))


def capacity(storage: dict[str, str], folder: Path) -> str:
    """Return the page of the accelerators that a storage feeds."""
    return capacity_page.page(rayio.capacity("unet3d-h100", H100 | storage, out=folder / "found", most=6))


def advice(reach: str, folder: Path) -> str:
    """Return the page of the setting that reaches a goal."""
    keys = H100 | {"cluster.ranks_per_node": 1, "train.steps": 40}
    vary = "loader.num_workers=1..8,loader.io_depth=1..2"
    return advice_page.page(rayio.advise("unet3d-h100", keys, vary=vary, reach=reach, out=folder / "found"))


#: Pages by name, each of what it writes into a folder.
PAGES: dict[str, Callable[[Path], str]] = {
    **{f"comparison {shape}": partial(comparison, *shape) for shape in ((2, 3), (2, 1), (1, 3), (3, 2))},
    "capacity, some": partial(capacity, {}),
    "capacity, none": partial(capacity, {"storage.model": "s3"}),
    **{f"advice {reach}": partial(advice, reach) for reach in ("au=0.9", "au=0.999")},
}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """What the browser shows of each page."""
    home, pages = tmp_path_factory.mktemp("answers"), {}
    for number, (name, page) in enumerate(PAGES.items()):
        pages[name] = home / f"{number}.html"
        pages[name].write_text(page(home / str(number)), encoding="utf-8")
    return seen_in(pages, home)


@pytest.mark.parametrize("name", PAGES)
def test_an_answer_is_well_shown(name: str, looked: dict[str, Seen]) -> None:
    holds(looked[name])
    if name.startswith("capacity"):
        assert all(any("accelerator" in tip for tip in each["tipped"]) for each in looked[name].values())
