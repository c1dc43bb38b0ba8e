"""Calls in separate processes: those that simulate, for sweeps and for what would help.

Such a process is a separate program because ``multiprocessing`` would run the user's script again in every process. It
reads calls from standard input and writes their answers.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, TypeVar

from rayio.errors import RayioError, RunError
from rayio.registry import fault_of

T = TypeVar("T")

#: Seconds that calls must take in all for other processes to be faster, each of which takes half a second to start.
WORTH_SECONDS = 3.0
#: A process's program, with the places of modules, which a script may have added to, as arguments. It looks for unused
#: cycles as rarely as ``rayio`` does, which matters most while it imports.
_PROGRAM = """
import gc, sys
sys.path[:] = sys.argv[1:]
from rayio.__main__ import NEW_OBJECTS
gc.set_threshold(NEW_OBJECTS, 10, 10)
from rayio.machine.calls import main
main()
"""


def answered(call: Callable[[], T]) -> T | RayioError:
    """Return what a call returns, or its error."""
    try:
        return call()
    except RayioError as error:
        return error


def answers(
    calls: Sequence[Callable[[], T]], seconds: float, processes: int | None = None
) -> Iterator[tuple[int, T | RayioError]]:
    """Iterate over the numbers and answers of calls that take about ``seconds`` each, as they end.

    They are made in ``processes`` (None is one per CPU) if that is faster. Then they must be picklable.

    Raises:
        RunError: a process died.
    """
    wanted = min(processes or len(os.sched_getaffinity(0)), len(calls))
    if wanted > 1 and seconds * len(calls) >= WORTH_SECONDS:
        # A long call may have many bytes, and a process takes the next one only when it is idle.
        return in_processes(enumerate(calls), wanted, ahead=1)
    return enumerate(map(answered, calls))


def in_order(
    calls: Sequence[Callable[[], T]], seconds: float, watch: Callable[[int], None] = lambda done: None
) -> list[T | RayioError]:
    """Return the answers of :func:`answers`, one for each call; ``watch`` is called with the number done."""
    known = dict[int, T | RayioError]()
    watch(0)
    for number, answer in answers(calls, seconds):
        known[number] = answer
        watch(len(known))
    return [known[number] for number in range(len(calls))]


def in_turn(calls: Sequence[Callable[[], T]], seconds: float) -> Iterator[T | RayioError]:
    """Iterate over the answers of :func:`answers` in the order of their calls; the rest may never be needed."""
    known = dict[int, T | RayioError]()
    done = 0
    for number, answer in answers(calls, seconds):
        known[number] = answer
        while done in known:
            yield known.pop(done)
            done += 1


def serve(questions: IO[bytes], replies: IO[bytes]) -> None:
    """Make calls until the end of ``questions``; both streams are sequences of pickles."""
    while True:
        try:
            call: Callable[[], Any] = pickle.load(questions)
        except EOFError:
            return
        try:
            answer = answered(call)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            answer = RunError(f"{fault_of(error)}: {type(error).__name__}: {error} ({where})")
        pickle.dump(answer, replies)
        replies.flush()


def in_processes(
    calls: Iterable[tuple[int, Callable[[], T]]], processes: int, ahead: int = 2
) -> Iterator[tuple[int, T | RayioError]]:
    """Iterate over the answers of numbered calls in the order in which they end; leaving early ends the processes.

    Each process is sent up to ``ahead`` calls: a second one waits in the pipe, so that the process is never idle.

    Raises:
        RunError: a process died.
    """
    todo = iter(calls)
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
        number, call = entry
        pending[worker].append(number)
        pickle.dump(call, pipe)
        pipe.flush()

    heard: SimpleQueue[tuple[int, T | RayioError | None]] = SimpleQueue()
    threads = [Thread(target=_listen, args=(n, each, heard.put), daemon=True) for n, each in enumerate(started)]
    try:
        for thread in threads:
            thread.start()
        for worker in [*range(processes)] * ahead:
            send(worker)
        while any(pending):
            worker, answer = heard.get()
            if answer is None:
                if pending[worker]:
                    code = started[worker].wait()
                    raise RunError(f"a simulating process died ({_how(code)}); give the same command again")
                continue
            number = pending[worker].pop(0)
            send(worker)
            yield number, answer
    except BrokenPipeError:
        raise RunError("a simulating process died; give the same command again") from None
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
        command = [sys.executable, "-c", _PROGRAM, *map(str, sys.path)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
    """Answer the calls on standard input, on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not mix with answers
    serve(sys.stdin.buffer, replies)
