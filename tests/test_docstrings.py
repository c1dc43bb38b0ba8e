"""Every example in a docstring runs, and everything that users call or other packages implement has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import rayio
from rayio.data.formats import Format
from rayio.model.engine import Engine
from rayio.model.wiring import LoaderKind
from rayio.scenario.kind import Kind
from rayio.scenario.load import load
from rayio.scenario.state import State
from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers
from rayio.storage import Store

#: What examples need beside the module they are in, so that each is as short as it can be.
NAMES = {"rayio": rayio, "np": np, "load": load}


def _modules() -> list[str]:
    """Name every module whose text has an example, without importing the others."""
    root = Path(rayio.__file__).parent
    found = []
    for module in pkgutil.walk_packages([str(root)], "rayio."):
        path = root.joinpath(*module.name.split(".")[1:])
        file = path / "__init__.py" if module.ispkg else path.with_suffix(".py")
        if ">>>" in file.read_text():
            found.append(module.name)
    return ["rayio", *found]


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayio.kinds import SHUFFLES

    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = NAMES | {"SHUFFLES": SHUFFLES} | vars(module)
    examples = [one for one in doctest.DocTestFinder().find(module, globs=names) if one.examples]
    runner = doctest.DocTestRunner(verbose=False)
    said: list[str] = []
    for one in examples:
        runner.run(one, out=said.append)
    assert examples
    assert not runner.summarize(verbose=False).failed, "".join(said)


@pytest.mark.parametrize(
    "thing",
    [
        rayio.run,
        rayio.simulate,
        rayio.generate,
        rayio.sweep,
        rayio.Run.open,
        Format,
        Store,
        Engine,
        Kind,
        LoaderKind,
        Writers,
        State,
        Topology,
    ],
    ids=lambda thing: thing.__qualname__,
)
def test_what_users_call_and_packages_implement_has_an_example(thing: object) -> None:
    assert doctest.DocTestParser().get_examples(thing.__doc__ or "")
