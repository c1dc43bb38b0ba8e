"""Ctrl-C, SIGTERM and SIGHUP at any moment: what was run is never lost."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
from datasets import on_disk

import rayio
from rayio.errors import StorageError
from rayio.records.sweeps import FAILED
from rayio.reporter import Reporter
from rayio.scenario.write import to_yaml
from rayio.session.conclude import in_memory
from rayio.signals import SIGNALS, Interrupts, deferred, interruptible, uninterrupted
from rayio.trace.recorder import Recorder
from scenarios import scenario

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _as_a_command() -> Iterator[None]:
    """Have signals end this process as they end a command, and give them back."""
    before, unraisable = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # one that outlives its terminal, this one
    interruptible()
    yield
    with warnings.catch_warnings():  # a signal may come between a file's opening and whoever closes it
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    sys.unraisablehook = unraisable
    for number, handler in before.items():
        signal.signal(number, handler)


class Signalled(Reporter):
    """Gets signals once the roles are over."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def done(self) -> None:
        for number in self.numbers:
            signal.raise_signal(number)


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM], [signal.SIGHUP]])
def test_signals_after_the_last_step_wait_until_the_result_is_written(
    home: Path, engine: str, numbers: list[signal.Signals]
) -> None:
    reporter = Signalled(*numbers)
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        rayio.run(scenario(train__compute="100 us"), engine=engine, out="r", reporter=reporter)
    assert reporter.said == [
        "ending after writing the records",
        f"run complete (interrupted after the last step): {home / 'r'}",
    ]
    assert [signal.getsignal(number) for number in SIGNALS] == before
    left = rayio.Run.open("r")
    assert left.exit_code == 0
    assert left.result["ledger"]["even"]
    assert left.result.trace is not None
    assert left.result.trace.stored == left.result.trace.recorded == len(left.spans())


class TwiceInterrupted(Reporter):
    """Gets one signal when a step is done, and more while the roles are brought to an end."""

    def live(self, text: str, share: float | None = None) -> None:
        if share:
            signal.raise_signal(signal.SIGTERM)

    def done(self) -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_changes_nothing(home: Path) -> None:
    wanted = scenario(train__compute="100 ms", dataset__num_files=480)
    with pytest.raises(KeyboardInterrupt):
        rayio.run(wanted, engine="local", out="r", reporter=TwiceInterrupted())
    left = rayio.Run.open("r").result
    assert (left.exit_code, left.error) == (130, "interrupted")
    assert left.trace is not None
    assert left.trace.stored == left.trace.recorded > 0
    assert left["ledger"]["delivered_steps"] > 0


def calls(told: Callable[[int], None]) -> Callable[[FrameType, str, Any], None]:
    """Count the calls of functions, and tell each number."""
    number = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal number
        if event == "call":
            number += 1
            told(number)

    return count


def profiled(told: Callable[[int], None], work: Callable[[], object]) -> None:
    profiled_with(calls(told), work)


def profiled_with(profile: Callable[[FrameType, str, Any], None], work: Callable[[], T]) -> T:
    sys.setprofile(profile)
    try:
        return work()
    finally:
        sys.setprofile(None)


def test_a_signal_at_any_moment_of_a_simulation_leaves_its_result_or_nothing(home: Path) -> None:
    wanted = scenario(trace__resolution="1 us")
    rayio.simulate(wanted, out="first")  # what is imported on the way is no moment of a run
    total = 0

    def seen(number: int) -> None:
        nonlocal total
        total = number

    profiled(seen, lambda: rayio.simulate(wanted, out="whole"))
    assert total > 3000
    ends = []
    for moment in range(1, total * 97 // 100, total // 24):  # how many calls there are varies a little

        def strike(number: int, moment: int = moment) -> None:
            if number == moment:
                signal.raise_signal(signal.SIGINT)

        out = f"at-{moment}"
        with pytest.raises(KeyboardInterrupt):
            profiled(strike, partial(rayio.simulate, wanted, out=out))
        if not (home / out / "run.json").exists():
            ends.append("nothing")
            continue
        left = rayio.Run.open(out)
        assert left.result.trace is not None, moment
        assert left.result.trace.stored == left.result.trace.recorded == len(left.spans()), moment
        ends.append("complete" if left.exit_code == 0 else "cut")
    assert {"cut", "complete"} <= set(ends) <= {"nothing", "cut", "complete"}, ends
    assert ends == sorted(ends, key=["nothing", "cut", "complete"].index)


def test_a_signal_at_any_moment_of_a_simulation_that_stays_in_memory_is_heard_and_nothing_else_is(
    recwarn: pytest.WarningsRecorder,
) -> None:
    wanted = scenario()
    in_memory(wanted)
    total = 0

    def seen(number: int) -> None:
        nonlocal total
        total = number

    profiled(seen, lambda: in_memory(wanted))
    warnings.simplefilter("always")
    for moment in range(1, total * 97 // 100, total // 40):

        def strike(number: int, moment: int = moment) -> None:
            if number == moment:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            profiled(strike, partial(in_memory, wanted))
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


#: Where a run is begun and ended, and signals are taken over and given back.
ENDS = ("rayio/signals.py", "rayio/session/execute.py", "rayio/trace/run_directory.py")


def lines(told: Callable[[int], None]) -> Callable[[FrameType, str, Any], Any]:
    """Count the lines that are run in the files of :data:`ENDS`, and tell each number."""
    number = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal number
        if event == "call":
            return count if frame.f_code.co_filename.endswith(ENDS) else None
        if event == "line":
            number += 1
            told(number)
        return count

    return count


def traced(told: Callable[[int], None], work: Callable[[], object]) -> None:
    before = sys.gettrace()
    sys.settrace(lines(told))
    try:
        work()
    finally:
        sys.settrace(before)


def test_a_signal_at_any_line_of_a_runs_ends_leaves_all_or_nothing_and_signals_heard(home: Path) -> None:
    wanted = scenario(dataset__num_files=8, train__steps=2)
    before = [signal.getsignal(number) for number in SIGNALS]
    total = 0

    def seen(number: int) -> None:
        nonlocal total
        total = number

    rayio.simulate(wanted, out="first")  # what is loaded on the way takes lines of its own
    traced(seen, lambda: rayio.simulate(wanted, out="whole"))
    assert total > 200
    for moment in range(1, total, 9):
        struck: list[int] = []

        def strike(number: int, moment: int = moment, struck: list[int] = struck) -> None:
            if number == moment:
                struck.append(number)
                signal.raise_signal(signal.SIGTERM)

        out = f"at-{moment}"
        try:
            traced(strike, partial(rayio.simulate, wanted, out=out))
        except KeyboardInterrupt:
            pass
        else:  # how many lines there are varies a little
            assert not struck, moment
            continue
        for number in SIGNALS:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert [signal.getsignal(number) for number in SIGNALS] == before, moment
        if (home / out).exists():
            left = rayio.Run.open(out)
            assert left.exit_code in (0, 130), moment
            assert left.result.trace is not None
            assert left.result.trace.stored == left.result.trace.recorded


def at_the_first(event: str, name: str) -> Callable[[FrameType, str, Any], None]:
    """Strike once, as a function of that name is called or returns."""
    struck: list[str] = []

    def strike(frame: FrameType, happens: str, argument: Any) -> None:
        if happens == event and frame.f_code.co_qualname == name and not struck:
            struck.append(name)
            signal.raise_signal(signal.SIGINT)

    return strike


def test_a_signal_as_a_scenario_is_written_is_no_error_of_who_writes_it() -> None:
    wanted = scenario()
    for function in ("Choosing._options_beside", "_OptionsOf.__get_pydantic_core_schema__.<locals>.flatten"):
        to_yaml(wanted)
        strike = at_the_first("call", function)
        with pytest.raises(KeyboardInterrupt):
            profiled_with(strike, lambda: to_yaml(wanted))


def hold_nothing() -> None:
    with deferred():
        pass


@pytest.mark.parametrize("block", [lambda: rayio.simulate(scenario(), out="r"), hold_nothing])
def test_a_signal_between_taking_signals_over_and_the_block_leaves_none_taken(
    home: Path, block: Callable[[], object]
) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        profiled_with(at_the_first("return", "Interrupts.__enter__"), block)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert not [*home.iterdir()]


POINTS = ["loader.num_workers=1,2,3", "train.compute=100 us", "train.steps=2"]


def test_a_point_of_a_sweep_that_is_whole_as_a_signal_comes_keeps_its_row(home: Path) -> None:
    (home / "s.yaml").write_text(to_yaml(scenario()))
    strike = at_the_first("call", "RunDirectory.write_result")
    found = profiled_with(strike, lambda: rayio.sweep("s.yaml", POINTS, engine="local", out="s"))
    assert (len(found.rows), found.missing, found.exit_code) == (1, 2, 130)
    again = rayio.sweep("s.yaml", POINTS, engine="local", out="s")
    assert again.rows[0] == found.rows[0]
    assert len(again.rows) == len([*(home / "s/runs").iterdir()]) == 3


def test_a_signal_as_a_run_of_a_sweep_breaks_off_ends_the_sweep_as_any_other(home: Path) -> None:
    (home / "s.yaml").write_text(to_yaml(on_disk(scenario(dataset__path="data"), home)))
    for file in (home / "data").rglob("*.npz"):
        file.write_bytes(bytes(file.stat().st_size))  # whichever is read first
    strike = at_the_first("call", "RunDirectory.write_result")
    found = profiled_with(strike, lambda: rayio.sweep("s.yaml", POINTS, engine="local", out="s"))
    assert (len(found.rows), found.missing, found.exit_code) == (0, 3, 130)
    (broken_off,) = (home / "s/runs").iterdir()
    left = rayio.Run.open(broken_off)
    assert left.exit_code == 2
    assert left.result.error is not None
    again = rayio.sweep("s.yaml", POINTS, engine="local", out="s")
    assert ([row.status for row in again.rows], again.missing) == ([FAILED] * 3, 0)


class Fills(Reporter):
    """Interrupts a run, and puts a folder in the place of its result."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def live(self, text: str, share: float | None = None) -> None:
        Path("r/result.json").mkdir()
        signal.raise_signal(signal.SIGTERM)


def test_an_error_in_the_place_of_an_interrupt_is_told_and_the_interrupt_is_heard(home: Path) -> None:
    reporter = Fills()
    with pytest.raises(KeyboardInterrupt) as caught:
        rayio.run(scenario(train__compute="60 ms"), engine="local", out="r", reporter=reporter)
    error = caught.value.__context__
    assert isinstance(error, StorageError)
    assert reporter.said[-1] == str(error)
    assert "result.json" in str(error)


def test_a_run_of_a_search_that_is_whole_as_a_signal_comes_is_a_point_of_it(home: Path) -> None:
    (home / "s.yaml").write_text(to_yaml(scenario(train__compute="100 us")))
    strike = at_the_first("call", "RunDirectory.write_result")
    found = profiled_with(strike, lambda: rayio.capacity("s.yaml", engine="local", most=1, out="s"))
    assert not found.is_finished
    assert [point.runs for point in found.points] == [1]
    assert (home / "s/points.jsonl").read_bytes().count(b"\n") == 1


class Finalized:
    """Something at whose end a signal comes: what is raised there, Python prints and forgets."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_comes_in_a_finalizer_is_not_lost(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Drops(Reporter):
        def live(self, text: str, share: float | None = None) -> None:
            Finalized()

    with pytest.raises(KeyboardInterrupt):
        rayio.run(scenario(train__compute="100 ms", train__epochs=50), engine="local", out="r", reporter=Drops())
    assert rayio.Run.open("r").exit_code == 130
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        Finalized()
        time.sleep(60)
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_in_a_text_that_is_run_leaves_the_exit_code(tmp_path: Path) -> None:
    """As dataclasses are made of texts: Python would end by SIGINT, though the interrupt was caught and told."""
    program = (
        "from rayio.signals import leave\ntry:\n  exec('raise KeyboardInterrupt')\nexcept BaseException:\n  leave(130)"
    )
    (tmp_path / "program").mkdir()
    (tmp_path / "program/__main__.py").write_text(program)
    done = subprocess.run([sys.executable, "-m", "program"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("signals", [1, 2])
def test_the_first_signal_as_something_starts_waits_and_a_second_does_not(signals: int) -> None:
    said: list[str] = []
    passed: list[str] = []

    def begin() -> None:
        with Interrupts(said.append) as interrupts:
            interrupts.listen()
            with uninterrupted("a thing is starting"):
                for _ in range(signals):
                    signal.raise_signal(signal.SIGINT)
                    passed.append("a signal")
            passed.append("the block")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert passed == ["a signal"]
    assert said == ["interrupted: a thing is starting; a second signal ends it at once"]


def test_without_a_run_the_blocks_change_nothing() -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGTERM)
    assert recorder.drain() is None


def test_a_program_that_handles_a_signal_itself_goes_on(home: Path) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

    class Once(Reporter):
        def live(self, text: str, share: float | None = None) -> None:
            if not heard:
                signal.raise_signal(signal.SIGTERM)

    done = rayio.run(scenario(train__compute="60 ms"), engine="local", out="r", reporter=Once())
    assert heard == [signal.SIGTERM]
    assert done.exit_code == 0


SMALL_DISK = """
mkdir {0}/disk && mount -t tmpfs -o size=300k tmpfs {0}/disk || exit 77
cd {0}/disk && {1} -m rayio simulate {2} --out r
code=$?
mkdir {0}/kept && cp -r r {0}/kept/ && exit $code
"""


def test_a_disk_that_spans_have_filled_costs_spans_and_no_numbers(tmp_path: Path) -> None:
    wanted = ["unet3d-small", "dataset.path=model://x", "dataset.num_files=1680", "train.epochs=40", "checkpoint=none"]
    whole = rayio.simulate(wanted[0], wanted[1:], out=tmp_path / "whole")
    assert whole.result["trace"]["stored"] > 40_000
    story = SMALL_DISK.format(tmp_path, sys.executable, " ".join(wanted))
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", story],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 2, done.stderr
    assert "no space left" in done.stderr.strip().splitlines()[-1]
    left = rayio.Run.open(tmp_path / "kept/r")
    assert left.au == whole.au
    trace = left.result["trace"]
    assert trace["recorded"] == whole.result["trace"]["recorded"]
    assert 0 < trace["stored"] == len(left.spans()) < trace["recorded"]
    assert "not all spans could be stored; the metrics include all recorded spans" in left.result.notes
