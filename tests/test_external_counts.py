"""External files: how their samples are counted, and the message for a file with another number of samples."""

from __future__ import annotations

from pathlib import Path

import foreign
import h5py
import numpy as np
import pytest

from rayio.data.formats import external_checks, form_of, layout_of
from rayio.data.layout import Layout
from rayio.errors import DataError
from rayio.kinds import EXTERNALS
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

#: Formats whose files hold several samples.
OF_SEVERAL = [form for form in EXTERNALS if form not in ("jpeg", "png")]


def scenario_of(folder: Path, samples: int | None = None) -> Scenario:
    """Give a scenario of somebody's files."""
    dataset = {"path": str(folder), "external": True, "samples_per_file": samples}
    return build({"name": "x", "dataset": dataset, "train": {"compute": 0}, "loader": {"batch_size": 1}})


def samples_of(folder: Path, samples: int | None = None) -> int:
    """Give the samples of each file, as they are found."""
    return scenario_of(folder, samples).dataset.samples_per_file


def refused(form: str, folder: Path, layout: Layout, file: int) -> str:
    """Read a whole file; give the error."""
    batch = layout.whole_file(file)
    with pytest.raises(DataError) as error:
        form_of(form, layout).read(
            counted_opener(PosixStore(folder), Traffic()), layout, batch, np.empty(batch.total_bytes, np.uint8)
        )
    return str(error.value)


def test_datasets_in_groups_are_found_and_links_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "other", "w") as file:
        file["large"] = np.zeros((99, 99))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"], file["g/y"] = np.zeros((10, 16)), np.arange(10)
        file["g/loop"], file["soft"] = file["/"], h5py.SoftLink("/nowhere")
        file["outside"] = h5py.ExternalLink("other", "large")
    assert samples_of(tmp_path) == 10
    with pytest.raises(DataError, match=r"dataset.samples_per_file=9, found 10 rows in dataset g/x; leave the key out"):
        samples_of(tmp_path, 9)
    monkeypatch.setattr(external_checks, "MAX_OBJECTS", 2)
    with pytest.raises(DataError, match=r"a.h5: .*more than 2 datasets and groups, and none is named records"):
        samples_of(tmp_path)
    assert samples_of(tmp_path, 1) == 1
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["records"] = np.arange(7)
    assert samples_of(tmp_path) == 7


@pytest.mark.parametrize("form", OF_SEVERAL)
@pytest.mark.parametrize("given", [None, 1])
def test_a_file_without_samples_is_refused_before_a_run(form: str, given: int | None, tmp_path: Path) -> None:
    path = foreign.written(tmp_path, form, files=1, samples=0)[0]
    reason = "file has no samples; write it again" if path.stat().st_size else "file is empty; write it again"
    with pytest.raises(DataError, match=f"{path.name}: the {reason}, or remove it"):
        samples_of(tmp_path, given)


@pytest.mark.parametrize("form", OF_SEVERAL)
def test_an_intact_file_of_other_samples_is_not_called_damaged(form: str, tmp_path: Path) -> None:
    foreign.written(tmp_path, form, files=1, samples=foreign.SEVERAL)
    foreign.WRITERS[form][1](path := tmp_path / f"z{foreign.WRITERS[form][0]}", 77, foreign.SEVERAL + 1)
    layout = layout_of(scenario_of(tmp_path, foreign.SEVERAL))
    line = refused(form, tmp_path, layout, 1)
    assert f"{path.name}: sample 4 (row 0): expected 4 samples (as in {layout.path(0)}), found " in line
    assert "; write files with as many samples each, or move this one" in line
    assert "damaged" not in line


def test_a_damaged_record_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    content = bytearray(foreign.record(bytes(500)) * 12)
    (path := tmp_path / "a.tfrecord").write_bytes(content)
    layout = layout_of(scenario_of(tmp_path))
    content[2680] ^= 1
    for changed, place, fault in (
        (content, "sample 5 (row 5)", "a record at byte 2580 whose checksum is wrong"),
        (foreign.record(bytes(1016)) * 6, "sample 0 (row 0)", "a record of 1016 bytes at byte 0 that does not end"),
    ):
        path.write_bytes(changed)
        expected = f"{place}: expected a record of 516 bytes, found otherwise ({fault}): the file is damaged"
        assert expected in refused("tfrecord", tmp_path, layout, 0)
