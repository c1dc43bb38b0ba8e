"""Names that laws run over: ours, and those of packages that are installed, as the toy package is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from packages import TOY, installed

from rayio.kinds import REGISTRIES
from rayio.registry import Registry


@contextmanager
def toy_installed(folder: Path) -> Iterator[None]:
    """Have the toy package installed for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            patch.setattr(registry, "_loaded", {})
        patch.syspath_prepend(installed(folder, TOY / "pyproject.toml"))
        patch.syspath_prepend(str(TOY))
        yield


def every(registry: Registry[Any], argument: str = "name") -> pytest.MarkDecorator:
    """Run a law once for every kind of a registry, which it gets by its name."""
    with TemporaryDirectory() as folder, toy_installed(Path(folder)):
        return pytest.mark.parametrize(argument, [*registry])
