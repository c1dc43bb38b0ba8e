"""``loader.reader: numpy``: batches read as users' scripts read them, with the same law as any other."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from numpy.typing import NDArray
from test_engines import computed, deliver_the_same
from test_torch import opened, with_torch

import rayio
from rayio.data.formats import FORMATS
from rayio.data.generate import prepare
from rayio.data.layout import Batch, Layout
from rayio.engines.loaders.numpy_reader import NumpyReader
from rayio.errors import DataError, ScenarioError
from rayio.place import Where
from rayio.schema.distribution import Constant
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import run_locally, scenario, simulated

NUMPY: dict[str, Any] = {"loader__reader": "numpy", "dataset__sample_bytes": 3000}
LAYOUT = Layout(6, 3, Constant(value=70_000), 5)


def joined(samples: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8]) -> None:
    np.concatenate(samples, out=out)


def batch_of(samples: list[int]) -> Batch:
    ids = np.array(samples, np.int64)
    files, index = LAYOUT.locate(ids)
    return Batch(0, 0, 0, ids, files, index, LAYOUT.read_bytes_of(files))


def read(root: Path, samples: list[int], form: Any = None) -> tuple[NDArray[np.uint8], list[int], Traffic]:
    """Read a batch of the dataset that lies below ``root``."""
    batch, traffic = batch_of(samples), Traffic()
    out = np.zeros(batch.total_bytes, np.uint8)
    ids = (form or NumpyReader(joined)).read(counted_opener(PosixStore(root), traffic), LAYOUT, batch, out)
    return out, ids.tolist(), traffic


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    prepare(LAYOUT, "npz", tmp_path, threads=1)
    return tmp_path


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"loader__num_workers": 0},
        {"dataset__samples_per_file": 3, "loader__drop_last": False, "loader__batch_size": 5, "dataset__num_files": 7},
        {"train__evaluate": {"compute": "100 us"}, "dataset__eval": {"num_files": 4}, "trace__level": "io"},
    ],
    ids=["two workers", "no workers", "several samples a file, a rest", "evaluations, every request"],
)
def test_it_delivers_what_the_model_says(tmp_path: Path, overrides: dict[str, Any]) -> None:
    wanted = on_disk(with_torch(**NUMPY, **overrides), tmp_path)
    here, there = simulated(wanted), run_locally(wanted, tmp_path)
    deliver_the_same(here, there)
    assert computed(here) == computed(there)


def test_a_batch_has_the_bytes_that_our_own_reader_finds(dataset: Path) -> None:
    samples = [16, 0, 4, 5, 9]
    out, ids, _ = read(dataset, samples)
    ours, found, _ = read(dataset, samples, FORMATS["npz"])
    assert ids == found == samples
    assert (out == ours).all()


def test_what_is_counted_is_what_the_kernel_counts(dataset: Path) -> None:
    """Of the reads of a thread the kernel counts calls and bytes, whoever makes them and however."""

    def counted() -> dict[str, int]:
        lines = Path("/proc/thread-self/io").read_text().splitlines()
        return {name: int(number) for name, number in (line.split(": ") for line in lines)}

    read(dataset, [0])  # what is loaded on first use is read as well
    nothing = [counted(), counted()]
    before = counted()
    traffic = read(dataset, [2, 7, 8])[2]
    after = counted()
    of_looking = {name: nothing[1][name] - nothing[0][name] for name in ("rchar", "syscr")}
    asked = {name: after[name] - before[name] - of_looking[name] for name in of_looking}
    assert traffic.opens == 3
    assert asked == {"rchar": traffic.nbytes, "syscr": traffic.requests}
    assert traffic.nbytes > 3 * 3 * 70_000, "numpy loads all samples of a file for one of them"


def test_batches_come_as_shared_tensors_of_the_same_bytes(tmp_path: Path) -> None:
    keys = {**NUMPY, "train__epochs": 1, "dataset__num_files": 6, "loader__num_workers": 1}

    async def batches(name: str) -> list[NDArray[np.uint8]]:
        queue, plan = opened(tmp_path, "fork", **{**keys, "loader__reader": name})
        try:
            found = [await queue.get(Where(0, 0, step)) for step in range(plan.steps_of(0)[0])]
        finally:
            await queue.close()
        assert all(delivery.payload.is_shared() for delivery in found)
        return [delivery.payload.numpy().copy() for delivery in found]

    by_numpy, by_ours = (asyncio.run(batches(name)) for name in ("numpy", "rayio"))
    assert len(by_numpy) == 3
    assert all((one == other).all() for one, other in zip(by_numpy, by_ours, strict=True))


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (damaged, "numpy.load: Bad CRC-32 .* the file is truncated, corrupted or foreign"),
        (lambda path: path.write_bytes(path.read_bytes()[:-500]), "numpy.load: .* truncated, corrupted or foreign"),
        (lambda path: path.write_bytes(b""), "numpy.load: .* truncated, corrupted or foreign"),
        (lambda path: shutil.copy(path.with_name("000000003.npz"), path), "expected id 4, found id 10: .* swapped"),
        (lambda path: np.savez(path, x=np.zeros((3, 5))), r"expected 70000 bytes, found float64 of shape \(5,\)"),
        (lambda path: np.savez(path, z=np.zeros(5)), "numpy.load: .* truncated, corrupted or foreign"),
        (lambda path: path.unlink(), "the file is missing"),
    ],
    ids=["a flipped bit", "cut off", "empty", "another file", "another shape", "no x", "gone"],
)
def test_a_bad_file_is_named_with_its_sample_in_one_line(dataset: Path, harm: Any, found: str) -> None:
    path = dataset / LAYOUT.path(1)
    harm(path)
    with pytest.raises(DataError, match=rf"000000001\.npz: sample 4 \(row 1\): {found}") as caught:
        read(dataset, [0, 4])
    assert "\n" not in str(caught.value)


def test_a_bad_file_ends_a_run_in_that_line(home: Path) -> None:
    wanted = on_disk(with_torch(**NUMPY), home)
    damaged(sorted((home / "data").rglob("*.npz"))[17])
    with pytest.raises(DataError, match=r"data/000000/000000017\.npz: sample 17 \(row 0\): numpy\.load: Bad CRC-32"):
        rayio.run(wanted, engine="local", out="bad")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("dataset__format", "hdf5", "numpy.load reads npz, and dataset.format is hdf5; use npz"),
        ("dataset__sample_bytes", {"kind": "uniform", "low": 500, "high": 900},
         r"stacks samples of one size, and dataset\.sample_bytes is drawn \(uniform\); give one size"),
        ("train__evaluate", {"compute": "1 ms"}, r"dataset\.eval\.sample_bytes is drawn \(uniform\); give one size"),
    ],
)  # fmt: skip
def test_what_numpy_and_the_default_collation_cannot_read_is_refused_by_name(key: str, value: Any, told: str) -> None:
    eval_dataset = {"num_files": 4, "sample_bytes": {"kind": "uniform", "low": 500, "high": 900}}
    more = {"dataset__eval": eval_dataset} if key == "train__evaluate" else {}
    with pytest.raises(ScenarioError, match=rf"loader\.reader=numpy: .*{told}, or (use )?loader\.reader=rayio"):
        with_torch(**{**NUMPY, key: value}, **more)


def test_our_readers_have_no_such_choice() -> None:
    with pytest.raises(ScenarioError, match=r"loader\.reader"):
        scenario(loader__reader="numpy")
