"""The run directory: scenario, environment, spans and results of a run; readable after any interruption.

``scenario.yaml`` (resolved), ``run.json`` (versions, cluster, clocks), ``spans/*.parquet``, ``result.json`` and
``log.txt``. Every file except the log appears whole or not at all. The directory may be on any storage; span files on
other machines are fetched once into a temporary folder.
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
from rayio.kinds import COMPLETIONS
from rayio.records.run_result import RunResult, read_result
from rayio.storage import address as addresses
from rayio.storage.stores.mirror import Mirror
from rayio.storage.stores.opening import DEFAULTS, Fill, Settings, with_option
from rayio.trace import span_files
from rayio.trace.arrow import empty_table
from rayio.trace.elsewhere import explained
from rayio.trace.slices import SLICE_ROWS, Slices, sliced

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of the layout of a run directory, in ``run.json``.
VERSION = 1
#: Spans that compaction sorts and writes together; their memory is needed three times.
COMPACT_ROWS = 1 << 19
#: A file that reserves space for the result during a run, and its size.
RESERVED, RESERVED_BYTES = ".reserved", 128 << 10
#: How the names of files begin with which a process takes a run up (``rayio.session.claiming``).
CLAIM = ".claim-"
#: File names in a run directory.
INFO, RESULT, SCENARIO, SPANS, LOG = "run.json", "result.json", "scenario.yaml", "spans", "log.txt"
RESUME = "resume.json"
#: Keys of ``run.json`` that are lists of objects.
LISTED = ("nodes", "actors", "restarts")
#: Keys of ``run.json`` that are texts.
TEXTS = ("run_id", "engine", "root", "payload", "host", "started", "resumed", "scenario", "scenario_digest")


class RunDirectory:
    """A run on any storage: :meth:`create` makes it, :meth:`open` reads it. ``settings`` are the store's."""

    def __init__(self, address: str | Path, settings: Settings = DEFAULTS) -> None:
        self.store = storage.open(address, settings)
        self._mirror = None if self.store.is_local else Mirror(self.store)
        self._spans: pa.Table | None = None
        self._lost: tuple[str, ...] | None = None
        #: True if the run existed before: then missing spans are an error.
        self._is_reopened = False
        #: The result last read, with the bytes it was parsed from: an explanation asks for it a dozen times.
        self._known: tuple[bytes, RunResult] | None = None
        #: True if this object created the directory.
        self._is_ours = False

    @classmethod
    def create(
        cls, address: str | Path, info: Mapping[str, Any] | None = None, settings: Settings = DEFAULTS
    ) -> RunDirectory:
        """Return a new run directory, with parents, and its ``run.json`` from ``info``.

        Raises:
            StorageError: the address has a run or foreign files, or cannot be written.
        """
        run = cls(address, settings)
        try:
            run.make(info or {})
        except BaseException:
            run.unmake()
            raise
        return run

    def make(self, info: Mapping[str, Any]) -> None:
        """Create the directory if it is missing, so that :meth:`unmake` can remove it; see :meth:`create`."""
        if self.store.is_file:
            raise StorageError(f"{self.address} is a file; give --out a directory that does not exist yet")
        there = {name for name in self.store.entries() if not name.startswith(CLAIM)}
        if INFO in there:
            raise StorageError(f"{self.address} already holds a run; choose another --out, or remove it")
        if there - {RESERVED}:  # the name was claimed
            raise StorageError(f"{self.address} is not empty and holds no run; choose another --out")
        self._is_ours = True
        try:
            self.store.prepare("writing there", SPANS)
        except StorageError as error:
            self._is_ours = False
            raise with_option(error, "cannot make the run directory", "--out") from None
        self._is_ours = self.store.create(INFO, _json({"version": VERSION, **info}))
        if not self._is_ours:
            raise StorageError(f"{self.address} already holds a run, which began just now; choose another --out")
        if RESERVED in there:
            self.store.remove(RESERVED)

    def unmake(self) -> None:
        """Remove the files that :meth:`make` created."""
        if self._is_ours:
            self.store.remove_all()

    @classmethod
    def open(cls, address: str | Path, settings: Settings = DEFAULTS) -> RunDirectory:
        """Return an existing run directory.

        Raises:
            StorageError: no run there, not readable, or another layout version.
        """
        run = cls(address, settings)
        run._is_reopened = True
        if not run.holds(INFO):
            raise StorageError(f"{run.address} is not a run directory: {explained(run.store, INFO)}")
        version = run.info.get("version")
        if version != VERSION:
            raise StorageError(
                f"{run.address} has layout version {version!r}; this one reads {VERSION}: use the rayio that wrote it"
            )
        if run.store.is_local and (engine := run.info.get("engine")) in COMPLETIONS.built_in:
            COMPLETIONS[engine](run)
        return run

    @property
    def address(self) -> str:
        """The address as given."""
        return self.store.address

    @property
    def shown(self) -> str:
        """The address, usable from any working directory."""
        return addresses.shown(self.address)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return addresses.last_part(self.address)

    @property
    def path(self) -> Path:
        """The run directory's path on this machine.

        Raises:
            StorageError: it is on another storage.
        """
        if not self.store.is_local:
            raise StorageError(f"{self.address} has no path: it is no folder of this machine")
        return self.store.local("")

    def holds(self, name: str) -> bool:
        """Return True if the run has a file of this name."""
        return self.store.size(name) is not None

    def close(self) -> None:
        """Remove the local copies made for reading; the run stays readable."""
        if self._mirror is not None:
            self._mirror.close()

    @property
    def log(self) -> Path:
        """The log's path on this machine; it has everything that does not fit on one line (see :meth:`keep_log`)."""
        return self.store.local(LOG) if self._mirror is None else self._mirror.folder / LOG

    def keep_log(self) -> None:
        """Copy the log so far into the run directory."""
        if self._mirror is not None and self.log.exists():
            content = self.log.read_bytes()
            self.store.write(LOG, lambda file: file.write(content))

    @property
    def info(self) -> dict[str, Any]:
        """The content of ``run.json``: versions, cluster, clock anchors, engine settings."""
        info = self._read_json(INFO) or {}
        for key in LISTED:
            entries = [] if info.get(key) is None else info[key]
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise StorageError(f"{self.store.full(INFO)}: {key} is no list of objects: the file is damaged")
        for key in TEXTS:
            if not isinstance(info.get(key), str | None):
                raise StorageError(f"{self.store.full(INFO)}: {key} is no text: the file is damaged")
        return info

    @property
    def result(self) -> RunResult | None:
        """The content of ``result.json``; None for a run that was interrupted before.

        Raises:
            StorageError: the file is damaged, or of another version.
        """
        content = self.store.read(RESULT)
        if content is None:
            return None
        if self._known is None or self._known[0] != content:
            self._known = content, read_result(self._parsed(RESULT, content), f"{self.address}/{RESULT}")
        return self._known[1]

    @property
    def scenario(self) -> str | None:
        """The content of ``scenario.yaml``, which may be edited; None for a run that was interrupted before."""
        try:
            return None if (text := self.store.read(SCENARIO)) is None else text.decode()
        except UnicodeDecodeError as error:
            raise StorageError(f"cannot read {self.store.full(SCENARIO)}: {error}") from None

    def write_scenario(self, text: str) -> None:
        """Write the resolved scenario."""
        self.write(SCENARIO, text.encode())

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write ``run.json``, with the layout version."""
        self.write(INFO, _json({"version": VERSION, **info}))

    def write_result(self, result: RunResult) -> None:
        """Write ``result.json``.

        Raises:
            ValueError: a number is not finite; write unknown numbers as null.
        """
        self.write(RESULT, _json(result.as_json()))

    def reserve(self) -> None:
        """Reserve space for the result on this machine, because spans can fill a disk."""
        with contextlib.suppress(OSError, StorageError), self.store.local(RESERVED).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVED_BYTES)

    def release(self) -> None:
        """Free the reserved space."""
        with contextlib.suppress(OSError, StorageError):
            self.store.local(RESERVED).unlink()

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the run directory, atomically.

        Raises:
            StorageError: no space, no permission.
        """
        self.store.write(name, lambda file: file.write(content))

    def write_spans(self, table: pa.Table, stem: str) -> Path:
        """Write a table of spans to ``spans/<stem>.parquet``, or ``<stem>-1`` and so on if the name is taken.

        Returns a path on this machine with the file's content.
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
        """Return paths on this machine with the content of each span file, by name."""
        names = sorted(name for name in self.store.sizes(SPANS) if name.endswith(".parquet"))
        if not names and self._is_reopened:
            self._miss_spans()
        if self._mirror is None:
            return [self.store.local(f"{SPANS}/{name}") for name in names]
        paths = []
        for name in names:
            with contextlib.suppress(DataError):  # a compacted file has replaced it since
                paths.append(self._mirror.path(f"{SPANS}/{name}"))
        return paths

    def _miss_spans(self) -> None:
        """Refuse a run whose span files are missing."""
        where, trace = self.store.full(SPANS), None if (result := self.result) is None else result.trace
        if trace is not None and trace.stored:
            raise StorageError(f"{where} has no span file, and {RESULT} says {trace.stored} spans: restore the folder")
        if trace is None and self.store.is_local and not self.store.local(SPANS).exists():
            raise StorageError(f"{where}: no such folder, so the run's spans are gone: restore it")

    def _remove_part(self, name: str) -> None:
        (self.store if self._mirror is None else self._mirror).remove(f"{SPANS}/{name}")

    def compact(self, rows: int = COMPACT_ROWS) -> None:
        """Join the span parts of a run into few files, in an order that takes half the bytes.

        Parts are removed once the new file is complete; damaged parts stay.

        Raises:
            StorageError: no space, no permission; the parts stay.
        """
        for name in span_files.replaced(self.span_paths()):  # left by a compaction that was killed
            self._remove_part(name)
        parts = [file for file in span_files.among(self.span_paths())[0] if not span_files.is_compacted(file.path.name)]
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
            self._compacted(tables, [path.name for path in read])
        for path in read:
            self._remove_part(path.name)

    def write_compacted(self, table: pa.Table, replaces: Iterable[str] = ()) -> None:
        """Write spans in the order that takes half the bytes; ``replaces`` names the files that it replaces."""
        self._compacted([table], replaces)

    def _compacted(self, tables: list[pa.Table], replaces: Iterable[str]) -> None:
        number = sum(span_files.is_compacted(name) and name.endswith(".parquet") for name in self.store.sizes(SPANS))
        self._write_spans(span_files.ordered(tables, span_files.ORDER), f"{span_files.COMPACTED}{number:05d}", replaces)

    @property
    def stored(self) -> int:
        """The number of spans in all files, from their metadata."""
        return sum(file.num_rows for file in span_files.among(self.span_paths())[0])

    def columns(self, *names: str) -> pa.Table:
        """Return these columns of every span, unordered; much faster and smaller than :meth:`spans`."""
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
        """Return every span, sorted by start; unreadable files are skipped and named in ``lost_files``.

        Raises:
            StorageError: a newer version of rayio wrote them.
        """
        if self._spans is None:
            tables = []
            whole, lost = span_files.among(self.span_paths())
            for file in whole:
                try:
                    tables.append(file.read())
                except span_files.DamagedError as error:
                    lost.append(str(error))
            self._lost = tuple(sorted(lost))
            self._spans = span_files.ordered(tables, ["start_ns"]) if tables else empty_table()
        return self._spans

    def slices(self, rows: int = SLICE_ROWS) -> Slices:
        """Return the spans in slices of ranks of about ``rows`` spans; a small run is one sorted slice."""
        whole, damaged = span_files.among(self.span_paths())
        if sum(file.num_rows for file in whole) <= rows:
            return Slices.of(self.spans())
        slices, lost = sliced(whole, rows)
        self._lost = tuple(sorted([*damaged, *lost]))
        return slices

    def damaged_files(self) -> list[str]:
        """Return the names of span files with an unreadable footer; faster than reading them (see ``lost_files``)."""
        return span_files.among(self.span_paths())[1]

    @property
    def lost_files(self) -> tuple[str, ...]:
        """Names of truncated, corrupted or foreign span files, whose spans are missing."""
        if self._lost is None:
            self.spans()
        return self._lost or ()

    def _read_json(self, name: str) -> dict[str, Any] | None:
        content = self.store.read(name)
        return None if content is None else self._parsed(name, content)

    def _parsed(self, name: str, content: bytes) -> dict[str, Any]:
        path = self.store.full(name)
        try:
            value = parse_json(content)
        except ValueError as error:
            raise StorageError(f"{path} is not JSON, the file is damaged: {error}") from None
        if not isinstance(value, dict):
            raise StorageError(f"{path} holds {type(value).__name__}, not an object: the file is damaged")
        return value


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
