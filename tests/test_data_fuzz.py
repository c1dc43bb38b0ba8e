"""Damaged files through the path that a reader takes: storage, then format. Right samples, or one line, and an end."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from checksums import lookup3
from hypothesis import given, settings
from hypothesis import strategies as st

from rayio.data.formats import FORMATS
from rayio.data.formats.chunks import Hdf5Options
from rayio.data.formats.encoded import Encoded
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.formats.sample import fill
from rayio.data.formats.tfrecord import masked_crc
from rayio.data.formats.tfrecord_options import TfRecordOptions
from rayio.data.generate import prepare
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, StorageError
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant
from rayio.storage.base import Opener
from rayio.storage.real import RealStorage
from rayio.storage.stores.posix import PosixStore

T = TypeVar("T")

#: Every format with one sample of a file and with many, hdf5 in chunks of samples and of parts of one, and parquet in
#: row groups and columns.
CASES = {
    f"{name}-{per_file}": (name, Layout(4, per_file, Constant(value=size), 5, form.extension, options_of(form)()))
    for name, form in FORMATS.items()
    if getattr(form, "has_files", True)
    for per_file, size in ((1, 6000), (7, 500))
}
for title, chunk in (("samples", 1200), ("parts", 300)):
    CASES[f"hdf5-7-{title}"] = ("hdf5", replace(CASES["hdf5-7"][1], options=Hdf5Options(chunk=chunk)))
CASES["parquet-7-columns"] = (
    "parquet",
    replace(CASES["parquet-7"][1], options=ParquetOptions(row_group=3, columns=4)),
)
for title, chunk in (("gzip", 1200), ("gzip-parts", 300)):
    packed = Hdf5Options(chunk=chunk, compression="gzip")
    CASES[f"hdf5-7-{title}"] = ("hdf5", replace(CASES["hdf5-7"][1], options=packed))
for title, compression in (("datasets-chunks", "none"), ("datasets-gzip-shuffle", "gzip"), ("datasets-lzf", "lzf")):
    packed = Hdf5Options(chunk=1200, compression=compression, shuffle=compression == "gzip", datasets=3)
    squeezed = 4.0 if compression == "lzf" else 1.0
    CASES[f"hdf5-7-{title}"] = (
        "hdf5", replace(CASES["hdf5-7"][1], options=packed, compressibility=squeezed),
    )  # fmt: skip
CASES["parquet-7-sizes"] = ("parquet", replace(CASES["parquet-7"][1], sizes="per_sample"))
CASES["npz-7-sizes"] = ("npz", replace(CASES["npz-7"][1], sizes="per_sample"))
CASES["hdf5-7-sizes"] = ("hdf5", replace(CASES["hdf5-7"][1], sizes="per_sample"))
CASES["hdf5-7-datasets"] = ("hdf5", replace(CASES["hdf5-7"][1], options=Hdf5Options(datasets=3)))
CASES["tfrecord-7-gzip"] = ("tfrecord", replace(CASES["tfrecord-7"][1], options=TfRecordOptions(compression="gzip")))
#: Where readers look first and last; anywhere else the samples are.
EDGES = st.one_of(st.integers(0, 460), st.integers(-500, -1), st.integers(0, 10**6))


async def inline(function: Callable[[], T]) -> T:
    return function()


#: Where the dataset of each case lies: written once, for all its examples.
ROOTS: dict[str, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def _datasets(tmp_path_factory: pytest.TempPathFactory) -> None:
    for case, (form, layout) in CASES.items():
        ROOTS[case] = tmp_path_factory.mktemp(case)
        prepare(layout, form, ROOTS[case], threads=1)


@contextmanager
def changed(case: str, contents: dict[int, bytes]) -> Iterator[None]:
    """Put other bytes into files for a while."""
    root, layout = ROOTS[case], CASES[case][1]
    before = {number: (root / layout.path(number)).read_bytes() for number in contents}
    try:
        for number, content in contents.items():
            (root / layout.path(number)).write_bytes(content)
        yield
    finally:
        for number, content in before.items():
            (root / layout.path(number)).write_bytes(content)


def content_of(case: str, number: int) -> bytes:
    return (ROOTS[case] / CASES[case][1].path(number)).read_bytes()


def outcome(case: str, contents: dict[int, bytes], samples: list[int]) -> str:
    """Read a batch: give the error, having checked that it names a damaged file and one of its samples, or nothing.

    Whatever was read without an error must be what was written.
    """
    name, layout = CASES[case]
    ids = np.array(samples, np.int64)
    files, index = layout.locate(ids)
    batch = Batch(0, 0, 0, ids, files, index, layout.sample_bytes_of(files))
    out = np.full(batch.total_bytes, 0xAA, np.uint8)
    form = FORMATS[name]
    load: Callable[[Opener], Any] = lambda opener: form.read(opener, layout, batch, out)  # noqa: E731
    told, found = "", [-1]
    with changed(case, contents):
        try:
            RealStorage(PosixStore(ROOTS[case]), inline).read(form.requests(layout, batch), load).send(None)
        except (DataError, StorageError) as error:
            told = str(error)
        except StopIteration as done:  # nothing in it waits for anything
            found = done.value.value.tolist()
    if not told:
        assert found == samples
        assert out.tobytes() == b"".join(_bytes_of(case, sample) for sample in samples)
        return ""
    assert "\n" not in told
    named = re.match(r"(/.*?\.\w+): sample (\d+) \(row (\d+)\): .+", told)
    assert named, told
    sample = int(named[2])
    assert sample in samples
    assert sample // layout.samples_per_file in contents
    assert int(named[3]) == sample % layout.samples_per_file
    assert named[1] == str(ROOTS[case] / layout.path(sample // layout.samples_per_file))
    return told


@cache
def _bytes_of(case: str, sample: int) -> bytes:
    name, layout = CASES[case]
    row = np.zeros(int(layout.sample_bytes_of(np.array([0]))[0]), np.uint8)
    if isinstance(form := FORMATS[name], Encoded):
        form.fill(row, layout, sample)
    else:
        fill(row, layout.seed, sample, layout.compressibility)
    return row.tobytes()


def batches(case: str) -> st.SearchStrategy[list[int]]:
    """Draw samples of which at least one is of file 1, the damaged one."""
    per_file = CASES[case][1].samples_per_file
    here, any_ = st.integers(per_file, 2 * per_file - 1), st.integers(0, 4 * per_file - 1)
    return st.tuples(here, st.lists(any_, max_size=6)).map(lambda drawn: list(dict.fromkeys([*drawn[1], drawn[0]])))


def truncated(case: str, data: st.DataObject) -> None:
    """Cut a file anywhere: it is told, or, in a format without an index, all that was asked for is still there."""
    content = content_of(case, 1)
    lengths = st.one_of(st.just(0), st.integers(0, len(content) - 1), st.integers(len(content) - 40, len(content) - 1))
    length = data.draw(lengths)
    told = outcome(case, {1: content[:length]}, data.draw(batches(case)))
    assert told or (length and CASES[case][0] not in ("npz", "hdf5", "parquet", "json"))  # the end is not looked at


def flipped(case: str, data: st.DataObject) -> None:
    """Flip bits anywhere: they are told, or lie where nobody looks."""
    flips = data.draw(st.lists(st.tuples(EDGES, st.integers(1, 255)), min_size=1, max_size=5))
    outcome(case, {1: flip(content_of(case, 1), flips)}, data.draw(batches(case)))


def flipped_in_a_sample(case: str, data: st.DataObject) -> None:
    """Flip bits of a byte that is asked for: they are told."""
    layout, content = CASES[case][1], content_of(case, 1)
    samples = data.draw(batches(case))
    chosen = next(sample for sample in samples if sample // layout.samples_per_file == 1)
    if case.startswith("hdf5") and ("gzip" in case or "lzf" in case):  # its bytes are nowhere as they are
        if "lzf" in case:  # which has no checksum: the beginning of a chunk is that of its first sample
            chosen = layout.samples_per_file
            samples = [chosen, *(sample for sample in samples if sample != chosen)]
        place = last_chunk(case, chosen) + data.draw(st.integers(8, 40))  # behind what zlib does not look at
        assert outcome(case, {1: flip(content, [(place, data.draw(st.integers(1, 255)))])}, samples)
        return
    wanted = _bytes_of(case, chosen)
    if wanted not in content and case.endswith("gzip"):  # not compressible, so it is stored, in pieces
        wanted = wanted[40:300]
    if wanted not in content:  # parquet has a sample's id and its other bytes in different places
        wanted = wanted[16:80]
    place = content.index(wanted) + data.draw(st.integers(0, len(wanted) - 1))
    assert outcome(case, {1: flip(content, [(place, data.draw(st.integers(1, 255)))])}, samples)


def last_chunk(case: str, sample: int) -> int:
    """Give the offset of the last chunk that is planned to be read for a sample: a request of more than a label."""
    name, layout = CASES[case]
    ids = np.array([sample])
    files, index = layout.locate(ids)
    planned = FORMATS[name].requests(layout, Batch(0, 0, 0, ids, files, index, layout.delivered_bytes_of(ids, files)))
    assert planned.places is not None
    return int(planned.places()[2][planned.nbytes > 8][-1])


def swapped(case: str, data: st.DataObject) -> None:
    """Put two files into each other's place: they are told."""
    one, two = content_of(case, 1), content_of(case, 2)
    assert outcome(case, {1: two, 2: one}, data.draw(batches(case)))


def moved(case: str, data: st.DataObject) -> None:
    """Copy pieces of a file over others or between them, and put more behind it."""
    content = bytearray(content_of(case, 1))
    piece = st.tuples(EDGES, EDGES, st.integers(1, 600), st.booleans())
    for source, target, length, is_insertion in data.draw(st.lists(piece, min_size=1, max_size=4)):
        begin, put = target % len(content), source % len(content)
        content[begin : begin + (0 if is_insertion else length)] = content[put : put + length]
    outcome(case, {1: bytes(content) + data.draw(st.binary(max_size=60))}, data.draw(batches(case)))


def flip(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for place, bits in flips:
        changed[place % len(changed)] ^= bits
    return bytes(changed)


#: Values that lead out of a file, to its start, or round in circles.
NUMBERS = st.sampled_from([0, 1, 48, 179, 447, 1 << 16, 1 << 32, (1 << 63) - 1, (1 << 64) - 1])


def seal_hdf5(content: bytearray) -> None:
    """Make HDF5's checksums of a file's superblock and object headers right again."""
    for start, end in ((0, 48), (48, 179), (179, 447)):  # further datasets stay as they are
        struct.pack_into("<I", content, end - 4, lookup3(bytes(content[start : end - 4])))


def seal_tfrecord(content: bytearray) -> None:
    """Make the checksums of the first record right again."""
    (length,) = struct.unpack_from("<Q", content)
    struct.pack_into("<I", content, 8, masked_crc(np.frombuffer(bytes(content[:8]), np.uint8)))
    if 12 + length + 4 <= len(content):
        payload = np.frombuffer(bytes(content[12 : 12 + length]), np.uint8)
        struct.pack_into("<I", content, 12 + length, masked_crc(payload))


#: Formats whose descriptions have checksums.
SEALS: dict[str, Callable[[bytearray], None]] = {"hdf5": seal_hdf5, "tfrecord": seal_tfrecord}
#: Where a file is described, if not at both ends: hdf5's first 447 bytes, a record's first 50, the end of parquet.
DESCRIBED = {"hdf5": st.integers(0, 446), "tfrecord": st.integers(0, 50), "parquet": st.integers(-900, -1)}
EDITS = st.one_of(st.binary(min_size=1, max_size=2), NUMBERS.map(lambda number: number.to_bytes(8, "little")))


def made_up(case: str, data: st.DataObject) -> None:
    """Write nonsense into a file's description, under checksums that are right."""
    form = CASES[case][0]
    content = bytearray(content_of(case, 1))
    for place, put in data.draw(st.lists(st.tuples(DESCRIBED.get(form, EDGES), EDITS), min_size=1, max_size=4)):
        begin = place % (len(content) - len(put))
        content[begin : begin + len(put)] = put
    if form in SEALS and not case.endswith("gzip"):
        SEALS[form](content)
    outcome(case, {1: bytes(content)}, data.draw(batches(case)))


def test_the_seals_are_the_libraries_own() -> None:
    for case, (form, _) in CASES.items():
        content = bytearray(content_of(case, 1))
        if form in SEALS and not case.endswith("gzip"):
            SEALS[form](content)
        assert bytes(content) == content_of(case, 1), case


DAMAGES = (truncated, flipped, flipped_in_a_sample, swapped, moved, made_up)
every_damage = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
every_case = pytest.mark.parametrize("case", CASES)


@every_case
@settings(max_examples=8)
@given(data=st.data())
def test_nonsense_under_right_checksums_is_told_by_file_and_sample(case: str, data: st.DataObject) -> None:
    """By default tests/laws/test_formats.py does the other damages to every format."""
    made_up(case, data)


@pytest.mark.slow
@every_damage
@every_case
@settings(max_examples=500)
@given(data=st.data())
def test_thousands_of_damaged_files_are_told_by_file_and_sample(
    case: str, damage: Callable[[str, st.DataObject], None], data: st.DataObject
) -> None:
    damage(case, data)
