from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.data.formats import FORMATS, Format, npz, reads
from rayio.data.formats.npy_header import HEADER_BYTES, header
from rayio.data.formats.npz import ROWS
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.formats.reads import by_file
from rayio.data.formats.sample import Place, check, fill
from rayio.data.generate import write_file
from rayio.data.layout import Batch, Layout
from rayio.data.sampler import Sampler
from rayio.errors import DataError
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant, Distribution, Uniform
from rayio.schema.fields import Section
from rayio.storage.base import Opener
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
#: Formats of this package; others may read neighbours apart.
JOINED = (
    "npz", "hdf5", "tfrecord", "parquet", "npy", "raw", "tar", "jpeg", "png", "jsonl", "json", "csv", "tsv",
    "indexed_binary", "mmap_indexed_binary", "synthetic",
)  # fmt: skip
SMALL = Uniform(low=16, high=60)


def dataset(
    root: Path,
    form: Format,
    num_files: int = 4,
    per_file: int = 3,
    size: Distribution = SMALL,
    seed: int = 5,
    options: Section | None = None,
) -> Layout:
    layout = Layout(num_files, per_file, size, seed, form.extension, options or options_of(form)())
    for number in range(num_files):
        write_file(layout, form, PosixStore(root), number)
    return layout


def batch_of(layout: Layout, samples: list[int]) -> Batch:
    ids = np.array(samples, np.int64)
    files, index = layout.locate(ids)
    return Batch(0, 0, 0, ids, files, index, layout.sample_bytes_of(files))


def read(form: Format, opener: Opener, layout: Layout, batch: Batch) -> tuple[list[int], NDArray[np.uint8]]:
    out = np.zeros(batch.total_bytes, np.uint8)
    return form.read(opener, layout, batch, out).tolist(), out


def expected_bytes(layout: Layout, batch: Batch) -> bytes:
    rows = []
    for sample, nbytes in zip(batch.samples.tolist(), batch.nbytes.tolist(), strict=True):
        row = np.zeros(nbytes, np.uint8)
        fill(row, layout.seed, sample)
        rows.append(row.tobytes())
    return b"".join(rows)


def in_memory(content: bytes) -> Opener:
    return lambda path: io.BytesIO(content)


@every_format
@pytest.mark.parametrize("limit", [1 << 31, 1200, 600, 100])
def test_the_size_of_a_file_is_known_before_it_is_written(
    form: Format, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    layout = dataset(tmp_path, form, per_file=10)
    numbers = np.arange(layout.num_files)
    assert form.file_bytes(layout, numbers).tolist() == [
        (tmp_path / layout.path(number)).stat().st_size for number in range(layout.num_files)
    ]


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (FORMATS["npz"], r"x.npy of shape \(3, 48\) and uint8, found \(3, 40\)"),
        (FORMATS["hdf5"], r"x of shape \(3, 48\) and uint8, found \(3, 40\)"),
        (FORMATS["tfrecord"], r"a record with a payload of 73 bytes, found one of \d+: .*foreign"),
        (FORMATS["parquet"], r"a parquet file of \d+ bytes, found one of \d+: .*foreign"),
        (FORMATS["npy"], r"an array of shape \(3, 48\) and uint8, found \(3, 40\)"),
        (FORMATS["raw"], r"id 4, found id \d+ with a wrong checksum"),
        (FORMATS["tar"], r"the member 0{18}4.bin of 48 bytes, found one of 40"),
    ],
)
def test_a_file_of_another_sample_size_is_refused(form: Format, shape: str, tmp_path: Path) -> None:
    dataset(tmp_path, form, size=Constant(value=40))
    layout = Layout(4, 3, Constant(value=48), 5, form.extension)
    with pytest.raises(DataError, match=rf"sample 4 .*expected {shape}"):
        read(form, counted_opener(PosixStore(tmp_path), Traffic()), layout, batch_of(layout, [4]))


@pytest.mark.parametrize("name", JOINED)
def test_samples_of_one_file_open_it_once_and_neighbours_are_one_read(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    # Of parquet, whole row groups are read: here they are samples, and neighbours are still apart.
    groups = ParquetOptions(row_group=1) if form is FORMATS["parquet"] else None
    layout = dataset(tmp_path, form, 2, 8, Constant(value=10_000), options=groups)
    asked = Traffic()
    read(form, counted_opener(PosixStore(tmp_path), asked), layout, batch_of(layout, [0, 1, 2, 9, 7, 5]))
    assert asked.opens == (0 if not getattr(form, "has_files", True) else 2 * (1 + len(getattr(form, "beside", ()))))
    # What each file needs first; then 0-2, 7, 5 of one and 9 of the other.
    heads, head_bytes = FIRST.get(name, (0, 0))
    reads = {"parquet": 6, "json": 2, "synthetic": 0}.get(name, 4)
    assert asked.requests == 2 * heads + reads
    wanted = {"json": 16, "synthetic": 0}.get(name, 6) * 10_000
    assert 0 <= asked.nbytes - 2 * heads * head_bytes - wanted < 6 * AROUND.get(name, 100)


#: Requests before the samples of a file, and the bytes of each.
FIRST = {
    "npz": (2, 4096), "hdf5": (1, 4096), "parquet": (1, 1 << 16), "npy": (1, 4096),
    "indexed_binary": (1, 56 + 8 * (4 * 8 + 3)), "mmap_indexed_binary": (1, 34 + 20 * 8 + 8),
}  # fmt: skip
#: The most bytes that a format has around a sample, where they are more than 100: headers, whole pages.
AROUND = {"tar": 2048, "mmap_indexed_binary": 8192}


def test_numpy_reads_our_npz_and_numpys_own_npz_has_our_arrays(tmp_path: Path) -> None:
    layout = dataset(tmp_path, FORMATS["npz"])
    with np.load(tmp_path / layout.path(1)) as file:
        assert sorted(file.files) == ["x", "y"]
        assert file["y"].tolist() == [3, 4, 5]
        assert file["x"].tobytes() == expected_bytes(layout, layout.whole_file(1))
        rows = file["x"]
    saved = io.BytesIO()
    np.savez(saved, y=[0], x=rows)
    ids, out = read(FORMATS["npz"], in_memory(saved.getvalue()), layout, layout.whole_file(1))
    assert (ids, out.tobytes()) == ([3, 4, 5], rows.tobytes())
    packed = io.BytesIO()
    np.savez_compressed(packed, x=rows)
    with pytest.raises(DataError, match=r"expected x.npy stored plainly"):
        read(FORMATS["npz"], in_memory(packed.getvalue()), layout, layout.whole_file(1))


def test_our_own_header_needs_no_parser_and_another_writers_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = dataset(tmp_path, FORMATS["npz"])
    batch = layout.whole_file(1)
    ours = (tmp_path / layout.path(1)).read_bytes()
    rows = len(batch.samples), int(batch.nbytes[0])
    header = f"{{'shape': {rows}, 'fortran_order': False, 'descr': '|u1'}}".ljust(181).encode() + b"\n"
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0\xb6\0" + header + expected_bytes(layout, batch))
    assert read(FORMATS["npz"], in_memory(other.getvalue()), layout, batch)[0] == [3, 4, 5]
    # Python 3.11's parser fails now and then when threads parse together, so that readers must not depend on it
    monkeypatch.setattr("ast.literal_eval", None)
    assert read(FORMATS["npz"], in_memory(ours), layout, batch)[0] == [3, 4, 5]
    with pytest.raises(DataError):
        read(FORMATS["npz"], in_memory(other.getvalue()), layout, batch)


@given(st.integers(1, 2**40), st.integers(16, 2**47))
def test_rows_start_at_the_same_place_whatever_their_shape(rows: int, row_bytes: int) -> None:
    assert len(header("|u1", (rows, row_bytes))) == HEADER_BYTES
    assert ROWS == 30 + 5 + 20 + 128


def test_the_bytes_of_a_sample_are_the_same_in_every_version() -> None:
    row = np.zeros(40, np.uint8)
    fill(row, 10, 3)
    assert row.tobytes().hex() == "0300000000000000c40cce43b80d60fe5506fff11b8a30e23a100f00011328d3373395a9c14315db"
    assert check(row.data, 10, Place("f", 3, 0)) == 3


def test_payloads_of_samples_have_nothing_in_common_and_do_not_compress() -> None:
    rows = np.zeros((2, 600_000), np.uint8)
    fill(rows[0], 1, 0)
    fill(rows[1], 1, 1)
    assert abs((rows[0] == rows[1]).mean() - 1 / 256) < 0.001
    counts = np.bincount(rows[0], minlength=256)
    assert abs(counts / counts.mean() - 1).max() < 0.15


def test_a_buffer_of_the_wrong_length_is_our_own_fault(tmp_path: Path) -> None:
    layout = dataset(tmp_path, FORMATS["npz"])
    batch = batch_of(layout, [1])
    with pytest.raises(ValueError, match="out has 3 bytes"):
        FORMATS["npz"].read(counted_opener(PosixStore(tmp_path), Traffic()), layout, batch, np.zeros(3, np.uint8))


@pytest.mark.parametrize(("size", "requests"), [(5000, [4096, 4096, 5000] * 4), (100, [598, 100] * 4)])
def test_requests_of_a_step_with_one_sample_a_file(size: int, requests: list[int]) -> None:
    sampler = Sampler(Layout(8, 1, Constant(value=size), 1), batch_size=4, world_size=1, seed=1)
    asked = FORMATS["npz"].requests(sampler.layout, sampler.batch(2, 0, 1))
    assert asked.address == (0, 2, 1)
    assert asked.num_opens == 4
    assert asked.nbytes.tolist() == requests


@given(data=st.data(), per_file=st.integers(1, 4))
def test_few_samples_are_cut_into_the_same_reads_as_many(data: st.DataObject, per_file: int) -> None:
    layout = Layout(5, per_file, SMALL, 5)
    batch = batch_of(layout, data.draw(st.lists(st.integers(0, layout.num_samples - 1), unique=True, max_size=20)))
    few = list(by_file(batch))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "FEW", 0)
        assert list(by_file(batch)) == few


@given(data=st.data())
def test_the_short_look_at_an_npz_accepts_what_we_write_and_else_only_what_the_long_one_does(
    data: st.DataObject,
) -> None:
    layout = Layout(1, 2, Constant(value=30), 5)
    written = io.BytesIO()
    FORMATS["npz"].write(written, layout, 0)
    assert npz._tail_if_plain(written, (2, 30)) is not None
    assert npz._tail_if_plain(written, (2, 31)) is None
    changed = bytearray(written.getvalue())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    stream = io.BytesIO(changed[: data.draw(st.integers(0, len(changed)))])
    if npz._tail_if_plain(stream, (2, 30)) is not None:
        assert npz._find_rows(stream, Place("x", 0, 0), "x.npy", "|u1", (2, 30)) == ROWS
