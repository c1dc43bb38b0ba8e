"""Packaged scenarios of published workloads come to what docs/workloads.md shows, beside what was published."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from rayio.scenario.derive import read_demand, world_size
from rayio.scenario.load import load
from scenarios import simulated

ROOT = Path(__file__).parents[1]


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("workloads", ROOT / "benchmarks/workloads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workloads"] = module
    spec.loader.exec_module(module)
    return module


MADE = benchmark()
#: Scenarios with DLIO's or MLPerf Storage's numbers, and the published bytes that a rank needs each second, in GiB.
CONFIGURED = {
    "resnet50-h100": 0.19, "cosmoflow-h100": 0.75, "unet3d-h100": 2.96, "unet3d-a100": 1.50, "resnet50-a100": None,
    "resnet50-v100": None, "cosmoflow-a100": None, "cosmoflow-v100": None, "bert-v100": None, "dlrm": None,
    "flux-b200": None, "retinanet-b200": None,
}  # fmt: skip


def shown() -> dict[str, list[tuple[str, ...]]]:
    """Give the rows of the page's table by workload."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    name = ""
    page = (ROOT / "docs/workloads.md").read_text().partition("| workload |")[2].partition("\n\n")[0]
    for line in page.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
        name = first.strip("`") or name
        rows.setdefault(name, []).append(tuple(cells))
    return rows


@pytest.mark.parametrize("name", MADE.FACTS)
def test_a_workload_comes_to_what_the_page_shows(name: str) -> None:
    """``rows`` also raises where a verdict (agrees, contradicts, differs) is not that of 10 %."""
    assert MADE.rows(name) == shown()[name]


def test_the_page_has_the_workloads_of_the_script_alone() -> None:
    assert list(shown()) == list(MADE.FACTS)


@pytest.mark.parametrize("name", MADE.FACTS)
def test_a_workload_says_where_its_numbers_come_from_in_few_lines(name: str) -> None:
    lines = (ROOT / "scenarios" / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= 60
    wanted = load(name)
    assert wanted.name == name
    assert wanted.dataset.path == f"data/{name}"
    assert "Published:" in wanted.source
    assert "Inferred:" in wanted.source


def test_a_source_that_contradicts_itself_does_so_by_its_own_numbers() -> None:
    """The sentences of the page, in published numbers alone."""
    assert pytest.approx(0.014, abs=0.0005) == 60.54e9 / 8 / 1.2e9 / (110 * 4.1), "imagenet: not 7 %"
    assert 60.54e9 > 1.5 * 40e9, "imagenet: more than all files"
    assert pytest.approx(101e3, rel=0.01) == 0.06 * 6 * 9e6 / 32, "cosmic_tagger: more than 50 KB"
    assert pytest.approx(320, rel=0.01) == 0.07 * 127.91e6 / 28e3, "ffn: of one sample of 32 KiB"
    assert 600e6 / 400e6 / (60 * 46.27) < 0.01, "candle: consistent"


def test_a_verdict_that_is_not_so_is_refused() -> None:
    made = MADE.Whole(seconds=10.0, ranks=1, read_seconds=0.5, nbytes=1, delivered=1)
    assert MADE.share(5.2, "agrees").row(made, None)[2] == "5.00 %"
    for wrong in (MADE.share(7, "agrees"), MADE.share(5.2, "contradicts"), MADE.share(4, "agrees", bound=True)):
        with pytest.raises(ValueError, match=r"I/O share of time: simulated 5\.0, published"):
            wrong.row(made, None)


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_scenario_of_dlio_runs_and_needs_the_published_bytes(name: str) -> None:
    path = ROOT / "scenarios" / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 60
    made = simulated(load(name, ["train.steps=3", "train.epochs=1", "train.warmup_steps=0", "checkpoint=none"]))
    assert made.ledger.even
    assert made.ledger.delivered_steps == 3 * world_size(made.scenario)
    published = CONFIGURED[name]
    if published is not None:
        demand = read_demand(load(name)) / (1 << 30)
        assert demand == pytest.approx(published, rel=0.03)
        page = (ROOT / "docs/workloads.md").read_text()
        assert f"| `{name}` | {published:.2f} GiB/s | {demand:.2f} GiB/s |" in page
