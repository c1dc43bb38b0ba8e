"""The reads of a row group of Parquet, and the check of its description."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.parquet_file import MAGIC, Shape
from rayio.data.formats.parquet_stream import Chunk
from rayio.data.formats.sample import Place

AGAIN = "truncated, corrupted or foreign; delete it and generate it again"
#: pyarrow reads neighbouring chunks together up to this many bytes.
TOGETHER_BYTES = 32 << 20


@lru_cache(maxsize=64)
def sizes_of(shape: Shape, sample_bytes: int) -> tuple[int, int]:
    """Return the bytes of a file, and of a full row group."""
    sizes, group = np.array([sample_bytes]), np.array([1])
    return int(shape.file_bytes(sizes)[0]), int(shape.group_at(sizes, group)[0]) - len(MAGIC)


@lru_cache(maxsize=1024)
def ranges_of(
    shape: Shape, num_rows: int, sample_bytes: int, columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offsets, from the row group's start, and lengths of the requests for the wanted columns."""
    ends = shape.chunks(num_rows, np.array([sample_bytes]), np.arange(columns + 1))
    edges = [0]
    if int(ends[-1]) > TOGETHER_BYTES:
        chunks = [0, *ends.tolist()]
        for begin, end in pairwise(chunks[1:]):
            if end - edges[-1] > TOGETHER_BYTES:
                edges.append(begin)
    edges.append(int(ends[-1]))
    return np.array(edges[:-1]), np.diff(edges)


def check_group(parquet: Any, place: Place, group: int, chunks: list[Chunk]) -> None:
    """Refuse a file with another description than rayio's, before memory is allocated for its sizes."""
    schema, described = parquet.schema_arrow, parquet.metadata
    wanted = _schema_of(tuple((chunk.name, chunk.width) for chunk in chunks))
    if not schema.equals(wanted):
        types = {name: schema.field(name).type for name in schema.names}
        for name, column in zip(wanted.names, wanted.types, strict=True):
            if types.get(name) != column:
                actual = types.get(name, "none")
                raise place.error(f"expected column {name} of {column.byte_width} bytes, found {actual}: {AGAIN}")
    rows = described.row_group(group).num_rows if group < described.num_row_groups else 0
    if rows != chunks[0].num_rows:
        raise place.error(f"expected row group {group} of {chunks[0].num_rows} rows, found {rows}: {AGAIN}")


@lru_cache(maxsize=64)
def _schema_of(widths: tuple[tuple[str, int], ...]) -> Any:
    """Return the schema of columns, by name and bytes of a value, as pyarrow has it."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.binary(width), nullable=False) for name, width in widths])
