"""What is printed fits the terminal: no line is wider, no word or number is cut, nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from exports import told
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.cli.fitting import fit, shown
from rayio.trace.span import COLUMNS

WIDTHS = (60, 80, 200)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("fit")
    for name, model in (("a", "nvme"), ("b", "s3")):
        rayio.simulate("unet3d-small", {"train.epochs": 2, "storage.model": model}, out=folder / name)
    return folder / "a", folder / "b"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["report", "explain", "compare"])
def test_tables_fit_and_keep_every_word(
    command: str,
    width: int,
    runs: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments: dict[str, list[object]] = {
        "report": [runs[1], "--no-html"], "explain": [runs[1], "--no-simulate"], "compare": [*runs],
    }  # fmt: skip
    more = arguments[command]
    monkeypatch.delenv("COLUMNS", raising=False)
    code, whole, _ = told(capsys, command, *more)
    monkeypatch.setenv("COLUMNS", str(width))
    assert code == 0
    _, out, _ = told(capsys, command, *more)
    assert out.split() == whole.split()
    longest = max(len(word) for word in whole.split())
    assert max(map(len, out.splitlines())) <= max(width, longest + width // 2)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_query_shows_columns_that_fit_and_names_the_others(
    width: int, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = told(capsys, "query", runs[0], "select * from spans limit 3")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    table, _, others = out.partition(" more columns: ")
    head = next(line for line in table.splitlines() if "name" in line).replace("┃", " ").split()
    assert head[0] == "name"
    assert [*head, *(others.partition(";")[0].replace(",", " ").split())] == [*COLUMNS]
    assert "data_wait" in table or "startup" in table, "a name is on one line"


def test_without_a_terminal_every_column_is_on_one_line(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = told(capsys, "query", runs[0], "select * from spans limit 3")
    head = next(line for line in out.splitlines() if "name" in line)
    assert head.replace("┃", " ").split() == [*COLUMNS]
    assert len([line for line in out.splitlines() if line.startswith("│")]) == 3
    _, out, _ = told(capsys, "query", runs[0], f"select '{'x' * 500}' as long, 1 as n")
    assert "x" * 500 in out


def test_one_column_that_is_too_wide_is_folded(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = told(capsys, "query", runs[0], f"select '{'x' * 500}' as long")
    assert out.count("x") == 500
    assert max(map(len, out.splitlines())) <= 60


@given(st.lists(st.integers(1, 120), min_size=1, max_size=20), st.integers(20, 250))
def test_columns_that_are_chosen_fit(widths: list[int], width: int) -> None:
    chosen = shown(widths, width)
    assert [place for place, _ in chosen] == [*range(len(chosen))]
    assert chosen
    assert sum(wide + 3 for _, wide in chosen) + 1 <= width
    assert all(1 <= wide <= widths[place] for place, wide in chosen)
    assert shown(widths, None) == [*enumerate(widths)]


@given(st.text("ab \n", max_size=300), st.integers(20, 80))
def test_wrapping_loses_no_word(text: str, width: int) -> None:
    assert fit(text, width).split() == text.split()
    assert fit(text, None) == text
