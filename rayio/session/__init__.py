"""One command from start to verdict: the scenario, its dataset, an engine, the run directory, the numbers."""

from __future__ import annotations

from rayio.session.dataset import generate
from rayio.session.execute import run, simulate
from rayio.session.result import Run

__all__ = ["Run", "generate", "run", "simulate"]
