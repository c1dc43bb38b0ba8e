"""The requests of each access are those that strace sees of the real library; skipped without strace or the library."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayio.data.access.contract import ACCESSES, Files
from rayio.data.formats import FORMATS
from rayio.data.layout import Batch, Layout
from rayio.schema.choice import options_of
from rayio.schema.distribution import Uniform
from rayio.storage.base import Placed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
#: A request: the file's number, "open" or "read", offset and bytes.
Call = tuple[int, str, int, int]
NUM_FILES, PER_FILE = 3, 8


def written(
    root: Path, form: str, size: int, *, least: int | None = None, factor: float = 1.0, **options: Any
) -> Layout:
    """Write files of 8 samples of this size; with ``least`` they differ in size, with a factor they shrink."""
    made = FORMATS[form]
    drawn = Uniform(low=size if least is None else least, high=size)
    layout = Layout(NUM_FILES, PER_FILE, drawn, 5, made.extension, options_of(made)(**options), factor)
    if least is not None:
        layout = replace(layout, sizes="per_sample")
    for number in range(NUM_FILES):
        with (root / f"{number}").open("wb") as file:
            made.write(file, layout, number)
    return layout


def planned(layout: Layout, form: str, access: str, batches: list[list[int]], **options: Any) -> list[Call]:
    """Give the requests that a worker is planned to make for these batches of samples."""
    walked, kept, calls = ACCESSES[access], None, list[Call]()
    files = Files(FORMATS[form], layout, options_of(walked)(**options))
    for step, ids in enumerate(batches):
        samples = np.array(ids, np.int64)
        file, index = layout.locate(samples)
        batch = Batch(0, 0, step, samples, file, index, layout.delivered_bytes_of(samples, file))
        requests, kept = walked.requests(files, batch, kept)
        assert requests.places is not None
        placed = Placed(*requests.places())
        numbers = [next(n for n in range(NUM_FILES) if layout.path(n) == path) for path in placed.files]
        opening = placed.opening
        if opening is None:
            opening = np.flatnonzero(np.diff(placed.file, prepend=-1))
        assert placed.offset is not None
        for request, nbytes in enumerate(requests.nbytes.tolist()):
            number = numbers[int(placed.file[request])]
            if request in opening:
                calls.append((number, "open", -1, 0))
            calls.append((number, "read", int(placed.offset[request]), nbytes))
    return calls


def seen(root: Path, script: str) -> list[Call]:
    """Give the requests that a Python script makes to the files, by strace."""
    trace = root / "trace"
    command = ["strace", "-f", "-y", "-e", "trace=openat,read,pread64,lseek", "-o", str(trace), sys.executable, "-c"]
    done = subprocess.run([*command, script], cwd=root, capture_output=True, text=True, timeout=120, check=False)
    if "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    calls, position = list[Call](), defaultdict[str, int](int)
    line_of = re.compile(rf"^\d+ +(\w+)\((.*)\) += (\d+)(?:<{re.escape(str(root))}/(\d)>)?$")
    for line in trace.read_text(errors="replace").splitlines():
        if (match := line_of.match(line)) is None:
            continue
        call, arguments, result = match[1], match[2], int(match[3])
        if call == "openat":
            if match[4] is not None:
                calls.append((int(match[4]), "open", -1, 0))
                position[f"{result}<{root}/{match[4]}>"] = 0
            continue
        handle = arguments.partition(",")[0]
        if (of := re.search(rf"<{re.escape(str(root))}/(\d)>$", handle)) is None:
            continue
        if call == "lseek":
            position[handle] = result
        elif result:
            offset = int(arguments.rpartition(", ")[2]) if call == "pread64" else position[handle]
            calls.append((int(of[1]), "read", offset, result))
            position[handle] += result if call == "read" else 0
    return calls


#: Batches of 3 in order, of which some have samples of two files; and in an order that jumps.
IN_ORDER = [[*range(first, first + 3)] for first in range(0, 24, 3)]
JUMPING = [[0, 9, 17], [1, 10, 18], [5, 12, 19], [2, 3, 4], [20, 8, 6]]

_HDF5 = """
import h5py, sys
from h5py import h5f, h5p
keep_open, chunk, open_files = {keep_open}, {chunk}, dict()
def opened(number):
    if number in open_files:
        open_files[number] = open_files.pop(number)
        return open_files[number]
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)
    access.set_cache(0, 1, chunk or 1, 1.0)
    file = h5py.File(h5f.open(str(number).encode(), h5f.ACC_RDONLY, access))
    open_files[number] = file, file["x"]
    return open_files[number]
for batch in {batches}:
    for sample in sorted(batch, key=lambda sample: sample // 8):
        number = sample // 8
        opened(number)[1][sample % 8]
        while len(open_files) > max(1, keep_open):
            open_files.pop(next(iter(open_files)))[0].close()
    while len(open_files) > keep_open:
        open_files.pop(next(iter(open_files)))[0].close()
"""


@pytest.mark.parametrize("keep_open", [0, 1, 2, 3])
@pytest.mark.parametrize("batches", [IN_ORDER, JUMPING], ids=["in order", "jumping"])
@pytest.mark.parametrize(
    ("chunk", "compression"),
    [(None, "none"), (40_000, "none"), (20_000, "none"), (5_000, "none"), (40_000, "gzip"), (20_000, "gzip"),
     (5_000, "gzip"), (1 << 20, "gzip"), (5_000, "gzip after shuffle"), (20_000, "lzf"), (5_000, "lzf after shuffle")],
)  # fmt: skip
def test_h5py_reads_what_is_planned_of_contiguous_chunked_and_compressed_files(
    chunk: int | None, compression: str, batches: list[list[int]], keep_open: int, tmp_path: Path
) -> None:
    """h5py reads a file's description in four pieces of up to 512 bytes, rayio in one window of 4 KiB."""
    pytest.importorskip("h5py")
    apart = [[sample] for batch in batches for sample in batch] if chunk is None else batches
    options: dict[str, Any] = {"chunk": chunk, "compression": compression.split()[0]} if chunk else {}
    layout = written(tmp_path, "hdf5", 20_000, **options, shuffle="shuffle" in compression)
    real = seen(tmp_path, _HDF5.format(keep_open=keep_open, chunk=chunk, batches=apart))
    ours = planned(layout, "hdf5", "per_sample", apart, keep_open=keep_open)
    heads = [call for call in real if call[1] == "read" and call[2] < 447]
    assert [call for call in real if call not in heads] == [call for call in ours if call[2] != 0]
    assert len(heads) == 4 * sum(call[2] == 0 for call in ours)
    assert all(call[2] + call[3] <= 4096 for call in heads)


_SEVERAL = """
import h5py
from h5py import h5f, h5p
for batch in {batches}:
    for number in sorted({{sample // 8 for sample in batch}}):
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_sieve_buf_size(0)
        access.set_cache(0, 1, {chunk} or 1, 1.0)
        with h5py.File(h5f.open(str(number).encode(), h5f.ACC_RDONLY, access)) as file:
            datasets = [file[name] for name in ("x", "y", "z1")]
            for sample in batch:
                if sample // 8 == number:
                    for dataset in datasets:
                        dataset[sample % 8]
"""


@pytest.mark.parametrize("batches", [IN_ORDER, JUMPING], ids=["in order", "jumping"])
@pytest.mark.parametrize("compression", ["none", "gzip", "lzf", "gzip after shuffle", "lzf after shuffle"])
@pytest.mark.parametrize("chunk", [None, 40_000, 20_000, 5_000])
def test_h5py_reads_what_is_planned_of_several_datasets_with_chunks(
    chunk: int | None, compression: str, batches: list[list[int]], tmp_path: Path
) -> None:
    pytest.importorskip("h5py")
    if chunk is None and compression != "none":
        pytest.skip("only chunks are compressed")
    apart = [[sample] for batch in batches for sample in batch]
    packing: dict[str, Any] = {
        "chunk": chunk,
        "compression": compression.split()[0],
        "shuffle": "shuffle" in compression,
    }
    factor = 4.0 if "lzf" in compression else 1.0
    layout = written(tmp_path, "hdf5", 20_000, factor=factor, datasets=3, **(packing if chunk else {}))
    real = seen(tmp_path, _SEVERAL.format(chunk=chunk, batches=apart))
    ours = planned(layout, "hdf5", "per_sample", apart)
    assert [call for call in real if call[1] == "open" or call[2] >= 983] == [call for call in ours if call[2] != 0]


_RAGGED = """
import h5py
from h5py import h5f, h5p
for batch in {batches}:
    for number in sorted({{sample // 8 for sample in batch}}):
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_sieve_buf_size(0)
        with h5py.File(h5f.open(str(number).encode(), h5f.ACC_RDONLY, access)) as file:
            offsets, pixels = file["offsets"], file["x"]
            for sample in batch:
                if sample // 8 == number:
                    begin, end = offsets[sample % 8 : sample % 8 + 2]
                    pixels[begin:end]
"""


@pytest.mark.parametrize("batches", [IN_ORDER, JUMPING], ids=["in order", "jumping"])
def test_h5py_reads_what_is_planned_of_samples_of_several_sizes(batches: list[list[int]], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    apart = [[sample] for batch in batches for sample in batch]
    layout = written(tmp_path, "hdf5", 20_000, least=300)
    real = seen(tmp_path, _RAGGED.format(batches=apart))
    ours = planned(layout, "hdf5", "per_sample", apart)
    assert [call for call in real if call[1] == "open" or call[2] >= 983] == [call for call in ours if call[2] != 0]


_PARQUET = """
import pyarrow.parquet as pq
keep_open, open_files = {keep_open}, dict()
class Kept:
    def __init__(self, number):
        self.file, self.group, self.table = pq.ParquetFile(str(number), pre_buffer=True), -1, None
    def row(self, index):
        if self.group != index // 2:
            self.group = index // 2
            self.table = self.file.read_row_group(self.group, use_threads=False)
        return self.table.slice(index % 2, 1)
for batch in {batches}:
    for sample in sorted(batch):
        number = sample // 8
        open_files[number] = open_files.pop(number, None) or Kept(number)
        open_files[number].row(sample % 8)
        while len(open_files) > max(1, keep_open):
            open_files.pop(next(iter(open_files))).file.close()
    while len(open_files) > keep_open:
        open_files.pop(next(iter(open_files))).file.close()
"""


@pytest.mark.parametrize("keep_open", [0, 1, 2, 3])
@pytest.mark.parametrize("batches", [IN_ORDER, JUMPING], ids=["in order", "jumping"])
def test_pyarrow_reads_what_is_planned_of_parquet(batches: list[list[int]], keep_open: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    layout = written(tmp_path, "parquet", 20_000, row_group=2)
    real = seen(tmp_path, _PARQUET.format(keep_open=keep_open, batches=batches))
    assert real == planned(layout, "parquet", "per_sample", batches, keep_open=keep_open)


_BYTE_ARRAYS = """
import pyarrow.parquet as pq
for batch in {batches}:
    for number in sorted({{sample // 8 for sample in batch}}):
        file = pq.ParquetFile(str(number), pre_buffer=True)
        for group in sorted({{sample % 8 // 2 for sample in batch if sample // 8 == number}}):
            file.read_row_group(group, use_threads=False)
        file.close()
"""


@pytest.mark.parametrize("batches", [IN_ORDER, JUMPING], ids=["in order", "jumping"])
def test_pyarrow_reads_what_is_planned_of_samples_of_several_sizes(batches: list[list[int]], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    layout = written(tmp_path, "parquet", 20_000, least=300, row_group=2)
    assert seen(tmp_path, _BYTE_ARRAYS.format(batches=batches)) == planned(layout, "parquet", "per_sample", batches)


_TFRECORD = """
from tfrecord.reader import tfrecord_iterator
for number in range(3):
    for record in tfrecord_iterator(str(number)):
        pass
"""


def test_a_python_reader_of_tfrecord_streams_as_planned(tmp_path: Path) -> None:
    """tfrecord, the package, reads through Python's buffer: 4 KiB here, TensorFlow's is 256 KiB."""
    pytest.importorskip("tfrecord", exc_type=ImportError)
    layout = written(tmp_path, "tfrecord", 1500)
    buffer = (tmp_path / "0").stat().st_blksize
    real = seen(tmp_path, _TFRECORD)
    assert real == planned(layout, "tfrecord", "streamed", IN_ORDER, buffer_bytes=buffer)


_TAR = """
import tarfile
for number in range(3):
    with tarfile.open(str(number), "r|") as archive:
        for member in archive:
            archive.extractfile(member).read()
"""


def test_tarfile_streams_as_planned(tmp_path: Path) -> None:
    """WebDataset reads with tarfile's stream: 20 blocks at a time."""
    layout = written(tmp_path, "tar", 1500)
    real = seen(tmp_path, _TAR)
    ours = planned(layout, "tar", "streamed", IN_ORDER, buffer_bytes=10_240)
    assert real == ours


_NUMPY = """
import io, pathlib
import numpy as np
for number in range(3):
    with np.load(io.BytesIO(pathlib.Path(str(number)).read_bytes())) as file:
        file["x"]
"""


@pytest.mark.parametrize("access", ["whole_file", "in_memory"])
def test_numpy_reads_files_whole_as_planned(access: str, tmp_path: Path) -> None:
    layout = written(tmp_path, "npz", 20_000)
    assert seen(tmp_path, _NUMPY) == planned(layout, "npz", access, IN_ORDER)
