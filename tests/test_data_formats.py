from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.data.formats import FORMATS, Format, npz, reads, request_table
from rayio.data.formats.chunks import Hdf5Options
from rayio.data.formats.npz import NPY, ROWS, _npy_header
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.formats.reads import by_file
from rayio.data.formats.sample import Place, check, fill
from rayio.data.layout import Batch, Layout
from rayio.data.sampler import Sampler
from rayio.errors import DataError
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.distribution import Constant, Distribution, Uniform
from rayio.schema.fields import Section
from rayio.storage.base import Opener
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

#: Every format as it is, hdf5 in chunks of whole samples and of parts of one, parquet in row groups and columns.
CASES: dict[str, tuple[Format, Section]] = {name: (form, NO_OPTIONS) for name, form in FORMATS.items()} | {
    "hdf5-samples": (FORMATS["hdf5"], Hdf5Options(chunk=90)),
    "hdf5-parts": (FORMATS["hdf5"], Hdf5Options(chunk=21)),
    "parquet-columns": (FORMATS["parquet"], ParquetOptions(row_group=2, columns=3)),
}
every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
every_case = pytest.mark.parametrize(("form", "options"), CASES.values(), ids=CASES)
SMALL = Uniform(low=16, high=60)
NAMED = r"00000000\d\.\w+: sample \d+ \(row \d\): expected .*(found|its bytes give)"


def dataset(
    root: Path,
    form: Format,
    num_files: int = 4,
    per_file: int = 3,
    size: Distribution = SMALL,
    seed: int = 5,
    options: Section = NO_OPTIONS,
) -> Layout:
    layout = Layout(num_files, per_file, size, seed, form.extension, options)
    for number in range(num_files):
        path = root / layout.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            form.write(file, layout, number)
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
@given(
    num_files=st.integers(1, 5),
    per_file=st.integers(1, 70),
    high=st.sampled_from([16, 50, 5000, 20000]),
    data=st.data(),
)
def test_what_is_written_is_read_in_any_order_with_the_planned_requests(  # type: ignore[no-untyped-def]
    form, num_files, per_file, high, data, tmp_path_factory
) -> None:
    root = tmp_path_factory.mktemp("dataset")
    options: Section = NO_OPTIONS
    if form is FORMATS["hdf5"]:
        options = Hdf5Options(chunk=data.draw(st.sampled_from([None, high // 5 + 5, high, 5 * high])))
    if form is FORMATS["parquet"]:
        group, columns = data.draw(st.sampled_from([None, 1, 7, 100])), data.draw(st.integers(1, 9))
        options = ParquetOptions(row_group=group, columns=columns)
    layout = dataset(root, form, num_files, per_file, Uniform(low=16, high=high), options=options)
    samples = data.draw(st.lists(st.integers(0, layout.num_samples - 1), unique=True, max_size=12))
    if data.draw(st.booleans()):
        samples.sort()
    batch, asked = batch_of(layout, samples), Traffic()
    ids, out = read(form, counted_opener(PosixStore(root), asked), layout, batch)
    assert ids == samples
    assert out.tobytes() == expected_bytes(layout, batch)
    planned = form.requests(layout, batch)
    assert planned.address == (0, 0, 0)
    assert form.file_bytes(layout, batch.files).tolist() == [
        (root / layout.path(file)).stat().st_size for file in batch.files.tolist()
    ]
    assert (asked.opens, asked.requests, asked.nbytes) == (planned.num_opens, len(planned.nbytes), planned.nbytes.sum())


@given(
    per_file=st.integers(1, 4), low=st.sampled_from([16, 4096]), batch_size=st.integers(1, 6),
    shuffle=st.sampled_from(["none", "file", "global"]), steps=st.integers(1, 5),
)  # fmt: skip
def test_the_requests_of_many_steps_at_once_are_those_of_each_step(  # type: ignore[no-untyped-def]
    per_file, low, batch_size, shuffle, steps
) -> None:
    layout = Layout(60, per_file, Uniform(low=low, high=20000), 5)
    sampler = Sampler(layout, batch_size=batch_size, world_size=2, shuffle=shuffle, seed=1, max_steps=steps)
    block, row = sampler.block(0, 1, 0)
    assert row == 0
    arrays = block.files, block.index, block.nbytes
    found = {name: request_table(form, layout, *arrays) for name, form in FORMATS.items()}
    at_once = {name: table for name, table in found.items() if table is not None}
    assert {*at_once} == {"npz", "tfrecord"}
    for name, table in at_once.items():
        for step in range(steps):
            alone = FORMATS[name].requests(layout, sampler.batch(0, 1, step))
            together = table.row(step, (1, 0, step), 1)
            assert (together.address, together.num_opens) == (alone.address, alone.num_opens)
            assert together.nbytes.tolist() == alone.nbytes.tolist()
            assert together.total_bytes == alone.total_bytes == sum(alone.nbytes.tolist())


@every_case
def test_equal_layouts_give_equal_bytes_and_other_seeds_others(form: Format, options: Section, tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    layout = dataset(one, form, options=options)
    dataset(two, form, options=options)
    dataset(other, form, seed=6, options=options)
    for number in range(layout.num_files):
        path = layout.path(number)
        assert (one / path).read_bytes() == (two / path).read_bytes() != (other / path).read_bytes()


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


@every_case
def test_any_changed_byte_is_noticed_or_harmless(form: Format, options: Section, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form, num_files=1, options=options)
    content = (tmp_path / layout.path(0)).read_bytes()
    batch = layout.whole_file(0)
    want = read(form, in_memory(content), layout, batch)[1].tobytes()
    noticed = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        try:
            ids, out = read(form, in_memory(bytes(changed)), layout, batch)
        except DataError as error:
            message = str(error)
            noticed += 1
        else:
            assert (ids, out.tobytes()) == ([0, 1, 2], want), place
            continue
        assert re.search(NAMED, message), message
    assert noticed >= batch.total_bytes


@every_case
def test_a_file_cut_anywhere_is_refused_by_file_and_sample(form: Format, options: Section, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form, num_files=1, options=options)
    content = (tmp_path / layout.path(0)).read_bytes()
    batch = layout.whole_file(0)
    for length in range(len(content)):
        with pytest.raises(DataError, match=NAMED):
            read(form, in_memory(content[:length]), layout, batch)


class Shrinking(io.BytesIO):
    """A file that is cut while it is being read: the end of its second row is gone when it is asked for."""

    def __init__(self, content: bytes, second: bytes) -> None:
        super().__init__(content)
        self.end = content.index(second) + 80

    def readinto(self, buffer: Any, /) -> int:
        left = max(0, self.end - self.tell())
        return super().readinto(memoryview(buffer)[:left])


@every_format
def test_a_file_cut_while_it_is_read_never_delivers_what_the_buffer_held_before(form: Format, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form, num_files=1, size=Constant(value=100))
    content = (tmp_path / layout.path(0)).read_bytes()
    batch = layout.whole_file(0)
    out = np.frombuffer(expected_bytes(layout, batch), np.uint8).copy()
    second = out[120:150].tobytes()  # of what comes after its id and checksum
    with pytest.raises(DataError, match=NAMED + r" \d+: the file is truncated"):
        form.read(lambda path: Shrinking(content, second), layout, batch, out)


@every_case
@given(edits=st.lists(st.tuples(st.integers(0, 999), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=4))
def test_no_edit_delivers_a_wrong_sample(form, options, edits, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    root = tmp_path_factory.mktemp("dataset")
    layout = dataset(root, form, num_files=1, options=options)
    content = bytearray((root / layout.path(0)).read_bytes())
    batch = layout.whole_file(0)
    for place, put, removed in edits:
        content[place : place + removed] = put
    try:
        ids, out = read(form, in_memory(bytes(content)), layout, batch)
    except DataError as error:
        message = str(error)
    else:
        assert (ids, out.tobytes()) == ([0, 1, 2], expected_bytes(layout, batch))
        return
    assert re.search(NAMED, message), message


@every_case
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_noticed_or_harmless(  # type: ignore[no-untyped-def]
    form, options, place, bit, tmp_path_factory
) -> None:
    root = tmp_path_factory.mktemp("dataset")
    layout = dataset(root, form, num_files=1, size=Constant(value=300), options=options)
    content = bytearray((root / layout.path(0)).read_bytes())
    content[place % len(content)] ^= 1 << bit
    batch = layout.whole_file(0)
    try:
        ids, out = read(form, in_memory(bytes(content)), layout, batch)
    except DataError as error:
        message = str(error)
    else:
        assert (ids, out.tobytes()) == ([0, 1, 2], expected_bytes(layout, batch))
        return
    assert re.search(NAMED, message), message


@every_format
def test_files_that_changed_places_are_told(form: Format, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form, size=Constant(value=40))
    first, second = (tmp_path / layout.path(number) for number in (0, 1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    opener = counted_opener(PosixStore(tmp_path), Traffic())
    with pytest.raises(DataError, match=r"sample 4 .*expected id 4, found the sample with id 1: files were swapped"):
        read(form, opener, layout, batch_of(layout, [8, 4]))


@every_format
def test_a_file_of_another_dataset_is_refused(form: Format, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form, size=Constant(value=40))
    dataset(tmp_path, form, size=Constant(value=40), seed=6)
    with pytest.raises(DataError, match=r"sample 4 \(row 1\): .*checksum.*of another dataset"):
        read(form, counted_opener(PosixStore(tmp_path), Traffic()), layout, batch_of(layout, [4]))


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (FORMATS["npz"], r"x.npy of shape \(3, 48\) and uint8, found \(3, 40\)"),
        (FORMATS["hdf5"], r"x of shape \(3, 48\) and uint8, found \(3, 40\)"),
        (FORMATS["tfrecord"], r"a record with a payload of 73 bytes, found one of \d+: .*foreign"),
        (FORMATS["parquet"], r"a parquet file of \d+ bytes, found one of \d+: .*foreign"),
    ],
)
def test_a_file_of_another_sample_size_is_refused(form: Format, shape: str, tmp_path: Path) -> None:
    dataset(tmp_path, form, size=Constant(value=40))
    layout = Layout(4, 3, Constant(value=48), 5, form.extension)
    with pytest.raises(DataError, match=rf"sample 4 .*expected {shape}"):
        read(form, counted_opener(PosixStore(tmp_path), Traffic()), layout, batch_of(layout, [4]))


@every_format
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"PK\5\6" + b"\0" * 18, b"%PDF-1.4 and more", b"\x89HDF\r\n\x1a\n" + b"\3" * 900]
)
def test_a_foreign_file_is_refused(form: Format, content: bytes) -> None:
    layout = Layout(4, 3, SMALL, 5, form.extension)
    with pytest.raises(DataError, match=r"sample 4 .*expected (an npz|an hdf5|a record|a parquet).*found"):
        read(form, in_memory(content), layout, batch_of(layout, [4]))


@every_format
def test_a_missing_file_is_named_with_the_sample_that_is_missed(form: Format, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form)
    (tmp_path / layout.path(2)).unlink()
    for opener in (counted_opener(PosixStore(tmp_path), Traffic()), lambda path: (tmp_path / path).open("rb")):
        with pytest.raises(DataError, match=r"000000002\.\w+: sample 7 .*missing"):
            read(form, opener, layout, batch_of(layout, [0, 7]))


@every_format
def test_a_folder_in_a_files_place_is_told(form: Format, tmp_path: Path) -> None:
    layout = dataset(tmp_path, form)
    (tmp_path / layout.path(2)).unlink()
    (tmp_path / layout.path(2)).mkdir()
    with pytest.raises(
        DataError, match=r"sample 7 \(row 1\): it is a folder, not a file; put a regular file in its place"
    ):
        read(form, counted_opener(PosixStore(tmp_path), Traffic()), layout, batch_of(layout, [7]))


@every_format
def test_samples_of_one_file_open_it_once_and_neighbours_are_one_read(form: Format, tmp_path: Path) -> None:
    # Of parquet, whole row groups are read: here they are samples, and neighbours are still apart.
    groups = ParquetOptions(row_group=1) if form is FORMATS["parquet"] else NO_OPTIONS
    layout = dataset(tmp_path, form, 2, 8, Constant(value=10_000), options=groups)
    asked = Traffic()
    read(form, counted_opener(PosixStore(tmp_path), asked), layout, batch_of(layout, [0, 1, 2, 9, 7, 5]))
    assert asked.opens == 2
    # What each file needs first; then 0-2, 7, 5 of one and 9 of the other.
    name = next(name for name in FORMATS if FORMATS[name] is form)
    heads, head_bytes = {"npz": (2, 4096), "hdf5": (1, 4096), "tfrecord": (0, 0), "parquet": (1, 1 << 16)}[name]
    assert asked.requests == 2 * heads + (6 if name == "parquet" else 4)
    assert 0 <= asked.nbytes - 2 * heads * head_bytes - 6 * 10_000 < 6 * 100


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
    assert len(_npy_header("|u1", (rows, row_bytes))) == NPY
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
