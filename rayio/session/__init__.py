"""Runs from start to verdict: scenario, dataset, engine, run directory, results."""

from __future__ import annotations

from rayio.session.dataset import generate
from rayio.session.execute import repeated, simulate
from rayio.session.result import Run
from rayio.session.resume import run

__all__ = ["Run", "generate", "repeated", "run", "simulate"]
