"""A sweep on disk: its definition (``sweep.json``) and a line for every finished run (``points.jsonl``).

A line is written as soon as its run ends, so the same command resumes an interrupted sweep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rayio import storage
from rayio.errors import ScenarioError, StorageError
from rayio.files import NotAFileError, parse_json, read_regular, replacing
from rayio.schema.fields import show
from rayio.storage.address import is_path, join
from rayio.storage.stores.opening import Settings
from rayio.storage.stores.refusals import unwritten
from rayio.study.sweeps.sweep_rows import Row
from rayio.version import __version__

VERSION = 1


class AnotherSweepError(StorageError):
    """The directory holds a sweep with another definition."""


class SweepDirectory:
    """The files of one sweep; opened for adding rows with ``with``."""

    def __init__(self, path: Path, root: str = ".") -> None:
        self.path, self.root = path, root
        self._lines: FileIO | None = None

    @classmethod
    def open(cls, path: Path, definition: Mapping[str, Any], root: str = ".") -> Self:
        """Return the directory of a new sweep, or open that of an earlier one with the same definition.

        ``definition`` is what all points share: scenario, engine, swept keys.

        Raises:
            StorageError: the directory holds something else, or a sweep with another definition.
        """
        sweep, file = cls(path, root), path / "sweep.json"
        definition = {"version": VERSION, "rayio": __version__, **definition}
        try:
            if path.exists() and not path.is_dir():
                raise StorageError(f"{path} is a file; give --out a directory")
            if not file.exists():
                if path.exists() and any(path.iterdir()):
                    raise StorageError(f"{path} is not empty and is not a sweep; choose another --out")
                path.mkdir(parents=True, exist_ok=True)
                sweep.write("sweep.json", (json.dumps(definition, indent=2) + "\n").encode())
                return sweep
            before = parse_json(read_regular(file))
        except NotAFileError as error:
            raise StorageError(f"{file}: {error.strerror}, or choose another --out") from None
        except OSError as error:
            raise unwritten(error, path, "--out") from None
        except ValueError as error:
            raise StorageError(f"{file} is damaged, not JSON: {error}; choose another --out") from None
        if not isinstance(before, dict):
            raise StorageError(f"{file} is damaged, not a sweep; choose another --out")
        for key, was, now in _differences(before, json.loads(json.dumps(definition))):
            raise AnotherSweepError(
                f"{path} holds a sweep with {key}={_text(was)}, not {_text(now)}; choose another --out"
            )
        return sweep

    @classmethod
    def at(cls, out: str | Path | None, default: str, root: str, definition: Mapping[str, Any]) -> Self:
        """Return the directory ``out``, else ``default`` or, if another sweep holds it, ``default-2`` and so on.

        Relative paths start from ``root``. If that is an address, the default is in the working directory.

        Raises:
            ScenarioError: ``out`` is an address.
            StorageError: see :meth:`open`.
        """
        if out is not None:
            if not is_path(path := join(root, str(out))):
                raise ScenarioError(
                    f"not yet: --out {path}; give the full path of a folder, such as {Path.cwd() / Path(path).name} "
                    "(datasets may be at an address)"
                )
            return cls.open(Path(path), definition, root)
        path, number = join(root, default) if is_path(root) else default, 1
        place = Path(path)
        while True:
            try:
                return cls.open(place, definition, root)
            except AnotherSweepError:
                number += 1
                place = Path(f"{path}-{number}")

    def free(self, name: str, stores: Settings) -> str:
        """Return the address of a new run directory: ``name``, or ``name-1`` and so on if earlier runs have it.

        A relative path starts from the root. If that is an address, the runs are there.
        """
        place = join(self.root, str(self.path / name))
        names = (f"{place}-{number}" if number else place for number in count())
        return next(name for name in names if not storage.open(name, stores).exists)

    def runs(self, stem: str, stores: Settings) -> list[str]:
        """Return the addresses of the run directories in ``runs`` whose names begin with ``stem``, in order."""
        folder = storage.open(join(self.root, str(self.path / "runs")), stores)
        return [join(folder.address, name) for name in sorted(folder.entries()) if name.startswith(stem)]

    def rows(self, num_keys: int | None = None) -> Iterator[Row]:
        """Iterate over the finished runs, of ``num_keys`` values each if given; an incomplete last line is skipped.

        Raises:
            StorageError: another line is damaged.
        """
        file = self.path / "points.jsonl"
        try:
            lines = read_regular(file).split(b"\n") if file.exists() else []
        except OSError as error:
            raise StorageError(f"cannot read {file}: {error.strerror}") from None
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = Row.of_json(parse_json(line), f"{file}:{number}")
                if num_keys not in (None, len(row.values)):
                    raise ValueError(f"values are {len(row.values)}, expected {num_keys}")
            except ValueError as error:
                raise StorageError(f"{file}:{number} is damaged: {error}; remove that line to repeat its run") from None
            yield row

    def __enter__(self) -> Self:
        file = self.path / "points.jsonl"
        try:
            if file.exists():
                content = read_regular(file)
                if (end := content.rfind(b"\n") + 1) < len(content):  # an incomplete line
                    with file.open("r+b") as torn:
                        torn.truncate(end)
            self._lines = file.open("ab", buffering=0)
        except OSError as error:
            raise unwritten(error, file, "--out") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.close()

    def add(self, row: Row) -> None:
        """Append a run's line, complete or not at all.

        Raises:
            StorageError: no space.
        """
        assert self._lines is not None, "open it with `with`"
        left, end = (json.dumps(row.as_json(), allow_nan=False) + "\n").encode(), self._lines.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[self._lines.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self._lines.truncate(end)
            raise self._kept(unwritten(error, self.path / "points.jsonl", "--out")) from None

    def _kept(self, error: StorageError) -> StorageError:
        """Return an error that also tells how to resume, if runs were kept."""
        if not (self.path / "points.jsonl").exists():
            return error
        return StorageError(f"{error} (finished runs are kept; give the same command to resume)")

    def write(self, name: str, content: bytes) -> Path:
        """Write another file of the sweep, complete or not at all.

        Raises:
            StorageError: no space, no permission.
        """
        target = self.path / name
        try:
            with replacing(target, self.path / f"{name}.tmp") as partial:
                partial.write_bytes(content)
        except OSError as error:
            raise self._kept(unwritten(error, target, "--out")) from None
        return target


def _differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Iterate over the leaves that differ: key, value before, value after."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            name = str(key) if path in ("", "scenario") else f"{path}.{key}"
            yield from _differences(before.get(key), after.get(key), name)
    elif before != after:
        yield path, before, after


def _text(value: Any) -> str:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return "none" if value is None else ",".join(map(str, value)) if is_list else show(value)
