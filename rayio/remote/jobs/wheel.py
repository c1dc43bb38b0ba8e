"""This rayio as a wheel, for clusters whose Python has none: made of the installed files, without any build tool."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from importlib.resources import files
from pathlib import Path

from rayio import __version__
from rayio.scenario.source import packaged_folder

#: Time of every file in it: equal files make equal wheels, which a cluster then has already.
_WHEN = (2020, 1, 1, 0, 0, 0)
#: What imports leave behind.
_PASSED_OVER = {"__pycache__"}


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder.

    It names no requirements. Ray installs it with ``pip install --target``, which would fetch each of them again, Ray
    itself among them, and put them before those of the cluster. Its name has a digest of its files as build number:
    Ray takes wheels of one name for one wheel.
    """
    content = {**_package(), **_metadata()}
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    build = f"0{digest.hexdigest()[:12]}"
    info = f"rayio-{__version__}.dist-info"
    said = f"Wheel-Version: 1.0\nGenerator: rayio\nRoot-Is-Purelib: true\nTag: py3-none-any\nBuild: {build}\n"
    content[f"{info}/WHEEL"] = said.encode()
    content[f"{info}/RECORD"] = "".join([*map(_recorded, content, content.values()), f"{info}/RECORD,,\n"]).encode()
    path = folder / f"rayio-{__version__}-{build}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in content.items():
            wheel.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


def _package() -> dict[str, bytes]:
    """The files of the package by their names in the wheel, the scenarios among them."""
    package = Path(str(files("rayio")))
    found = {f"rayio/{path.relative_to(package)}": path for path in _files_in(package)}
    found |= {f"rayio/scenarios/{path.name}": path for path in sorted(packaged_folder().glob("*.yaml"))}
    return {name: path.read_bytes() for name, path in found.items()}


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _PASSED_OVER:
                yield from _files_in(path)
        else:
            yield path


def _metadata() -> dict[str, bytes]:
    """What makes it a distribution that Python finds, with its entry points."""
    info = f"rayio-{__version__}.dist-info"
    lines = [
        f"[{group}]\n" + "".join(f"{point.name} = {point.value}\n" for point in points)
        for group in sorted(entry_points().groups)
        if (points := [p for p in entry_points(group=group) if p.dist is not None and p.dist.name == "rayio"])
    ]
    said = f"Metadata-Version: 2.1\nName: rayio\nVersion: {__version__}\nRequires-Python: >=3.11\n"
    return {f"{info}/METADATA": said.encode(), f"{info}/entry_points.txt": "\n".join(lines).encode()}


def _recorded(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def requirements() -> list[str]:
    """What rayio needs beside Ray, for ``pip`` on a cluster: the versions that are installed here.

    >>> any(one.startswith("pydantic==") for one in requirements())
    True
    """
    asked = [re.match(r"[\w.-]+", one) for one in requires("rayio") or () if "extra ==" not in one]
    names = [match[0] for match in asked if match is not None and match[0] != "ray"]
    return [f"{name}=={found}" for name in (*names, "obstore") if (found := _installed(name)) is not None]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
