"""What the sources advise has the effects that docs/workloads.md shows."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/workloads.md").read_text()
#: Workloads with more than a second of simulations.
LONG = {"imagenet", "cosmic_tagger", "ffn", "hepcnn", "cosmoflow"}


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("advice", ROOT / "benchmarks/advice.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["advice"] = module
    spec.loader.exec_module(module)
    return module


MADE = benchmark()


def shown() -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of the page's table by workload."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    name = ""
    table = PAGE.partition("<!-- advice -->")[2].partition("<!-- end -->")[0].strip()
    for line in table.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
        name = first.strip("`") or name
        rows.setdefault(name, []).append(tuple(cells))
    return rows


def gains(name: str) -> dict[str, tuple[float, float]]:
    """Return the gains of a workload's changes from both starts, as shown."""
    return {row[0]: (float(row[3].split()[0]), float(row[4].split()[0])) for row in shown()[name] if row[0] != "none"}


@pytest.mark.parametrize(
    "advised",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.workload in LONG), id=one.workload) for one in MADE.ADVISED],
)
def test_advice_has_the_effect_that_the_page_shows(advised: Any) -> None:
    assert MADE.rows(advised) == shown()[advised.workload]


def test_the_page_has_every_workload_of_the_script() -> None:
    assert list(shown()) == [advised.workload for advised in MADE.ADVISED]


def test_no_gain_exceeds_what_removing_all_waits_would_give() -> None:
    """A run cannot become faster than 1 / AU of its start; AU is shown in whole percent."""
    for name, rows in shown().items():
        au = float(rows[0][3].removeprefix("AU ").removesuffix(" %")) / 100
        startup = {"bert_mrpc": 1.02, "hepcnn": 1.05, "climate": 1.05}.get(name, 1.01)  # AU leaves out the first batch
        assert max(gain for gain, _ in gains(name).values()) <= startup / (au - 0.005)


def test_the_sentences_of_the_page_have_its_figures() -> None:
    section = PAGE.partition("## What the sources advise")[2].partition("\n## ")[0]
    prose = section.partition("<!-- end -->")[2]
    best = {name: max(gain for _, gain in gains(name).values()) for name in shown()}
    for name in ("imagenet", "cosmic_tagger", "cosmoflow", "bert_mrpc"):
        assert f"{best[name]:.2f} ×" in prose
    assert f"{gains('cosmoflow')['prefetch'][0]:.2f} ×" in prose
    assert f"up to {MADE.PUBLISHED} ×" in prose
    assert round(100 / MADE.PUBLISHED) == 15
    assert re.search(r"allows 1\.67 ×", prose)
    assert pytest.approx(1.67, abs=0.005) == 1 / (1 - 0.40)
