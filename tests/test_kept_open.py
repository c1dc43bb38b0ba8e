"""Files that workers keep open (``loader.keep_open``): descriptions once, and the last chunk or row group in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from walks import DATASET, bytes_read, opens, requests, walking

from rayio.scenario.model import Scenario
from scenarios import run_locally, simulated

FORMATS: dict[str, dict[str, Any]] = {
    "npz": {"format": "npz"},
    "contiguous": {"format": "hdf5"},
    "chunked": {"format": "hdf5", "chunk": "4000 B"},
    "parts": {"format": "hdf5", "chunk": "700 B"},
    "compressed": {"format": "hdf5", "chunk": "4000 B", "compression": "gzip"},
    "compressed parts": {"format": "hdf5", "chunk": "700 B", "compression": "gzip"},
    "tfrecord": {"format": "tfrecord"},
    "parquet": {"format": "parquet", "row_group": 2},
}


def keeping(form: str, keep_open: int = 64, **overrides: Any) -> Scenario:
    """Give a scenario whose workers keep files open."""
    base = {"dataset": DATASET | FORMATS[form], "loader__keep_open": keep_open, "loader__batch_size": 1}
    return walking("per_sample", **{**base, **overrides})


@pytest.mark.parametrize(
    ("form", "shuffle", "keep_open"),
    [(form, "global", 1 + 2 * (place % 2)) for place, form in enumerate(FORMATS)]
    + [("tfrecord", "none", 1), ("compressed parts", "global", 1)],
)
def test_a_real_run_and_its_simulation_make_the_same_list_of_requests(
    form: str, shuffle: str, keep_open: int, tmp_path: Path
) -> None:
    wanted = keeping(form, keep_open, loader__shuffle=shuffle, loader__batch_size=3)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def alone(form: str, keep_open: int, shuffle: str = "none") -> list[dict[str, Any]]:
    """Give the requests of one worker that has all samples, one a batch, once."""
    wanted = keeping(
        form, keep_open, loader__shuffle=shuffle, loader__num_workers=1, cluster__ranks_per_node=1, train__epochs=1
    )
    return simulated(wanted).all_rows


def reads(rows: list[dict[str, Any]]) -> int:
    """Count the read requests."""
    return sum(row["name"] == "io.read" for row in rows)


@pytest.mark.parametrize(
    ("form", "of_file"),  # what 4 samples of 2000 bytes take, of a file that is open: head, then rows, chunks or groups
    [("npz", 2 + 4), ("contiguous", 1 + 4), ("chunked", 1 + 2), ("parts", 1 + 3 * 4), ("tfrecord", 4), ("parquet", 3)],
)
def test_a_file_that_is_open_costs_its_description_once_and_each_chunk_once(form: str, of_file: int) -> None:
    kept, anew = alone(form, 1), alone(form, 0)
    assert (opens(kept), reads(kept)) == (12, 12 * of_file)
    assert opens(anew) == 48
    assert bytes_read(kept) <= bytes_read(anew)
    assert reads(kept) < reads(anew) or form == "tfrecord"


def test_too_few_open_files_for_the_order_help_nothing() -> None:
    kept = {most: opens(alone("npz", most, "global")) for most in (1, 6, 12)}
    assert kept[12] == 12
    assert kept[12] < kept[6] < kept[1] <= 48
