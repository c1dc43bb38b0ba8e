"""SQL over the spans of a run, read-only, by DuckDB."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayio.errors import QueryError, StorageError
from rayio.signals import deferred, is_anything_left, within
from rayio.trace.arrow import empty_table
from rayio.trace.rows import NOTHING
from rayio.trace.run_directory import SPANS, RunDirectory
from rayio.trace.span import COLUMNS
from rayio.trace.span_files import DamagedError, SpanFile, among

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Seconds between two checks for the answer.
LOOK_SECONDS = 0.05
#: Settings that forbid DuckDB progress bars, spilling to disk, Python variables, extensions, files and the network. The
#: last one keeps statements from undoing the others.
_LOCKS = (
    "SET temp_directory = ''",
    "SET enable_progress_bar = false",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a query as an Arrow table, and the names of damaged span files, which it leaves out."""

    table: pa.Table
    damaged: tuple[str, ...]


def query(directory: RunDirectory, sql: str) -> Answer:
    """Run a SELECT over the view ``spans``: every readable span of the run.

    Columns are those of :data:`rayio.trace.span.COLUMNS`; only the columns that the query names are read and verified.

    Raises:
        QueryError: not SQL, not a SELECT, an unknown name, or too little memory.
        StorageError: the run has spans, and no file of them can be read.
    """
    with deferred():  # a signal raised while C code is loaded would abort the process
        import duckdb

    files: dict[Path, str] = {}
    whole, damaged = among(directory.span_paths())
    for file in whole:
        try:
            files[file.path] = ", ".join(_column(file, name) for name in COLUMNS)
        except DamagedError as error:
            damaged.append(str(error))
    _refuse_none(directory, len(files), damaged)
    engine = duckdb.connect(":memory:")
    try:
        for lock in _LOCKS:
            engine.execute(lock)
        _check(engine, sql)
        try:
            table = _run(engine, files, sql)
        except duckdb.Error as error:
            # Either the statement or a page is wrong: read every file to decide.
            broken = [path for path in files if not _is_whole(path)]
            if not broken:
                raise QueryError(_sentence(error, sql)) from None
            damaged += [path.name for path in broken]
            _refuse_none(directory, len(files) - len(broken), damaged)
            table = _run(engine, {path: columns for path, columns in files.items() if path not in broken}, sql)
    except duckdb.Error as error:
        raise QueryError(_sentence(error, sql)) from None
    finally:
        engine.close()
    return Answer(table, tuple(sorted(damaged)))


def _refuse_none(directory: RunDirectory, whole: int, damaged: Sequence[str]) -> None:
    """Refuse a run with spans but without a readable span file."""
    if damaged and not whole:
        where = directory.store.full(f"{SPANS}/{min(damaged)}")
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise StorageError(f"{where} is damaged{more}, and no other span file is there: restore it")


def _check(engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    import duckdb

    statements = engine.extract_statements(sql)
    if not statements:
        raise QueryError('nothing to run; give a query such as "select name, count(*) from spans group by name"')
    if len(statements) > 1:
        raise QueryError(f"{len(statements)} statements; give one at a time")
    if (kind := statements[0].type) != duckdb.StatementType.SELECT:
        raise QueryError(f"{kind.name} is not allowed: a run is only read, so the query must be a SELECT")


def _column(file: SpanFile, name: str) -> str:
    if (stored := file.stored(name)) is None:
        nothing = NOTHING[name]
        value = f"'{nothing}'" if isinstance(nothing, str) else str(nothing)
    else:
        value = f'"{stored[0]}"' + (f" * {stored[1]}" if stored[1] != 1 else "")
    return f'{value} as "{name}"'


def _run(engine: duckdb.DuckDBPyConnection, files: Mapping[Path, str], sql: str) -> pa.Table:
    """Run a query over files, each with its columns in SQL; files with the same columns are one dataset."""
    import pyarrow.dataset as ds

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    if not files:
        engine.register("nothing", empty_table())
    alike = {columns: [str(path) for path in files if files[path] == columns] for columns in files.values()}
    parts = [] if files else ["select * from nothing"]
    for number, (columns, paths) in enumerate(alike.items()):
        engine.register(f"files_{number}", ds.dataset(paths, format=form))
        parts.append(f"select {columns} from files_{number}")
    engine.execute(f"create or replace temp view spans as {' union all '.join(parts)}")
    # The engine would block Ctrl-C in the main thread, so it runs in another.
    try:
        return within(math.inf, lambda: engine.sql(sql).to_arrow_table(), every=LOOK_SECONDS)
    except KeyboardInterrupt:
        while is_anything_left():  # an interrupt that comes before the engine has begun is lost on it
            engine.interrupt()
            threading.Event().wait(LOOK_SECONDS)
        raise


def _is_whole(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _sentence(error: Exception, sql: str) -> str:
    """Return the engine's message without its drawing of the statement, with rayio's hints."""
    text = " ".join(str(error).partition("\nLINE ")[0].partition("Candidate functions:")[0].split())
    if text.startswith("Catalog Error: Table with name"):
        return f"{text.partition(' Did you mean')[0]} The table is spans"
    if text.startswith("Parser Error") and re.search(r'(?<!")\boffset\b(?!")', sql, re.IGNORECASE):
        return f'{text}; the column is written "offset", in quotes'
    return text
