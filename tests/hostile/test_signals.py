"""Signals to the command and to its whole process group, once and twice, in the middle and after the last step."""

from __future__ import annotations

import random
import signal
import time

import pytest
from commands import ON_RAY, Command

pytestmark = pytest.mark.slow

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
ENDED = (0, 130)
#: A run in one process that ends with a second or so of writing.
IN_ONE = ("unet3d-small", "dataset.path=model://x", "dataset.num_files=1400", "checkpoint=none", "--out", "r")


@pytest.mark.parametrize("number", [INT, TERM, HUP])
@pytest.mark.parametrize("late", range(4))
def test_a_signal_as_spans_are_written_leaves_the_simulations_result(
    command: Command, number: signal.Signals, late: int
) -> None:
    command.begin("simulate", *IN_ONE, "train.epochs=25")
    command.until_there("r/spans/*")
    time.sleep(0.03 * late)
    command.send(number)
    assert command.code() in ENDED
    run = command.run()
    assert run.result["trace"]["stored"] == run.result["trace"]["recorded"] > 0
    command.nothing_lives()


@pytest.mark.parametrize("seed", range(6))
def test_signals_at_random_moments_leave_the_local_engines_result(command: Command, seed: int) -> None:
    chance = random.Random(seed)
    command.begin("run", *IN_ONE, "train.compute=2 ms", "train.epochs=2", "--engine", "local")
    command.until_there("r/.reserved")
    time.sleep(chance.uniform(0, 3))
    for _ in range(chance.randint(1, 3)):
        command.send(chance.choice([INT, TERM, HUP]))
        time.sleep(chance.uniform(0, 0.3))
    assert command.code() in ENDED
    run = command.run()
    assert run.result["trace"]["stored"] == run.result["trace"]["recorded"]
    command.nothing_lives()


@pytest.mark.parametrize("seed", range(6))
def test_a_signal_as_ray_starts_leaves_nothing(command: Command, seed: int) -> None:
    chance = random.Random(seed)
    command.begin(*ON_RAY)
    command.until("starting a local Ray")
    time.sleep(chance.uniform(0, 3))
    command.send(chance.choice([INT, TERM, HUP]))
    assert command.code() == 130, command.errors()
    assert command.last_line() == "rayio: interrupted"
    assert "actors are running" in command.errors() or not (command.home / "r").exists()
    command.nothing_lives()


@pytest.mark.parametrize(
    ("numbers", "to_group", "pause"),
    [([INT], True, 0), ([TERM], False, 0), ([TERM, TERM], False, 1), ([INT, INT], False, 1), ([HUP, TERM], False, 0.2)],
)
def test_signals_in_the_middle_of_a_run_on_ray(
    command: Command, numbers: list[signal.Signals], to_group: bool, pause: float
) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    time.sleep(3)
    for number in numbers:
        command.send(number, to_group=to_group)
        time.sleep(pause)
    assert command.code() == 130
    assert command.last_line() == "rayio: interrupted"
    run = command.run()
    assert (run.exit_code, run.result.error) == (130, "interrupted")
    assert run.result["ledger"]["delivered_steps"] > 0
    assert run.result["trace"]["stored"] == run.result["trace"]["recorded"]
    command.nothing_lives()


@pytest.mark.parametrize("wait", [1.0, 4.0])
def test_a_batch_system_that_ends_every_process_at_once_leaves_what_was_collected(
    command: Command, wait: float
) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    command.until_there("r/spans/*")  # on a busy machine the first spans take their time
    time.sleep(wait)
    command.send(TERM, to_group=True)
    assert command.code() in (2, 130)
    command.last_line()
    run = command.run()
    assert run.exit_code in (2, 130)
    assert run.result["trace"]["stored"] > 0
    command.nothing_lives()


@pytest.mark.parametrize(
    ("numbers", "to_group"), [([INT], False), ([TERM, TERM], False), ([INT], True), ([TERM], True)]
)
@pytest.mark.parametrize("late", [0.0, 0.6])
def test_signals_after_the_last_step_on_ray_lose_nothing(
    command: Command, numbers: list[signal.Signals], to_group: bool, late: float
) -> None:
    command.begin(*ON_RAY, "train.epochs=2")
    command.until("actors are running")
    command.until_there("r/spans/spans-*")  # made at the end
    time.sleep(late)
    for number in numbers:
        command.send(number, to_group=to_group)
        time.sleep(0.2)
    assert command.code() in ENDED
    command.run(is_whole=True)
    command.nothing_lives()
