from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import zlib
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rayio.data.formats import FORMATS, layout_of
from rayio.data.formats.chunks import Hdf5Options
from rayio.data.formats.parquet_options import ParquetOptions
from rayio.data.generate import Report, prepare, verify
from rayio.data.layout import Layout
from rayio.data.manifest import NAME
from rayio.errors import DataError, ScenarioError, StorageError
from rayio.scenario.load import build
from rayio.schema.choice import NO_OPTIONS, options_of
from rayio.schema.distribution import Constant, Normal
from rayio.storage.stores.entries import TOKEN

LAYOUT = Layout(30, 2, Normal(mean=300, stdev=100), 5)
as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def make(root: Path, layout: Layout = LAYOUT, threads: int | None = 1, format: str = "npz") -> Report:
    return prepare(layout if layout.options != NO_OPTIONS else laid(layout, format), format, root, threads=threads)


def laid(layout: Layout, format: str) -> Layout:
    """Give a layout in a format, with its default options."""
    return replace(layout, extension=FORMATS[format].extension, options=options_of(FORMATS[format])())


every_format = pytest.mark.parametrize("format", FORMATS)
every_stored = pytest.mark.parametrize("format", [n for n in FORMATS if getattr(FORMATS[n], "has_files", True)])


def test_a_dataset_is_written_once_and_then_reused(tmp_path: Path) -> None:
    root = tmp_path / "data" / "small"
    written = make(root)
    files = files_in(root)
    assert len(files) == 31
    assert written == Report(0, 0, 30, sum(len(content) for name, content in files.items() if name != NAME))
    stamps = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert make(root) == Report(30, written.written_bytes, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == stamps


@every_format
def test_the_number_of_threads_does_not_show_in_the_bytes(format: str, tmp_path: Path) -> None:
    files = 1100 if format == "npz" else 70  # a folder has a thousand
    layout = Layout(files, 1, Normal(mean=30, stdev=10), 5)
    for threads in (1, 7, None):
        make(tmp_path / str(threads), layout, threads, format)
    assert files_in(tmp_path / "1") == files_in(tmp_path / "7") == files_in(tmp_path / "None")


def test_progress_adds_up_to_the_report(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []
    layout = Layout(200, 1, Constant(value=500), 5)
    report = prepare(layout, "npz", tmp_path, progress=lambda *told: seen.append(told))
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert {told[2:] for told in seen} == {(200, report.written_bytes)}
    assert seen[-1][:2] == seen[-1][2:]


def test_progress_counts_the_bytes_of_files_where_they_are_fewer_than_those_of_samples(tmp_path: Path) -> None:
    """Compressed columns take a quarter of the bytes: the line would stand at 25 % when all is done."""
    options = ParquetOptions(columns=4, compression="zstd", compression_ratio=4.0)
    layout = Layout(3, 4, Constant(value=40_000), 5, ".parquet", options=options)
    seen: list[tuple[int, ...]] = []
    report = prepare(layout, "parquet", tmp_path, progress=lambda *told: seen.append(told))
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert on_disk < 3 * 4 * 40_000 / 2
    assert seen[-1] == (3, on_disk, 3, on_disk) == (3, report.written_bytes, 3, report.written_bytes)


def test_progress_of_a_dataset_that_is_resumed_counts_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / LAYOUT.path(3)).unlink()
    seen: list[tuple[int, ...]] = []
    report = prepare(LAYOUT, "npz", tmp_path, progress=lambda *told: seen.append(told))
    assert seen == [(1, report.written_bytes, 1, report.written_bytes)]


def test_an_interrupted_dataset_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    layout = Layout(200, 1, Constant(value=500), 5)

    def interrupt(*told: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(layout, "npz", tmp_path / "a", threads=1, progress=interrupt)
    assert json.loads((tmp_path / "a" / NAME).read_text())["complete"] is False
    half = files_in(tmp_path / "a")
    assert 1 < len(half) < 201
    report = make(tmp_path / "a", layout)
    assert report.reused_files == len(half) - 1
    assert report.reused_files + report.written_files == 200
    make(tmp_path / "b", layout)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


def test_a_file_cut_short_by_a_crash_is_written_again_while_the_dataset_is_unfinished(tmp_path: Path) -> None:
    make(tmp_path)
    whole = files_in(tmp_path)
    note = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps(note | {"complete": False}))
    (tmp_path / LAYOUT.path(3)).write_bytes(b"")
    assert make(tmp_path).written_files == 1
    assert files_in(tmp_path) == whole


def test_a_lost_file_of_a_finished_dataset_is_written_again(tmp_path: Path) -> None:
    make(tmp_path)
    whole = files_in(tmp_path)
    (tmp_path / LAYOUT.path(29)).unlink()
    assert make(tmp_path).written_files == 1
    assert files_in(tmp_path) == whole


def test_a_truncated_file_of_a_finished_dataset_is_refused_by_file_sample_and_size(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / LAYOUT.path(3)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    says = rf"000000003.npz: samples 6 to 7: expected a file of {size} bytes, found {size - 1}; delete it"
    for check in (prepare, verify):
        with pytest.raises(DataError, match=says):
            check(LAYOUT, "npz", tmp_path)


@every_stored
def test_verify_reads_every_sample(format: str, tmp_path: Path) -> None:
    layout = laid(LAYOUT, format)
    with pytest.raises(DataError, match="there is no dataset; generate it first"):
        verify(layout, format, tmp_path)
    report = make(tmp_path, format=format)
    assert verify(layout, format, tmp_path) == Report(30, report.written_bytes, 0, 0)
    path = tmp_path / layout.path(17)
    content = bytearray(path.read_bytes())
    content[500 if format == "hdf5" else 300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"000000017{layout.extension}: sample 3[45] .*expected (checksum|CRC|b')"):
        verify(layout, format, tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=rf"000000017{layout.extension}: the file is missing"):
        verify(layout, format, tmp_path)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (replace(LAYOUT, num_files=31), "dataset.num_files = 30, the scenario has 31;"),
        (replace(LAYOUT, samples_per_file=1), "dataset.samples_per_file = 2, the scenario has 1;"),
        (replace(LAYOUT, seed=6), "seed = 5, the scenario has 6;"),
        (
            replace(LAYOUT, options=Hdf5Options(chunk=4096)),
            r"dataset.chunk = none, the scenario has 4096 \(and 4 more\);",
        ),
        (replace(LAYOUT, seed=6, num_files=3), r"dataset.num_files = 30, the scenario has 3 \(and 1 more\);"),
        (
            replace(LAYOUT, sample_bytes=Constant(value=300)),
            r"dataset.sample_bytes = \{.*\}, the scenario has \{.*\};",
        ),
    ],
)
def test_another_dataset_is_refused_and_left_alone(layout: Layout, says: str, tmp_path: Path) -> None:
    make(tmp_path)
    before = files_in(tmp_path)
    for check in (prepare, verify):
        with pytest.raises(DataError, match=f"this dataset has .*{says} choose another dataset.path"):
            check(layout, "npz", tmp_path)
    assert files_in(tmp_path) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(DataError, match=r"the folder contains 'holiday.jpg' and no rayio-dataset.json"):
        make(tmp_path)
    assert list(files_in(tmp_path)) == ["holiday.jpg"]


def test_a_fresh_mount_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert make(tmp_path).written_files == 30


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match=r"data: dataset.path is a file"):
        make(tmp_path / "data")
    with pytest.raises(StorageError, match="a part of this path is a file"):
        make(tmp_path / "data" / "below")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 2}', "\ufeff\0", '{"version": 1, "seed": 3}']
)
def test_a_manifest_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / NAME).write_text(text)
    with pytest.raises(DataError, match=r"rayio-dataset.json: not a manifest of this version \(.+\); delete"):
        make(tmp_path)


def test_a_manifest_from_before_there_were_chunks_is_read(tmp_path: Path) -> None:
    make(tmp_path)
    note = json.loads((tmp_path / NAME).read_text())
    del note["options"]
    (tmp_path / NAME).write_text(json.dumps(note))
    assert make(tmp_path).reused_files == 30


def test_a_manifest_of_rayio_0_1_is_read_which_has_its_chunks_beside_the_rest(tmp_path: Path) -> None:
    layout = replace(LAYOUT, extension=".hdf5", options=Hdf5Options(chunk=4096))
    prepare(layout, "hdf5", tmp_path)
    note = json.loads((tmp_path / NAME).read_text())
    options = {"chunk": 4096, "compression": "none", "compression_level": 4, "datasets": 1, "shuffle": False}
    assert note.pop("options") == options
    (tmp_path / NAME).write_text(json.dumps(note | {"chunk": 4096}))
    assert prepare(layout, "hdf5", tmp_path).reused_files == 30
    (tmp_path / NAME).write_text(json.dumps(note | {"chunk": 1024}))
    with pytest.raises(DataError, match=r"this dataset has dataset.chunk = 1024, the scenario has 4096;"):
        prepare(layout, "hdf5", tmp_path)


def test_a_dataset_of_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    note = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps(note | {"version": 2}))
    with pytest.raises(DataError, match="expected version 1, found 2"):
        make(tmp_path)


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    needed = make(tmp_path / "there").written_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - needed + 1, needed - 1))
    with pytest.raises(
        StorageError, match=r"full: the dataset needs .* more, only .* are free; free space, choose another"
    ):
        make(tmp_path / "full")
    assert files_in(tmp_path / "full") == {}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - needed, needed))
    assert make(tmp_path / "full").written_files == 30
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 0))
    assert make(tmp_path / "full").reused_files == 30


@as_root
def test_a_folder_without_permission_is_a_storage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission for creating the dataset's folder"):
        make(tmp_path / "data")
    tmp_path.chmod(0o700)


@every_stored
def test_a_write_that_fails_leaves_a_folder_that_can_be_resumed(format: str, tmp_path: Path) -> None:
    layout = Layout(20, 1, Constant(value=20_000), 5, FORMATS[format].extension, options_of(FORMATS[format])())
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limit[1]))
    try:
        with pytest.raises(StorageError, match="File too large while writing the dataset"):
            prepare(layout, format, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [name for name in files_in(tmp_path) if not name.endswith(".idx")] == [NAME]
    assert make(tmp_path, Layout(20, 1, Constant(value=20_000), 5), format=format).written_files == 20


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    make(tmp_path)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host, pid = socket.gethostname(), int(dead.stdout)
    name = LAYOUT.path(0)
    gone = [f"{name}+1+{host}+{pid}+aa.partial", f"{name}+1+{host}+{os.getpid()}+aa.partial"]
    kept = [
        f"{name}+1+{host}+{os.getppid()}+aa.partial",
        f"{name}+1+{host}+{os.getpid()}+{TOKEN}.partial",
        f"{name}+1+elsewhere+{pid}+aa.partial",
        f"{name}.partial",
    ]
    for path in gone + kept:
        (tmp_path / path).write_text("")
    make(tmp_path)
    assert sorted(files for files in files_in(tmp_path) if files.endswith(".partial")) == sorted(kept)


@every_stored
def test_files_hold_what_the_format_writes(format: str, tmp_path: Path) -> None:
    make(tmp_path, format=format)
    content = io.BytesIO()
    layout = laid(LAYOUT, format)
    FORMATS[format].write(content, layout, 7)
    path = layout.path(7)
    assert (tmp_path / path).read_bytes() == content.getvalue()


@pytest.mark.parametrize("ratio", [1.0, 1.5, 4.0, 16.0])
@pytest.mark.parametrize("format", ["npz", "hdf5", "tfrecord", "parquet", "raw", "npy", "tar", "indexed_binary"])
def test_zlib_shrinks_samples_by_the_compressibility(format: str, ratio: float, tmp_path: Path) -> None:
    size = 200_000
    layout = replace(laid(Layout(2, 2, Constant(value=size), 5), format), compressibility=ratio)
    assert prepare(layout, format, tmp_path, threads=1).written_files == 2
    assert verify(layout, format, tmp_path).reused_files == 2
    content = (tmp_path / layout.path(1)).read_bytes()
    if format == "tar":  # headers compress too, and are much of a small tar
        content = content.rstrip(b"\0")
    assert len(content) / len(zlib.compress(content, 6)) == pytest.approx(ratio, rel=0.04)
    if ratio > 1:
        with pytest.raises(
            DataError, match=r"this dataset has dataset.compressibility = [\d.]+, the scenario has none"
        ):
            prepare(replace(layout, compressibility=1.0), format, tmp_path, threads=1)


def test_folders_have_as_many_files_as_they_should(tmp_path: Path) -> None:
    layout = replace(laid(LAYOUT, "npz"), files_per_folder=4)
    prepare(layout, "npz", tmp_path, threads=2)
    found = [len([*folder.glob("*.npz")]) for folder in sorted(tmp_path.iterdir()) if folder.is_dir()]
    assert found == [4] * 7 + [2]
    assert verify(layout, "npz", tmp_path).reused_files == 30
    (tmp_path / "000007/000000029.npz").unlink()
    assert prepare(layout, "npz", tmp_path, threads=1).written_files == 1
    with pytest.raises(DataError, match=r"this dataset has dataset.files_per_folder = 4, the scenario has none"):
        prepare(laid(LAYOUT, "npz"), "npz", tmp_path)


def test_keys_of_the_dataset_reach_its_layout() -> None:
    plain = {"path": "d", "num_files": 8, "sample_bytes": 100}
    made = build({
        "name": "x", "dataset": plain | {"compressibility": 2, "files_per_folder": 3}, "train": {"compute": 1},
        "loader": {"batch_size": 1},
    })  # fmt: skip
    assert (layout_of(made).compressibility, layout_of(made).path(7)) == (2.0, "000002/000000007.npz")
    for keys, says in (
        ({"compressibility": 17}, "dataset.compressibility=17: must be a number from 1 to 16"),
        ({"files_per_folder": 0}, "dataset.files_per_folder=0: must be a whole number of at least 1"),
        (
            {"compressibility": 2, "format": "csv", "sample_bytes": 200},
            "dataset.compressibility=2: samples of dataset.",
        ),
    ):
        with pytest.raises(ScenarioError, match=re.escape(says)):
            build({"name": "x", "dataset": plain | keys, "train": {"compute": 1}, "loader": {"batch_size": 1}})


VARYING = [name for name in FORMATS if getattr(FORMATS[name], "sizes_vary", False)]


@pytest.mark.parametrize("format", [name for name in VARYING if name != "synthetic"])
def test_samples_of_a_file_may_differ_in_size_as_their_distribution_does(format: str, tmp_path: Path) -> None:
    layout = replace(laid(Layout(4, 300, Normal(mean=2000, stdev=300), 5), format), sizes="per_sample")
    sizes = layout.sizes_of(np.arange(layout.num_samples))
    assert sizes.mean() == pytest.approx(2000, rel=0.02)
    assert sizes.std() == pytest.approx(300, rel=0.1)
    assert len({*sizes[:300].tolist()}) > 200
    prepare(layout, format, tmp_path, threads=2)
    assert verify(layout, format, tmp_path).reused_files == 4
    total = sum(path.stat().st_size for path in tmp_path.rglob(f"*{layout.extension}"))
    assert total >= sizes.sum()
    if format in ("raw", "jpeg", "png", "jsonl"):
        assert total == sizes.sum()
    with pytest.raises(DataError, match=r"has dataset.sizes = per_sample, the scenario has none"):
        prepare(replace(layout, sizes="per_file"), format, tmp_path)
    path = tmp_path / layout.path(2)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"000000002\.\w+: sample (6|7|8)\d\d \(row \d+\): expected"):
        verify(layout, format, tmp_path)


def test_sizes_per_sample_are_refused_where_they_cannot_be() -> None:
    plain = {"path": "d", "num_files": 8, "sample_bytes": 200, "sizes": "per_sample"}
    for keys, says in (
        (
            {"format": "npy"},
            "dataset.sizes=per_sample: all samples of a npy file have one size; use dataset.format=npz or",
        ),
        ({"format": "csv"}, "dataset.sizes=per_sample: all samples of a csv file have one size"),
        ({"format": "raw", "samples_per_file": 1_000_001}, "dataset.sizes=per_sample: 1000001 samples in a file; at"),
        ({"sizes": "each"}, "dataset.sizes=each: must be per_file or per_sample"),
    ):
        with pytest.raises(ScenarioError, match=re.escape(says)):
            build({"name": "x", "dataset": plain | keys, "train": {"compute": 1}, "loader": {"batch_size": 1}})
