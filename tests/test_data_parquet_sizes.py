"""Parquet with samples of several sizes, as pyarrow has it: a column of byte arrays."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayio.data.formats import FORMATS
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.formats.sample import fill
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, ScenarioError
from rayio.schema.distribution import LogNormal, Uniform
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import scenario

FORM = FORMATS["parquet"]


def layout_of(per_file: int, high: int, row_group: int | None = None) -> Layout:
    options = ParquetOptions(row_group=row_group)
    return Layout(2, per_file, Uniform(low=16, high=high), 5, ".parquet", options, sizes="per_sample")


@pytest.mark.parametrize(
    ("per_file", "high", "row_group", "groups"),
    [(1, 20, None, 1), (7, 500, 3, 3), (300, 3000, 64, 5), (6, 900_000, None, 1), (1500, 90, 1, 1500)],
)
def test_pyarrow_reads_the_samples_as_byte_arrays(per_file: int, high: int, row_group: int | None, groups: int) -> None:
    layout = layout_of(per_file, high, row_group)
    for number in range(2):
        FORM.write(file := io.BytesIO(), layout, number)
        assert len(file.getvalue()) == FORM.file_bytes(layout, np.arange(2))[number]
        table = pq.ParquetFile(file)
        assert (table.metadata.num_row_groups, table.metadata.num_rows) == (groups, per_file)
        assert table.schema_arrow == pa.schema([pa.field("x", pa.binary(), nullable=False)])
        values = pq.read_table(file, page_checksum_verification=True)["x"].to_pylist()
        for sample, value in enumerate(values, number * per_file):
            expected = np.empty(len(value), np.uint8)
            fill(expected, layout.seed, sample)
            assert value == expected.tobytes()


@pytest.mark.parametrize("row_group", [1, 3, None])
def test_a_batch_costs_the_row_groups_with_its_samples(row_group: int | None, tmp_path: Path) -> None:
    layout = layout_of(12, 30_000, row_group)
    for number in range(2):
        path = tmp_path / layout.path(number)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            FORM.write(file, layout, number)
    ids = np.array([13, 2, 1, 23, 0, 14])
    files, index = layout.locate(ids)
    batch = Batch(0, 0, 0, ids, files, index, layout.delivered_bytes_of(ids, files))
    traffic = Traffic(0)
    read = FORM.read(
        counted_opener(PosixStore(tmp_path), traffic), layout, batch, np.empty(batch.total_bytes, np.uint8)
    )
    assert read.tolist() == ids.tolist()
    planned = FORM.requests(layout, batch)
    assert traffic.issued is not None
    assert planned.places is not None
    rows = traffic.issued.rows[traffic.issued.rows["nbytes"] > 0]
    assert rows["nbytes"].tolist() == planned.nbytes.tolist()
    assert rows["offset"].tolist() == planned.places()[2].tolist()
    assert planned.num_opens == 2
    assert len(planned.nbytes) == 2 + {1: 6, 3: 3, None: 2}[row_group]


def test_sizes_are_those_of_any_distribution() -> None:
    layout = Layout(1, 2000, LogNormal(median=900, sigma=1.0), 5, ".parquet", ParquetOptions(), sizes="per_sample")
    FORM.write(file := io.BytesIO(), layout, 0)
    sizes = [len(value.as_py()) for value in pq.read_table(file)["x"]]
    assert sizes == layout.sizes_of(np.arange(2000)).tolist()
    assert np.median(sizes) == pytest.approx(900, rel=0.1)


def test_a_file_of_samples_of_one_size_is_refused() -> None:
    layout = layout_of(3, 60)
    other = Layout(2, 3, Uniform(low=16, high=60), 5, ".parquet", ParquetOptions())
    FORM.write(file := io.BytesIO(), other, 0)
    batch = layout.whole_file(0)
    with pytest.raises(DataError, match=r"sample 0 \(row 0\): expected a parquet file of \d+ bytes, found one of"):
        FORM.read(lambda path: io.BytesIO(file.getvalue()), layout, batch, np.empty(batch.total_bytes, np.uint8))


@pytest.mark.parametrize(("key", "value"), [("columns", 3), ("compression", "zstd")])
def test_samples_of_several_sizes_are_one_column_that_is_not_compressed(key: str, value: object) -> None:
    with pytest.raises(ScenarioError, match=rf"dataset.{key}={value}: not for samples that differ in size"):
        scenario(dataset__format="parquet", dataset__sizes="per_sample", **{f"dataset__{key}": value})
