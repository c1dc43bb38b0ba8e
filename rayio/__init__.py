"""rayio emulates the data pipelines of deep-learning training on Ray.

>>> import rayio
>>> run = rayio.run("unet3d-small", overrides={"loader.num_workers": 4})  # doctest: +SKIP
>>> run.au, run.spans()  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rayio.session import Run, generate, run, simulate

__all__ = ["Run", "__version__", "generate", "run", "simulate"]


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: ``import rayio`` stays quick and imports neither ray nor torch."""
    if name in __all__:
        import rayio.session

        return getattr(rayio.session, name)
    raise AttributeError(f"module 'rayio' has no attribute {name!r}")
