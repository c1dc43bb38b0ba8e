"""Requests of a batch in flight together: real storage makes the planned requests before the format asks for them.

The format's reader stays sequential. Helper threads make the requests of the plan in its order, ``depth`` at a time,
and the reader's own requests are answered from their bytes. A request that is not in the plan goes to storage as usual.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter_ns
from typing import Any

import numpy as np

from rayio.errors import StorageError
from rayio.machine.counters import fetched_by_this_thread
from rayio.storage.base import READ, Placed, Requests
from rayio.storage.crew import Crew
from rayio.storage.stores.counted import CountedFile, Traffic

#: No request is made ahead if this many bytes are in flight or not read yet, unless nothing else is.
MAX_BYTES = 128 << 20
#: Seconds between looks for the end of the run.
LOOK_SECONDS = 0.25

WAITING, IN_FLIGHT, DONE, DROPPED = range(4)
CLOSED, OPENING, OPEN = range(3)


@dataclass(slots=True, eq=False)
class _Request:
    file: _File
    offset: int
    nbytes: int
    state: int = WAITING
    content: Any = b""
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _File:
    name: str
    #: Visits to this file that the plan has left: opens, and the one of a reader that has kept it open.
    opens: int
    state: int = CLOSED
    file: CountedFile | None = None
    error: BaseException | None = None
    requests: list[_Request] = field(default_factory=list)
    #: The number of them in flight.
    in_flight: int = 0
    #: By offset and bytes, the requests that the reader has not asked for.
    unasked: defaultdict[tuple[int, int], deque[_Request]] = field(default_factory=lambda: defaultdict(deque))
    #: Sorted offsets of the requests, their places in ``requests``, and the greatest end up to each; empty until used.
    by_offset: tuple[list[int], list[int], list[int]] = ([], [], [])
    #: True until the planned first open.
    is_unopened: bool = False

    def add(self, request: _Request) -> None:
        """Add a planned request."""
        self.requests.append(request)
        self.unasked[request.offset, request.nbytes].append(request)

    def covering(self, position: int, nbytes: int) -> _Request | None:
        """Return the planned request for exactly these bytes, each once, or else the first one that has them."""
        if exact := self.unasked.get((position, nbytes)):
            return exact.popleft()
        offsets, places, ends = self.by_offset
        if not offsets:
            places = sorted(range(len(self.requests)), key=lambda place: self.requests[place].offset)
            offsets = [self.requests[place].offset for place in places]
            ends = [*accumulate((self.requests[place].offset + self.requests[place].nbytes for place in places), max)]
            self.by_offset = offsets, places, ends
        end, first = position + nbytes, len(self.requests)
        for number in range(bisect_right(offsets, position) - 1, -1, -1):
            if ends[number] < end:
                break
            request = self.requests[places[number]]
            if end <= request.offset + request.nbytes:
                first = min(first, places[number])
        return self.requests[first] if first < len(self.requests) else None

    @property
    def is_ready(self) -> bool:
        """True if a request to it can be made now, perhaps after an open."""
        return self.state == OPEN or (self.state == CLOSED and self.is_unopened)


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
        kept = _kept(placed)
        self._files = {
            name: _File(name, opens[number] + (number in kept), is_unopened=opens[number] > 0 and number not in kept)
            for number, name in enumerate(placed.files)
        }
        of = [self._files[name] for name in placed.files]
        self._waiting: list[_Request] = []
        each = zip(placed.file.tolist(), placed.offset.tolist(), requests.nbytes.tolist(), strict=True)
        for number, offset, nbytes in each:
            request = _Request(of[number], offset, nbytes)
            request.file.add(request)
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
        #: Threads that wait for any change, and the request that the reader waits for: others wake nobody.
        self._watching = 0
        self._awaited: _Request | None = None
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
            if kept is None:
                alone = self._traffic.apart()
                file = self._open(name, alone)
                file.traffic = self._traffic
                with self._changed:
                    self._traffic.join(alone)
            else:
                file = kept.again(name, self._traffic)
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
            request = self._done(self._files.get(name), position, len(view))
            if request is None:
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
            while waits and known.in_flight:
                self._watch()
            if known.opens <= 0:
                if any(request.state == WAITING for request in known.requests):
                    self._waiting = [request for request in self._waiting if request.file is not known]
                for request in known.requests:
                    self._drop(request)
            self._tell()

    def finish(self, *, waits: bool = True) -> None:
        """End; with ``waits``, after all requests in flight."""
        with self._changed:
            self._is_over = True
            self._waiting.clear()
            self._changed.notify_all()
            while waits and (self._helpers or self._in_flight) and not self._traffic.ending.is_set():
                self._watch()
            for known in self._files.values():
                for request in known.requests:
                    self._drop(request)

    def _watch(self) -> None:
        """Wait for any change, or a while."""
        self._watching += 1
        try:
            self._changed.wait(LOOK_SECONDS)
        finally:
            self._watching -= 1

    def _tell(self, done: _Request | None = None) -> None:
        """Wake the threads that wait for a change, or for this request."""
        if self._watching or (done is not None and done is self._awaited):
            self._changed.notify_all()

    def _wait(self, name: str, request: _Request | None = None) -> None:
        """Wait for a request in flight, or else for any change: others open files and make room."""
        if request is not None and request.state == IN_FLIGHT:
            self._awaited = request
            self._changed.wait(LOOK_SECONDS)
            self._awaited = None
        else:
            self._watch()
        if self._traffic.ending.is_set():
            raise StorageError(f"{name}: reading was given up, the run is ending")

    def _done(self, known: _File | None, position: int, nbytes: int) -> _Request | None:
        """Return the planned request that has these bytes once it is done, made in this thread if it is the next.

        None if no request has them. The lock is held.
        """
        request = None if known is None else known.covering(position, nbytes)
        while request is not None and request.state in (WAITING, IN_FLIGHT):
            following = self._following() if request.state == WAITING and self._in_flight < self.depth else None
            if following is not None:
                self._begin(following)
                self._changed.release()
                try:
                    self._make(following)
                finally:
                    self._changed.acquire()
                continue
            self._wait(request.file.name, request)
        return None if request is None or request.state == DROPPED else request

    def _following(self) -> _Request | None:
        """Return the next request that can be made now."""
        if self._waiting and self._waiting[-1].file.is_ready:
            return self._waiting[-1]
        return next((request for request in reversed(self._waiting) if request.file.is_ready), None)

    def _begin(self, request: _Request) -> None:
        place = -1
        while self._waiting[place] is not request:  # near the end, where the next ones are
            place -= 1
        del self._waiting[place]
        request.state = IN_FLIGHT
        request.file.in_flight += 1
        self._in_flight += 1
        self._held += request.nbytes
        if request.file.state == CLOSED:
            request.file.state = OPENING

    def _make(self, request: _Request) -> None:
        """Make a request that has begun, and count it."""
        known, traffic, error, content = request.file, self._traffic, None, b""
        start, file, alone = perf_counter_ns(), known.file, None
        try:
            if file is None:
                alone = traffic.apart()
                file = self._open(known.name, alone)
                file.traffic = traffic
                if len(known.requests) > 1 or traffic.is_itemised:  # else nobody waits for it alone
                    self._opened(known, file, alone)
                    alone = None
                start = perf_counter_ns()
            content = file.bytes_at(request.offset, request.nbytes)
        except BaseException as raised:
            error = raised
        with self._changed:
            if file is not None and alone is not None:
                self._opened(known, file, alone)
            if error is not None and known.state == OPENING:
                self._settle(known, None, error)
            request.state, request.content, request.error = DONE, content, error
            self._in_flight -= 1
            known.in_flight -= 1
            self._held += len(content) - request.nbytes
            if error is None:
                traffic.requests += 1
                traffic.nbytes += len(content)
                if traffic.is_itemised:
                    number = traffic.file(known.name)
                    traffic.add(READ, start, number, threading.get_native_id(), request.offset, len(content))
            self._tell(request)

    def _opened(self, known: _File, file: Any, alone: Traffic) -> None:
        """Record a file that was opened ahead, and count its open."""
        with self._changed:
            self._traffic.join(alone)
            known.file, known.state = file, OPEN
            self._tell()

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
            self._tell(self._awaited)

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
            self._tell()

    def _next(self) -> _Request | None:
        """Return a helper's next request, once it may be made; None at the end."""
        with self._changed:
            while self._waiting and not self._is_over and not self._traffic.ending.is_set():
                request = self._following() if self._in_flight < self.depth else None
                if request is not None and (not self._held or self._held + request.nbytes <= MAX_BYTES):
                    self._begin(request)
                    return request
                self._watch()
        return None


def _kept(placed: Placed) -> set[int]:
    """Return the numbers of files whose first request is made without an open: the reader has kept them open."""
    files, first = np.unique(placed.file, return_index=True)
    return set() if placed.opening is None else set(files[~np.isin(first, placed.opening)].tolist())
