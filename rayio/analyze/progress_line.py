"""How far a run is, as a line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def line(snapshot: Mapping[str, Any], planned_steps: int, seconds: float | None) -> str:
    """Say in one line how far a run is: steps, shares of the time so far (warm-up included), bytes per second."""
    time = snapshot["time"]
    busy = (
        sum(time.get(name, 0) for name in ("data_wait", "compute", "sync", "checkpoint", "evaluate", "overshoot")) or 1
    )
    names = ("compute", "data_wait", "sync", "checkpoint", "evaluate")
    share = {name: 100 * time.get(name, 0) / busy for name in names}
    pauses = f"checkpoint {share['checkpoint']:.1f} %"
    if time.get("evaluate"):
        pauses += f" · evaluation {share['evaluate']:.1f} %"
    # Without a clock there is no rate; spans come from the first moment on, long before the first step ends.
    rate = (
        f"{snapshot['spans']} spans"
        if seconds is None
        else f"{snapshot['bytes'] / max(seconds, 1e-9) / 2**20:.0f} MiB/s"
    )
    return (
        f"{snapshot['steps']}/{planned_steps} rank-steps · compute {share['compute']:.1f} % · data loading "
        f"{share['data_wait']:.1f} % · sync {share['sync']:.1f} % · {pauses} · {rate}"
    )
