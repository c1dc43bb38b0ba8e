"""rayio emulates the data pipelines of deep-learning training on Ray.

>>> import rayio
>>> run = rayio.simulate("unet3d-small", overrides={"loader.num_workers": 4})
>>> round(run.au, 2), [*run.spans().columns[:3]]
(0.97, ['name', 'role', 'index'])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayio.version import __version__

if TYPE_CHECKING:
    from rayio import errors
    from rayio.engines.loaders.watched_workers import reading
    from rayio.engines.loaders.watching import pause, step, watch
    from rayio.session import Run, generate, run, simulate
    from rayio.session.compared import compare
    from rayio.session.questions import calibrate, explain
    from rayio.study.facts.checking import check_published
    from rayio.study.sizing.advise import advise
    from rayio.study.sizing.capacity import capacity
    from rayio.study.sizing.mlperf import datasize
    from rayio.study.sweeps.finished import Sweep
    from rayio.study.sweeps.sweeping import sweep

__all__ = [
    "Run",
    "Sweep",
    "__version__",
    "advise",
    "calibrate",
    "capacity",
    "check_published",
    "compare",
    "datasize",
    "errors",
    "explain",
    "generate",
    "pause",
    "reading",
    "run",
    "simulate",
    "step",
    "sweep",
    "watch",
]

#: Modules of the public names that are not in ``rayio.session``.
_ELSEWHERE = {
    "advise": "rayio.study.sizing.advise",
    "calibrate": "rayio.session.questions",
    "capacity": "rayio.study.sizing.capacity",
    "check_published": "rayio.study.facts.checking",
    "datasize": "rayio.study.sizing.mlperf",
    "explain": "rayio.session.questions",
    "compare": "rayio.session.compared",
    "pause": "rayio.engines.loaders.watching",
    "reading": "rayio.engines.loaders.watched_workers",
    "step": "rayio.engines.loaders.watching",
    "sweep": "rayio.study.sweeps.sweeping",
    "Sweep": "rayio.study.sweeps.finished",
    "watch": "rayio.engines.loaders.watching",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported on first use: ``import rayio`` stays quick and imports neither ray nor torch."""
    from importlib import import_module

    if name == "errors":
        return import_module("rayio.errors")
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "rayio.session")), name)
    raise AttributeError(f"module 'rayio' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
