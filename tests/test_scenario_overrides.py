"""Overrides, points of a sweep and mappings of a program: the guards that a scenario's file has are theirs too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayio.errors import ScenarioError
from rayio.scenario.load import load
from rayio.scenario.source import MAX_VALUES, UnfitError, plain
from rayio.study.sweeps import points

#: Nine levels of ten aliases each: a billion values in 300 characters.
BOMB = (
    "[&a [1]"
    + "".join(f", &{'abcdefghi'[n]} [{', '.join(['*' + 'abcdefghi'[n - 1]] * 10)}]" for n in range(1, 9))
    + "]"
)

HOSTILE = {
    "an alias that contains itself": "&a [*a]",
    f"more than {MAX_VALUES} values": BOMB,
    "nested too deeply": "[" * 600 + "]" * 600,  # PyYAML takes the square of it
    "is given twice": "{a: 1, a: 2}",
    "must be text; quote it": "{on: 2}",
}


def override(folder: Path, value: str) -> object:
    return load("unet3d-small", [f"loader.batch_size={value}"])


def swept(folder: Path, value: str) -> object:
    return points.grid([f"loader.batch_size={value},1"])


def in_csv(folder: Path, value: str) -> object:
    quoted = value.replace('"', '""')
    (folder / "p.csv").write_text(f'loader.batch_size\n"{quoted}"\n')
    return points.listed(folder / "p.csv", ())


def in_yaml(folder: Path, value: str) -> object:
    (folder / "p.yaml").write_text(f"- {{loader.batch_size: {value}}}\n")
    return [load("unet3d-small", {"loader.batch_size": row[0]}) for row in points.listed(folder / "p.yaml", ()).rows]


def in_file(folder: Path, value: str) -> object:
    (folder / "s.yaml").write_text(f"extends: unet3d-small\nloader: {{batch_size: {value}}}\n")
    return load(folder / "s.yaml")


@pytest.mark.parametrize("way", [override, swept, in_csv, in_yaml, in_file], ids=lambda way: way.__name__)
@pytest.mark.parametrize("said", HOSTILE)
def test_a_value_without_end_is_one_line_wherever_it_is_given(
    way: Callable[[Path, str], object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as told:
        way(tmp_path, HOSTILE[said])
    line = str(told.value)
    if way is not in_yaml or "more than" not in said:  # a file of points may have more values than a scenario
        assert said in line
    assert "\n" not in line
    assert len(line) < 300


def test_an_alias_counts_as_all_that_it_stands_for_and_is_as_deep() -> None:
    thrice = "[&a [1], &b {k: *a, l: *a}, [*b, *b]]"  # 1 + 2 + (1 + 2 · 2) + (1 + 2 · 5)
    assert plain(thrice, 19) == [[1], {"k": [1], "l": [1]}, [{"k": [1], "l": [1]}] * 2]
    with pytest.raises(UnfitError, match="more than 18 values"):
        plain(thrice, 18)
    deep = f"[&a {'[' * 25}{']' * 25}, {'[' * 20}*a{']' * 20}]"
    with pytest.raises(UnfitError, match="more than 40 levels"):
        plain(deep)


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    return deep


@pytest.mark.parametrize("value", [_circle(), _deep(), [0] * 20_000], ids=["circle", "deep", "long"])
@pytest.mark.parametrize("ask", [lambda overrides: load("unet3d-small", overrides), points.grid], ids=["load", "sweep"])
def test_so_is_one_that_a_program_gives(ask: Callable[[Mapping[str, Any]], object], value: Any) -> None:
    with pytest.raises(ScenarioError, match=r"nested too deeply|more than 10000 values"):
        ask({"loader.batch_size": value})


@pytest.mark.parametrize("given", [["train.epochs=3", "train.epochs=4"], ["train.epochs=1", " train.epochs =1"]])
def test_a_key_that_is_given_twice_is_refused_with_both_values(given: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("loader.num_workers\n1\n")
    asks = (points.grid, lambda overrides: points.listed(tmp_path / "p.csv", overrides), partial(load, "unet3d-small"))
    for ask in asks:
        with pytest.raises(ScenarioError, match=r"^train\.epochs is given twice, as [13] and [14]; give it once"):
            ask(given)


def test_what_yaml_cannot_read_is_text_still() -> None:
    assert str(load("unet3d-small", ["expect.au=>= 0.9"]).expect["au"]) == ">= 0.9"
    assert load("unet3d-small", ["source=a: b: c"]).source == "a: b: c"
