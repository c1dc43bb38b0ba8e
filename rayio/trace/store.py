"""The run directory: what was asked, on what, what happened and what came out; readable whenever the run broke off.

``scenario.yaml`` (resolved), ``run.json`` (versions, cluster, clocks), ``spans/*.parquet``, ``result.json`` and
``log.txt``. Every file but the log appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio.errors import StorageError
from rayio.trace.span import COLUMNS, schema

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the layout of a run directory, in ``run.json``.
VERSION = 1

_TEXT_COLUMNS = [name for name, kind in COLUMNS.items() if kind == "text"]
_DELTA_COLUMNS = ("rank", "epoch", "step", "attempt", "batch", "start_ns", "duration_ns", "bytes", "requests", "link")


class RunDirectory:
    """One run on disk: :meth:`create` makes it, :meth:`open` reads it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._spans: pa.Table | None = None
        self._lost: tuple[str, ...] = ()

    @classmethod
    def create(cls, path: str | Path, info: Mapping[str, Any] | None = None) -> RunDirectory:
        """Make a new run directory, with parents, and its ``run.json`` from ``info``.

        Raises:
            StorageError: the path holds a run, or files that are not ours, or cannot be written.
        """
        path = Path(path)
        try:
            if path.exists() and not path.is_dir():
                raise StorageError(f"{path} is a file; give --out a directory that does not exist yet")
            if (path / "run.json").exists():
                raise StorageError(f"{path} already holds a run; choose another --out, or remove it")
            if path.exists() and any(path.iterdir()):
                raise StorageError(f"{path} is not empty and holds no run; choose another --out")
            (path / "spans").mkdir(parents=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the run directory {path}: {error.strerror}; choose another --out"
            ) from None
        run = cls(path)
        try:
            run.write_info(info or {})
        except StorageError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run directory.

        Raises:
            StorageError: no run is there, it cannot be read, or another version of rayio wrote it in another layout.
        """
        run = cls(Path(path))
        if not run.path.is_dir():
            raise StorageError(
                f"{run.path} is not a run directory: {'a file' if run.path.exists() else 'no such path'}"
            )
        if not (run.path / "run.json").is_file():
            raise StorageError(f"{run.path} is not a run directory: it has no run.json")
        version = run.info.get("version")
        if version != VERSION:
            raise StorageError(f"{run.path} has layout version {version!r}; this rayio reads version {VERSION}")
        return run

    @property
    def log(self) -> Path:
        """Where the log belongs: everything that did not fit on one line."""
        return self.path / "log.txt"

    @property
    def info(self) -> dict[str, Any]:
        """What ``run.json`` says: versions, cluster, clock anchors, engine settings."""
        return self._read_json("run.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What ``result.json`` says, or None for a run that broke off before its numbers were made."""
        return self._read_json("result.json") if (self.path / "result.json").exists() else None

    @property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text, or None when the run broke off before it was written."""
        path = self.path / "scenario.yaml"
        try:
            return path.read_text(encoding="utf-8") if path.exists() else None
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot read {path}: {error}") from None

    def write_scenario(self, text: str) -> None:
        """Keep the resolved scenario."""
        self._write("scenario.yaml", text.encode())

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace ``run.json``; the layout's version is added."""
        self._write("run.json", _json({"version": VERSION, **info}))

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace ``result.json``.

        Raises:
            ValueError: a number is not finite; null is what says "not known".
        """
        self._write("result.json", _json(result))

    def write_spans(self, table: pa.Table, stem: str) -> Path:
        """Store a table of spans as ``spans/<stem>.parquet``, or ``<stem>-1`` and so on when that name is taken."""
        import pyarrow.parquet as pq

        folder = self.path / "spans"
        path, taken = folder / f"{stem}.parquet", 0
        while path.exists():
            taken += 1
            path = folder / f"{stem}-{taken}.parquet"
        partial = path.with_suffix(".tmp")
        try:
            pq.write_table(
                table.cast(schema()).unify_dictionaries(),
                partial,
                compression="zstd",
                use_dictionary=_TEXT_COLUMNS,
                column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
                write_page_checksum=True,
            )
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from None
        self._spans = None
        return path

    def spans(self) -> pa.Table:
        """Read every span, sorted by start; a file that cannot be read is left out and named in ``lost_files``."""
        if self._spans is None:
            tables, lost = [], []
            for path in sorted((self.path / "spans").glob("*.parquet")):
                table = _read_spans(path)
                if table is None:
                    lost.append(path.name)
                else:
                    tables.append(table)
            self._lost = tuple(lost)
            self._spans = _by_start(tables) if tables else schema().empty_table()
        return self._spans

    def damaged_files(self) -> list[str]:
        """Give the names of span files whose footer cannot be read; quicker than reading them (see ``lost_files``)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        damaged = []
        for path in sorted((self.path / "spans").glob("*.parquet")):
            try:
                pq.read_metadata(path)
            except (pa.ArrowException, OSError):
                damaged.append(path.name)
        return damaged

    @property
    def lost_files(self) -> tuple[str, ...]:
        """Names of span files that are truncated, corrupted or of another schema; their spans are missing."""
        self.spans()
        return self._lost

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            value = json.loads(path.read_bytes())
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise StorageError(f"{path} is not JSON, the file is damaged: {error}") from None
        if not isinstance(value, dict):
            raise StorageError(f"{path} holds {type(value).__name__}, not an object: the file is damaged")
        return value

    def _write(self, name: str, content: bytes) -> None:
        path = self.path / name
        partial = self.path / f"{name}.tmp"
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _read_spans(path: Path) -> pa.Table | None:
    """Read one span file; None when it is not whole or not of this schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
        return table.select(list(COLUMNS)).cast(schema())
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


def _by_start(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables).unify_dictionaries().combine_chunks().sort_by("start_ns")


def to_ipc(table: pa.Table) -> bytes:
    """Serialise a table for a message: an Arrow IPC stream, compressed with LZ4."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(table.unify_dictionaries())
    return bytes(sink.getvalue())


def from_ipc(message: bytes) -> pa.Table:
    """Give back the table that :func:`to_ipc` was given."""
    import pyarrow as pa

    return pa.ipc.open_stream(message).read_all()
