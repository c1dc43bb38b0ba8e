"""Packages that add kinds to rayio, as if they were installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayio.kinds import REGISTRIES


def installed(folder: Path, package: Path) -> str:
    """Make a folder in which Python finds the entry points of a pyproject.toml, however old what is installed is."""
    project = tomllib.loads(package.read_text())["project"]
    name, version = project["name"], project["version"]
    metadata = folder / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = project["entry-points"].items()
    said = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in those.items()) for group, those in points]
    (metadata / "entry_points.txt").write_text("\n".join(said))
    return str(metadata.parent)


#: A package that adds kinds to rayio.
TOY = Path(__file__).parent / "toy"


@contextmanager
def toy_installed(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Have that package installed for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            patch.setattr(registry, "_loaded", {})
        patch.syspath_prepend(installed(folder, TOY / "pyproject.toml"))
        patch.syspath_prepend(str(TOY))
        yield patch
