"""Runs from start to verdict: scenario, dataset, engine, run directory, results."""

from __future__ import annotations

from rayio.session.dataset import generate
from rayio.session.execute import repeated, run, simulate
from rayio.session.result import Run

__all__ = ["Run", "generate", "repeated", "run", "simulate"]
