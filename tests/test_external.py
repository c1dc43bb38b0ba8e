"""Datasets of other programs (``dataset.external``), read as they are."""

from __future__ import annotations

import gzip
import os
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import foreign
import h5py
import numpy as np
import pytest
from walks import SLOW, requests

from rayio import storage
from rayio.data.access.contract import ACCESSES, Files
from rayio.data.formats import form_of, layout_of
from rayio.data.sampler import Sampler
from rayio.errors import DataError, RayioError, ScenarioError
from rayio.kinds import EXTERNALS
from rayio.model.planning import plan_of
from rayio.records.run_result import Books
from rayio.scenario import derive
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.session.execute import run, simulate
from rayio.session.result import Run
from rayio.storage.listing import listed
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import run_locally, simulated

#: Formats whose files hold several samples.
OF_SEVERAL = [form for form in EXTERNALS if form not in ("jpeg", "png")]


def external(folder: Path, **overrides: Any) -> Scenario:
    """Give a scenario whose files somebody else wrote."""
    data: dict[str, Any] = {
        "name": "external", "cluster": {"ranks_per_node": 2},
        "dataset": {"path": str(folder), "external": True},
        "loader": {"batch_size": 2, "num_workers": 1, "shuffle": "file"},
        "train": {"epochs": 1, "compute": "100 us"}, "trace": {"level": "io"}, "storage": {"model": SLOW},
    }  # fmt: skip
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        data[section][name] = value
    return build(data)


def books_of(done: Run) -> Books:
    """Give the ledger of a run."""
    assert done.result.ledger is not None
    return done.result.ledger


def cases() -> list[Any]:
    """Give every access with every format whose files it can walk, with one and with several samples in each."""
    shapes = [(form, samples) for form in EXTERNALS for samples in (1, foreign.SEVERAL)]
    shapes = [(form, samples) for form, samples in shapes if samples == 1 or form in OF_SEVERAL]
    streamed = [(form, samples) for form, samples in shapes if samples == 1 or form == "tfrecord"]
    walked = [*product(("per_sample", "whole_file", "in_memory"), shapes), *product(["streamed"], streamed)]
    return [pytest.param(access, *shape, id=f"{access}-{shape[0]}-{shape[1]}") for access, shape in walked]


def test_every_external_format_is_tried() -> None:
    assert {*EXTERNALS} == {*foreign.WRITERS}


@pytest.mark.parametrize(("access", "form", "samples"), cases())
def test_what_is_read_is_what_the_files_hold_with_the_planned_requests(
    access: str, form: str, samples: int, tmp_path: Path
) -> None:
    paths = foreign.written(tmp_path, form, samples=samples)
    wanted = external(tmp_path, loader__file_access=access)
    assert (wanted.dataset.format, wanted.dataset.num_files) == (form, len(paths))
    layout = layout_of(wanted)
    assert wanted.dataset.samples_per_file == layout.samples_per_file == (1 if form == "npy" else samples)
    assert layout.listing is not None
    assert layout.listing.sizes.tolist() == [path.stat().st_size for path in paths]
    files, kept, planned = Files(form_of(form, layout), layout, wanted.loader.file_access_options), None, None
    walk, read = ACCESSES[access], dict[int, bytes]()
    sampler = Sampler.from_scenario(wanted)
    for rank, step in product(range(2), range(sampler.num_steps)):
        batch, traffic = sampler.batch(0, rank, step), Traffic(0)
        out = np.zeros(batch.total_bytes, np.uint8)
        ids, kept = walk.read(files, counted_opener(PosixStore(tmp_path), traffic), batch, out, kept)
        asked, planned = walk.requests(files, batch, planned)
        assert (traffic.opens, traffic.requests, traffic.nbytes) == (
            asked.num_opens, len(asked.nbytes), asked.total_bytes,
        )  # fmt: skip
        ends = np.cumsum(batch.nbytes)
        for sample, end, size in zip(ids.tolist(), ends.tolist(), batch.nbytes.tolist(), strict=True):
            read[sample] = out[end - size : end].tobytes()
    each = wanted.dataset.samples_per_file
    for number, path in enumerate(paths):
        parts = [read.get(number * each + n) for n in range(each)]
        if None not in parts:
            assert b"".join(part for part in parts if part is not None) == path.read_bytes()
    assert len(read) == sampler.samples(0, 0) * 2


@pytest.mark.parametrize("form", OF_SEVERAL)
def test_a_real_run_and_its_simulation_make_the_same_requests(form: str, tmp_path: Path) -> None:
    foreign.written(tmp_path, form, samples=foreign.SEVERAL)
    wanted = external(tmp_path)
    real = run_locally(wanted, tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)
    delivered = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert real.ledger.delivered_bytes == delivered or form == "npy"


def test_files_in_subfolders_are_found_and_others_are_not(tmp_path: Path) -> None:
    paths = foreign.written(tmp_path, "npz", subfolders=3)
    for name in (".hidden.npz", "_SUCCESS", "notes.txt", "half.npz.partial"):
        (tmp_path / name).write_bytes(b"something")
    layout = layout_of(external(tmp_path))
    assert layout.listing is not None
    assert layout.listing.names == tuple(str(path.relative_to(tmp_path)) for path in paths)
    assert layout.path(0) == "0/img_0000_of_0006.npz"


def test_a_plan_carries_a_few_bytes_for_each_file(tmp_path: Path) -> None:
    foreign.written(tmp_path, "npz", files=40)
    wanted = external(tmp_path)
    plan = pickle.dumps(plan_of(wanted, modelled=True))
    assert pickle.loads(plan).layout == layout_of(wanted)
    assert len(plan) < 20_000


def test_a_run_and_a_simulation_of_a_folder_as_a_user_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.written(tmp_path / "data" / "train", "tfrecord", samples=foreign.SEVERAL)
    foreign.written(tmp_path / "data" / "valid", "tfrecord", files=2, samples=3)
    (tmp_path / "mlperf.yaml").write_text(
        "name: mlperf\ncluster: {ranks_per_node: 2}\n"
        "dataset: {path: data/train, external: true, eval: {path: data/valid}}\n"
        "loader: {batch_size: 2, num_workers: 1}\n"
        "train: {epochs: 2, compute: 1 ms, evaluate: {every: {epochs: 1}, compute: 1 ms}}\n"
        "storage: {model: nvme}\n"
    )
    before = sorted(path for path in (tmp_path / "data").rglob("*"))
    monkeypatch.chdir("/")
    real = run(tmp_path / "mlperf.yaml", engine="local", root=tmp_path, out=tmp_path / "real")
    books = books_of(real)
    assert books.even
    assert books.delivered_samples == books.planned_samples == 2 * (24 + 6)
    assert any("dataset.external=true: samples have no ids" in note for note in real.result.notes)
    model = simulate(tmp_path / "mlperf.yaml", root=tmp_path, out=tmp_path / "model")
    assert books_of(model).delivered_bytes == books.delivered_bytes
    assert sorted(path for path in (tmp_path / "data").rglob("*")) == before  # nothing is written there
    assert (books.contents_verified, books_of(model).contents_verified) == (False, None)
    again = simulate(tmp_path / "real" / "scenario.yaml", out=tmp_path / "again")
    assert books_of(again).delivered_bytes == books.delivered_bytes


def test_a_simulation_without_the_files_needs_the_keys_that_they_would_give(tmp_path: Path) -> None:
    nowhere = tmp_path / "elsewhere"
    with pytest.raises(DataError, match=r"elsewhere: no such folder \(dataset.external=true\); correct dataset.path"):
        external(nowhere)
    keys = {"path": str(nowhere), "external": True, "format": "npz", "num_files": 8, "sample_bytes": "1 MB"}
    dataset = {**keys, "samples_per_file": 1}
    wanted = build({"name": "x", "dataset": dataset, "train": {"compute": 0}, "storage": {"model": "nvme"}})
    assert simulated(wanted).ledger.even
    with pytest.raises(RayioError, match="no such folder"):
        run(wanted, engine="local", out=tmp_path / "out")


DAMAGE = ("truncated", "zero", "grown", "garbage", "flipped", "missing", "another")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("form", "samples"), [(form, 1) for form in EXTERNALS] + [(form, 4) for form in OF_SEVERAL])
def test_a_damaged_file_ends_a_run_in_a_line_that_names_it(
    form: str, samples: int, damage: str, tmp_path: Path
) -> None:
    paths = foreign.written(tmp_path, form, samples=samples)
    wanted = external(tmp_path, loader__batch_size=1)
    broken = paths[3]
    content = broken.read_bytes()
    if damage == "missing":
        broken.unlink()
    elif damage == "another":
        foreign.WRITERS[form][1](broken, 77, samples)
    else:
        middle = len(content) // 2
        broken.write_bytes({
            "truncated": content[:middle], "zero": b"", "grown": content + b"\0" * 100,
            "garbage": b"\0\xffgarb\0" + content[7:],
            "flipped": content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :],
        }[damage])  # fmt: skip
    if damage == "flipped" and form not in ("npz", "tfrecord", "png"):
        run_locally(wanted, tmp_path)  # these have no checksums: nobody can know
        return
    with pytest.raises(RayioError) as refused:
        run_locally(wanted, tmp_path)
    assert f"{broken.name}: sample " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"dataset__chunk": "1 MB", "dataset__format": "hdf5"}, "no .hdf5 or .h5 files; there are .npz"),
        ({"dataset__num_files": 7}, "the folder has 6 npz files, and dataset.num_files=7; use at most 6"),
        (
            {"dataset__samples_per_file": 3},
            "expected dataset.samples_per_file=3, found x.npy of shape (40, 30, 1); leave the",
        ),
        ({"dataset__sizes": "per_sample"}, "dataset.sizes=per_sample: files of dataset.external=true are as they are"),
        ({"dataset__compressibility": 2}, "dataset.compressibility=2.0: files of dataset.external=true are as they"),
        ({"dataset__format": "raw"}, "dataset.external=true: dataset.format=raw is not read as it is; use npz, npy"),
        ({"dataset__path": "model://x"}, "is required and missing"),
        ({"loader__scaling": "weak"}, "loader.scaling=weak: the files of dataset.external=true do not grow"),
        ({"dataset__files_per_folder": 5}, "dataset.files_per_folder=5: files of dataset.external=true are as they"),
    ],
)
def test_what_does_not_go_with_external_files_is_refused(keys: dict[str, Any], problem: str, tmp_path: Path) -> None:
    foreign.written(tmp_path, "npz")
    with pytest.raises(RayioError) as refused:
        external(tmp_path, **keys)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_folders_that_are_none_of_a_dataset_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.npz").write_bytes(b"x")
    foreign.written(tmp_path / "both", "npz")
    foreign.written(tmp_path / "both", "csv")
    foreign.written(tmp_path / "dlio" / "train", "npz")
    foreign.written(tmp_path / "dlio" / "valid", "npz")
    foreign.written(tmp_path / "hollow", "npz")
    (tmp_path / "hollow" / "img_0002_of_0006.npz").write_bytes(b"")
    foreign.written(tmp_path / "damaged", "npz")
    (tmp_path / "damaged" / "img_0000_of_0006.npz").write_bytes(b"PK\3\4" + bytes(100))
    for form in ("csv", "tfrecord"):
        for path in foreign.written(tmp_path / f"{form}-in-gzip", form):
            path.write_bytes(gzip.compress(path.read_bytes()))
    for name, problem in (
        ("empty", "the folder is empty"),
        ("file.npz", "dataset.path is a file; give the folder of the files"),
        ("both", "the folder has files of csv and npz; give dataset.format"),
        ("dlio", "the folder has train/ and valid/; give one of them, dataset.path="),
        ("hollow", "img_0002_of_0006.npz: the file is empty"),
        ("damaged", "img_0000_of_0006.npz: expected a file of npz, found none"),
        ("csv-in-gzip", "img_0000_of_0006.csv: not yet: csv files compressed with gzip; decompress them"),
        ("tfrecord-in-gzip", "img_0000_of_0006.tfrecord: not yet: tfrecord files compressed with gzip"),
    ):
        with pytest.raises(RayioError) as refused:
            external(tmp_path / name)
        assert problem in str(refused.value)


def test_a_record_whose_length_begins_like_gzip_is_no_gzip(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.tfrecord"
    path.parent.mkdir()
    path.write_bytes(foreign.record(bytes(0x8B1F)) * 4)
    assert external(tmp_path / "data").dataset.samples_per_file == 4


def test_a_folder_of_others_is_refused_with_the_key_that_reads_it(tmp_path: Path) -> None:
    foreign.written(tmp_path / "data", "npz")
    ours = build({
        "name": "x", "dataset": {"path": str(tmp_path / "data"), "num_files": 4, "sample_bytes": "1 kB"},
        "train": {"compute": 0},
    })  # fmt: skip
    with pytest.raises(DataError, match=r"use a new or empty folder as dataset.path, or dataset.external=true"):
        run(ours, engine="local", out=tmp_path / "out")


def test_files_that_change_between_planning_and_reading_are_told(tmp_path: Path) -> None:
    paths = foreign.written(tmp_path / "data", "npz")
    wanted = external(tmp_path / "data")
    foreign.npz(paths[2], 50, 1)
    with pytest.raises(DataError, match=r"img_0002_of_0006.npz: expected a file of \d+ bytes, found \d+; run again"):
        run(wanted, engine="local", out=tmp_path / "out")


def test_a_dataset_that_would_fill_the_memory_is_told_before_it_does(tmp_path: Path) -> None:
    foreign.written(tmp_path, "hdf5", files=2)
    with h5py.File(tmp_path / "img_0000_of_0002.hdf5", "w") as file:
        file.create_dataset("records", shape=(1, 1 << 40), dtype="u1", chunks=(1, 1 << 20), compression="gzip")
    with pytest.raises(
        DataError, match=r"expected a file of hdf5, found none \(dataset records of 1099511627776 bytes"
    ):
        external(tmp_path)


def test_a_pipe_among_the_files_is_told(tmp_path: Path) -> None:
    foreign.written(tmp_path, "npz")
    os.mkfifo(tmp_path / "img_0009.npz")
    with pytest.raises(RayioError, match=r"img_0009.npz.*not a .*file"):
        external(tmp_path)


def test_objects_of_a_bucket_are_read_as_they_are(place: str, tmp_path: Path) -> None:
    paths = foreign.written(tmp_path / "train", "npz", files=4, subfolders=2)
    store = storage.open(place)
    for path in paths:
        content = path.read_bytes()
        store.write(str(path.relative_to(tmp_path)), lambda file, content=content: file.write(content))  # type: ignore[misc]
    wanted = external(Path("unused"), dataset__path=f"{place}/train", loader__batch_size=1)
    done = run(wanted, engine="local", out=tmp_path / "out")
    assert books_of(done).delivered_bytes == sum(path.stat().st_size for path in paths)
    store.write("train/0/img_0002_of_0004.npz", lambda file: file.write(b"PK\3\4"))
    with pytest.raises(DataError, match=r"img_0002_of_0004.npz: expected a file of \d+ bytes, found 4; run again"):
        run(wanted, engine="local", out=tmp_path / "again")


def test_a_size_that_the_files_do_not_have_is_refused(tmp_path: Path) -> None:
    """Files of 1000 samples of 100 bytes: a size near it stands for the files' own, another one is refused."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.csv").write_text("x\n" + 97 * "1" + "\n")
    keys = {"dataset__num_files": 6, "dataset__samples_per_file": 1, "dataset__format": "csv"}
    for given in (None, "none", 100, 105, {"kind": "normal", "mean": 95, "stdev": 30}):
        scenario = external(folder, dataset__sample_bytes=given, **keys)
        assert scenario.dataset.sample_bytes.expected == 100
        assert derive.dataset_bytes(scenario) == sum(path.stat().st_size for path in folder.iterdir())
    for given in (1000, "1 MB"):
        with pytest.raises(ScenarioError, match=r"dataset.sample_bytes=.*: the files .* 100 B.*=none") as told:
            external(folder, dataset__sample_bytes=given, **keys)
        assert "\n" not in str(told.value)
    external(tmp_path / "nowhere", dataset__sample_bytes=1000, **keys)


def test_a_folder_is_listed_once_however_links_lead_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    for number in range(6):
        (folder / "a" / f"{number}.csv").write_text("1,2\n")
    (folder / "loop").symlink_to(folder)
    (folder / "a" / "up").symlink_to("..")
    (folder / "b").symlink_to("a")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "7.csv").write_text("1,2\n")
    (folder / "linked").symlink_to(other)
    listing = listed(str(folder), external(folder).stores, (".csv",))
    assert listing is not None
    assert list(listing.names) == [*(f"a/{number}.csv" for number in range(6)), "linked/7.csv"]
