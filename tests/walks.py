"""Runs whose readers walk files in some way, request by request."""

from __future__ import annotations

from typing import Any

from rayio.scenario.model import Scenario
from scenarios import scenario

DATASET = {"path": "data", "num_files": 12, "samples_per_file": 4, "sample_bytes": "2000 B"}
#: Storage whose requests all take time, so that their order shows.
SLOW = {"first_byte": "1 ms", "open": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "10 GB/s"}


def walking(access: str, **overrides: Any) -> Scenario:
    """Give a scenario with a file access, and every request in the trace."""
    base: dict[str, Any] = {
        "dataset": DATASET, "train__compute": "100 us", "trace__level": "io", "loader__file_access": access,
        "loader__shuffle": "file", "storage__model": SLOW,
    }  # fmt: skip
    return scenario(**{**base, **overrides})


def requests(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int, int], list[tuple[Any, ...]]]:
    """Give the requests of every batch, in their order: what each was, its file, offset and bytes."""
    made: dict[tuple[str, str, int, int], list[tuple[Any, ...]]] = {}
    for row in sorted(rows, key=lambda row: (row["start_ns"], row["start_ns"] + row["duration_ns"])):
        if row["name"] in ("io.open", "io.read"):
            request = (row["name"], row["file"], row["offset"], row["bytes"])
            made.setdefault((row["role"], row["index"], row["epoch"], row["step"]), []).append(request)
    return made


def opens(rows: list[dict[str, Any]]) -> int:
    """Count the files opened."""
    return sum(row["name"] == "io.open" for row in rows)


def bytes_read(rows: list[dict[str, Any]]) -> int:
    """Add up the bytes of requests."""
    return sum(row["bytes"] for row in rows if row["name"] == "io.read")
