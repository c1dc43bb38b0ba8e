"""Keys that never act have a note, and refusals say what is in the way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayio.errors import RayioError, ScenarioError, StorageError
from rayio.model import resuming
from rayio.scenario import checks, derive
from rayio.scenario.load import build
from rayio.session.execute import run
from rayio.trace.run_directory import RESUME, RunDirectory
from scenarios import scenario

#: The run has 24 steps of 10 ms: 12 in each of two epochs.
REDUCED = {"kind": "allreduce", "bytes": 0, "bandwidth": "1 GB/s"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"train__stragglers": {"factor": 2, "every": "1 h", "lasts": "1 ms"}}, "no step of the run is in a slow"),
        ({"train__warmup": {"steps": 24, "factor": 2}}, "train.warmup.steps=24: the run has 24 steps, so all of them"),
        ({"train__accumulate": 13}, "train.accumulate=13: an epoch has 12 steps, and ranks meet only at its end"),
        ({"train__sync": {"kind": "barrier", "every": 13}}, "train.sync.every=13: an epoch has 12 steps, and ranks"),
        ({"train__sync": REDUCED | {"every": 13}}, "train.sync.every=13: an epoch has 12 steps, and ranks meet only"),
        (
            {"train__accumulate": 5, "train__sync__every": 3, "train__sync__kind": "barrier"},
            "train.accumulate=5 × train.sync.every=3: an epoch has 12 steps, and ranks meet only at its end",
        ),
        ({"dataset__compressibility": 4}, "dataset.compressibility=4: files of model://"),
        ({"dataset__files_per_folder": 3}, "dataset.files_per_folder=3: files of model://"),
        ({"dataset__eval__path": "held-out"}, "dataset.eval.path: there are no such files; give dataset.eval"),
        ({"train__sync": REDUCED}, "train.sync.bytes=0: the all-reduce takes no time"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_a_key_that_never_acts_has_a_note(keys: dict[str, Any], said: str) -> None:
    assert [note for note in checks.idle(scenario(**keys)) if said in note]


@pytest.mark.parametrize(
    "keys",
    [
        {"train__warmup": {"steps": 23, "factor": 2}},
        {"train__accumulate": 12},
        {"train__accumulate": 4, "train__sync": {"kind": "barrier", "every": 3}},
        {"train__sync": REDUCED | {"bytes": "1 MB"}},
        {"train__sync": REDUCED | {"latency": "1 ms"}},
    ],
    ids=str,
)
def test_a_key_that_acts_has_none(keys: dict[str, Any]) -> None:
    assert [*checks.idle(scenario(**keys))] == [*checks.idle(scenario())]


def test_the_note_on_slow_intervals_is_there_exactly_if_no_step_is_slow() -> None:
    """Held against the factors that the run itself draws."""
    seen = set()
    for seed in range(12):
        for every, lasts in (("240 ms", "5 ms"), ("800 ms", "20 ms"), ("2 s", "100 ms"), ("95 ms", "2 ms")):
            slow = {"factor": 2, "every": every, "lasts": lasts}
            wanted = scenario(train__stragglers=slow, seed=seed)
            pace = derive.pace(wanted)
            steps = np.arange(12)
            factors = [pace.factors(seed, rank, 0, epoch, 12 * epoch, steps) for rank in (0, 1) for epoch in (0, 1)]
            is_slow = any((each > 1).any() for each in factors)
            has_note = any("train.stragglers" in note for note in checks.idle(wanted))
            assert has_note <= (not is_slow), (seed, every)
            if every != "95 ms":
                assert has_note == (not is_slow), (seed, every)
            seen.add(is_slow)
    assert seen == {True, False}


def test_refusals_say_what_is_in_the_way() -> None:
    section = {"path": "ck", "model": {"bytes": "1 GB"}, "phases": {"writes": 2}}
    with pytest.raises(ScenarioError, match=r"at_step=3: checkpoint\.phases has no steps; give at, a time of the run"):
        scenario(checkpoint=section, failures={"events": [{"kind": "rank", "at_step": 3}]})
    both = {"bytes": "1 GB", "files": ["1 KB"]}
    with pytest.raises(ScenarioError, match="has bytes and files, and each of them alone chooses a kind; leave out"):
        scenario(checkpoint={"every": {"steps": 3}, "path": "ck", "model": both})
    with pytest.raises(ScenarioError, match=r'train\.parallelism.tensor="2": must be a whole number'):
        scenario(train__parallelism={"tensor": "2"})
    with pytest.raises(ScenarioError, match=r"add 2, or use 4$"):
        scenario(train__compute={"by_batch_size": {4: "1 ms"}})


def test_a_damaged_record_of_checkpoints_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / RESUME).write_text("{}")
    with pytest.raises(StorageError, match=r"is damaged \(version is missing\)"):
        resuming.read(RunDirectory(str(tmp_path)), 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints after the second and the fourth step of one rank, as the run leaves them."""
    made(tmp_path)
    return tmp_path / "kept"


def made(root: Path, restore: str = "none") -> None:
    run(
        build({
            "name": "small",
            "dataset": {"path": "data", "num_files": 8, "sample_bytes": "1000 B"},
            "loader": {"num_workers": 1},
            "train": {"epochs": 1, "compute": "1 ms"},
            "checkpoint": {"every": {"steps": 2}, "path": "kept", "model": {"bytes": "10 kB"}, "restore": restore},
        }),
        engine="local", root=root, out=f"run-{len([*root.iterdir()])}",
    )  # fmt: skip


def newest(kept: Path) -> Path:
    return max(kept.iterdir()) / "shard-00000.bin"


def test_a_flipped_first_byte_is_named_as_any_other(saved: Path) -> None:
    for byte in (5000, 0):
        content = bytearray(newest(saved).read_bytes())
        content[byte] ^= 1
        newest(saved).write_bytes(content)
        with pytest.raises(RayioError, match=f"byte {byte} is not what was written there"):
            made(saved.parent, "newest")


def test_what_is_in_a_manifests_place_is_named_before_the_run(saved: Path) -> None:
    there = newest(saved).parent / "rayio-checkpoint.json"
    there.unlink()
    there.symlink_to("gone")
    with pytest.raises(StorageError, match=r"rayio-checkpoint\.json: is a link to what is missing; remove the link"):
        made(saved.parent)
    there.unlink()
    there.mkdir()
    with pytest.raises(StorageError, match=r"rayio-checkpoint\.json is a folder, and a checkpoint's manifest is a fi"):
        made(saved.parent)


def test_a_list_of_incomplete_checkpoints_says_how_many_it_leaves_out(saved: Path) -> None:
    for number in (11, 13):
        shutil.copytree(newest(saved).parent, saved / f"epoch-0000-step-{number:08d}")
    for folder in saved.iterdir():
        (folder / "rayio-checkpoint.json").unlink()
    assert len([*saved.iterdir()]) > 3
    with pytest.raises(RayioError, match=rf"; and {len([*saved.iterdir()]) - 3} more\); use checkpoint\.restore=none"):
        made(saved.parent, "newest")
