"""Datasets on disk, for tests that read real bytes."""

from __future__ import annotations

from pathlib import Path

from rayio.data.formats import layout_of
from rayio.data.generate import prepare
from rayio.scenario.evaluation import phase_of
from rayio.scenario.model import Scenario


def on_disk(wanted: Scenario, root: Path) -> Scenario:
    """Write the dataset of a scenario, and that of its evaluation, below ``root``; give the scenario."""
    for one in (wanted, phase_of(wanted)):
        if one is not None:
            prepare(layout_of(one), one.dataset.format, root / one.dataset.path, threads=1)
    return wanted
