"""Lines: calls between actors of one host over a Unix socket, at a tenth of the CPU time of Ray's calls.

As with Ray's calls to a restarted actor, a call is repeated until it is answered. An actor gets another's address from
Ray (``listen``); actors on other Ray nodes use Ray's calls. Messages are packets, so one arrives whole or not at all;
files travel with them. Both ends accept messages only from their own user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rayio.engines.ray.transport.shared import Arenas, is_possible
from rayio.errors import RayioError, RunError

#: Size of a packet.
PART_BYTES = 32 << 10
#: Messages received before other tasks of this process run.
MOST_AT_ONCE = 32
#: Seconds until an unanswered address is queried again.
AGAIN_SECONDS = 0.05
#: After this many attempts Ray's calls are used: the actor lives but cannot be reached.
MOST_TRIES = 100
MORE, LAST = b"\x01", b"\x00"
#: In place of a call number: the message transfers an arena.
ARENA = -1

#: A function that serves a call.
Serve = Callable[..., Awaitable[Any]]


class Address(NamedTuple):
    """The address at which an actor accepts calls: its Ray node, and its socket name on that host, or None."""

    ray_node: str
    name: bytes | None


class Pieces(NamedTuple):
    """A reply with the places of batches, and the numbers of their arenas."""

    answer: Any
    arenas: Iterable[int]


class Wire:
    """One end of a connection in the running loop: whole messages, each with at most one file."""

    def __init__(
        self, end: socket.socket, receive: Callable[[bytes, int | None], None], ended: Callable[[], None]
    ) -> None:
        self._end = end
        self._receive = receive
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._out: deque[tuple[bytes, int | None]] = deque()
        self._is_writing = False
        #: Parts of an incomplete message.
        self._parts: list[bytes] = []
        #: Numbers of the arenas transferred over this connection.
        self.handed: set[int] = set()
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._read)

    def send(self, message: bytes, fd: int | None = None) -> None:
        """Send a message now, or when the other end has room; no-op on a closed end."""
        if self._end.fileno() < 0:
            return
        last = (len(message) - 1) // PART_BYTES * PART_BYTES
        self._out.extend((MORE + message[start : start + PART_BYTES], None) for start in range(0, last, PART_BYTES))
        # The file may be closed and its number reused before the other end has room.
        self._out.append((LAST + message[last:], None if fd is None else os.dup(fd)))
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        end = self._end
        try:
            while self._out:
                data, fd = self._out[0]
                if fd is None:
                    end.send(data)
                else:
                    socket.send_fds(end, [data], [fd])
                    os.close(fd)
                self._out.popleft()
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(end.fileno(), self._flush)
            return
        except OSError:  # calls are lost; the reading sides of both ends detect it
            self._drop()
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(end.fileno())

    def _read(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                data, fds, _, _ = socket.recv_fds(self._end, PART_BYTES + 1, 1)
                for fd in fds:
                    os.set_inheritable(fd, False)  # recv_fds ignores flags for that
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.close()
                self._ended()
                return
            self._parts.append(data[1:])
            if data[:1] == LAST:
                message, self._parts = b"".join(self._parts), []
                self._receive(message, fds[0] if fds else None)

    def close(self) -> None:
        """Close this end."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            if self._is_writing:
                self._loop.remove_writer(self._end.fileno())
            self._end.close()
            self._drop()

    def _drop(self) -> None:
        for _, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()


class Exchange:
    """The listener of an actor for calls from its host."""

    def __init__(self, serve: Mapping[str, Serve], file: Callable[[int], int | None] | None = None) -> None:
        self._serve = serve
        #: Returns the file of an arena by its number.
        self._file = file
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()
        self._listening: socket.socket | None = None
        self._name = b""

    def open(self) -> bytes | None:
        """Start to listen; return the socket's name, or None on systems without such sockets."""
        if self._listening is None:
            if not is_possible():
                return None
            self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._name = b"\0rayio-" + os.urandom(16).hex().encode()
            self._listening.bind(self._name)
            self._listening.listen(socket.SOMAXCONN)
            self._listening.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)
        return self._name

    def _accept(self) -> None:
        assert self._listening is not None
        with contextlib.suppress(OSError):  # it has disconnected
            end, _ = self._listening.accept()
            if not _is_own_user(end):
                end.close()
                return
            wire = Wire(end, lambda message, _: self._take(wire, message), lambda: self._wires.discard(wire))
            self._wires.add(wire)

    def _take(self, wire: Wire, message: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(wire, *pickle.loads(message)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, wire: Wire, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = await self._serve[method](*arguments)
            if isinstance(answer, Pieces):
                answer, arenas = answer
                self._hand_over(wire, arenas)
            message = pickle.dumps((number, True, answer))
        except Exception as error:
            message = pickle.dumps((number, False, portable(error)))
        wire.send(message)

    def _hand_over(self, wire: Wire, arenas: Iterable[int]) -> None:
        for arena in arenas:
            if arena not in wire.handed and self._file is not None and (fd := self._file(arena)) is not None:
                wire.send(pickle.dumps((ARENA, True, arena)), fd)
                wire.handed.add(arena)


def portable(error: BaseException) -> BaseException:
    """Return an error for another process, with its origin; one that cannot be pickled becomes its text."""
    if not isinstance(error, RayioError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error


class Line:
    """A connection to another actor's exchange. ``handle`` is the actor's in Ray, ``here`` this process's Ray node."""

    def __init__(self, handle: Any, here: str, arenas: Arenas) -> None:
        self.handle = handle
        self.here = here
        self.arenas = arenas
        #: True if there is a line; None until known.
        self.is_near: bool | None = None
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._number = 0
        #: Unanswered calls by number; repeated if the other side restarts.
        self._calls: dict[int, tuple[bytes, asyncio.Future[Any]]] = {}

    async def reach(self) -> bool:
        """Return True if there is a line.

        Raises:
            RayError: the other actor is gone for good.
        """
        if self.is_near is None:
            await self._connection()
        return bool(self.is_near)

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Make a call over an existing line."""
        self._number += 1
        message = pickle.dumps((self._number, method, arguments))
        future = asyncio.get_running_loop().create_future()
        self._calls[self._number] = message, future
        if self._wire is not None:
            self._wire.send(message)
        else:
            self._connection()
        return future

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Make a call, over the line or by Ray."""
        if self.is_near or await self.reach():
            return await self.call(method, *arguments)
        return await getattr(self.handle, method).remote(*arguments)

    def _connection(self) -> asyncio.Task[None]:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        refused = Counter[bytes]()
        try:
            while self._wire is None:
                address: Address = await self.handle.listen.remote()
                if address.name is None or address.ray_node != self.here:
                    if self._calls:
                        raise RunError(f"an actor was started again on another Ray node ({address.ray_node})")
                    self.is_near = False
                    return
                end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                end.setblocking(False)
                try:
                    end.connect(address.name)
                except OSError:  # the actor has died since, or is busy accepting
                    end.close()
                    refused[address.name] += 1
                    if refused[address.name] > MOST_TRIES and not self._calls:  # for example, in another container
                        self.is_near = False
                        return
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                if not _is_own_user(end):
                    end.close()
                    raise RunError("another user's process listens at the address of an actor of this run")
                self._wire = Wire(end, self._take, self._lost)
                self.is_near = True
            for number in sorted(self._calls):
                self._wire.send(self._calls[number][0])
        except Exception as error:
            if not self._calls:
                raise
            calls, self._calls = self._calls, {}
            for _, future in calls.values():
                if not future.done():
                    future.set_exception(error)
        finally:
            self._connecting = None

    def _take(self, message: bytes, fd: int | None) -> None:
        number, is_answer, answer = pickle.loads(message)
        if number == ARENA:
            if fd is not None:
                self.arenas.add(answer, fd)
            return
        _, future = self._calls.pop(number, (b"", None))
        if future is None or future.done():
            return
        if is_answer:
            future.set_result(answer)
        else:
            future.set_exception(answer)

    def _lost(self) -> None:
        """Reconnect after the other process ended: the restarted one will answer waiting calls."""
        self._wire = None
        if self._calls:
            self._connection()


def _is_own_user(end: socket.socket) -> bool:
    _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())
