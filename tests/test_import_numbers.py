"""Results of DLIO in which a number, a text or a file is poisoned: a line, or a run whose numbers are possible."""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_import_dlio
import test_import_reduced
from test_import_dlio import results as full
from test_import_reduced import results as reduced

from rayio.errors import DataError, RayioError
from rayio.session.imported import import_dlio_results
from rayio.session.mlperf_summary import summary_of
from rayio.session.result import Run

__all__ = ["full", "reduced"]  # fixtures
Place = tuple[str | int, ...]

POISON: tuple[Any, ...] = (
    None, "", "x", -1, 0, 0.5, 1e308, -1e308, 1e-320, math.nan, math.inf, 2**70, True, [], {}, [[]], [None], "9" * 400,
    "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "<script>evil</script>\x1b[31m\nline", {"start": 5}, [1, 2, 3],
)  # fmt: skip


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a value but its root; of a list the first two."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*place, key)
        yield from places(item, (*place, key))


def poisoned(value: Any, place: Place, poison: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = poison
    return changed


def numbers(value: Any) -> Iterator[float]:
    """Every number of a result."""
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def refusal(call: Callable[[], object]) -> str:
    """Why a call is refused; empty if it is not."""
    try:
        call()
    except RayioError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["full", "reduced"])
def test_a_poisoned_value_is_a_line_or_a_possible_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Drawn values of all files, each replaced by one that it should not be."""
    folder: Path = request.getfixturevalue(kind)
    files = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    cases = [(path, place, value) for path, content in files.items() for place in places(content) for value in POISON]
    out, ended = tmp_path / "run", {"run": 0, "line": 0}
    for path, place, poison in random.Random(11).sample(cases, 80):
        path.write_text(json.dumps(poisoned(files[path], place, poison)))
        shutil.rmtree(out, ignore_errors=True)
        message = refusal(lambda: import_dlio_results(folder, out))
        assert not {"\n", "\x1b"} & {*message}, (path.name, place, poison)
        assert bool(message) is not out.exists()
        ended["line" if message else "run"] += 1
        if not message:
            content = json.loads((out / "result.json").read_text())
            assert all(-101 <= each < 1e15 for each in numbers(content)), (path.name, place, poison)
            assert "\n" not in refusal(lambda: summary_of(Run.open(out)))
        path.write_text(json.dumps(files[path]))
    assert min(ended.values()) >= 5, ended


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b'{"a":' * 100_000, b'{"epochs": ' + b"9" * 6000 + b"}", b"\0\0"]
)
@pytest.mark.parametrize("name", ["summary.json", "per_epoch_stats.json", "1_output.json"])
def test_a_file_that_is_no_json_is_a_line(full: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (full / name).write_bytes(content)
    with pytest.raises(DataError) as raised:
        import_dlio_results(full, tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert name in str(raised.value)


_AU = "train_au"
_RATE, _STDEV = "train_throughput_mean_samples_per_second", "train_throughput_stdev_samples_per_second"


@pytest.mark.parametrize(
    ("kind", "key", "value", "line"),
    [
        ("reduced", _RATE, -1, f"{_RATE} is -1; expected a number of at least 0"),
        ("reduced", _RATE, 400.0, f"{_RATE} is 400, but that of train_throughput_samples_per_second is 4"),
        ("reduced", _STDEV, -1, f"{_STDEV} is -1; expected a number of at least 0"),
        ("reduced", f"{_AU}_stdev_percentage", 7, f"{_AU}_stdev_percentage is 7, but that of {_AU}_percentage is 0"),
        ("full", f"{_AU}_mean_percentage", 20, f"{_AU}_mean_percentage is 20, but that of {_AU}_percentage is 4"),
        ("full", _RATE, 1e9, f"{_RATE} is 1e+09, but the throughput of the files of ranks is 4"),
        ("full", _STDEV, 99, f"{_STDEV} is 99, and 2 epochs of mean 4 have less"),
    ],
)  # fmt: skip
def test_published_numbers_that_cannot_be_are_refused(
    kind: str, key: str, value: float, line: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    changed = test_import_dlio.changed if kind == "full" else test_import_reduced.changed
    changed(folder, "summary.json", lambda content: content["metric"].update({key: value}))
    with pytest.raises(DataError) as raised:
        import_dlio_results(folder, tmp_path / "run")
    assert f"summary.json: {line}" in str(raised.value)


def test_a_step_that_is_shorter_than_its_parts_is_refused(full: Path, tmp_path: Path) -> None:
    def shorten(content: dict[str, Any]) -> None:
        content["1"]["proc"]["block1"][1] = 0.5

    test_import_dlio.changed(full, "0_output.json", shorten)
    with pytest.raises(
        DataError, match=r"0_output\.json \(rank 0\): .*step 1: proc 0\.5 s is less than its load 0\.1 s"
    ):
        import_dlio_results(full, tmp_path / "run")


@pytest.mark.parametrize("kind", ["full", "reduced"])
def test_newer_names_of_files_and_checkpoints_are_the_same_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    before = import_dlio_results(folder, tmp_path / "before").result
    stats = json.loads((folder / "per_epoch_stats.json").read_text())
    stats["2"]["save_ckpt1"] = stats["2"].pop("ckpt1")
    (folder / "0_per_epoch_stats.json").write_text(json.dumps(stats))
    (folder / "per_epoch_stats.json").unlink()
    after = import_dlio_results(folder, tmp_path / "after").result
    assert after.time.checkpoint == before.time.checkpoint
    if kind == "full":
        assert after.imported == before.imported
    assert (after.steps, after.wall_seconds) == (before.steps, before.wall_seconds)
    assert not any("ckpt" in note for note in after.notes)
