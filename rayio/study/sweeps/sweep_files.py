"""The files of a finished sweep: CSV, Parquet and its page."""

from __future__ import annotations

import csv
import io
from typing import Any

from rayio.schema.fields import show
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_page import page
from rayio.study.sweeps.sweep_rows import columns
from rayio.study.sweeps.swept import Swept


def write(sweep: Swept) -> None:
    """Write ``sweep.csv``, ``sweep.parquet`` and ``sweep.html`` into the directory of a sweep.

    Raises:
        StorageError: no space, no permission.
    """
    write_tables(sweep)
    SweepDirectory(sweep.path).write("sweep.html", page(sweep).encode())


def write_tables(sweep: Swept) -> None:
    """Write ``sweep.csv`` and ``sweep.parquet``, as :func:`write` does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = SweepDirectory(sweep.path)
    table = columns(sweep.keys, [row for point in sweep.points for row in point.rows])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    directory.write("sweep.csv", text.getvalue().encode())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: _column(values) for name, values in table.items()}), sink)
    directory.write("sweep.parquet", sink.getvalue().to_pybytes())


def _column(values: list[Any]) -> Any:
    """Return a column of one type: numbers if all values are, else texts as in a scenario."""
    import pyarrow as pa

    known = [value for value in values if value is not None]
    is_plain = any(all(type(value) is kind for value in known) for kind in (bool, int, str))
    if is_plain:
        return pa.array(values)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else value if isinstance(value, str) else show(value) for value in values])
