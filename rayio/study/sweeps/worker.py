"""A process that simulates points: it reads scenarios from standard input and writes results.

It is a separate program because ``multiprocessing`` would run the user's script again in every process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from rayio.errors import RayioError, RunError
from rayio.records.run_result import RunResult
from rayio.registry import fault_of
from rayio.scenario.model import Scenario
from rayio.session.conclude import in_memory

#: A point's result, or its error.
Answer = RunResult | RayioError
#: A process's program. It looks for unused cycles as rarely as ``rayio`` does, which matters most while it imports.
_PROGRAM = """
import gc
from rayio.__main__ import NEW_OBJECTS
gc.set_threshold(NEW_OBJECTS, 10, 10)
from rayio.study.sweeps.worker import main
main()
"""


def simulated(scenario: Scenario) -> Answer:
    """Return the result of a simulated point, or its error."""
    try:
        return in_memory(scenario)
    except RayioError as error:
        return error


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Simulate scenarios until the end of ``questions``; both streams are sequences of pickles."""
    while True:
        try:
            scenario: Scenario = pickle.load(questions)
        except EOFError:
            return
        try:
            answer: Answer = simulated(scenario)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            answer = RunError(f"{fault_of(error)}: {type(error).__name__}: {error} ({where})")
        pickle.dump(answer, answers)
        answers.flush()


def in_processes(scenarios: Iterable[tuple[int, Scenario]], processes: int) -> Iterator[tuple[int, Answer]]:
    """Iterate over the answers of numbered scenarios in the order in which they end; leaving early ends the processes.

    Raises:
        RunError: a process died.
    """
    todo = iter(scenarios)
    started = [_start() for _ in range(processes)]
    pending: list[list[int]] = [[] for _ in started]

    def send(worker: int) -> None:
        entry = next(todo, None)
        pipe = started[worker].stdin
        assert pipe is not None
        if entry is None:
            if not pipe.closed:
                pipe.close()
            return
        number, scenario = entry
        pending[worker].append(number)
        pickle.dump(scenario, pipe)
        pipe.flush()

    answered: SimpleQueue[tuple[int, Answer | None]] = SimpleQueue()
    threads = [Thread(target=_listen, args=(n, each, answered.put), daemon=True) for n, each in enumerate(started)]
    try:
        for thread in threads:
            thread.start()
        for worker in [*range(processes)] * 2:  # the second scenario waits in the pipe, so that workers never idle
            send(worker)
        while any(pending):
            worker, answer = answered.get()
            if answer is None:
                if pending[worker]:
                    code = started[worker].wait()
                    raise RunError(f"a simulating process died ({_how(code)}); give the same command to resume")
                continue
            number = pending[worker].pop(0)
            send(worker)
            yield number, answer
    except BrokenPipeError:
        raise RunError("a simulating process died; give the same command to resume") from None
    finally:
        for process in started:
            process.kill()
        for process, thread in zip(started, threads, strict=True):
            process.wait()
            thread.join(timeout=5)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)


def _start() -> subprocess.Popen[bytes]:
    # Ctrl-C reaches the whole process group, but the parent ends these. Children inherit blocked signals; a signal
    # that arrives meanwhile is delivered to the parent when it unblocks.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(number: int, process: subprocess.Popen[bytes], tell: Callable[[tuple[int, Any]], None]) -> None:
    pipe = process.stdout
    assert pipe is not None
    while True:
        try:
            tell((number, pickle.load(pipe)))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            tell((number, None))
            return


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except OSError:
        return


def _how(code: int) -> str:
    return f"signal {-code}: out of memory?" if code < 0 else f"exit code {code}"


def main() -> None:
    """Answer the questions on standard input, on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not mix with answers
    serve(sys.stdin.buffer, answers)
