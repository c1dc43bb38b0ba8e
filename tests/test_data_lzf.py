"""lzf as h5py has it, and compressed or chunked hdf5 files with several datasets of a sample."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from rayio.data.formats import FORMATS, lzf
from rayio.data.formats.chunks import Hdf5Options
from rayio.data.formats.sample import fill
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, ScenarioError
from rayio.schema.distribution import Constant
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import scenario

FORM = FORMATS["hdf5"]


def decoded(stream: bytes) -> bytes:
    """Take a stream apart as the format's description has it (liblzf, lzf_d.c)."""
    out, at = bytearray(), 0
    while at < len(stream):
        control = stream[at]
        at += 1
        if control < 32:
            out += stream[at : at + control + 1]
            at += control + 1
            continue
        length, offset = control >> 5, (control & 31) << 8
        if length == 7:
            length += stream[at]
            at += 1
        offset += stream[at]
        at += 1
        for _ in range(length + 2):
            out.append(out[-offset - 1])
    return bytes(out)


def striped(number: int, keep: int, start: int, seed: int) -> NDArray[np.uint8]:
    """Give random bytes with zeros after the first ones of each stripe; the first stripe begins before them."""
    content = np.random.default_rng(seed).integers(0, 256, number, dtype=np.uint8)
    for begin in range(-start, number, 512):
        content[max(0, begin + keep) : max(0, begin + 512)] = 0
    return content


def shortest(content: NDArray[np.uint8]) -> int:
    with pytest.raises(AssertionError) as told:
        lzf.packed(content, 0)
    return int(re.findall(r"compressed to (\d+)", str(told.value))[0])


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_of_any_length_from_the_shortest_on_gives_its_bytes_back(seed: int) -> None:
    drawn = random.Random(seed)
    number, keep = drawn.choice([20, 50, 300, 2000, 5000]), drawn.choice([1, 9, 27, 123, 251, 400, 500])
    content = striped(number, keep, drawn.randrange(600), seed)
    if seed % 4 == 0:
        content[drawn.randrange(number) :] = 0
    least = shortest(content)
    for length in {least, least + 1, least + 2, least + 3, drawn.randint(least, max(least, number)), number - 1}:
        if least <= length < number:
            stream = lzf.packed(content, length)
            assert len(stream) == length
            assert decoded(stream) == content.tobytes()


@pytest.mark.parametrize("number", [64, 700])
def test_zeros_alone_fill_any_length(number: int) -> None:
    content = np.zeros(number, np.uint8)
    for length in range(shortest(content), number):
        assert decoded(stream := lzf.packed(content, length)) == content.tobytes()
        assert len(stream) == length


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 4.0, 8.0])
def test_chunks_are_about_as_small_as_h5py_s_own_and_h5py_reads_them(factor: float) -> None:
    layout = Layout(1, 4, Constant(value=100_000), 5, ".hdf5", Hdf5Options(chunk=100_000, compression="lzf"), factor)
    file, theirs = io.BytesIO(), io.BytesIO()
    FORM.write(file, layout, 0)
    with h5py.File(file) as ours, h5py.File(theirs, "w") as other:
        assert ours["x"].compression == "lzf"
        whole = other.create_dataset("x", data=ours["x"][:], chunks=(1, 100_000), compression="lzf")
        for row in range(4):
            sample = np.empty(100_000, np.uint8)
            fill(sample, layout.seed, row, factor)
            assert ours["x"][row].tobytes() == sample.tobytes()
            mine, real = (each.id.get_chunk_info(row) for each in (ours["x"], whole))
            assert mine.filter_mask == real.filter_mask == (factor == 1)
            assert mine.size == pytest.approx(real.size, rel=0.12)
            assert mine.size >= real.size or factor > 1


#: A sample of 1001 bytes in one chunk, in parts of 334, or with others; and compressed or not.
SHAPES = [(1000, 1, 1000), (1000, 10, 4999), (1001, 3, 400), (17, 2, 1), (40, 300, 800), (20, 1100, 20)]


@pytest.mark.parametrize("datasets", [1, 2, 5])
@pytest.mark.parametrize("compression", ["none", "gzip", "lzf"])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_several_datasets_lie_next_to_chunks_and_h5py_reads_all(datasets: int, compression: str, factor: float) -> None:
    for size, per_file, chunk in SHAPES:
        for is_shuffled in {False, compression != "none"}:
            options = Hdf5Options(chunk=chunk, compression=compression, shuffle=is_shuffled, datasets=datasets)
            layout = Layout(1, per_file, Constant(value=size), 5, ".hdf5", options, factor)
            FORM.write(file := io.BytesIO(), layout, 0)
            assert len(file.getvalue()) == FORM.file_bytes(layout, np.array([0])).tolist()[0]
            plain = np.empty((per_file, size), np.uint8)
            for row in range(per_file):
                fill(plain[row], layout.seed, row, factor)
            with h5py.File(file) as opened:
                assert opened["x"].compression == (None if compression == "none" else compression)
                assert (opened["x"].chunks is not None, opened["x"].shuffle) == (True, is_shuffled)
                assert opened["x"][:].tobytes() == plain.tobytes()
                names = ["y", "z1", "z2", "z3"][: max(1, datasets - 1)]
                assert [*opened] == ["x", *names]
                assert all(opened[name][:].tolist() == [*range(per_file)] for name in names)


@pytest.mark.parametrize("compression", ["none", "gzip", "lzf"])
@pytest.mark.parametrize("samples", [[0, 1, 2, 9, 4], [3, 0, 3], [20, 21, 22, 23], [5, 17, 33, 6]])
def test_the_requests_of_chunks_and_labels_are_those_that_are_planned(
    compression: str, samples: list[int], tmp_path: Path
) -> None:
    for chunk in (2500, 1000, 300):
        options = Hdf5Options(chunk=chunk, compression=compression, datasets=3)
        layout = Layout(3, 12, Constant(value=1000), 5, ".hdf5", options, 2.0)
        for number in range(3):
            path = tmp_path / layout.path(number)
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                FORM.write(file, layout, number)
        ids = np.array(samples)
        batch = Batch(0, 0, 0, ids, *layout.locate(ids), np.full_like(ids, 1000))
        traffic = Traffic(0)
        FORM.read(counted_opener(PosixStore(tmp_path), traffic), layout, batch, np.empty(1000 * len(ids), np.uint8))
        planned = FORM.requests(layout, batch)
        assert traffic.issued is not None
        assert planned.places is not None
        rows = traffic.issued.rows[traffic.issued.rows["nbytes"] > 0]
        assert rows["nbytes"].tolist() == planned.nbytes.tolist()
        assert rows["offset"].tolist() == planned.places()[2].tolist()


def test_a_wrong_weight_next_to_compressed_chunks_is_told_with_its_byte() -> None:
    layout = Layout(2, 7, Constant(value=100), 5, ".hdf5", Hdf5Options(chunk=300, compression="lzf", datasets=4), 4.0)
    FORM.write(file := io.BytesIO(), layout, 1)
    with h5py.File(file) as opened:
        at = opened["z1"].id.get_offset() + 8 * 4
    content = bytearray(file.getvalue())
    content[at + 1] ^= 1
    batch = layout.whole_file(1, 4, 5)
    with pytest.raises(DataError, match=rf"sample 11 \(row 4\): expected label 11 at byte {at}, found {11 + 256}"):
        FORM.read(lambda path: io.BytesIO(content), layout, batch, np.zeros(100, np.uint8))


@pytest.mark.parametrize("other", ["gzip", "none"])
def test_a_file_of_another_compression_is_refused(other: str) -> None:
    layout = Layout(1, 3, Constant(value=100), 5, ".hdf5", Hdf5Options(chunk=100, compression="lzf"), 4.0)
    written = replace(layout, options=Hdf5Options(chunk=100, compression=other))
    FORM.write(file := io.BytesIO(), written, 0)
    batch = layout.whole_file(0)
    with pytest.raises(DataError, match=r"sample 0 \(row 0\): expected "):
        FORM.read(lambda path: io.BytesIO(file.getvalue()), layout, batch, np.zeros(300, np.uint8))


def test_lzf_has_no_levels() -> None:
    with pytest.raises(ScenarioError, match=r"dataset.compression_level=3: lzf has no levels; remove it"):
        scenario(dataset__format="hdf5", dataset__chunk=4096, dataset__compression="lzf", dataset__compression_level=3)
