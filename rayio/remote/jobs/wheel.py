"""A wheel of this rayio, for clusters without it: made of the installed files, without build tools."""

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

#: Time of every file: equal files make equal wheels, which a cluster caches.
_WHEN = (2020, 1, 1, 0, 0, 0)
_IGNORED = {"__pycache__"}


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder and return its path.

    It has no requirements: ``pip install --target``, as used by Ray, would install them again and hide the cluster's.
    Its name has a digest of its files, because Ray identifies wheels by name.
    """
    content = {**_package(), **_metadata()}
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    build = f"0{digest.hexdigest()[:12]}"
    info = f"rayio-{__version__}.dist-info"
    header = f"Wheel-Version: 1.0\nGenerator: rayio\nRoot-Is-Purelib: true\nTag: py3-none-any\nBuild: {build}\n"
    content[f"{info}/WHEEL"] = header.encode()
    content[f"{info}/RECORD"] = "".join([*map(_recorded, content, content.values()), f"{info}/RECORD,,\n"]).encode()
    path = folder / f"rayio-{__version__}-{build}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in content.items():
            wheel.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


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


def _recorded(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


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
