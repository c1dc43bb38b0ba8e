"""This rayio as files, for clusters without it: made of the installed files, without build tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.resources import files
from pathlib import Path

from rayio.scenario.source import packaged_folder
from rayio.version import __version__

_IGNORED = {"__pycache__"}


def write_package(folder: Path) -> None:
    """Write the package and its metadata into a folder, from where Python imports it.

    It has no requirements: those are the cluster's. The folder is a job's own working directory, which Ray unpacks
    under a lock. A wheel in ``py_modules`` is installed without one: two jobs that begin together remove each other's.
    """
    for name, data in {**_package(), **_metadata()}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _package() -> dict[str, bytes]:
    package = Path(str(files("rayio")))
    paths = {f"rayio/{path.relative_to(package)}": path for path in _files_in(package)}
    paths |= {f"rayio/scenarios/{path.name}": path for path in sorted(packaged_folder().glob("*.yaml"))}
    return {name: path.read_bytes() for name, path in paths.items()}


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _IGNORED:
                yield from _files_in(path)
        else:
            yield path


def _metadata() -> dict[str, bytes]:
    info = f"rayio-{__version__}.dist-info"
    lines = [
        f"[{group}]\n" + "".join(f"{point.name} = {point.value}\n" for point in points)
        for group in sorted(entry_points().groups)
        if (points := [p for p in entry_points(group=group) if p.dist is not None and p.dist.name == "rayio"])
    ]
    metadata = f"Metadata-Version: 2.1\nName: rayio\nVersion: {__version__}\nRequires-Python: >=3.11\n"
    return {f"{info}/METADATA": metadata.encode(), f"{info}/entry_points.txt": "\n".join(lines).encode()}


def requirements() -> list[str]:
    """Return rayio's dependencies except Ray, in the versions installed here, for ``pip`` on a cluster.

    >>> any(text.startswith("pydantic==") for text in requirements())
    True
    """
    matches = [re.match(r"[\w.-]+", text) for text in requires("rayio") or () if "extra ==" not in text]
    names = [match[0] for match in matches if match is not None and match[0] != "ray"]
    return [f"{name}=={installed}" for name in (*names, "obstore") if (installed := _installed(name)) is not None]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
