"""Threads for calls that may block forever without keeping their process alive."""

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
    """A pool of up to ``max_workers`` threads, started as needed.

    Python's ThreadPoolExecutor delays the end of its process until all calls return; a read from a mount that does not
    reply would keep it forever.
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
        """Call ``function`` in one of the threads; return the future of its result.

        Raises:
            RuntimeError: :meth:`shutdown` was called.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_over:
                raise RuntimeError(f"{self.name}: no call can be made after shutdown")
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
            del work, future, call  # nothing of a call is kept until the next
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls; the threads end after their current ones, without waiting for them."""
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
        """Wait at most ``seconds`` for the threads to end, so that files being written can be finished."""
        ends = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
