"""Parquet: what is asked for is what pyarrow asks for, sizes are known before, and nothing wrong is delivered."""

from __future__ import annotations

import gc
import io
import itertools
import re
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.data.formats import FORMATS, layout_of
from rayio.data.formats.parquet import columns_of, shape_of
from rayio.data.formats.parquet_file import CODECS
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.formats.sample import HEADER, Place, check, fill
from rayio.data.formats.sample import checksum as checksum_of
from rayio.data.generate import prepare, verify
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, ScenarioError
from rayio.scenario import derive
from rayio.schema.distribution import Constant, Distribution, Uniform
from rayio.storage.base import READ
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import scenario

PARQUET = FORMATS["parquet"]
SMALL = Uniform(low=16, high=300)
NAMED = r"00000000\d\.parquet: sample \d+ \(row \d+\): expected .*(found|its bytes give)"


def layout(per_file: int = 10, size: Distribution = SMALL, num_files: int = 3, **options: Any) -> Layout:
    return Layout(num_files, per_file, size, 5, PARQUET.extension, options=ParquetOptions(**options))


def written(of: Layout, number: int = 0) -> bytes:
    file = io.BytesIO()
    PARQUET.write(file, of, number)
    return file.getvalue()


def batch_of(of: Layout, samples: list[int]) -> Batch:
    ids = np.array(samples, np.int64)
    files, index = of.locate(ids)
    return Batch(0, 0, 0, ids, files, index, of.read_bytes_of(files))


def read(of: Layout, samples: list[int], *contents: bytes) -> tuple[list[int], list[bytes]]:
    """Read samples of files that hold ``contents``; give the ids found and the bytes of each sample."""
    batch = batch_of(of, samples)
    out = np.full(batch.total_bytes, 0xAA, np.uint8)
    ids = PARQUET.read(lambda path: io.BytesIO(contents[int(path[7:16])]), of, batch, out)
    edges = [0, *np.cumsum(batch.nbytes).tolist()]
    return ids.tolist(), [out[a:b].tobytes() for a, b in itertools.pairwise(edges)]


def sample_of(of: Layout, number: int) -> NDArray[np.uint8]:
    files, _ = of.locate(np.array([number]))
    row = np.zeros(int(of.sample_bytes_of(files)[0]), np.uint8)
    fill(row, of.seed, number)
    return row


class Logged(io.BytesIO):
    """A file that notes what pyarrow itself asks of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked: list[tuple[int, int]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.append((self.tell(), size or 0))
        return super().read(size)


@given(
    per_file=st.integers(1, 40), high=st.sampled_from([16, 60, 5000]), row_group=st.none() | st.integers(1, 50),
    columns=st.integers(1, 12), data=st.data(), compression=st.sampled_from([*CODECS]),
)  # fmt: skip
def test_requests_are_those_that_pyarrow_makes_by_itself(  # type: ignore[no-untyped-def]
    per_file, high, row_group, columns, data, compression
) -> None:
    wanted = data.draw(st.none() | st.integers(1, columns))
    of = layout(per_file, Uniform(low=16, high=high), 1, row_group=row_group, columns=columns, read_columns=wanted,
                compression=compression)  # fmt: skip
    sample = data.draw(st.integers(0, per_file - 1))
    planned = PARQUET.requests(of, batch_of(of, [sample]))
    assert planned.places is not None
    files, file, offsets = planned.places()
    assert ([*files], set(file.tolist())) == ([of.path(0)], {0})
    logged = Logged(written(of))
    alone = pq.ParquetFile(logged)  # as pyarrow is by default: neighbouring chunks are read together
    names = shape_of(of).names()[: columns_of(of) + 1]
    alone.read_row_group(sample // (row_group or per_file), columns=names, use_threads=False)
    assert sorted(logged.asked) == sorted(zip(offsets.tolist(), planned.nbytes.tolist(), strict=True))


def test_a_description_that_is_longer_than_the_end_that_is_read_is_one_request_more() -> None:
    of = layout(64, Constant(value=216), 1, row_group=1, columns=20, read_columns=3)
    content = written(of)
    logged = Logged(content)
    pq.ParquetFile(logged).read_row_group(5, columns=["id", "x00", "x01", "x02"], use_threads=False)
    planned = PARQUET.requests(of, batch_of(of, [5]))
    assert planned.places is not None
    assert len(planned.nbytes) == 3
    assert sorted(logged.asked) == sorted(zip(planned.places()[2].tolist(), planned.nbytes.tolist(), strict=True))
    assert read(of, [5], content)[0] == [5]


def test_neighbouring_columns_are_read_together_up_to_32_mib() -> None:
    of = layout(4, Constant(value=5 << 20), 1, columns=3)
    content = written(of)
    planned = PARQUET.requests(of, batch_of(of, [1]))
    logged = Logged(content)
    pq.ParquetFile(logged).read_row_group(0, use_threads=False)
    assert planned.places is not None
    assert sorted(logged.asked) == sorted(zip(planned.places()[2].tolist(), planned.nbytes.tolist(), strict=True))
    wide = layout(4, Constant(value=20 << 20), 1, columns=3)  # 26.7 MiB a column
    assert len(PARQUET.requests(wide, batch_of(wide, [1])).nbytes) == 1 + 3


@given(
    samples=st.lists(st.integers(0, 89), unique=True, min_size=1, max_size=20),
    columns=st.integers(1, 7), row_group=st.sampled_from([None, 1, 7, 30, 100]), data=st.data(),
    compression=st.sampled_from(["none", "zstd"]),
)  # fmt: skip
def test_what_is_read_was_asked_for_as_planned_and_is_the_first_columns_of_each_sample(  # type: ignore[no-untyped-def]
    samples, columns, row_group, data, compression, tmp_path_factory
) -> None:
    wanted = data.draw(st.none() | st.integers(1, columns))
    of = layout(30, row_group=row_group, columns=columns, read_columns=wanted, compression=compression)
    root = tmp_path_factory.mktemp("dataset")
    (root / "000000").mkdir()
    for number in range(3):
        (root / of.path(number)).write_bytes(written(of, number))
    batch, asked = batch_of(of, samples), Traffic(0)
    out = np.zeros(batch.total_bytes, np.uint8)
    assert PARQUET.read(counted_opener(PosixStore(root), asked), of, batch, out).tolist() == samples
    planned = PARQUET.requests(of, batch)
    assert planned.places is not None
    assert asked.issued is not None
    rows = asked.issued.rows[asked.issued.rows["kind"] == READ]
    files, file, offsets = planned.places()
    assert asked.opens == planned.num_opens
    assert rows["nbytes"].tolist() == planned.nbytes.tolist()
    assert rows["offset"].tolist() == offsets.tolist()
    assert [asked.issued.files[n] for n in rows["file"]] == [files[n] for n in file]
    if compression == "none":
        expected = [sample_of(of, n)[:size] for n, size in zip(samples, batch.nbytes.tolist(), strict=True)]
        assert out.tobytes() == b"".join(row.tobytes() for row in expected)
    whole = of.stored
    if wanted in (None, columns):
        at = 0
        for size, number in zip(batch.nbytes.tolist(), samples, strict=True):
            row = out[at : at + size].data
            assert HEADER.unpack_from(row) == (number, checksum_of(row[HEADER.size :], of.seed, number))
            at += size
    assert whole.read_bytes_of(batch.files).tolist() == of.sample_bytes_of(batch.files).tolist()


@given(
    per_file=st.integers(1, 60), high=st.sampled_from([16, 60, 400, 9000]), columns=st.integers(1, 9),
    row_group=st.sampled_from([None, 1, 7, 30]), ratio=st.sampled_from([1.1, 2.0, 3.7, 8.0]),
    compression=st.sampled_from([*CODECS]), number=st.integers(0, 2),
)  # fmt: skip
def test_the_size_of_a_file_is_known_whatever_a_codec_makes_of_it(  # type: ignore[no-untyped-def]
    per_file, high, columns, row_group, ratio, compression, number
) -> None:
    more = {} if compression == "none" else {"compression": compression, "compression_ratio": ratio}
    of = layout(per_file, Uniform(low=16, high=high), columns=columns, row_group=row_group, **more)
    content = written(of, number)
    assert PARQUET.file_bytes(of, np.array([number])).tolist() == [len(content)]
    table = pq.read_table(io.BytesIO(content), page_checksum_verification=True)
    assert table.num_rows == per_file
    assert read(of, [number * per_file], *[content] * 3)[0] == [number * per_file]


@pytest.mark.parametrize("compression", ["snappy", "gzip", "lz4", "zstd"])
def test_a_compressed_column_is_as_many_times_smaller_as_asked_for_and_really_compressed(compression: str) -> None:
    plain = layout(8, Constant(value=400_016), columns=2)
    of = layout(8, Constant(value=400_016), columns=2, compression=compression, compression_ratio=4)
    content = written(of)
    assert len(written(plain)) / len(content) == pytest.approx(4, rel=0.01)
    chunk = pq.read_metadata(io.BytesIO(content)).row_group(0).column(1)
    assert chunk.compression == compression.upper().replace("LZ4", "LZ4_RAW") or chunk.compression == "LZ4"
    (_, (row,)) = read(of, [3], content)
    assert check(memoryview(row), of.seed, Place("f", 3, 3)) == 3  # the checksum is of what is in the file
    zeros = row.count(0) / len(row)
    assert 0.7 < zeros < 0.9


def queried(query: str) -> list[tuple[Any, ...]]:
    answer = duckdb.sql(query)
    assert answer is not None
    return answer.fetchall()


def test_other_readers_of_parquet_see_the_samples(tmp_path: Path) -> None:
    of = layout(10, Constant(value=100), columns=3, row_group=4, compression="zstd")
    path = tmp_path / "one.parquet"
    path.write_bytes(written(of, 1))
    rows = queried(f"select * from '{path}'")
    whole = read(of, [*range(10, 20)], b"", path.read_bytes())[1]
    assert [b"".join(row) for row in rows] == whole
    groups = queried(f"select distinct row_group_num_rows from parquet_metadata('{path}') order by 1")
    assert groups == [(2,), (4,)]


def test_a_sample_costs_its_row_group_and_fewer_columns_cost_less() -> None:
    def costs(**options: Any) -> int:
        of = layout(1000, Constant(value=10_016), 1, columns=10, **options)
        return int(PARQUET.requests(of, batch_of(of, [500])).nbytes[1:].sum())

    whole, grouped, projected = costs(), costs(row_group=50), costs(row_group=50, read_columns=2)
    assert whole == pytest.approx(10_016_000, rel=0.01)
    assert grouped == pytest.approx(500_800, rel=0.01)
    assert projected == pytest.approx(50 * (16 + 2000), rel=0.02)


def test_a_file_is_given_back_whatever_happens() -> None:
    of = layout(4, Constant(value=100))
    content = written(of)
    described = bytearray(content)
    described[-100] ^= 1
    seen: list[weakref.ref[io.BytesIO]] = []

    class Watched(io.BytesIO):
        pass

    for bytes_of in (content, bytes(described), content[:50], content[:-20] + b"\0" * 20):

        def opener(path: str, content: bytes = bytes_of) -> Any:
            file = Watched(content)
            seen.append(weakref.ref(file))
            return file

        batch = batch_of(of, [1])
        with suppress(DataError):
            PARQUET.read(opener, of, batch, np.zeros(batch.total_bytes, np.uint8))
        gc.collect()
    assert [ref() for ref in seen] == [None] * 4


def test_a_page_that_says_it_is_huge_takes_no_memory() -> None:
    of = layout(4, Constant(value=100), 1, compression="zstd")
    content = bytearray(written(of))
    # the plain size in the header of the first page of x, 2 GiB
    begin = int(pq.read_metadata(io.BytesIO(bytes(content))).row_group(0).column(1).data_page_offset)
    content[begin + 3 : begin + 8] = b"\xfe\xff\xff\xff\x0f"
    with pytest.raises(
        DataError, match=r"sample 0 \(row 0\): expected a page of 4 rows of column x at byte \d+, found"
    ):
        read(of, [0], bytes(content))


def test_a_chunk_of_another_place_is_told_though_its_own_checksums_are_right() -> None:
    of = layout(8, Constant(value=216), 1, row_group=4, columns=2)
    content = bytearray(written(of))
    meta = pq.read_metadata(io.BytesIO(bytes(content)))
    one, other = (meta.row_group(group).column(1) for group in (0, 1))
    size = one.total_compressed_size
    a, b = int(one.data_page_offset), int(other.data_page_offset)
    content[a : a + size], content[b : b + size] = content[b : b + size], content[a : a + size]
    assert pq.read_table(io.BytesIO(bytes(content)), page_checksum_verification=True).num_rows == 8
    with pytest.raises(DataError, match=NAMED):
        read(of, [0], bytes(content))
    with pytest.raises(DataError, match="of column x0, its bytes give"):
        read(of, [7], bytes(content))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"columns": 2}, "a parquet file of"),
        ({"row_group": 2}, "a parquet file of"),
    ],
)
def test_a_file_cut_otherwise_is_refused(options: dict[str, Any], found: str) -> None:
    of = layout(8, Constant(value=100), 1)
    content = written(layout(8, Constant(value=100), 1, **options))
    with pytest.raises(DataError, match=rf"sample 3 \(row 3\): expected {found} \d+ bytes, found one of"):
        read(of, [3], content)


def test_pyarrows_own_file_of_as_many_bytes_is_refused_in_one_line() -> None:
    of = layout(8, Constant(value=100), 1)
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [bytes(84)] * 8}), file)
    content = file.getvalue()
    size = int(PARQUET.file_bytes(of, np.array([0]))[0])
    padded = content[:4] + bytes(size - len(content)) + content[4:]
    with pytest.raises(DataError) as caught:
        read(of, [3], padded)
    assert re.search(NAMED, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": 2, "read_columns": 3}, "dataset.read_columns=3: at most dataset.columns=2"),
        ({"row_group": 0}, "dataset.row_group=0: must be a whole number of at least 1 or none"),
        ({"compression": "zip"}, "dataset.compression=zip: must be none, snappy, gzip, lz4 or zstd"),
        ({"compression_ratio": 2}, r"dataset.compression_ratio=2: nothing is compressed \(dataset.compression\)"),
        (
            {"compression": "zstd", "compression_ratio": 9},
            "dataset.compression_ratio=9: must be a number greater than 1",
        ),
        ({"samples_per_file": 600_000, "row_group": 1}, "dataset.row_group=1: a file would have 1200000 column chunks"),
        ({"sample_bytes": "3 GiB"}, "dataset.columns=1: samples of 3 GiB have values of 2 GiB or more"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        scenario(dataset__format="parquet", **{f"dataset__{key}": value for key, value in options.items()})
    assert "\n" not in str(caught.value)


def test_one_dataset_serves_every_projection_and_batches_are_as_large_as_what_is_read(tmp_path: Path) -> None:
    options = {"format": "parquet", "columns": 4, "samples_per_file": 6, "num_files": 8, "path": "data"}
    whole, part = (
        scenario(**{f"dataset__{key}": value for key, value in {**options, "read_columns": read}.items()})
        for read in (None, 1)
    )
    assert derive.batch_bytes(whole) == 2 * 1000
    assert derive.batch_bytes(part) == 2 * (16 + 984 / 4)
    written = prepare(layout_of(whole), "parquet", str(tmp_path))
    again = prepare(layout_of(part), "parquet", str(tmp_path))
    assert (written.written_files, again.written_files, again.reused_files) == (8, 0, 8)
    verify(layout_of(part), "parquet", str(tmp_path))
    path = tmp_path / layout_of(part).path(2)
    content = bytearray(path.read_bytes())
    last = pq.read_metadata(path).row_group(0).column(4)  # a column that this scenario does not read
    content[int(last.data_page_offset) + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"000000002\.parquet: sample 12 .*of column x3"):
        verify(layout_of(part), "parquet", str(tmp_path))


def test_a_value_of_2_gib_is_refused_by_the_key_that_helps() -> None:
    of = layout(1, Constant(value=3 << 30), 1)
    with pytest.raises(DataError, match=r"dataset.columns=1: a sample of \d+ bytes is too large for so few columns"):
        PARQUET.write(io.BytesIO(), of, 0)


@pytest.mark.parametrize(
    ("samples", "size", "groups"), [(64, "1 MiB", 1), (65, "1 MiB", 2), (3, "100 MB", 3), (4_718_592, 761, 54)]
)
def test_without_a_size_row_groups_have_64_mib_of_samples(samples: int, size: Any, groups: int) -> None:
    """The files of dlrm in MLPerf Storage, with 761 bytes a sample, and larger samples."""
    wanted = scenario(
        dataset__format="parquet", dataset__num_files=8, dataset__samples_per_file=samples, dataset__sample_bytes=size
    )
    of = layout_of(wanted)
    ids = np.array([0])
    planned = PARQUET.requests(of, Batch(0, 0, 0, ids, ids, ids, of.read_bytes_of(ids)))
    payload = int(of.sample_bytes_of(ids)[0])
    assert -(-samples // max(1, (1 << 26) // payload)) == groups
    first = min(samples, max(1, (1 << 26) // payload))
    assert planned.nbytes[1:].sum() == pytest.approx(first * payload, rel=0.02, abs=70_000)


def test_pyarrow_finds_the_row_groups_of_files_whose_size_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayio.data.formats.parquet_options.GROUP_BYTES", 1 << 20)
    file = io.BytesIO()
    PARQUET.write(file, layout(65, Constant(value=1 << 14), 1), 0)
    described = pq.ParquetFile(file).metadata
    assert [described.row_group(number).num_rows for number in range(described.num_row_groups)] == [64, 1]
