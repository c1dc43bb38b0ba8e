"""The run directory: what was asked, on what, what happened and what came out; readable whenever the run broke off.

``scenario.yaml`` (resolved), ``run.json`` (versions, cluster, clocks), ``spans/*.parquet``, ``result.json`` and
``log.txt``. Every file but the log appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio.errors import StorageError
from rayio.replacing import replacing
from rayio.trace import files
from rayio.trace.span import schema

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the layout of a run directory, in ``run.json``.
VERSION = 1

#: Spans that compaction sorts and writes at a time: what it holds in memory, twice.
COMPACT_ROWS = 1 << 21


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
            raise StorageError(
                f"{run.path} has layout version {version!r}; this one reads {VERSION}: use the rayio that wrote it"
            )
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
        return self._write_spans(table, stem)

    def _write_spans(self, table: pa.Table, stem: str, replaces: Iterable[str] = ()) -> Path:
        folder = self.path / "spans"
        path, taken = folder / f"{stem}.parquet", 0
        gone = files.replaced(folder)
        while path.exists() or path.name in gone:
            taken += 1
            path = folder / f"{stem}-{taken}.parquet"
        partial = path.with_suffix(".tmp")
        try:
            with replacing(path, partial):
                files.write(partial, table, replaces)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from None
        self._spans = None
        return path

    def compact(self, rows: int = COMPACT_ROWS) -> None:
        """Join the parts that a run wrote into few files in an order that takes half the bytes.

        Parts go only when the file that stands for them is whole; a part that is damaged stays as it is.

        Raises:
            StorageError: no space, no permission; what was there is there still.
        """
        for name in files.replaced(self.path / "spans"):  # a compaction that was killed left them behind
            (self.path / "spans" / name).unlink(missing_ok=True)
        parts = [file for file in files.in_folder(self.path / "spans")[0] if not file.path.name.startswith("spans-")]
        group: list[files.SpanFile] = []
        for number, part in enumerate(parts, 1):
            group.append(part)
            if number == len(parts) or sum(file.num_rows for file in group) >= rows:
                self._join(group)
                group = []

    def _join(self, parts: Sequence[files.SpanFile]) -> None:
        import pyarrow as pa

        tables, read = [], []
        for part in parts:
            with contextlib.suppress(files.DamagedError):
                tables.append(part.read())
                read.append(part.path)
        if tables:
            self.write_compacted(pa.concat_tables(tables), [path.name for path in read])
        for path in read:
            path.unlink()

    def write_compacted(self, table: pa.Table, replaces: Iterable[str] = ()) -> None:
        """Store a table of spans in the order that takes half the bytes; ``replaces`` are files that it stands for."""
        number = len(list((self.path / "spans").glob("spans-*.parquet")))
        self._write_spans(files.ordered(table, files.ORDER), f"spans-{number:05d}", replaces)

    @property
    def stored(self) -> int:
        """How many spans the files say that they hold."""
        return sum(file.num_rows for file in files.in_folder(self.path / "spans")[0])

    def columns(self, *names: str) -> pa.Table:
        """Read these columns of every span, in no order; far quicker and smaller than :meth:`spans`."""
        import pyarrow as pa

        tables = []
        whole, _ = files.in_folder(self.path / "spans")
        for file in whole:
            with contextlib.suppress(files.DamagedError):
                tables.append(file.read(names))
        if not tables:
            return schema().empty_table().select(list(names))
        return pa.concat_tables(tables).unify_dictionaries()

    def spans(self) -> pa.Table:
        """Read every span, sorted by start; a file that cannot be read is left out and named in ``lost_files``.

        Raises:
            StorageError: a newer version of rayio wrote them.
        """
        if self._spans is None:
            import pyarrow as pa

            tables = []
            whole, lost = files.in_folder(self.path / "spans")
            for file in whole:
                try:
                    tables.append(file.read())
                except files.DamagedError as error:
                    lost.append(str(error))
            self._lost = tuple(sorted(lost))
            self._spans = files.ordered(pa.concat_tables(tables), ["start_ns"]) if tables else schema().empty_table()
        return self._spans

    def damaged_files(self) -> list[str]:
        """Give the names of span files whose footer cannot be read; quicker than reading them (see ``lost_files``)."""
        return files.in_folder(self.path / "spans")[1]

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
            with replacing(path, partial):
                partial.write_bytes(content)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


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
