"""SQL over the spans of a run, by DuckDB: it reads them and nothing else, and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio.errors import QueryError
from rayio.trace.span import COLUMNS, schema
from rayio.trace.store import RunDirectory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: What the engine may not do: spill to disk, see our variables, load extensions, reach files or the network. The last
#: one keeps a statement from undoing the others.
_LOCKS = (
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave, as an Arrow table, and the names of the span files that were damaged and left out."""

    table: pa.Table
    damaged: tuple[str, ...]


def query(directory: RunDirectory, sql: str) -> Answer:
    """Run one SELECT over the view ``spans``: every span of the run that can be read.

    Columns are those of :data:`rayio.trace.span.COLUMNS`; only those that the query names are read, and each page is
    checked as it is.

    Raises:
        QueryError: one sentence: not SQL, not a SELECT, a name that does not exist, too little memory.
    """
    import duckdb

    files: list[Path] = []
    damaged: list[Path] = []
    for path in sorted((directory.path / "spans").glob("*.parquet")):
        (files if _has_columns(path) else damaged).append(path)
    engine = duckdb.connect(":memory:")
    try:
        for lock in _LOCKS:
            engine.execute(lock)
        _check(engine, sql)
        try:
            table = _run(engine, files, sql)
        except duckdb.Error as error:
            # The statement is at fault, or a page is: which of the two, a look into every file tells.
            broken = [path for path in files if not _is_whole(path)]
            if not broken:
                raise QueryError(_sentence(error)) from None
            damaged += broken
            table = _run(engine, [path for path in files if path not in broken], sql)
    except duckdb.Error as error:
        raise QueryError(_sentence(error)) from None
    finally:
        engine.close()
    return Answer(table, tuple(sorted(path.name for path in damaged)))


def _check(engine: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse everything but one SELECT."""
    import duckdb

    statements = engine.extract_statements(sql)
    if not statements:
        raise QueryError('nothing to run; give a query such as "select name, count(*) from spans group by name"')
    if len(statements) > 1:
        raise QueryError(f"{len(statements)} statements; give one at a time")
    if (kind := statements[0].type) != duckdb.StatementType.SELECT:
        raise QueryError(f"{kind.name} is not allowed: a run is only read, so the query must be a SELECT")


def _run(engine: duckdb.DuckDBPyConnection, files: list[Path], sql: str) -> pa.Table:
    import pyarrow.dataset as ds

    spans: Any = schema().empty_table()
    if files:
        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        spans = ds.dataset([*map(str, files)], format=ds.ParquetFileFormat(default_fragment_scan_options=options))
    engine.register("spans", spans)
    return engine.sql(sql).to_arrow_table()


def _has_columns(path: Path) -> bool:
    """Say whether a file's footer can be read and names every column of a span."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {*COLUMNS} <= {*pq.read_schema(path).names}
    except (pa.ArrowException, OSError):
        return False


def _is_whole(path: Path) -> bool:
    """Read a file to its end, page by page, against its checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError):
        return False
    return True


def _sentence(error: Exception) -> str:
    """Give the engine's message without the picture of the statement below it."""
    text = str(error).partition("\nLINE ")[0].partition("Candidate functions:")[0]
    return " ".join(text.split())
