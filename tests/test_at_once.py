"""Small files are read in one call each: the same samples, counts and errors as through open files."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rayio
from rayio.data.formats import FORMATS
from rayio.data.formats.reads import Runs
from rayio.data.formats.sample import Running, fill
from rayio.data.generate import prepare
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError
from rayio.scenario.load import build
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant, Uniform
from rayio.storage.real import RealStorage, counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixFile, PosixStore

AT_ONCE = [
    "raw", "npy", "npz", "tar", "tfrecord", "json", "jsonl", "csv", "jpeg", "png", "indexed_binary",
    "mmap_indexed_binary", "parquet",
]  # fmt: skip
FILES = 6


#: Most bytes of a sample: more than a window of 4 KiB, and files that fit one.
SIZES = [9000, 2400]


def dataset(format: str, root: Path, rows: int = 1, most: int = SIZES[0]) -> Layout:
    form = FORMATS[format]
    layout = Layout(FILES, rows, Uniform(low=2 * most // 3, high=most), 3, form.extension, options_of(form)())
    prepare(layout, format, str(root), threads=1)
    return layout


def batch_of(layout: Layout, samples: list[int]) -> Batch:
    ids = np.array(samples)
    files, index = layout.locate(ids)
    return Batch(0, 0, 0, ids, files, index, layout.read_bytes_of(files))


def read(format: str, layout: Layout, root: Path, batch: Batch, *, is_at_once: bool) -> tuple[Any, ...]:
    traffic, out = Traffic(), np.zeros(batch.total_bytes, np.uint8)
    opener = counted_opener(PosixStore(root), traffic)
    ids = FORMATS[format].read(opener if is_at_once else lambda path: opener(path), layout, batch, out)
    return ids.tolist(), out.tobytes(), traffic.opens, traffic.requests, traffic.nbytes


@pytest.mark.parametrize("most", SIZES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("format", AT_ONCE)
def test_files_read_at_once_give_the_samples_and_the_counts_of_open_files(
    format: str, rows: int, most: int, tmp_path: Path
) -> None:
    layout = dataset(format, tmp_path, rows, most)
    for samples in ([5 * rows, 0, 2 * rows, 3 * rows + rows - 1], [*range(2 * rows)], [4, 4]):
        batch = batch_of(layout, samples)
        at_once, opened = (read(format, layout, tmp_path, batch, is_at_once=which) for which in (True, False))
        assert at_once == opened
        asked = FORMATS[format].requests(layout, batch)
        assert at_once[2:] == (asked.num_opens, len(asked.nbytes), asked.total_bytes)


@pytest.mark.parametrize("most", SIZES)
@pytest.mark.parametrize("format", AT_ONCE)
def test_a_sample_of_each_file_needs_no_object_for_the_file(
    format: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = dataset(format, tmp_path, most=most)
    made: list[str] = []
    begin = PosixFile.__init__

    def noted(*given: Any) -> None:
        made.append(given[1])
        begin(*given)

    monkeypatch.setattr(PosixFile, "__init__", noted)
    read(format, layout, tmp_path, batch_of(layout, [3, 1, 4]), is_at_once=True)
    assert made == []


#: Calls to the kernel for one sample of a file; npz and parquet ask where it ends.
CALLS = {"open": 1, "preadv": 1, "close": 1}
MORE = {"npy": {"preadv": 2}, "npz": {"preadv": 3, "lseek": 1}, "parquet": {"preadv": 2, "lseek": 1}} | dict.fromkeys(
    ("indexed_binary", "mmap_indexed_binary"), dict.fromkeys(CALLS, 2)
)


@pytest.mark.parametrize("format", AT_ONCE)
def test_a_sample_of_each_file_takes_the_kernels_calls_of_a_bare_loop_and_no_plan(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, made = dataset(format, tmp_path), Counter[str]()

    def counted(name: str, call: Any) -> Any:
        def counting(*given: Any, **named: Any) -> Any:
            made[name] += 1
            return call(*given, **named)

        return counting

    def no_plan(*_: object) -> None:
        raise AssertionError("the requests of samples of different files were planned")

    monkeypatch.setattr(Runs, "of", no_plan)
    for name in ("open", "fstat", "preadv", "pread", "read", "readv", "close", "lseek", "stat"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    read(format, layout, tmp_path, batch_of(layout, [3, 1, 4]), is_at_once=True)
    assert made == {name: 3 * number for name, number in (CALLS | MORE.get(format, {})).items()}


def planned(format: str, layout: Layout, root: Path, batch: Batch, depth: int = 3) -> tuple[Any, ...]:
    """Read with the planned requests made ahead."""

    async def in_place(function: Callable[[], Any]) -> Any:
        return function()

    form, out = FORMATS[format], np.zeros(batch.total_bytes, np.uint8)
    storage = RealStorage(PosixStore(root), in_place, depth=depth)
    reading = storage.read(form.requests(layout, batch), lambda opener: form.read(opener, layout, batch, out))
    served = asyncio.run(reading)
    assert served.value is not None
    return served.value.tolist(), out.tobytes(), served.opens, served.requests, served.nbytes


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("format", AT_ONCE)
def test_what_was_requested_ahead_is_taken_without_an_open_file(
    format: str, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = dataset(format, tmp_path)
    batch = batch_of(layout, [4, 0, 3, 1])
    expected = read(format, layout, tmp_path, batch, is_at_once=True)

    def looks(self: object, *_: object) -> None:
        raise AssertionError("the reader looked into an open file")

    for name in ("fetch", "window"):
        monkeypatch.setattr(PosixFile, name, looks)
    assert planned(format, layout, tmp_path, batch, depth) == expected


@pytest.mark.parametrize("most", SIZES)
@pytest.mark.parametrize("format", AT_ONCE)
def test_a_changed_byte_gives_the_error_of_an_open_file_or_none(format: str, most: int, tmp_path: Path) -> None:
    layout = dataset(format, tmp_path, most=most)
    batch = batch_of(layout, [2, 1])
    path = tmp_path / layout.path(1)
    whole = path.read_bytes()
    places = [0, 9, 17, 130, 600, len(whole) // 2, len(whole) - 700, len(whole) - 30, len(whole) - 1]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    for content in (*damaged, b"", whole[:50], whole[:-1], whole + b"x", (tmp_path / layout.path(0)).read_bytes()):
        path.write_bytes(content)
        told = []
        for which in (True, False):
            try:
                # without bytes: of a longer file, a window on an open one has a byte more
                told.append(str(read(format, layout, tmp_path, batch, is_at_once=which)[:4]))
            except DataError as error:
                told.append(str(error))
        assert told[0] == told[1]


def test_files_that_numpy_wrote_otherwise_are_read_and_counted_once(tmp_path: Path) -> None:
    for format in ("npy", "npz"):
        layout = replace(dataset(format, tmp_path / format), sample_bytes=Constant(value=8000))
        root = tmp_path / f"{format}-8000"
        prepare(layout, format, str(root), threads=1)
        path = root / layout.path(1)
        arrays: dict[str, NDArray[Any]] = {"": np.load(path)} if format == "npy" else dict(np.load(path))
        if format == "npy":
            with path.open("wb") as file:
                np.lib.format.write_array(file, arrays[""], version=(1, 0))
                content = path.read_bytes()
            path.write_bytes(content.replace(b"'fortran_order': False, ", b"'fortran_order':False,  ", 1))
        else:
            np.savez(path, x=arrays["x"], y=arrays["y"])
        batch = batch_of(layout, [0, 1, 2])
        at_once, opened = (read(format, layout, root, batch, is_at_once=which) for which in (True, False))
        assert at_once == opened == planned(format, layout, root, batch)


@pytest.mark.parametrize("what", ["itemised", "watched", "direct", "drop"])
def test_requests_that_are_recorded_or_bypass_the_cache_are_made_on_open_files(what: str, tmp_path: Path) -> None:
    store, traffic = PosixStore(tmp_path), Traffic(0 if what == "itemised" else None)
    if what == "watched":
        traffic.is_watched = True
    elif what in ("direct", "drop"):
        store.page_cache = what  # type: ignore[assignment]
    assert getattr(counted_opener(store, traffic), "fill") is None  # noqa: B009


def test_a_store_that_opens_otherwise_reads_otherwise(tmp_path: Path) -> None:
    class Slow(PosixStore):
        def open(self, name: str, traffic: Traffic) -> Any:
            return super().open(name, traffic)

    assert Slow(tmp_path).filling() is None
    assert PosixStore(tmp_path).filling() is not None


@pytest.mark.parametrize("format", ["raw", "npz", "tfrecord"])
def test_a_run_reads_small_files_at_once(
    format: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = build({
        "name": "small", "loader": {"batch_size": 4}, "train": {"compute": "1 ms"},
        "dataset": {"path": str(tmp_path / "data"), "format": format, "num_files": 8, "sample_bytes": "5 kB"},
    })  # fmt: skip

    def no_file(self: object, *_: object) -> None:
        raise AssertionError("a small file was opened as an object")

    monkeypatch.setattr(PosixFile, "__init__", no_file)
    assert rayio.run(scenario, engine="local", out=tmp_path / "run").result.exit_code == 0


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 5000)],
        [(0, 16), (16, 17), (17, 5000)],
        [(0, 40), (0, 100), (100, 5000)],  # after an attempt that failed
        [(0, 40), (50, 5000)],
        [(0, 10), (10, 5000)],
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize("damaged", [None, 0, 9, 16, 4999])
def test_a_sample_that_arrives_in_pieces_is_judged_as_a_whole_one(
    pieces: list[tuple[int, int]], damaged: int | None
) -> None:
    content = np.empty(5000, np.uint8)
    fill(content, 7, 3)
    if damaged is not None:
        content[damaged] ^= 1
    for number in (3, 4):
        running = Running(7)
        for first, last in pieces:
            running.take(first, content[first:last].data)
        assert running.is_right(content.data, number) == (damaged is None and number == 3)


@pytest.mark.parametrize("files_per_folder", [1, 7, 500, 1000, 3000])
def test_names_made_for_a_batch_are_the_paths_of_its_files(files_per_folder: int) -> None:
    layout = Layout(10**10, 1, Constant(value=100), 0, ".npy", files_per_folder=files_per_folder)
    files = [0, 9, 999, 1000, 2999, 3000, 123_456_789, 999_999_999, 1_000_000_000, 9_876_543_210]
    assert layout.names_of(files) == [layout.path(file) for file in files]
