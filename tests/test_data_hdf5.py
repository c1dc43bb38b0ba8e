"""HDF5 as h5py has it for everybody, chunks as a scenario asks for them, and a library that must never see an error."""

from __future__ import annotations

import errno
import gc
import io
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import h5py
import numpy as np
import pytest

from rayio.data.formats import FORMATS, hdf5, hdf5_ragged, hdf5_stream
from rayio.data.formats.chunks import Hdf5Options, chunk_shape
from rayio.data.formats.hdf5 import METADATA_BYTES
from rayio.data.formats.hdf5_filtered import Filtered
from rayio.data.formats.sample import fill
from rayio.data.generate import prepare
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, ScenarioError, StorageError
from rayio.schema.distribution import Constant, Uniform
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import WINDOW_BYTES, Traffic
from rayio.storage.stores.posix import PosixFile, PosixStore
from scenarios import scenario

FORM = FORMATS["hdf5"]


def written(layout: Layout) -> bytes:
    content = io.BytesIO()
    FORM.write(content, layout, 0)
    return content.getvalue()


def layout_of(size: int, per_file: int, chunk: int | None) -> Layout:
    return Layout(1, per_file, Constant(value=size), 5, ".hdf5", Hdf5Options(chunk=chunk))


@pytest.mark.parametrize(
    ("size", "per_file", "chunk", "shape"),
    [
        (1000, 10, None, None),
        (1000, 10, 4999, (4, 1000)),
        (1000, 10, 1 << 20, (10, 1000)),
        (1000, 10, 1000, (1, 1000)),
        (1000, 10, 999, (1, 500)),
        (1001, 3, 400, (1, 334)),
        (17, 2, 1, (1, 1)),
    ],
)
def test_a_chunk_is_whole_samples_or_an_even_part_of_one(
    size: int, per_file: int, chunk: int | None, shape: tuple[int, int] | None
) -> None:
    layout = layout_of(size, per_file, chunk)
    content = written(layout)
    assert len(content) == FORM.file_bytes(layout, np.array([0])).tolist()[0]
    batch = layout.whole_file(0)
    out = np.zeros(batch.total_bytes, np.uint8)
    assert FORM.read(lambda path: io.BytesIO(content), layout, batch, out).tolist() == [*range(per_file)]
    with h5py.File(io.BytesIO(content), "r") as file:
        assert sorted(file) == ["x", "y"]
        assert file["x"].chunks == shape
        assert (file["x"].shape, file["x"].dtype) == ((per_file, size), np.uint8)
        assert file["x"][:].tobytes() == out.tobytes()
        assert file["y"][:].tolist() == [*range(per_file)]


def test_one_sample_of_a_chunk_costs_the_chunk_and_its_neighbours_then_nothing(tmp_path: Path) -> None:
    layout = layout_of(1000, 16, 4000)
    (tmp_path / "f").write_bytes(written(layout))

    def cost(*samples: int) -> list[int]:
        ids = np.array(samples)
        batch = layout.whole_file(0)
        batch = type(batch)(0, 0, 0, ids, np.zeros_like(ids), ids, batch.nbytes[: len(ids)])
        asked = Traffic()
        opener = lambda path: cast(BinaryIO, PosixFile(tmp_path / "f", asked))  # noqa: E731
        FORM.read(opener, layout, batch, np.zeros(batch.total_bytes, np.uint8))
        planned: list[int] = FORM.requests(layout, batch).nbytes.tolist()
        assert (asked.requests, asked.nbytes) == (len(planned), sum(planned))
        return planned

    assert cost(5) == [WINDOW_BYTES, 4000]
    assert cost(5, 7, 4) == [WINDOW_BYTES, 4000]
    assert cost(5, 9, 6) == [WINDOW_BYTES, 4000, 4000, 4000]
    assert cost(*range(16)) == [WINDOW_BYTES, *[4000] * 4]


def test_the_last_chunk_is_filled_up_with_zeros() -> None:
    with h5py.File(io.BytesIO(written(layout_of(1000, 10, 4999))), "r") as file:
        _, last = file["x"].id.read_direct_chunk((8, 0))
    assert last[2000:] == bytes(2000)
    assert any(last[1000:2000])


def test_without_chunks_one_sample_costs_its_own_bytes() -> None:
    layout = layout_of(1 << 20, 16, None)
    batch = layout.whole_file(0, 5, 6)
    assert FORM.requests(layout, batch).nbytes.tolist() == [WINDOW_BYTES, 1 << 20]


@pytest.mark.parametrize("shape", [(1, 16), (300, 70_001)])
@pytest.mark.parametrize("chunk", [None, 1 << 12, (1 << 32) - 1])
def test_metadata_have_one_size_whatever_is_described(shape: tuple[int, int], chunk: int | None) -> None:
    layout = layout_of(shape[1], shape[0], chunk)
    rows, columns = (edge.item() for edge in chunk_shape(layout, np.array([shape[1]])))
    data = -(-shape[0] // rows) * rows * -(-shape[1] // columns) * columns
    assert len(written(layout)) == METADATA_BYTES + data + 8 * shape[0]


class Full(io.BytesIO):
    """A disk that fills up."""

    def write(self, content: Any, /) -> int:
        if self.tell() > 10_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(content)


def test_a_full_disk_is_the_operating_systems_own_error() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        FORM.write(Full(), layout_of(1000, 20, None), 0)
    assert error.value.errno == errno.ENOSPC


class Broken(io.BytesIO):
    """A disk with a bad block; HDF5 asks for it when it reads samples, or already when it opens the file."""

    def __init__(self, content: bytes, first: int, error: BaseException) -> None:
        super().__init__(content)
        self.first = first
        self.error = error

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() + (size or 0) > self.first:
            raise self.error
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int:
        if self.tell() + len(buffer) > self.first:
            raise self.error
        return super().readinto(buffer)


@pytest.mark.parametrize("first", [0, 100, 1000])
@pytest.mark.parametrize("error", [StorageError("f: input/output error while reading"), KeyboardInterrupt()])
def test_what_storage_raises_comes_through_hdf5_unchanged(first: int, error: BaseException) -> None:
    layout = layout_of(1000, 2, None)
    batch, content = layout.whole_file(0), written(layout)
    with pytest.raises(type(error)) as raised:
        FORM.read(lambda path: Broken(content, first, error), layout, batch, np.zeros(2000, np.uint8))
    assert raised.value is error


@pytest.mark.parametrize("first", [0, 100, 1000, 10**6])
def test_hdf5_keeps_no_stream_even_while_the_error_is_kept(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, streams = layout_of(1000, 2, None), weakref.WeakSet[Any]()

    class Watched(hdf5_stream.Stream):
        def __init__(self, file: BinaryIO) -> None:
            super().__init__(file)
            streams.add(self)

    monkeypatch.setattr(hdf5, "Stream", Watched)
    batch, content = layout.whole_file(0), written(layout)
    opener = lambda path: Broken(content, first, OSError("bad block"))  # noqa: E731
    if first > len(content):
        FORM.read(opener, layout, batch, np.zeros(2000, np.uint8))
    else:
        with pytest.raises(DataError, match="bad block"):
            FORM.read(opener, layout, batch, np.zeros(2000, np.uint8))
    gc.collect()
    assert not list(streams)


AT_EXIT = """
import errno, io, sys
import numpy as np
import test_data_hdf5 as tests
layout = tests.layout_of(1000, 2, None)
content = tests.written(layout)
for first in (0, 100, 1000, 10**6):
    error = KeyboardInterrupt()
    try:
        broken = lambda path: tests.Broken(content, first, error)
        tests.FORM.read(broken, layout, layout.whole_file(0), np.zeros(2000, np.uint8))
    except KeyboardInterrupt as raised:
        assert raised is error and first < 2000
        sys.kept = [*getattr(sys, "kept", []), raised]  # the interpreter itself goes before this error
try:
    tests.FORM.write(tests.Full(), tests.layout_of(1000, 20, None), 0)
except OSError as raised:
    sys.kept.append(raised)
print(len(sys.kept))
"""


def test_a_process_that_met_broken_files_ends_in_peace() -> None:
    """HDF5 closes at exit what is still open, and called back into a Python that was gone: exit code 139."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4\n", "")


class Endless(io.BytesIO):
    """A file in which HDF5 goes in circles: it counts how often it is really asked."""

    asked = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked += 1
        return super().read(size)


def test_hdf5_is_not_answered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(1000, 2, None)
    batch, file = layout.whole_file(0), Endless(written(layout))
    monkeypatch.setattr(hdf5_stream, "METADATA_READS", 2)
    with pytest.raises(DataError, match=r"sample 0 .* found none .*no end of them: the file is corrupted"):
        FORM.read(lambda path: file, layout, batch, np.zeros(2000, np.uint8))
    assert file.asked == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "z"}, "expected an hdf5 file with x of shape"),
        ({"compression": "gzip"}, "expected x stored plainly, found it compressed"),
        ({"dtype": np.int8}, "expected x of shape .* and uint8, found .*int8"),
    ],
)
def test_an_hdf5_file_of_something_else_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    layout = layout_of(40, 3, None)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file.create_dataset(**{"name": "x", "data": np.zeros((3, 40), np.uint8)} | options)
    with pytest.raises(DataError, match=rf"000000000.hdf5: sample 0 \(row 0\): {says}"):
        FORM.read(
            counted_opener(PosixStore(tmp_path), Traffic()), layout, layout.whole_file(0), np.zeros(120, np.uint8)
        )


def test_samples_that_lie_in_another_file_are_refused(tmp_path: Path) -> None:
    layout = layout_of(40, 3, None)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    opener, batch = counted_opener(PosixStore(tmp_path), Traffic()), layout.whole_file(0)
    with h5py.File(tmp_path / "other", "w") as other:
        other["x"] = np.zeros((3, 40), np.uint8)
    virtual = h5py.VirtualLayout((3, 40), np.uint8)
    virtual[:] = h5py.VirtualSource(str(tmp_path / "other"), "x", (3, 40))
    for make, says in [
        (
            lambda file: file.__setitem__("x", h5py.ExternalLink(str(tmp_path / "other"), "x")),
            "a link to another place",
        ),
        (lambda file: file.create_virtual_dataset("x", virtual), "found it elsewhere"),
        (
            lambda file: file.create_dataset("x", (3, 40), np.uint8, external=str(tmp_path / "other")),
            "found it elsewhere",
        ),
    ]:
        with h5py.File(path, "w") as file:
            make(file)  # type: ignore[no-untyped-call]
        with pytest.raises(DataError, match=rf"000000000.hdf5: sample 0 \(row 0\): expected x .*{says}"):
            FORM.read(opener, layout, batch, np.zeros(120, np.uint8))


def test_a_chunk_larger_than_its_file_is_refused_before_memory_is_asked_for_it(tmp_path: Path) -> None:
    layout = layout_of(40, 3, None)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3, 40), np.uint8, chunks=(3 << 20, 1000), maxshape=(None, None))
    with pytest.raises(
        DataError, match=r"sample 0 .*expected chunks that fit the file, found some of \(3145728, 1000\)"
    ):
        FORM.read(
            counted_opener(PosixStore(tmp_path), Traffic()), layout, layout.whole_file(0), np.zeros(120, np.uint8)
        )


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 30)}, {"chunks": (3, 40)}])
def test_a_file_that_h5py_wrote_in_its_own_way_is_read(options: dict[str, Any], tmp_path: Path) -> None:
    layout = layout_of(40, 3, None)
    batch = layout.whole_file(0)
    rows = np.zeros(batch.total_bytes, np.uint8)
    FORM.read(lambda path: io.BytesIO(written(layout)), layout, batch, rows)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows.reshape(3, 40), **options)
    out = np.zeros_like(rows)
    assert FORM.read(counted_opener(PosixStore(tmp_path), Traffic()), layout, batch, out).tolist() == [0, 1, 2]
    assert out.tobytes() == rows.tobytes()


@pytest.mark.parametrize("chunk", [None, 64])
def test_no_object_has_a_time_in_it(chunk: int | None) -> None:
    content = written(layout_of(40, 3, chunk))
    headers = content.split(b"OHDR\2")[1:]
    assert len(headers) == 3  # the root group, x and y
    assert not any(header[0] & 0x20 for header in headers)  # the bit that says "times are stored"


@pytest.mark.parametrize("datasets", [2, 3, 4, 5])
def test_h5py_finds_labels_and_weights_and_a_batch_reads_them(datasets: int) -> None:
    """As HEPCNN: data, label, normweight and psr, each with a row for each sample."""
    layout = Layout(2, 709, Constant(value=100), 5, ".hdf5", Hdf5Options(datasets=datasets))
    file = io.BytesIO()
    FORM.write(file, layout, 1)
    assert len(file.getvalue()) == FORM.file_bytes(layout, np.array([1]))[0]
    names = ["x", "y", *(f"z{n}" for n in range(1, datasets - 1))]
    with h5py.File(file) as opened:
        assert [*opened] == names
        assert opened["x"].shape == (709, 100)
        for name in names[1:]:
            assert opened[name][:].tolist() == [*range(709, 1418)]
        places = [opened[name].id.get_offset() for name in names]
    ids = np.array([709 + row for row in (5, 6, 7, 3)])
    batch = Batch(0, 0, 0, ids, np.ones_like(ids), ids - 709, np.full_like(ids, 100))
    planned = FORM.requests(layout, batch)
    assert planned.places is not None
    runs = [(row, length, width, at) for row, length in ((5, 3), (3, 1)) for width, at in zip(
        [100] + [8] * (datasets - 1), places, strict=True)]  # fmt: skip
    assert planned.places()[2].tolist() == [0, *(at + row * width for row, _, width, at in runs)]
    assert planned.nbytes.tolist() == [4096, *(length * width for _, length, width, _ in runs)]


@pytest.mark.parametrize("name", ["y", "z1", "z2"])
def test_a_wrong_label_or_weight_is_told_with_its_byte_by_who_reads_its_sample(name: str) -> None:
    layout = Layout(2, 7, Constant(value=100), 5, ".hdf5", Hdf5Options(datasets=4))
    file = io.BytesIO()
    FORM.write(file, layout, 1)
    with h5py.File(file) as opened:
        at = opened[name].id.get_offset() + 8 * 4
    content = bytearray(file.getvalue())
    content[at + 1] ^= 1
    out = np.zeros(100, np.uint8)
    for row in range(7):
        batch = layout.whole_file(1, row, row + 1)
        if row != 4:
            FORM.read(lambda path: io.BytesIO(content), layout, batch, out)
            continue
        with pytest.raises(DataError, match=rf"sample 11 \(row 4\): expected label 11 at byte {at}, found {11 + 256}"):
            FORM.read(lambda path: io.BytesIO(content), layout, batch, out)


def test_a_file_has_at_most_five_datasets() -> None:
    with pytest.raises(ScenarioError, match=r"dataset.datasets=6: must be at most 5"):
        scenario(dataset__format="hdf5", dataset__datasets=6)


def compressed(size: int, per_file: int, chunk: int, factor: float = 1.0) -> Layout:
    options = Hdf5Options(chunk=chunk, compression="gzip")
    return Layout(1, per_file, Constant(value=size), 5, ".hdf5", options, factor)


@pytest.mark.parametrize("factor", [1.0, 1.5, 16.0])
@pytest.mark.parametrize(
    ("size", "per_file", "chunk"),
    [
        (1000, 1, 1000), (1000, 10, 4999), (1000, 10, 1 << 20), (1001, 3, 400), (17, 2, 1), (40, 300, 800),
        (20, 1024, 20), (20, 1025, 20), (20, 9000, 20), (300_000, 2, 65_536),
    ],
)  # fmt: skip
def test_compressed_chunks_have_the_size_that_is_known_before_and_h5py_reads_them(
    size: int, per_file: int, chunk: int, factor: float
) -> None:
    layout = compressed(size, per_file, chunk, factor)
    content = written(layout)
    assert len(content) == FORM.file_bytes(layout, np.array([0])).tolist()[0]
    whole, plain = layout.whole_file(0), np.empty((per_file, size), np.uint8)
    for row in range(per_file):
        fill(plain[row], layout.seed, row, factor)
    with h5py.File(io.BytesIO(content)) as file:
        assert (file["x"].compression, file["x"].compression_opts) == ("gzip", 4)
        assert file["x"][:].tobytes() == plain.tobytes()
        assert file["y"][:].tolist() == whole.samples.tolist()
        stored = list[int]()
        file["x"].id.chunk_iter(lambda chunk: stored.append(chunk.size))
    assert len({*stored}) == 1
    shuffled = replace(layout, options=Hdf5Options(chunk=chunk, compression="gzip", shuffle=True))
    content = written(shuffled)
    assert len(content) == FORM.file_bytes(shuffled, np.array([0])).tolist()[0]
    with h5py.File(io.BytesIO(content)) as file:
        assert (file["x"].compression, file["x"].shuffle) == ("gzip", True)
        assert file["x"][:].tobytes() == plain.tobytes()
    if size > 100_000 and factor < 16:  # the factor is that of the bytes on disk, but for what fills them up
        rows, columns = chunk_shape(layout, np.array([size]))
        assert stored[0] == pytest.approx(rows[0] * columns[0] / factor, rel=0.13)


def test_a_file_of_thousands_of_compressed_chunks_costs_the_pages_of_its_index_that_are_touched(tmp_path: Path) -> None:
    layout = compressed(20, 5000, 20)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    path.write_bytes(written(layout))
    samples = np.array([0, 1, 1023, 1024, 4999, 7])
    batch = Batch(0, 0, 0, samples, np.zeros_like(samples), samples, np.full(6, 20))
    traffic = Traffic(0)
    FORM.read(counted_opener(PosixStore(tmp_path), traffic), layout, batch, np.empty(120, np.uint8))
    planned = FORM.requests(layout, batch)
    assert traffic.issued is not None
    rows = traffic.issued.rows[traffic.issued.rows["nbytes"] > 0]
    assert rows["nbytes"].tolist() == planned.nbytes.tolist()
    assert planned.places is not None
    assert rows["offset"].tolist() == planned.places()[2].tolist()
    assert len(planned.nbytes) == 1 + 2 + 3 + 6  # description, header and beginning of the index, pages, chunks


@pytest.mark.parametrize("damage", ["plain", "another filter", "other chunks"])
def test_a_compressed_file_of_something_else_is_refused(damage: str, tmp_path: Path) -> None:
    layout = compressed(40, 3, 40)
    path = tmp_path / layout.path(0)
    path.parent.mkdir()
    others: dict[str, dict[str, Any]] = {
        "plain": {"compression": None}, "another filter": {"compression": "lzf"}, "other chunks": {"chunks": (3, 20)},
    }  # fmt: skip
    options = {"chunks": (1, 40), "compression": "gzip"} | others[damage]
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((3, 40), np.uint8), **options)
    with pytest.raises(DataError, match=r"000000000.hdf5: sample 0 \(row 0\): expected the description of an hdf5"):
        FORM.read(
            counted_opener(PosixStore(tmp_path), Traffic()), layout, layout.whole_file(0), np.empty(120, np.uint8)
        )


def test_a_batch_of_compressed_files_computes_their_description_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, made = replace(compressed(400, 1, 400), num_files=4), []
    prepare(layout, "hdf5", str(tmp_path), threads=1)
    describe = Filtered.description

    def noted(*given: Any) -> Any:
        made.append(given)
        return describe(*given)

    monkeypatch.setattr(Filtered, "description", noted)
    ids = np.array([2, 0, 3, 1])
    batch = Batch(0, 0, 0, ids, ids, np.zeros_like(ids), np.full(4, 400))
    read = FORM.read(counted_opener(PosixStore(tmp_path), Traffic()), layout, batch, np.empty(1600, np.uint8))
    assert (read.tolist(), len(made)) == ([2, 0, 3, 1], 1)


@pytest.mark.parametrize(("chunk", "message"), [(None, "only chunks are compressed; give dataset.chunk")])
def test_compression_without_chunks_is_refused(chunk: int | None, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(dataset__format="hdf5", dataset__compression="gzip")


def test_a_shuffle_without_compression_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"dataset.shuffle=true: only before compression; give dataset.compression"):
        scenario(dataset__format="hdf5", dataset__chunk=4096, dataset__shuffle=True)


def test_samples_of_several_sizes_lie_in_one_dataset_with_their_offsets(tmp_path: Path) -> None:
    layout = Layout(2, 50, Uniform(low=16, high=3000), 5, ".hdf5", Hdf5Options(), sizes="per_sample")
    for number in range(2):
        path = tmp_path / layout.path(number)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            FORM.write(file, layout, number)
        with h5py.File(path) as h5:
            offsets, pixels = h5["offsets"][:], h5["x"][:]
            assert h5["y"][:].tolist() == [*range(50 * number, 50 * number + 50)]
        sizes = layout.sizes_of(np.arange(50 * number, 50 * number + 50))
        assert np.diff(offsets).tolist() == sizes.tolist()
        assert len({*sizes.tolist()}) > 10
        for row in range(50):
            sample = np.empty(int(sizes[row]), np.uint8)
            fill(sample, layout.seed, 50 * number + row)
            assert pixels[offsets[row] : offsets[row + 1]].tobytes() == sample.tobytes()
    content = bytearray((tmp_path / layout.path(0)).read_bytes())
    content[hdf5_ragged.HEAD_BYTES + 8 * 3] ^= 1  # the offset of the fourth sample
    (tmp_path / layout.path(0)).write_bytes(content)
    batch = layout.whole_file(0, 2, 3)
    with pytest.raises(DataError, match=r"sample 2 \(row 2\): expected offset \d+ at byte 1007, found \d+"):
        FORM.read(counted_opener(PosixStore(tmp_path), Traffic()), layout, batch, np.empty(batch.total_bytes, np.uint8))


@pytest.mark.parametrize("key", ["chunk", "datasets"])
def test_samples_of_several_sizes_have_no_chunks_and_no_other_datasets(key: str) -> None:
    with pytest.raises(ScenarioError, match=rf"dataset.{key}=.*: not for samples that differ in size"):
        scenario(dataset__format="hdf5", dataset__sizes="per_sample", **{f"dataset__{key}": 4})
