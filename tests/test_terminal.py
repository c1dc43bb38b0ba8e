"""Progress on a terminal: within its width, and with the time left only when that is known."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.cli import remaining, terminal
from rayio.cli.remaining import Remaining

LINE = (
    "1200/12000 rank-steps · compute 50.1 % · data loading 31.2 % · sync 10.0 % · checkpoint 3.1 % · evaluation "
    "2.2 % · 1310 MiB/s"
)

#: How long a command really takes to reach each share: planted, from 0 to 1 for 0 to 1.
PROFILES: dict[str, Callable[[float], float]] = {
    "even": lambda share: share,
    "slow to start": lambda share: 0.0 if share <= 0 else 0.15 + 0.85 * share,
    "ever slower": lambda share: 0.5 * share + 0.5 * share**2,
    "ever faster": lambda share: 1.5 * share - 0.5 * share**2,
    "a first part that is five times as fast": lambda share: max(share / 5, 0.016 + (share - 0.08) * 0.984 / 0.92),
}


def estimates(profile: Callable[[float], float], seconds: float, steps: int) -> Iterator[tuple[float, float]]:
    """The time left at each moment of a planted command: what is really left, and what is shown."""
    left = Remaining()
    done, now = 0, 0.0
    while now < seconds:
        while done < steps and seconds * profile((done + 1) / steps) <= now:
            done += 1
        shown = left.at(now, done / steps)
        if shown is not None:
            yield seconds - now, shown
        now += 0.25


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("steps", [12, 400])
@pytest.mark.parametrize("seconds", [20.0, 67.0, 2700.0])
def test_what_is_shown_of_the_time_left_is_within_a_factor_of_two(name: str, steps: int, seconds: float) -> None:
    shown = [*estimates(PROFILES[name], seconds, steps)]
    wrong = [(left, said) for left, said in shown if abs(left - said) > 5 and not left / 2 <= said <= left * 2]
    assert not wrong, f"{len(wrong)} of {len(shown)}: {wrong[:3]}"
    assert shown, "it is never shown"


def test_a_search_whose_trials_grow_does_not_show_hours_of_a_minute() -> None:
    # Shares as a search foresees them: next to nothing in its first seconds, then more than was expected.
    left = Remaining()
    shares = [
        (0.3, 0.0),
        (0.6, 0.0002),
        (1.4, 0.0005),
        (2.2, 0.0009),
        (3.0, 0.002),
        (8.0, 0.1),
        (20.0, 0.4),
        (67.0, 0.99),
    ]
    shown = [(now, said) for now, share in shares if (said := left.at(now, share)) is not None]
    assert not [said for now, said in shown if not (67 - now) / 2 <= said + 5 <= 2 * (67 - now) + 10]


def test_progress_that_stops_takes_the_estimate_back() -> None:
    left = Remaining()
    at_pace = [left.at(float(now), now / 100) for now in range(50)]
    assert at_pace[40] == pytest.approx(60, abs=1)
    stopped = [left.at(float(now), 0.49) for now in range(50, 300)]
    assert stopped[-1] is None


def test_a_part_that_begins_again_is_timed_from_its_start() -> None:
    left = Remaining()
    for now in range(50):
        left.at(float(now), now / 50)
    assert left.at(51.0, 0.0) is None
    assert [left.at(51.0 + now, now / 20) for now in range(12)][-1] == pytest.approx(9, abs=1)


@given(st.integers(20, 200), st.floats(0, 100_000) | st.none())
def test_a_line_of_progress_fits_and_keeps_its_head_and_the_time_left(width: int, seconds: float | None) -> None:
    shown = terminal.fitted(LINE, seconds, width)
    assert len(shown) <= width
    assert shown.startswith("1200/12000 rank-st")
    if seconds is not None and width >= 45:
        assert shown.endswith(remaining.words(seconds))
    if width >= 170:
        assert LINE in shown


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_on_a_terminal_no_line_of_a_run_is_wider_than_it(columns: int, tmp_path: Path) -> None:
    text = screen(["simulate", "unet3d-small", "--out", str(tmp_path / "run"), "--no-report"], columns)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
    assert any("AU" in line for line in lines)
    assert [line for line in lines if len(line) > columns and "note:" not in line and str(tmp_path) not in line] == []


def screen(arguments: list[str], columns: int) -> str:
    """What a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "rayio", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece
        os.close(ours)
    assert process.returncode == 0, text
    return text.decode()


def test_no_color_wins_over_variables_that_force_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes that end in m set colours and bold; 0 and 1 are reset and bold."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    command = ["simulate", "unet3d-small", "--out", str(tmp_path / "coloured")]
    assert set(re.findall(r"\x1b\[([0-9;]*)m", screen(command, 100))) - {"", "0", "1"}, "the turning sign is green"
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    run = str(tmp_path / "run")
    select = "SELECT name, count(*) FROM spans GROUP BY name"
    commands = [["simulate", "unet3d-small", "--out", run], ["explain", run], ["query", run, select], ["--help"]]
    for command in commands:
        assert set(re.findall(r"\x1b\[([0-9;]*)m", screen(command, 100))) <= {"", "0", "1"}, command


def test_quiet_shows_no_progress_and_no_messages_and_keeps_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "detail", terminal.Detail(is_quiet=True))
    shown = terminal.Terminal()
    shown.say("dataset data/x: 3 files written")
    shown.live("running", 0.5)
    shown.warn("a disk is nearly full")
    assert capsys.readouterr().err == "rayio: warning: a disk is nearly full\n"


def test_verbose_shows_when_each_message_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "detail", terminal.Detail(is_verbose=True))
    terminal.Terminal().say("dataset data/x: 3 files written")
    assert re.fullmatch(r"rayio: +\d+\.\d s  dataset data/x: 3 files written\n", capsys.readouterr().err)


def test_markup_in_a_name_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    status = terminal.Terminal()
    status.live("runs/[bold]x[/bold]")
    status.done()
    assert "runs/[bold]x[/bold]" in shown.getvalue()
