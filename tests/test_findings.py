"""Findings of the field come out of the model, and docs/findings.md shows what comes out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from scenarios import scenario, simulated

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


ONE_FILE = {"dataset.num_files": 1, "dataset.samples_per_file": 1024}
STREAM = {"dataset.format": "tfrecord", "loader.file_access": "streamed", "loader.shuffle": "file"}
CSV = {**ONE_FILE, "dataset.format": "csv", "train.epochs": 4}
#: The rows of the page's second table, in its order.
ON_FILES: list[dict[str, Any]] = [
    {}, ONE_FILE, {**ONE_FILE, "loader.keep_open": 1},
    *({"dataset.chunk": chunk} for chunk in ("1024 kB", "256 kB", "64 kB", "4 kB")),
    {**STREAM, "loader.buffer_bytes": "4 MiB"}, STREAM, {"dataset.chunk": "256 kB", "loader.shuffle": "file"},
    {"loader.shuffle": "none"}, {}, CSV, {**CSV, "loader.file_access": "in_memory"},
]  # fmt: skip


def test_the_page_shows_the_requests_of_each_variant_on_files() -> None:
    base = {
        "dataset.path": "model://x", "dataset.format": "hdf5", "dataset.num_files": 128, "dataset.samples_per_file": 8,
        "dataset.sample_bytes": "256 kB", "loader.batch_size": 16, "loader.num_workers": 0, "train.compute": "0 s",
        "cluster.ranks_per_node": 1, "train.epochs": 1,
    }  # fmt: skip
    first = PAGE.index(["finding", "variant", "opens", "requests", "read"]) + 2
    shown = PAGE[first : first + len(ON_FILES)]
    for keys, row in zip(ON_FILES, shown, strict=True):
        rows = simulated(scenario(**{key.replace(".", "__"): value for key, value in (base | keys).items()})).rows(
            "read"
        )
        requests, nbytes = sum(each["requests"] for each in rows), sum(each["bytes"] for each in rows)
        assert row[-2:] == [f"{requests:,}", f"{nbytes / 1e6:,.0f} MB"], row
