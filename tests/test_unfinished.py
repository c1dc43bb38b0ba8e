"""Checkpoints that an ended attempt left without a manifest: a later attempt removes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from test_resume import ENDING

import rayio
from rayio.errors import RunError
from rayio.model.manifest import NAME, remove_unfinished
from rayio.session import execute
from rayio.session.resume import resume
from rayio.storage import open as open_store
from scenarios import scenario

CLOCKED = {"every": {"seconds": "10 ms"}, "path": "ck", "model": {"bytes": 1000}, "fsync": False, "writers": "sharded"}


def ended(root: Path, checkpoint: dict[str, Any]) -> tuple[Path, str]:
    """A run that saves by the clock, and that a dead rank ended; return its checkpoints and its address."""
    wanted = scenario(dataset__path="data", train__compute="4 ms", checkpoint=checkpoint, failures=ENDING)
    with pytest.raises(RunError, match="rank 1 died"):
        rayio.run(on_disk(wanted, root), engine="local", out=root / "run", root=root)
    return root / "ck", str(root / "run")


def leave(folder: Path, *names: str) -> None:
    """Leave an unfinished checkpoint."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(bytes(500))


@pytest.mark.parametrize("at_end", [True, False], ids=["at the end", "meanwhile"])
def test_by_the_clock_no_unfinished_checkpoint_stays(
    at_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, address = ended(tmp_path, CLOCKED)
    last = sorted(saved.iterdir())[-1]
    place = "epoch-0002-step-00000007" if at_end else f"{last.name[:-2]}{int(last.name[-2:]) + 1:02}"
    assert not (saved / place).exists()
    leave(saved / place)
    shutil.copy(last / "shard-00001.bin", saved / place)
    if not at_end:
        monkeypatch.setattr(execute, "remove_unfinished", lambda plan, base: None)
    run = resume(address)
    assert run.result.exit_code == 0
    there = sorted(saved.iterdir())
    assert len(there) > 2
    assert [folder.name for folder in there if not (folder / NAME).exists()] == []


def test_other_folders_and_later_ones_stay(tmp_path: Path) -> None:
    names = ("shard-00000.bin", "shard-00001.bin")
    leave(tmp_path / "epoch-0000-step-00000003", *names)
    leave(tmp_path / "epoch-0000-step-00000004", "shard-00000.bin", "notes.txt")
    leave(tmp_path / "epoch-0000-step-00000005", *names, NAME)
    leave(tmp_path / "epoch-0000-step-00000006")
    leave(tmp_path / "epoch-0000-step-00000007", *names)
    leave(tmp_path / "notes", "shard-00000.bin")
    remove_unfinished(open_store(tmp_path), names, (0, 7))
    left = {"epoch-0000-step-00000004", "epoch-0000-step-00000005", "epoch-0000-step-00000007", "notes"}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert {path.name for path in (tmp_path / "epoch-0000-step-00000007").iterdir()} == {*names}
