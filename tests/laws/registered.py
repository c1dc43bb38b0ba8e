"""Laws run over every kind that is registered: ours, and those of packages that are installed, as the toy one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from packages import toy_installed

from rayio.registry import Registry

Law = TypeVar("Law", bound=Callable[..., None])


def every(
    registry: Registry[Any], argument: str = "name", only: Callable[[Any], bool] = lambda kind: True
) -> Callable[[Law], Law]:
    """Run a law once for every kind of a registry (of which ``only`` holds), which it gets by its name."""
    with TemporaryDirectory() as folder, toy_installed(Path(folder)):
        names = [name for name in registry if only(registry[name])]

    def run(law: Law) -> Law:
        marked: Law = pytest.mark.parametrize(argument, names)(pytest.mark.usefixtures("toy_there")(law))
        return marked

    return run
