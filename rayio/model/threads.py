"""Threads for calls that may block for ever: the process can end without them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """Up to ``max_workers`` threads, started on demand.

    Python waits for the threads of its ThreadPoolExecutor at exit; a read from a mount that does not answer would keep
    the process for ever.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self.max_workers = max_workers
        self.name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_over = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Make a call in one of the threads.

        Raises:
            RuntimeError: :meth:`shutdown` was called.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_over:
                raise RuntimeError(f"{self.name}: no calls after shutdown")
            self._work.put((future, lambda: function(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self.max_workers:
                name = f"{self.name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del work, future, call  # keeps nothing of a call until the next
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Threads end after theirs, without a wait."""
        with self._lock:
            self._is_over = True
            while cancel_futures:
                try:
                    work = self._work.get_nowait()
                except Empty:
                    break
                if work is not None:
                    work[0].cancel()
            for _ in self._threads:
                self._work.put(None)

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the threads to end, so that a file in progress may be finished."""
        ends = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
