"""Formats of records, as other programs read them: numpy, tarfile, WebDataset, pandas, json, Pillow."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import on_disk
from numpy.typing import NDArray

from rayio.cli import main
from rayio.data.formats import FORMATS, layout_of, places
from rayio.data.formats.at_once import Frame
from rayio.data.formats.images import MISSING
from rayio.data.formats.records import Records
from rayio.data.generate import prepare, verify
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant, Uniform
from rayio.storage import open as open_store
from rayio.storage.real import RealStorage
from scenarios import run_locally, scenario


def written(name: str, size: int = 3000, rows: int = 3, number: int = 1) -> tuple[Layout, bytes]:
    """Give a file of a format, and its layout."""
    form = FORMATS[name]
    layout = Layout(4, rows, Constant(value=size), 5, form.extension, options_of(form)())
    file = io.BytesIO()
    form.write(file, layout, number)
    return layout, file.getvalue()


def samples(name: str, layout: Layout, content: bytes, number: int = 1) -> Iterator[bytes]:
    """Give the samples of a file as rayio delivers them."""
    batch = layout.whole_file(number)
    out = np.zeros(batch.total_bytes, np.uint8)
    assert FORMATS[name].read(lambda path: io.BytesIO(content), layout, batch, out).tolist() == batch.samples.tolist()
    ends = np.cumsum(batch.nbytes).tolist()
    return (out[end - size : end].tobytes() for end, size in zip(ends, batch.nbytes.tolist(), strict=True))


def test_numpy_reads_our_npy_and_its_own_files_are_read() -> None:
    layout, content = written("npy")
    rows = np.load(io.BytesIO(content))
    assert (rows.shape, rows.dtype) == ((3, 3000), np.uint8)
    assert [row.tobytes() for row in rows] == [*samples("npy", layout, content)]
    saved = io.BytesIO()
    np.save(saved, rows)
    assert saved.getvalue() == content
    header = f"{{'shape': {rows.shape}, 'fortran_order': False, 'descr': '|u1'}}".ljust(181).encode() + b"\n"
    other = b"\x93NUMPY\1\0\xb6\0" + header + rows.tobytes()
    assert [*samples("npy", layout, other)] == [*samples("npy", layout, content)]


@pytest.mark.parametrize("size", [16, 511, 512, 513, 3000])
def test_tarfile_reads_our_tar_and_finds_ids_and_labels(size: int) -> None:
    layout, content = written("tar", size)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        bodies = {name: file.read() for name, file in members.items() if file is not None}
    ids = [3, 4, 5]
    assert [*bodies] == [f"{sample:019d}.{suffix}" for sample in ids for suffix in ("bin", "cls")]
    assert [int(bodies[f"{sample:019d}.cls"]) for sample in ids] == ids
    assert [bodies[f"{sample:019d}.bin"] for sample in ids] == [*samples("tar", layout, content)]
    assert len(content) % 10240 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="tar is GNU's on Linux")
def test_gnu_tar_lists_our_tar_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(written("tar")[1])
    done = subprocess.run(["tar", "-tf", tmp_path / "a.tar"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 6


def test_webdataset_reads_our_tar(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    layout, content = written("tar")
    (tmp_path / "shard.tar").write_bytes(content)
    code = (
        "import sys, webdataset\n"
        "for one in webdataset.WebDataset(sys.argv[1], shardshuffle=False, empty_check=False):\n"
        "    print(int(one['cls']), int(one['__key__']), one['bin'].hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "shard.tar"], capture_output=True, text=True, check=True
    )
    bodies = samples("tar", layout, content)
    assert done.stdout.splitlines() == [f"{sample} {sample} {next(bodies).hex()}" for sample in (3, 4, 5)]


@pytest.mark.parametrize(("name", "separator"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("size", [*range(128, 147), 3000])
def test_pandas_reads_our_lines_of_numbers(name: str, separator: str, size: int) -> None:
    _, content = written(name, size)
    table = pd.read_csv(io.BytesIO(content), header=None, sep=separator)
    assert table[0].tolist() == [3, 4, 5]
    assert not table.isna().to_numpy().any()
    values = table.iloc[:, 2:].to_numpy(float)
    assert values.shape[1] == -(-(size - 41) // 9) - (size % 9 == 42 % 9)
    assert ((values >= 0) & (values < 1)).all()
    assert len(np.unique(values)) > 20


def test_json_reads_our_objects() -> None:
    for name, parsed in (
        ("json", json.loads),
        ("jsonl", lambda text: [json.loads(line) for line in text.splitlines()]),
    ):
        layout, content = written(name)
        objects = parsed(content)
        assert [one["id"] for one in objects] == [3, 4, 5]
        assert [json.loads(sample)["text"] for sample in samples(name, layout, content)] == [
            one["text"] for one in objects
        ]
        assert len({one["text"] for one in objects}) == 3


@pytest.mark.parametrize("name", ["jpeg", "png"])
@pytest.mark.parametrize("size", [16, 401, 402, 403, 404, 3000, 200_000])
def test_pillow_reads_our_images_which_fill_their_files(name: str, size: int) -> None:
    image = pytest.importorskip("PIL.Image")
    layout, content = written(name, size)
    shades: list[bytes] = []
    for sample in samples(name, layout, content):
        opened = image.open(io.BytesIO(sample))
        opened.load()
        assert (opened.format, opened.mode) == (name.upper(), "L")
        shades.append(opened.tobytes())
        plain = io.BytesIO()
        opened.save(plain, name, **({"quality": 90} if name == "jpeg" else {"compress_level": 1}))
        if size > 3000:
            assert plain.tell() > 0.95 * size  # the pixels fill the file, not the padding
    assert len({*shades}) == 3 or size == 16


def test_images_without_pillow_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError) as refused:
        written("jpeg")
    assert str(refused.value) == MISSING
    monkeypatch.chdir(tmp_path)
    keys = ["dataset.format=png", "dataset.sample_bytes=2 kB"]
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "unet3d-small", *keys])
    assert capsys.readouterr().err.strip().endswith(MISSING)


@pytest.mark.parametrize(("name", "least"), [("jpeg", 400), ("png", 160), ("csv", 128)])
def test_samples_below_the_least_of_a_format_are_refused(
    name: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["validate", "unet3d-small", f"dataset.format={name}", "dataset.sample_bytes=100 B"])
    says = f"dataset.sample_bytes=100 B: must be at least {least} B, the least of dataset.format={name}"
    assert says in capsys.readouterr().err


def test_sizes_drawn_below_the_least_are_raised_to_it() -> None:
    form = FORMATS["csv"]
    layout = Layout(50, 1, Uniform(low=100, high=200), 5, form.extension, options_of(form)())
    assert layout.sample_bytes_of(np.arange(50)).min() == 128


def damaged(name: str, change: Any, row: int = 1) -> str:
    """Give what is said of a changed file of which a row is read."""
    layout, content = written(name)
    batch = layout.whole_file(1, row, row + 1)
    with pytest.raises(DataError) as told:
        FORMATS[name].read(
            lambda path: io.BytesIO(change(content)), layout, batch, np.zeros(batch.total_bytes, np.uint8)
        )
    return str(told.value)


class Summed(Records):
    """Files with a head, and a sum after each sample, as a package may add."""

    extension = ".summed"
    head_bytes = 5
    reads_head = True
    is_framed = True

    def after_bytes(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full_like(nbytes, 4)

    def head(self, rows: int, nbytes: int) -> bytes:
        return b"HEAD%d" % rows

    def framing(self, layout: Layout) -> Frame:
        return lambda sample, content: struct.pack("<I", zlib.crc32(content.data))


@pytest.mark.parametrize("wanted", [[0, 4, 8], [1, 2, 9]], ids=["one a file", "several a file"])
def test_records_with_a_head_and_sums_are_read_with_the_planned_requests(wanted: list[int], tmp_path: Path) -> None:
    form, layout = Summed(), Layout(4, 3, Constant(value=3000), 5, Summed.extension, options_of(Summed)())
    for number in range(4):
        path = tmp_path / layout.path(number)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            form.write(file, layout, number)
        content = path.read_bytes()
        for end in range(5 + 3000, len(content), 3004):
            assert struct.unpack_from("<I", content, end) == (zlib.crc32(content[end - 3000 : end]),)
    ids = np.array(wanted)
    files, index = layout.locate(ids)
    batch = Batch(0, 0, 0, ids, files, index, layout.sizes_of(ids))
    out, planned = np.zeros(batch.total_bytes, np.uint8), form.requests(layout, batch)
    storage = RealStorage(open_store(tmp_path), asyncio.to_thread)
    done = asyncio.run(storage.read(planned, lambda opener: form.read(opener, layout, batch, out)))
    assert done.value is not None
    assert done.value.tolist() == wanted
    assert (done.opens, done.requests, done.nbytes) == (planned.num_opens, len(planned.nbytes), planned.total_bytes)


def test_what_is_damaged_around_a_sample_is_told_with_what_was_expected() -> None:
    place = r"000000/000000001"
    assert damaged("tar", lambda file: file[: 4608 + 1024] + b"\7" + file[4608 + 1025 :]).startswith(
        f"{place}.tar: sample 4 (row 1): expected checksum"
    )
    assert "expected b'ustar" in damaged("tar", lambda file: file[: 4608 + 257] + b"\0" + file[4608 + 258 :])
    assert "expected b',\\n' after its bytes, found b';\\n'" in damaged(
        "json", lambda file: file.replace(b",\n", b";\n")
    )
    assert "expected a file of 9008 bytes, found 8000: the file is truncated" in damaged(
        "json", lambda file: file[:8000]
    )
    assert "expected id 4 and a checksum, found neither" in damaged("csv", lambda file: file.replace(b",", b";"))
    assert "expected an array of shape (3, 3000) and uint8, found (3000, 3)" in damaged(
        "npy", lambda file: file.replace(b"(3, 3000)", b"(3000, 3)")
    )


@pytest.mark.parametrize("name", ["raw", "npy", "tar", "csv", "tsv", "jsonl", "jpeg", "png"])
def test_garbage_at_the_end_does_not_matter_to_what_is_read(name: str) -> None:
    layout, content = written(name)
    assert [*samples(name, layout, content + b"\xff" * 9000)] == [*samples(name, layout, content)]


def beside_of(name: str, layout: Layout) -> bytes:
    file = io.BytesIO()
    FORMATS[name].write_beside(file, layout, 1, ".idx")  # type: ignore[attr-defined]
    return file.getvalue()


def test_the_newer_index_is_as_megatron_reads_it() -> None:
    """Parse it by the steps of Megatron-LM's ``_IndexReader``."""
    layout, content = written("mmap_indexed_binary", 100)
    index = io.BytesIO(beside_of("mmap_indexed_binary", layout))
    assert index.read(9) == b"MMIDIDX\x00\x00"
    assert struct.unpack("<Q", index.read(8)) == (1,)
    assert struct.unpack("<B", index.read(1)) == (1,)  # DType.uint8
    (number,), (documents,) = struct.unpack("<Q", index.read(8)), struct.unpack("<Q", index.read(8))
    rest = index.read()
    lengths = np.frombuffer(rest, np.int32, number)
    pointers = np.frombuffer(rest, np.int64, number, lengths.nbytes)
    indices = np.frombuffer(rest, np.int64, documents, lengths.nbytes + pointers.nbytes)
    assert len(rest) == lengths.nbytes + pointers.nbytes + indices.nbytes
    assert (lengths.shape[0], lengths.shape[0]) == (number, indices[-1])
    assert [np.frombuffer(content, np.uint8, n, at).tobytes() for n, at in zip(lengths, pointers, strict=True)] == [
        *of_both("mmap_indexed_binary", layout, content)
    ]


def test_the_older_index_is_as_fairseq_reads_it() -> None:
    """Parse it by the steps of Megatron's and fairseq's ``IndexedDataset.read_index``."""
    layout, content = written("indexed_binary", 100)
    index = io.BytesIO(beside_of("indexed_binary", layout))
    assert index.read(8) == b"TNTIDX\x00\x00"
    assert struct.unpack("<Q", index.read(8)) == (1,)
    code, element = struct.unpack("<QQ", index.read(16))
    number, sizes_number = struct.unpack("<QQ", index.read(16))
    (documents,) = struct.unpack("<Q", index.read(8))
    arrays = [np.frombuffer(index.read(8 * n), np.int64) for n in (number + 1, number + 1, sizes_number, documents)]
    dims, offsets, sizes, indices = arrays
    assert (code, element, index.read()) == (1, 1, b"")
    assert indices.tolist() == [0, 1, 2, 3]
    found = [
        content[offsets[n] * element : (offsets[n] + sizes[dims[n] : dims[n + 1]].prod()) * element]
        for n in range(number)
    ]
    assert found == [*of_both("indexed_binary", layout, content)]


def of_both(name: str, layout: Layout, content: bytes, index: bytes | None = None) -> Iterator[bytes]:
    """Give the samples of a file with its index."""
    both = {".bin": content, ".idx": beside_of(name, layout) if index is None else index}
    batch = layout.whole_file(1)
    out = np.zeros(batch.total_bytes, np.uint8)
    FORMATS[name].read(lambda path: io.BytesIO(both[path[-4:]]), layout, batch, out)
    return (row.tobytes() for row in out.reshape(layout.samples_per_file, -1))


@pytest.mark.parametrize("name", ["indexed_binary", "mmap_indexed_binary"])
def test_every_changed_and_every_missing_byte_of_an_index_is_told_or_lies_where_nobody_looks(name: str) -> None:
    layout, content = written(name, 100)
    index, right = beside_of(name, layout), [*of_both(name, *written(name, 100))]
    for place in range(len(index)):
        for changed in (index[:place], index[:place] + bytes([index[place] ^ 0x10]) + index[place + 1 :]):
            with pytest.raises(DataError, match=r"000000001.idx: sample 3 \(row 0\): expected .* of the index, found"):
                of_both(name, layout, content, changed)
    assert [*of_both(name, layout, content, index + b"more")] == right


def test_a_large_index_in_memory_costs_the_pages_that_are_touched() -> None:
    form = FORMATS["mmap_indexed_binary"]
    layout = Layout(1, 40_000, Constant(value=100), 5, form.extension)
    ids = np.array([20_000, 7])
    batch = Batch(0, 0, 0, ids, np.zeros_like(ids), ids, np.full_like(ids, 100))
    planned = form.requests(layout, batch)
    assert planned.places is not None
    files, file, offsets = planned.places()
    assert (files, file.tolist()) == (["000000/000000000.idx", "000000/000000000.bin"], [0, 0, 0, 0, 0, 1, 1])
    # 34 bytes; sizes of 4 bytes; offsets of 8 bytes: samples of 100 bytes at 2 000 000 and 700.
    pages = [at // 4096 * 4096 for at in (0, 34 + 4 * 20_000, 34 + 160_000 + 8 * 20_000, 34, 160_090, 2_000_000, 700)]
    assert offsets.tolist() == pages
    assert planned.nbytes.tolist() == [4096] * 7


def test_an_index_that_is_missing_is_written_again(tmp_path: Path) -> None:
    form = FORMATS["indexed_binary"]
    layout = Layout(4, 3, Constant(value=100), 5, form.extension)
    assert prepare(layout, "indexed_binary", tmp_path, threads=1).written_files == 4
    assert len([*tmp_path.rglob("*.idx")]) == 4
    (tmp_path / "000000/000000002.idx").unlink()
    (tmp_path / "000000/000000003.idx").write_bytes(b"short")
    assert prepare(layout, "indexed_binary", tmp_path, threads=1).written_files == 2
    verify(layout, "indexed_binary", tmp_path)


def test_synthetic_samples_need_no_files_and_are_counted(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", dataset__format="synthetic", train__compute="100 us"), tmp_path)
    run = run_locally(wanted, tmp_path)
    assert run.ledger.even
    assert {(row["bytes"], row["requests"]) for row in run.rows("read")} == {(0, 0)}
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["rayio-dataset.json"]
    verify(layout_of(wanted), "synthetic", tmp_path / "data")


@pytest.mark.parametrize(("kept", "most_apart"), [(1 << 22, 1), (40, 4), (0, 1), (0, 4)])
def test_offsets_are_sums_of_sizes_whatever_is_kept_of_them(
    kept: int, most_apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Form:
        asked = 0

        def record_sizes(self, _: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
            self.asked += samples.size
            return 10 + samples % 7

    for name, value in {"KEPT_OFFSETS": kept, "MOST_APART": most_apart, "KEPT_FILES": 4, "TOGETHER": 10}.items():
        monkeypatch.setattr(places, name, value)
    form, layout = Form(), Layout(12, 5, Constant(value=1), 0)
    for files, index in np.random.default_rng(3).integers(0, [[12], [6]], (50, 2, 9)):
        starts = places.starts_of(form, layout, files, index)
        for file, row, start in zip(files.tolist(), index.tolist(), starts.tolist(), strict=True):
            assert start == sum(10 + sample % 7 for sample in range(5 * file, 5 * file + row))
    if kept > 60:
        assert form.asked == 60, "the sizes of each file are computed once"
    elif kept:
        assert form.asked < 60 + 50 * 9 * most_apart, "and some of them where a dataset has too many"
    assert places.edges_of(form, layout, 2).tolist() == [0, *np.cumsum(10 + np.arange(10, 15) % 7)]
