"""The run directory: what was asked, on what, what happened and what came out; readable whenever the run broke off.

``scenario.yaml`` (resolved), ``run.json`` (versions, cluster, clocks), ``spans/*.parquet``, ``result.json`` and
``log.txt``. Every file but the log appears whole or not at all. It lies wherever its address says; span files that
are not on this machine are fetched into a temporary folder once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio import storage
from rayio.errors import DataError, StorageError
from rayio.files import parse_json
from rayio.records.run_result import RunResult, read_result
from rayio.storage import address as addresses
from rayio.storage.stores.mirror import Mirror
from rayio.storage.stores.opening import DEFAULTS, Fill, Settings, told
from rayio.trace import span_files
from rayio.trace.arrow import empty_table
from rayio.trace.elsewhere import told_apart
from rayio.trace.slices import SLICE_ROWS, Slices, sliced

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the layout of a run directory, in ``run.json``.
VERSION = 1

#: Spans that compaction sorts and writes at a time: what it holds in memory, three times.
COMPACT_ROWS = 1 << 19

#: A file that keeps space for the result while a run goes, and how much.
RESERVED, RESERVED_BYTES = ".reserved", 128 << 10

#: Names in a run directory.
INFO, RESULT, SCENARIO, SPANS, LOG = "run.json", "result.json", "scenario.yaml", "spans", "log.txt"


class RunDirectory:
    """One run, wherever its files are: :meth:`create` makes it, :meth:`open` reads it back.

    ``settings`` say how its address is reached where that is no path.
    """

    def __init__(self, address: str | Path, settings: Settings = DEFAULTS) -> None:
        self.store = storage.open(address, settings)
        self._mirror = None if self.store.is_local else Mirror(self.store)
        self._spans: pa.Table | None = None
        self._lost: tuple[str, ...] | None = None
        #: Whether the run was there before: then spans that it should have are missed.
        self._is_reopened = False
        #: Whether it was made here.
        self._is_ours = False

    @classmethod
    def create(
        cls, address: str | Path, info: Mapping[str, Any] | None = None, settings: Settings = DEFAULTS
    ) -> RunDirectory:
        """Make a new run directory, with parents, and its ``run.json`` from ``info``.

        Raises:
            StorageError: the address holds a run, or files that are not ours, or cannot be written.
        """
        run = cls(address, settings)
        try:
            run.make(info or {})
        except BaseException:
            run.unmake()
            raise
        return run

    def make(self, info: Mapping[str, Any]) -> None:
        """Make the directory, where there is none, for :meth:`unmake` to remove; see :meth:`create`."""
        if self.store.is_file:
            raise StorageError(f"{self.address} is a file; give --out a directory that does not exist yet")
        there = self.store.entries()
        if INFO in there:
            raise StorageError(f"{self.address} already holds a run; choose another --out, or remove it")
        if there:
            raise StorageError(f"{self.address} is not empty and holds no run; choose another --out")
        self._is_ours = True
        try:
            self.store.prepare("writing there", SPANS)
        except StorageError as error:
            self._is_ours = False
            raise told(error, "cannot make the run directory", "--out") from None
        self.write_info(info)

    def unmake(self) -> None:
        """Remove what :meth:`make` made, if it did; what was there before stays."""
        if self._is_ours:
            self.store.remove_all()

    @classmethod
    def open(cls, address: str | Path, settings: Settings = DEFAULTS) -> RunDirectory:
        """Open an existing run directory.

        Raises:
            StorageError: no run is there, it cannot be read, or another version of rayio wrote it in another layout.
        """
        run = cls(address, settings)
        run._is_reopened = True
        if not run.holds(INFO):
            raise StorageError(f"{run.address} is not a run directory: {told_apart(run.store, INFO)}")
        version = run.info.get("version")
        if version != VERSION:
            raise StorageError(
                f"{run.address} has layout version {version!r}; this one reads {VERSION}: use the rayio that wrote it"
            )
        return run

    @property
    def address(self) -> str:
        """Where the run is, as it was given."""
        return self.store.address

    @property
    def shown(self) -> str:
        """Where the run is, as it can be used from anywhere."""
        return addresses.shown(self.address)

    @property
    def name(self) -> str:
        """The last part of its address."""
        return addresses.last_part(self.address)

    @property
    def path(self) -> Path:
        """Where the run directory is on this machine.

        Raises:
            StorageError: it is somewhere else.
        """
        if not self.store.is_local:
            raise StorageError(f"{self.address} is no folder of this machine: it has an address and no path")
        return self.store.local("")

    def holds(self, name: str) -> bool:
        """Say whether the run has a file of this name."""
        return self.store.size(name) is not None

    def close(self) -> None:
        """Release what reading took on this machine; the run can still be read."""
        if self._mirror is not None:
            self._mirror.close()

    @property
    def log(self) -> Path:
        """Where on this machine the log is written: everything that did not fit on one line (see :meth:`keep_log`)."""
        return self.store.local(LOG) if self._mirror is None else self._mirror.folder / LOG

    def keep_log(self) -> None:
        """Have what is in the log so far in the run directory."""
        if self._mirror is not None and self.log.exists():
            content = self.log.read_bytes()
            self.store.write(LOG, lambda file: file.write(content))

    @property
    def info(self) -> dict[str, Any]:
        """What ``run.json`` says: versions, cluster, clock anchors, engine settings."""
        return self._read_json(INFO) or {}

    @property
    def result(self) -> RunResult | None:
        """What ``result.json`` says, or None for a run that broke off before its numbers were made.

        Raises:
            StorageError: it is damaged, or another version of rayio wrote it.
        """
        content = self._read_json(RESULT)
        return None if content is None else read_result(content, f"{self.address}/{RESULT}")

    @property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text, or None when the run broke off before it was written."""
        try:
            return None if (text := self.store.read(SCENARIO)) is None else text.decode()
        except UnicodeDecodeError as error:
            raise StorageError(f"cannot read {self.store.full(SCENARIO)}: {error}") from None

    def write_scenario(self, text: str) -> None:
        """Keep the resolved scenario."""
        self.write(SCENARIO, text.encode())

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace ``run.json``; the layout's version is added."""
        self.write(INFO, _json({"version": VERSION, **info}))

    def write_result(self, result: RunResult) -> None:
        """Replace ``result.json``.

        Raises:
            ValueError: a number is not finite; null is what says "not known".
        """
        self.write(RESULT, _json(result.as_json()))

    def reserve(self) -> None:
        """Keep the space that the result will take, where the run is on this machine: spans can fill a disk."""
        if self._mirror is None:
            with contextlib.suppress(OSError), self.store.local(RESERVED).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVED_BYTES)

    def release(self) -> None:
        """Give the space for the result free."""
        if self._mirror is None:
            with contextlib.suppress(OSError):
                self.store.local(RESERVED).unlink()

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the run directory, whole or not at all.

        Raises:
            StorageError: no space, no permission.
        """
        self.store.write(name, lambda file: file.write(content))

    def write_spans(self, table: pa.Table, stem: str) -> Path:
        """Store a table of spans as ``spans/<stem>.parquet``, or ``<stem>-1`` and so on when that name is taken.

        What it gives is a path on this machine with the file's content.
        """
        return self._write_spans(table, stem)

    def _write_spans(self, table: pa.Table, stem: str, replaces: Iterable[str] = ()) -> Path:
        gone = span_files.replaced(paths := self.span_paths())
        taken = {path.name for path in paths} | gone
        name, number = f"{stem}.parquet", 0
        while name in taken:
            number += 1
            name = f"{stem}-{number}.parquet"
        self._spans = None
        return self._write_part(f"{SPANS}/{name}", lambda file: span_files.write(file, table, replaces))

    def _write_part(self, name: str, fill: Fill) -> Path:
        if self._mirror is not None:
            return self._mirror.write(name, fill)
        self.store.write(name, fill)
        return self.store.local(name)

    def span_paths(self) -> list[Path]:
        """Paths on this machine with the content of each span file, by name."""
        names = sorted(name for name in self.store.sizes(SPANS) if name.endswith(".parquet"))
        if not names and self._is_reopened:
            self._miss_spans()
        if self._mirror is None:
            return [self.store.local(f"{SPANS}/{name}") for name in names]
        paths = []
        for name in names:
            with contextlib.suppress(DataError):  # one that stands for it has taken its place since
                paths.append(self._mirror.path(f"{SPANS}/{name}"))
        return paths

    def _miss_spans(self) -> None:
        """Refuse a run without a span file where there should be one.

        Raises:
            StorageError: its folder is gone, or its result says that there are spans.
        """
        where, trace = self.store.full(SPANS), None if (result := self.result) is None else result.trace
        if trace is not None and trace.stored:
            raise StorageError(f"{where} has no span file, and {RESULT} says {trace.stored} spans: restore the folder")
        if trace is None and self.store.is_local and not self.store.local(SPANS).exists():
            raise StorageError(f"{where}: no such folder, so the run's spans are gone: restore it")

    def _remove_part(self, name: str) -> None:
        (self.store if self._mirror is None else self._mirror).remove(f"{SPANS}/{name}")

    def compact(self, rows: int = COMPACT_ROWS) -> None:
        """Join the parts that a run wrote into few files in an order that takes half the bytes.

        Parts go only when the file that stands for them is whole; a part that is damaged stays as it is.

        Raises:
            StorageError: no space, no permission; what was there is there still.
        """
        for name in span_files.replaced(self.span_paths()):  # a compaction that was killed left them behind
            self._remove_part(name)
        parts = [file for file in span_files.among(self.span_paths())[0] if not file.path.name.startswith("spans-")]
        group: list[span_files.SpanFile] = []
        for number, part in enumerate(parts, 1):
            group.append(part)
            if number == len(parts) or sum(file.num_rows for file in group) >= rows:
                self._join(group)
                group = []
        span_files.give_back()

    def _join(self, parts: Sequence[span_files.SpanFile]) -> None:
        tables, read = [], []
        for part in parts:
            with contextlib.suppress(span_files.DamagedError):
                tables.append(part.read())
                read.append(part.path)
        if tables:
            self.write_compacted(span_files.emptied(tables), [path.name for path in read])
        for path in read:
            self._remove_part(path.name)

    def write_compacted(self, table: pa.Table, replaces: Iterable[str] = ()) -> None:
        """Store a table of spans in the order that takes half the bytes; ``replaces`` are files that it stands for."""
        number = sum(name.startswith("spans-") and name.endswith(".parquet") for name in self.store.sizes(SPANS))
        self._write_spans(span_files.ordered(table, span_files.ORDER), f"spans-{number:05d}", replaces)

    @property
    def stored(self) -> int:
        """How many spans the files say that they hold."""
        return sum(file.num_rows for file in span_files.among(self.span_paths())[0])

    def columns(self, *names: str) -> pa.Table:
        """Read these columns of every span, in no order; far quicker and smaller than :meth:`spans`."""
        import pyarrow as pa

        tables = []
        whole, _ = span_files.among(self.span_paths())
        for file in whole:
            with contextlib.suppress(span_files.DamagedError):
                tables.append(file.read(names))
        if not tables:
            return empty_table().select(list(names))
        return pa.concat_tables(tables).unify_dictionaries()

    def spans(self) -> pa.Table:
        """Read every span, sorted by start; a file that cannot be read is left out and named in ``lost_files``.

        Raises:
            StorageError: a newer version of rayio wrote them.
        """
        if self._spans is None:
            import pyarrow as pa

            tables = []
            whole, lost = span_files.among(self.span_paths())
            for file in whole:
                try:
                    tables.append(file.read())
                except span_files.DamagedError as error:
                    lost.append(str(error))
            self._lost = tuple(sorted(lost))
            self._spans = span_files.ordered(pa.concat_tables(tables), ["start_ns"]) if tables else empty_table()
        return self._spans

    def slices(self, rows: int = SLICE_ROWS) -> Slices:
        """The spans by slices of ranks, of about so many each, for who goes through all: few are one slice, sorted."""
        whole, damaged = span_files.among(self.span_paths())
        if sum(file.num_rows for file in whole) <= rows:
            return Slices.of(self.spans())
        found, lost = sliced(whole, rows)
        self._lost = tuple(sorted([*damaged, *lost]))
        return found

    def damaged_files(self) -> list[str]:
        """The names of span files whose footer cannot be read; quicker than reading them (see ``lost_files``)."""
        return span_files.among(self.span_paths())[1]

    @property
    def lost_files(self) -> tuple[str, ...]:
        """Names of span files that are truncated, corrupted or of another schema; their spans are missing."""
        if self._lost is None:
            self.spans()
        return self._lost or ()

    def _read_json(self, name: str) -> dict[str, Any] | None:
        content, path = self.store.read(name), self.store.full(name)
        if content is None:
            return None
        try:
            value = parse_json(content)
        except ValueError as error:
            raise StorageError(f"{path} is not JSON, the file is damaged: {error}") from None
        if not isinstance(value, dict):
            raise StorageError(f"{path} holds {type(value).__name__}, not an object: the file is damaged")
        return value


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
    """Read the table that :func:`to_ipc` wrote."""
    import pyarrow as pa

    return pa.ipc.open_stream(message).read_all()
