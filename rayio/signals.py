"""Signals, raised as KeyboardInterrupt unless results are at stake, and deadlines for calls that may hang."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TypeVar

from rayio.errors import RayioError

T = TypeVar("T")

#: Exit code of a command that was interrupted.
INTERRUPTED = 130
#: Signals that ask a process to end: Ctrl-C, the end of a batch job or pod, a closed terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after which a signal is sent again that could not be raised.
AGAIN_SECONDS = 0.02

#: True once the command is over: signals are then ignored.
_is_over = False
#: When a signal last asked this process to end (``time.monotonic``). Nobody waits for calls that began before.
asked_at = -math.inf


def ask() -> None:
    """Remember that this process is asked to end now."""
    global asked_at
    asked_at = time.monotonic()


def _interrupt(number: int, frame: object) -> None:
    ask()
    if not _is_over:
        raise KeyboardInterrupt


def interruptible() -> None:
    """Make SIGTERM (``ray job stop``, a pod's end) and SIGHUP end a command like Ctrl-C; ``nohup`` is respected."""
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _unraisable


def _unraisable(arguments: sys.UnraisableHookArgs) -> None:
    """Send a signal again that came where Python cannot raise it: in a finalizer, in an import's lock."""
    if not issubclass(arguments.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(arguments)
        return
    if _current is not None:
        _current.forget()
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True
    again.start()


def ignore_signals() -> None:
    """Ignore every signal of :data:`SIGNALS` from now on: the command is over, and its exit code is final.

    Python restores the system's handlers as it ends; a second signal would then kill the process.
    """
    global _is_over
    _is_over = True  # a single step, since several signals may come within a millisecond
    left = [*SIGNALS]
    while left:
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(left[-1], signal.SIG_IGN)
            left.pop()


class Interrupts:
    """A context manager that handles signals during a run: the first is raised, later ones wait.

    Signals are raised only after :meth:`listen`, the first call of the block: before, an exception would leave the
    handlers in place. After :meth:`hold`, when the last step is over, all signals wait for the results. When the block
    ends, a waiting signal is sent again, unless the run was interrupted. If a `RayioError` ends the block, it is
    printed and even a raised signal is sent again, because callers such as a sweep continue after errors. Outside the
    main thread nothing changes, because signals never come there.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        #: The previous handler of each signal.
        self._before: dict[int, Any] = {}
        #: The raised signal.
        self._raised: int | None = None
        self._is_held = self._is_over = False
        #: Signals that wait for the results, and one that waits for the end of an uninterruptible block.
        self._waiting: list[int] = []
        self._postponed: int | None = None
        #: Number of entered uninterruptible blocks; :meth:`listen` leaves the first.
        self._depth = 1
        #: Name of a long wait that a second signal may end.
        self._waits_for: str | None = None
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        """Install handlers for signals that are not ignored."""
        global _current
        if _current is not None or threading.current_thread() is not threading.main_thread():
            return self
        try:
            _current = self
            for number in SIGNALS:
                if (before := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._caught)
            return self
        except BaseException:  # a signal came meanwhile
            self._restore()
            raise

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        """Restore the handlers, and send a waiting signal again."""
        if _current is not self:
            return
        self._restore()
        came = [*([] if self._raised is None else [self._raised]), *self._waiting]
        if isinstance(error, RayioError) and came:
            self._say(str(error))
            signal.raise_signal(came[0])
        elif self._raised is not None and self._before[self._raised] is signal.SIG_DFL:
            signal.raise_signal(self._raised)  # it would have ended the process
        elif self._raised is None and kind is None and self._waiting:
            signal.raise_signal(self._waiting[0])

    def _restore(self) -> None:
        """Restore the previous handlers."""
        global _current
        self.hold()
        _current, self._is_over = None, True
        for number, before in self._before.items():
            signal.signal(number, before)  # a signal may come at once; :meth:`_caught` restores the others

    def listen(self) -> None:
        """Raise signals from now on, also one that is waiting."""
        self.leave()

    def enter(self) -> None:
        """Let signals wait until :meth:`leave`."""
        self._depth += 1

    def leave(self) -> None:
        """Raise signals again, also a waiting one, unless in another uninterruptible block."""
        self._depth -= 1
        if not self._depth and self._postponed is not None and not self._is_held and self._raised is None:
            number, self._postponed = self._postponed, None
            self._raise(number, None)

    @property
    def has_waiting(self) -> bool:
        """True if a signal is waiting."""
        return bool(self._waiting) and self._raised is None

    def hold(self) -> None:
        """Let signals wait from now on."""
        self._is_held = True
        if self._postponed is not None:
            self._waiting.append(self._postponed)
            self._postponed = None

    def forget(self) -> None:
        """Forget the raised signal, which was lost."""
        self._raised = None

    def _caught(self, number: int, frame: FrameType | None) -> None:
        ask()
        if self._is_over:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        elif self._is_held or self._raised is not None:
            self._waiting.append(number)
            if len(self._waiting) == 1:
                with contextlib.suppress(RuntimeError):  # while another line is being printed
                    self._say("ending after writing the records")
        elif self._depth and (self._waits_for is None or self._postponed is None):
            self._postponed = number
            if self._waits_for is not None:
                with contextlib.suppress(RuntimeError):
                    self._say(f"interrupted: {self._waits_for}; a second signal ends it at once")
        else:
            self._raise(number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Call the signal's previous handler; if that raises nothing, the run continues."""
        self._raised = number
        try:
            if callable(before := self._before[number]):
                before(number, frame)
                self._raised = None
                return
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self._cancel is None:
                raise
            self._cancel()


#: The current run's, in this process.
_current: Interrupts | None = None


def hold() -> None:
    """Let signals wait until the current run, if any, has written its results."""
    if _current is not None:
        _current.hold()


@contextlib.contextmanager
def uninterrupted(waits_for: str | None = None) -> Iterator[None]:
    """Let signals wait until the end of this block, which must complete and is quick.

    A block that may take seconds names its wait: the first signal prints it, a second one is raised.
    """
    here = _current
    if here is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    here.enter()
    here._waits_for, before = waits_for, here._waits_for
    try:
        yield
    finally:
        here._waits_for = before
        here.leave()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let signals wait until the end of this block, like :func:`uninterrupted`, also outside a run."""
    if _current is not None:
        with uninterrupted():
            yield
        return
    with Interrupts():  # without listen()
        yield


@contextlib.contextmanager
def cancelling(cancel: Callable[[], object]) -> Iterator[None]:
    """Call ``cancel`` on a signal instead of raising it inside the block; raise it after the block.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    here = _current
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if here is None:  # outside a run
        with Interrupts() as own:
            own.listen()
            with cancelling(cancel):
                yield
        return
    here._cancel = cancel
    try:
        yield
    finally:
        here._cancel = None
    if here._raised is not None:
        raise KeyboardInterrupt


#: Threads of abandoned calls. With such threads a process cannot exit normally, because it would wait for them.
left_behind: set[threading.Thread] = set()


def is_anything_left() -> bool:
    """Return True if an abandoned call is still running."""
    return any(thread.is_alive() for thread in left_behind)


def leave(code: int) -> NoReturn:
    """Exit this process with a code: normally, or at once if that would wait for an abandoned call."""
    if is_anything_left():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    # Python kills itself by SIGINT if one came inside `exec` (such as of a dataclass), even if it was caught; another
    # `exec` resets this
    exec("")
    sys.exit(code)


def within(seconds: float, call: Callable[[], T], *, look: Callable[[], None] = lambda: None, every: float = 0.5) -> T:
    """Make a call in a thread and return its value, or raise its exception.

    ``look`` is called every ``every`` seconds; an exception of it ends the waiting.

    >>> within(10, lambda: 6 * 7)
    42

    Raises:
        TimeoutError: the call took longer than ``seconds``; it continues in its thread.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def make() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    thread = threading.Thread(target=make, name="rayio-deadline", daemon=True)
    ends = time.monotonic() + seconds
    left_behind.add(thread)  # before the start, when a signal may come
    thread.start()
    while (left := ends - time.monotonic()) > 0:
        try:
            value, error = answers.get(timeout=min(every, left))
        except queue.Empty:
            look()
            continue
        left_behind.discard(thread)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]
    raise TimeoutError
