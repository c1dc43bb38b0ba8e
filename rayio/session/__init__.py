"""Runs from start to verdict: scenario, dataset, engine, run directory, results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayio.session.dataset import generate
    from rayio.session.execute import repeated, simulate
    from rayio.session.result import Run
    from rayio.session.resume import run

__all__ = ["Run", "generate", "repeated", "run", "simulate"]

_MODULES = {"Run": "result", "generate": "dataset", "repeated": "execute", "run": "resume", "simulate": "execute"}


def __getattr__(name: str) -> Any:
    """Return a name of this room, imported on first use: who reads a run needs nothing that makes one."""
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f"rayio.session.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'rayio.session' has no attribute {name!r}")
