"""Requests of a batch in flight together: real storage makes the planned requests before the format asks for them.

The format's reader stays sequential. Helper threads make the requests of the plan in its order, ``depth`` at a time,
and the reader's own requests are answered from their bytes. A request that is not in the plan goes to storage as usual.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any

from rayio.errors import StorageError
from rayio.machine.counters import fetched_by_this_thread
from rayio.storage.base import READ, Placed, Requests
from rayio.storage.stores.counted import CountedFile, Traffic

#: No request is made ahead if this many bytes are in flight or not read yet, unless nothing else is.
MAX_BYTES = 64 << 20
#: Seconds after which an idle helper thread ends, and between looks for the end of the run.
IDLE_SECONDS, LOOK_SECONDS = 5.0, 0.25

WAITING, IN_FLIGHT, DONE, DROPPED = range(4)
CLOSED, OPENING, OPEN = range(3)


@dataclass(slots=True, eq=False)
class _Request:
    file: _File
    offset: int
    nbytes: int
    state: int = WAITING
    is_taken: bool = False
    content: Any = b""
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _File:
    name: str
    #: Opens of this file that the plan has left; 0 if the reader has kept it open.
    opens: int
    state: int = CLOSED
    file: CountedFile | None = None
    error: BaseException | None = None
    requests: list[_Request] = field(default_factory=list)
    #: True until the planned first open.
    is_unopened: bool = False

    @property
    def is_ready(self) -> bool:
        """True if a request to it can be made now, perhaps after an open."""
        return self.state == OPEN or (self.state == CLOSED and self.is_unopened)


class Crew:
    """Up to ``most`` daemon threads, started on demand; an idle one ends."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        #: Threads, and how many of them wait for work.
        self._threads = self._idle = 0
        self._process = os.getpid()

    def call(self, work: Callable[[], None], number: int) -> None:
        """Call ``work`` in ``number`` threads."""
        if self._process != os.getpid():  # threads do not survive a fork
            self.__init__(self.most)  # type: ignore[misc]
        with self._lock:
            new = min(max(0, number - self._idle), self.most - self._threads)
            self._threads += new
            self._idle += new - number
        for _ in range(number):
            self._work.put(work)
        for _ in range(new):
            threading.Thread(target=self._serve, name="rayio-request", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._threads, self._idle = self._threads - 1, self._idle - 1
                        return
                continue
            work()
            del work  # keeps nothing of a batch until the next
            with self._lock:
                self._idle += 1


class Ahead:
    """The planned requests of one batch, at most ``depth`` of them in flight; without a ``crew`` one.

    ``open_`` opens a file of the store. What is done is counted in ``traffic``. With ``is_watched`` each thread counts
    the bytes that it fetched from devices.
    """

    def __init__(
        self, requests: Requests, open_: Callable[[str, Traffic], Any], traffic: Traffic, *, depth: int = 1,
        crew: Crew | None = None, is_watched: bool = False,
    ) -> None:  # fmt: skip
        assert requests.places is not None
        placed = Placed(*requests.places())
        assert placed.offset is not None
        opens = Counter(range(len(placed.files)) if placed.opening is None else placed.file[placed.opening].tolist())
        self._files = {
            name: _File(name, opens[number], is_unopened=opens[number] > 0) for number, name in enumerate(placed.files)
        }
        of = [self._files[name] for name in placed.files]
        self._waiting: list[_Request] = []
        each = zip(placed.file.tolist(), placed.offset.tolist(), requests.nbytes.tolist(), strict=True)
        for number, offset, nbytes in each:
            request = _Request(of[number], offset, nbytes)
            request.file.requests.append(request)
            self._waiting.append(request)
        if traffic.is_itemised:
            for name in dict.fromkeys(request.file.name for request in self._waiting):
                traffic.file(name)  # threads then only look numbers up
        self._waiting.reverse()  # the next one is last
        self._open = open_
        self._traffic = traffic
        self.depth = depth
        self.is_watched = is_watched
        #: Bytes that helpers fetched from devices (None: unknown), and their CPU time (ns).
        self.fetched: int | None = 0
        self.cpu_ns = 0
        self._changed = threading.Condition()
        self._in_flight = self._held = self._helpers = 0
        self._is_over = False
        if crew is not None and depth > 1 and len(self._waiting) > 1:
            self._helpers = min(depth, len(self._waiting))
            crew.call(self._help, self._helpers)

    def open(self, name: str, kept: Any = None) -> Any:
        """Return a file for the reader, perhaps opened ahead; ``kept`` is one that it kept open.

        Raises:
            DataError: the file is missing.
            StorageError: the storage refuses.
        """
        known = self._files.get(name)
        with self._changed:
            while known is not None and known.state == OPENING:
                self._wait(name)
            if known is not None and known.error is not None:
                raise known.error
            if kept is None and known is not None and known.state == OPEN:
                return known.file
            if known is not None:
                known.state = OPENING
        file = None
        try:
            file = self._opened(name) if kept is None else kept.again(name, self._traffic)
        finally:
            if known is not None:
                self._settle(known, file, None)
        return file

    def take(self, name: str, position: int, buffer: Any) -> int:
        """Fill ``buffer`` from a planned request and return its bytes, fewer at the file's end; -1 if none has them.

        Raises:
            DataError: the file is missing.
            StorageError: the storage refuses.
        """
        view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
        with self._changed:
            request = self._covering(name, position, len(view))
            while request is not None and request.state in (WAITING, IN_FLIGHT):
                following = self._following() if request.state == WAITING and self._in_flight < self.depth else None
                if following is None:
                    self._wait(name)
                    continue
                self._begin(following)
                self._changed.release()
                try:
                    self._make(following)
                finally:
                    self._changed.acquire()
            if request is None or request.state == DROPPED:
                return -1
            if request.error is not None:
                raise request.error
            content = request.content
        begin = position - request.offset
        length = max(0, min(len(view), len(content) - begin))
        if length:
            view[:length] = content[begin : begin + length]
        return length

    def look(self, name: str) -> bool:
        """Make the first planned request to a file, if it has one; return True if it is done."""
        known = self._files.get(name)
        return known is not None and bool(known.requests) and self.take(name, known.requests[0].offset, b"") >= 0

    def closing(self, name: str, *, waits: bool) -> None:
        """Forget a file that the reader closes, unless it opens it again; with ``waits``, after requests in flight."""
        known = self._files.get(name)
        if known is None:
            return
        with self._changed:
            known.state, known.file, known.is_unopened, known.opens = CLOSED, None, False, known.opens - 1
            while waits and any(request.state == IN_FLIGHT for request in known.requests):
                self._changed.wait(LOOK_SECONDS)
            if known.opens <= 0:
                self._waiting = [request for request in self._waiting if request.file is not known]
                for request in known.requests:
                    self._drop(request)
            self._changed.notify_all()

    def finish(self, *, waits: bool = True) -> None:
        """End; with ``waits``, after all requests in flight."""
        with self._changed:
            self._is_over = True
            self._waiting.clear()
            self._changed.notify_all()
            while waits and (self._helpers or self._in_flight) and not self._traffic.ending.is_set():
                self._changed.wait(LOOK_SECONDS)
            for known in self._files.values():
                for request in known.requests:
                    self._drop(request)

    def _wait(self, name: str) -> None:
        self._changed.wait(LOOK_SECONDS)
        if self._traffic.ending.is_set():
            raise StorageError(f"{name}: reading was given up, the run is ending")

    def _covering(self, name: str, position: int, nbytes: int) -> _Request | None:
        """Return the planned request for exactly these bytes, each once, or else one that has them."""
        known, covering = self._files.get(name), None
        for request in known.requests if known is not None else ():
            if request.offset == position and request.nbytes == nbytes and not request.is_taken:
                request.is_taken = True
                return request
            if request.offset <= position and position + nbytes <= request.offset + request.nbytes:
                covering = covering or request
        return covering

    def _following(self) -> _Request | None:
        """Return the next request that can be made now."""
        return next((request for request in reversed(self._waiting) if request.file.is_ready), None)

    def _begin(self, request: _Request) -> None:
        self._waiting.remove(request)
        request.state = IN_FLIGHT
        self._in_flight += 1
        self._held += request.nbytes
        if request.file.state == CLOSED:
            request.file.state = OPENING

    def _make(self, request: _Request) -> None:
        """Make a request that has begun, and count it."""
        known, traffic, error, content = request.file, self._traffic, None, b""
        start = perf_counter_ns()
        try:
            file = known.file
            if file is None:
                file = self._opened(known.name)
                self._settle(known, file, None)
                start = perf_counter_ns()
            content = file.bytes_at(request.offset, request.nbytes)
        except BaseException as raised:
            error = raised
        with self._changed:
            if error is not None and known.state == OPENING:
                self._settle(known, None, error)
            request.state, request.content, request.error = DONE, content, error
            self._in_flight -= 1
            self._held += len(content) - request.nbytes
            if error is None:
                traffic.requests += 1
                traffic.nbytes += len(content)
                if traffic.is_itemised:
                    number = traffic.file(known.name)
                    traffic.add(READ, start, number, threading.get_native_id(), request.offset, len(content))
            self._changed.notify_all()

    def _opened(self, name: str) -> Any:
        """Open a file; counts of this thread's open are added under the lock."""
        alone = self._traffic.apart()
        file = self._open(name, alone)
        with self._changed:
            self._traffic.join(alone)
        file.traffic = self._traffic
        return file

    def _settle(self, known: _File, file: Any, error: BaseException | None) -> None:
        """Record that a file is open, or why it is not."""
        with self._changed:
            known.file, known.state = file, CLOSED if file is None else OPEN
            if file is None and error is not None:
                known.error, known.is_unopened = error, False
                for request in known.requests:
                    if request.state == WAITING:
                        self._waiting.remove(request)
                        request.state, request.error = DONE, error
            self._changed.notify_all()

    def _drop(self, request: _Request) -> None:
        if request.state == DONE:
            self._held -= len(request.content)
        if request.state != IN_FLIGHT:
            request.state, request.content = DROPPED, b""

    def _help(self) -> None:
        """Make requests until none is left: the work of a helper thread."""
        began = time.thread_time_ns()
        before = fetched_by_this_thread() if self.is_watched else None
        while (request := self._next()) is not None:
            self._make(request)
            del request
        after = None if before is None else fetched_by_this_thread()
        with self._changed:
            self.cpu_ns += time.thread_time_ns() - began
            known = before is not None and after is not None and self.fetched is not None
            self.fetched = self.fetched + after - before if known else None  # type: ignore[operator]
            self._helpers -= 1
            self._changed.notify_all()

    def _next(self) -> _Request | None:
        """Return a helper's next request, once it may be made; None at the end."""
        with self._changed:
            while self._waiting and not self._is_over and not self._traffic.ending.is_set():
                request = self._following() if self._in_flight < self.depth else None
                if request is not None and (not self._held or self._held + request.nbytes <= MAX_BYTES):
                    self._begin(request)
                    return request
                self._changed.wait(LOOK_SECONDS)
        return None
