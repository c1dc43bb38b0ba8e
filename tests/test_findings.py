"""Findings of the field come out of the model, and docs/findings.md shows what comes out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("findings", ROOT / "benchmarks/findings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["findings"] = module
    spec.loader.exec_module(module)
    return module


MADE = benchmark()
PAGE = [
    [cell.strip() for cell in line.strip("| ").split("|")]
    for line in (ROOT / "docs/findings.md").read_text().splitlines()
    if line.startswith("|")
]


#: Findings whose simulations take more than two seconds.
LONG = {"small stripes spread identical offsets"}


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(finding, marks=[pytest.mark.slow] * (finding.name in LONG), id=finding.name)
        for finding in MADE.FINDINGS
    ],
)
def test_a_finding_of_the_field_comes_out_and_the_page_shows_its_numbers(finding: Any) -> None:
    rows = MADE.rows(finding)
    seconds = [float(row[2].removesuffix(" s")) for row in rows]
    assert seconds == sorted(seconds), "the sources found another order"
    assert seconds[-1] > 1.1 * seconds[0]
    shown = [row[-5:] for row in PAGE]
    for row in rows:
        assert list(row) in shown, f"docs/findings.md has not: {' | '.join(row)}"
    assert any(row[:2] == [finding.name, finding.published] for row in PAGE)
