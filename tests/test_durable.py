"""Durability: a store says whether fsync and the page cache apply to it, and fsync calls are made and shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from packages import TOY, installed

import rayio
from rayio.errors import ScenarioError
from rayio.kinds import REGISTRIES, STORAGES
from rayio.report.explain import explain
from rayio.session.dataset import check_page_cache, idle_storage
from rayio.storage.stores.opening import has_fsync, has_page_cache
from scenarios import run_locally, scenario


def saving(fsync: bool, **overrides: Any) -> Any:
    checkpoint = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 3 << 20}, "fsync": fsync}
    dataset = {"path": "data", "num_files": 16, "sample_bytes": "2 kB"}
    return scenario(**{"checkpoint": checkpoint, "dataset": dataset, "train__compute": "1 ms", **overrides})


@pytest.mark.parametrize("fsync", [False, True])
def test_fsync_is_called_for_every_file_and_folder_if_the_scenario_says_so(
    fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = on_disk(saving(fsync), tmp_path)
    forced: list[str] = []
    call = os.fsync

    def counted(descriptor: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        call(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    outcome = run_locally(wanted, tmp_path)
    written = outcome.rows("write")
    below = [path for path in forced if path.startswith(str(tmp_path / "ck"))]
    assert written
    manifests = len(outcome.rows("manifest"))
    assert manifests
    assert len(below) == (2 * (len(written) + manifests) if fsync else 0)  # the file, then its folder
    assert sum(row["requests"] for row in outcome.rows("fsync")) == (2 * len(written) if fsync else 0)


def test_explain_shows_fsync_requests_without_a_span_for_each(tmp_path: Path) -> None:
    wanted = saving(True)
    run = rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "run")
    spans = run.spans()
    assert set(spans[spans["name"] == "fsync"]["requests"]) == {2}
    used = explain(run.path).access
    assert used is not None
    assert used.operations["fsync"].requests == 2 * (spans["name"] == "write").sum()


def test_a_store_says_what_applies_to_it() -> None:
    assert (has_fsync("/data"), has_page_cache("/data")) == (True, True)
    assert (has_fsync("s3://bucket/x"), has_page_cache("s3://bucket/x")) == (False, False)


def test_a_store_of_another_package_is_no_object_store_unless_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.syspath_prepend(installed(tmp_path / "toy", TOY / "pyproject.toml"))
    monkeypatch.syspath_prepend(str(TOY))
    assert (has_fsync("toy://x"), has_page_cache("toy://x")) == (True, True), "its files are files"
    toy = saving(True, checkpoint={"every": {"epochs": 1}, "path": "toy://ck", "model": {"bytes": 3 << 20}})
    assert not any("fsync" in note for note in idle_storage(toy, str(tmp_path)))
    for name in ("has_fsync", "has_page_cache"):
        monkeypatch.setattr(STORAGES["toy"], name, False)
    (note,) = [note for note in idle_storage(toy, str(tmp_path)) if "fsync" in note]
    assert note == "checkpoint.fsync=true: no effect, because files of toy:// are durable once written"
    dropped = scenario(
        dataset={"path": "toy://data", "num_files": 16, "sample_bytes": "2 kB"}, storage={"page_cache": "drop"}
    )
    with pytest.raises(
        ScenarioError, match=r"page_cache=drop does not apply to toy://data \(toy:// has no page cache\)"
    ):
        check_page_cache(dropped, str(tmp_path))
