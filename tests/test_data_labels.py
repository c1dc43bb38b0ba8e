"""Labels are checked like samples: in every format by who verifies a dataset, and by readers that hold them anyway."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from rayio.cli import main
from rayio.data.formats import FORMATS
from rayio.data.formats.chunks import Hdf5Options
from rayio.data.generate import prepare, verify
from rayio.data.layout import Layout
from rayio.errors import DataError
from rayio.schema.distribution import Constant
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

#: Three files of 1, 7 and 900 samples: the labels of the last do not fit into what a reader has of a file's end.
LAYOUTS = {
    f"{name}-{rows}": (name, Layout(3, rows, Constant(value=500), 5, FORMATS[name].extension))
    for name in ("npz", "hdf5", "tfrecord")
    for rows in (1, 7, 900)
}
LAYOUTS["hdf5-7-chunks"] = ("hdf5", replace(LAYOUTS["hdf5-7"][1], options=Hdf5Options(chunk=1200)))


def labels_at(path: Path, first: int, rows: int) -> int:
    """Where the labels of a file lie, found without rayio: by their bytes."""
    content = path.read_bytes()
    wanted = np.arange(first, first + rows, dtype="<i8").tobytes()
    assert content.count(wanted[-8 * min(rows, 7) :]) >= 1
    return content.rindex(wanted)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize("case", [case for case in LAYOUTS if not case.startswith("tfrecord")])
def test_a_damaged_label_is_found_by_file_sample_and_byte(case: str, tmp_path: Path) -> None:
    name, layout = LAYOUTS[case]
    prepare(layout, name, tmp_path, threads=1)
    rows = layout.samples_per_file
    path = tmp_path / layout.path(1)
    row = rows - 1
    at = labels_at(path, rows, rows) + 8 * row
    flip(path, at + 3)
    found = rows + row + (0x40 << 24)
    sample = rf"{layout.path(1)}: sample {rows + row} \(row {row}\)"
    says = f"{sample}: expected label {rows + row} at byte {at}, found {found}:"
    with pytest.raises(DataError, match=says):
        verify(layout, name, tmp_path)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_reader_checks_the_labels_that_it_holds_anyway_and_asks_for_nothing_more(rows: int, tmp_path: Path) -> None:
    name, layout = LAYOUTS[f"npz-{rows}"]
    prepare(layout, name, tmp_path, threads=1)
    batch, asked = layout.whole_file(1), Traffic()
    out = np.empty(batch.total_bytes, np.uint8)
    FORMATS[name].read(counted_opener(PosixStore(tmp_path), asked), layout, batch, out)
    assert asked.requests == len(FORMATS[name].requests(layout, batch).nbytes)
    at = labels_at(tmp_path / layout.path(1), rows, rows)
    flip(tmp_path / layout.path(1), at)
    with pytest.raises(DataError, match=rf"sample {rows} \(row 0\): expected label {rows} at byte {at}, found"):
        FORMATS[name].read(counted_opener(PosixStore(tmp_path), Traffic()), layout, batch, out)


def test_a_damaged_label_of_a_record_is_found_when_its_sample_is_read(tmp_path: Path) -> None:
    name, layout = LAYOUTS["tfrecord-7"]
    prepare(layout, name, tmp_path, threads=1)
    path = tmp_path / layout.path(1)
    flip(path, path.stat().st_size - 5)
    with pytest.raises(DataError, match="sample 13"):
        verify(layout, name, tmp_path)


def test_labels_of_another_type_or_elsewhere_are_none(tmp_path: Path) -> None:
    name, layout = LAYOUTS["hdf5-7"]
    prepare(layout, name, tmp_path, threads=1)
    path = tmp_path / layout.path(1)
    form, opener = FORMATS[name], counted_opener(PosixStore(tmp_path), Traffic())
    with h5py.File(path, "r+") as file:
        del file["y"]
        file["y"] = np.arange(7, 14, dtype="<i4")
    with pytest.raises(DataError, match=r"sample 7 .*expected y of shape \(7,\) and int64, found \(7,\) and int32"):
        form.check_labels(opener, layout, 1)  # type: ignore[attr-defined]
    with h5py.File(path, "r+") as file:
        del file["y"]
        file["y"] = h5py.ExternalLink("other.hdf5", "y")
    with pytest.raises(DataError, match="expected y in this file, found a link to another place"):
        form.check_labels(opener, layout, 1)  # type: ignore[attr-defined]


def test_generate_verifies_when_asked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "unet3d-small", "dataset.num_files=14", "dataset.format=hdf5", "dataset.sample_bytes=100 kB"]
    for again in (command, [*command, "--verify"]):
        with pytest.raises(SystemExit) as end:
            main(again)
        assert not end.value.code
    assert "verified every sample of 14 files" in capsys.readouterr().err
    path = next(home.rglob("000000001.hdf5"))
    flip(path, path.stat().st_size - 8)
    with pytest.raises(SystemExit) as end:
        main(command)
    assert not end.value.code  # names and sizes are right
    with pytest.raises(SystemExit) as end:
        main([*command, "--verify"])
    assert end.value.code == 2
    assert "expected label 1 at byte" in capsys.readouterr().err
