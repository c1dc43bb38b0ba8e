"""Datasets on disk, for tests that read real bytes."""

from __future__ import annotations

from pathlib import Path

from rayio.data.generate import prepare
from rayio.data.layout import Layout
from rayio.scenario.model import Scenario


def on_disk(wanted: Scenario, root: Path) -> Scenario:
    """Write the dataset of a scenario below ``root``; give the scenario."""
    prepare(Layout.from_scenario(wanted), wanted.dataset.format, root / wanted.dataset.path, threads=1)
    return wanted
