"""What ends a command from outside: signals, raised as KeyboardInterrupt, held back where they would cost results."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from rayio.errors import RayioError

#: Exit code of a command that was interrupted.
INTERRUPTED = 130
#: Signals that ask a process to end: Ctrl-C, a batch system's or a pod's end, a terminal that was closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after which one comes again that could not be raised.
AGAIN_SECONDS = 0.02


#: Whether the command is over: no signal is raised any more.
_is_deaf = False


def _interrupt(number: int, frame: object) -> None:
    if not _is_deaf:
        raise KeyboardInterrupt


def interruptible() -> None:
    """Have SIGTERM (``ray job stop``, a pod's end) and SIGHUP end a command as Ctrl-C does; ``nohup`` is respected."""
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _unraisable


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Have a signal come again that came where Python can raise nothing: in a finalizer, in an import's locks."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)
        return
    if _current is not None:
        _current.forget()
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True
    again.start()


def deaf() -> None:
    """Ignore every signal of :data:`SIGNALS` from now on: the command is over, and its exit code stands.

    Python gives handlers back to the system as it ends; a second signal would then end the process by itself.
    """
    global _is_deaf
    _is_deaf = True  # one step: several signals within a millisecond would be raised between any two
    left = [*SIGNALS]
    while left:
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(left[-1], signal.SIG_IGN)
            left.pop()


class Interrupts:
    """Signals to this process while a run is under way: the first is raised, those after it wait.

    None is raised before :meth:`listen`, the first thing that the block does: between the taking over of signals and
    the block there is a moment in which what is raised leaves them taken. From :meth:`hold` on, when the last step is
    over, all of them wait: nothing is left to stop, and what is written then is what the run was for. When the block
    ends, one that waited is sent again, unless the run was interrupted before. An error of the user's that ends the
    block is told, and then a signal is sent again even if it was raised: who goes on after errors, as a sweep does,
    would not hear of it. In a thread that is not the main one nothing changes, for signals never come there.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        #: Who handled each signal before.
        self._before: dict[int, Any] = {}
        #: The signal that was raised.
        self._raised: int | None = None
        self._is_held = self._is_over = False
        #: Signals that came when they were held, and one that came where a block may not be interrupted.
        self._waiting: list[int] = []
        self._postponed: int | None = None
        #: How many blocks are entered that may not be interrupted; the one that is left by :meth:`listen` is the first.
        self._depth = 1
        #: What a block waits for that is long, and whose wait a second signal may end.
        self._waits_for: str | None = None
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        """Take the signals over, those that are not ignored."""
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
        except BaseException:  # one came meanwhile
            self._give_back()
            raise

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        """Give the signals back, and send again what waited."""
        if _current is not self:
            return
        self._give_back()
        came = [*([] if self._raised is None else [self._raised]), *self._waiting]
        if isinstance(error, RayioError) and came:
            self._say(str(error))
            signal.raise_signal(came[0])
        elif self._raised is not None and self._before[self._raised] is signal.SIG_DFL:
            signal.raise_signal(self._raised)  # it would have ended the process, and now it may
        elif self._raised is None and kind is None and self._waiting:
            signal.raise_signal(self._waiting[0])

    def _give_back(self) -> None:
        """Have each signal handled as before."""
        global _current
        self.hold()
        _current, self._is_over = None, True
        for number, before in self._before.items():
            signal.signal(number, before)  # one may come at once, and leave the others to :meth:`_caught`

    def listen(self) -> None:
        """Have signals raised from now on, also one that came since they were taken over."""
        self.leave()

    def enter(self) -> None:
        """Have none raised until :meth:`leave`."""
        self._depth += 1

    def leave(self) -> None:
        """Have signals raised again, also one that came meanwhile, unless another block may not be interrupted."""
        self._depth -= 1
        if not self._depth and self._postponed is not None and not self._is_held and self._raised is None:
            number, self._postponed = self._postponed, None
            self._raise(number, None)

    @property
    def has_waiting(self) -> bool:
        """Whether a signal waits to be raised."""
        return bool(self._waiting) and self._raised is None

    def hold(self) -> None:
        """Have signals wait from now on."""
        self._is_held = True
        if self._postponed is not None:
            self._waiting.append(self._postponed)
            self._postponed = None

    def forget(self) -> None:
        """Take it that no signal was raised: the one that was got lost."""
        self._raised = None

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        elif self._is_held or self._raised is not None:
            self._waiting.append(number)
            if len(self._waiting) == 1:
                with contextlib.suppress(RuntimeError):  # in the middle of another line
                    self._say("ending: what was recorded is written first")
        elif self._depth and (self._waits_for is None or self._postponed is None):
            self._postponed = number
            if self._waits_for is not None:
                with contextlib.suppress(RuntimeError):
                    self._say(f"interrupted: {self._waits_for}; a second signal ends it at once")
        else:
            self._raise(number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Raise what the signal's own handler does; where that does nothing, the run goes on."""
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


#: Those of the run that is under way in this process.
_current: Interrupts | None = None


def hold() -> None:
    """Have signals wait until the run that is under way has written its results, if there is one."""
    if _current is not None:
        _current.hold()


@contextlib.contextmanager
def uninterrupted(waits_for: str | None = None) -> Iterator[None]:
    """Have a signal wait until this block is left: it does what must be done whole or not at all, and is quick.

    A block that may take seconds tells what it waits for: the first signal has that said, a second one is raised.
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
def held() -> Iterator[None]:
    """Have signals wait until this block is left, as :func:`uninterrupted`, also where no run is under way."""
    if _current is not None:
        with uninterrupted():
            yield
        return
    with Interrupts():  # it never listens
        yield


@contextlib.contextmanager
def softly(cancel: Callable[[], object]) -> Iterator[None]:
    """Have a signal call ``cancel`` in place of being raised wherever this thread happens to be.

    Raises:
        KeyboardInterrupt: a signal came, and the block has ended.
    """
    here = _current
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if here is None:  # nothing is written that a signal would wait for
        with Interrupts() as own:
            own.listen()
            with softly(cancel):
                yield
        return
    here._cancel = cancel
    try:
        yield
    finally:
        here._cancel = None
    if here._raised is not None:
        raise KeyboardInterrupt
