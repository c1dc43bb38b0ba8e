"""A sweep on disk: what was asked (``sweep.json``) and a line for every run that ended (``points.jsonl``).

A line is written the moment its run has ended, so that whatever stops a sweep, the same command goes on from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rayio import __version__, regular, strict_json
from rayio.errors import StorageError
from rayio.replacing import replacing
from rayio.schema.fields import show
from rayio.storage.stores.refusals import unwritten
from rayio.study.sweeps.sweep_rows import Row

VERSION = 1


class SweepDirectory:
    """The files of one sweep; opened for adding rows with ``with``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: FileIO | None = None

    @classmethod
    def open(cls, path: Path, asked: Mapping[str, Any]) -> Self:
        """Make the directory of a new sweep, or open that of an earlier one that asked the same.

        ``asked`` is what all points share: scenario, engine, swept keys.

        Raises:
            StorageError: it holds something else, or a sweep that was asked something else: names what differs.
        """
        sweep, file = cls(path), path / "sweep.json"
        asked = {"version": VERSION, "rayio": __version__, **asked}
        try:
            if path.exists() and not path.is_dir():
                raise StorageError(f"{path} is a file; give --out a directory")
            if not file.exists():
                if path.exists() and any(path.iterdir()):
                    raise StorageError(f"{path} is not empty and holds no sweep; choose another --out")
                path.mkdir(parents=True, exist_ok=True)
                sweep.write("sweep.json", (json.dumps(asked, indent=2) + "\n").encode())
                return sweep
            before = strict_json.loads(regular.read_bytes(file))
        except regular.NotAFileError as error:
            raise StorageError(f"{file}: {error.strerror}, or choose another --out") from None
        except OSError as error:
            raise unwritten(error, path, "--out") from None
        except ValueError as error:
            raise StorageError(f"{file} is not JSON, the file is damaged: {error}; choose another --out") from None
        if not isinstance(before, dict):
            raise StorageError(f"{file} is no sweep, the file is damaged; choose another --out")
        for key, was, now in _differences(before, json.loads(json.dumps(asked))):
            raise StorageError(
                f"{path} holds a sweep with {key}={_text(was)}, now it is {_text(now)}; choose another --out"
            )
        return sweep

    def rows(self) -> Iterator[Row]:
        """The runs that ended; a last line that was not written to its end is none.

        Raises:
            StorageError: another line is damaged, it is named.
        """
        file = self.path / "points.jsonl"
        try:
            lines = regular.read_bytes(file).split(b"\n") if file.exists() else []
        except OSError as error:
            raise StorageError(f"cannot read {file}: {error.strerror}") from None
        for number, line in enumerate(lines[:-1], 1):
            try:
                yield Row.of_json(strict_json.loads(line), f"{file}:{number}")
            except (ValueError, KeyError, TypeError):
                raise StorageError(f"{file}:{number} is damaged; remove that line, and its run is made again") from None

    def __enter__(self) -> Self:
        file = self.path / "points.jsonl"
        try:
            if file.exists():
                content = regular.read_bytes(file)
                if (end := content.rfind(b"\n") + 1) < len(content):  # a line that was cut off
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
        """Keep a run, with a line that is there whole or not at all.

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
        """Say what is not lost with what could not be written."""
        is_there = (self.path / "points.jsonl").exists()
        return (
            StorageError(f"{error} (the runs that ended are kept, the same command goes on there)")
            if is_there
            else error
        )

    def write(self, name: str, content: bytes) -> Path:
        """Put a file beside them, whole or not at all.

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
    """Find the leaves that are not the same; keys of the scenario go by their own names."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            name = str(key) if path in ("", "scenario") else f"{path}.{key}"
            yield from _differences(before.get(key), after.get(key), name)
    elif before != after:
        yield path, before, after


def _text(value: Any) -> str:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return "none" if value is None else ",".join(map(str, value)) if is_list else show(value)
