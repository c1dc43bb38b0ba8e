"""Ranged gets over plain HTTP, in this thread, from the kernel into the caller's memory.

The client library gets an object in other threads, into new memory, and copies it. That takes most of the CPU time of
reading from a store on the local network. These gets do without, and need a tenth of a client: a request has a signed
address, and an answer with the bytes that were asked for. The library makes every other request, and this one too
where the service has ``https://`` or a proxy, redirects, or gives an answer that this module does not read.
"""

from __future__ import annotations

import re
import select
import socket
import struct
from collections.abc import Callable
from functools import lru_cache
from threading import local
from time import monotonic
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rayio.storage.stores.s3.bounds import EndlessError
from rayio.storage.stores.s3.bucket import CONNECT_SECONDS, Place

#: Bytes that one call to the kernel receives: they stay in the processor's cache until they are copied and hashed.
PIECE_BYTES = 256 << 10
#: Most bytes of an answer's headers, and of the body of a refusal.
HEAD_BYTES, REFUSAL_BYTES = 8 << 10, 1 << 20
#: Seconds after which an idle connection is not used again.
IDLE_SECONDS = 20.0
#: Refusals below 500 that are read here. The library gets redirects, and whatever is neither a range nor a refusal.
_REFUSALS = (401, 403, 404, 408, 416, 429)

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,19})[ \t]*\r\n", re.IGNORECASE)
_RANGE = re.compile(rb"\r\ncontent-range:[ \t]*bytes (\d{1,19})-(\d{1,19})/(\d{1,19})[ \t]*\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})[ \r]")
#: Headers of answers whose body has another form.
_OTHER_FORM = re.compile(rb"\r\n(transfer-encoding|content-encoding):", re.IGNORECASE)
_CODE = re.compile(rb"<Code>\w{1,64}</Code>")
#: The end of a body without a length, as far as it matters: its code, or its last chunk.
_OVER = re.compile(rb"</Code>|(?:\A|\r\n)0+\r\n\r\n\Z")
_CLOSING = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)


class WireError(Exception):
    """A connection failed; the text has the library's words, see ``rayio.storage.stores.s3.answers``."""


class _StaleError(Exception):
    """A connection that was used before is closed."""


class _OtherError(Exception):
    """An answer that is left to the library."""


class _Memory(local):
    """Memory of each thread, used again by each request."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(HEAD_BYTES + PIECE_BYTES))


class _Connection:
    """A connection that carries one request after the other."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        try:
            self.socket = socket.create_connection((host, port), CONNECT_SECONDS)
        except OSError as error:
            raise WireError(_words(error)) from None
        self.socket.settimeout(None)  # with a timeout of Python's, each call would be two
        seconds = struct.pack("ll", int(timeout), max(1, int(timeout % 1 * 1e6)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self._arrivals = select.poll()
        self._arrivals.register(self.socket, select.POLLIN)
        #: Time (s, monotonic) of its last answer, 0 before the first one; and when the answer must have ended.
        self.used = self.latest = 0.0
        self.is_closing = False

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()

    @property
    def is_quiet(self) -> bool:
        """True if the server has not closed the connection, nor sent anything since its last answer."""
        return not self._arrivals.poll(0)

    def ask(self, request: bytes, memory: memoryview) -> tuple[int, bytes, int]:
        """Send a request, and receive the beginning of its answer; return its status, its headers, and its bytes."""
        try:
            self.socket.sendall(request)
            received = self.socket.recv_into(memory)
        except ConnectionError as error:
            raise _StaleError if self.used else WireError(_words(error)) from None
        except OSError as error:
            raise WireError(_words(error)) from None
        if not received:
            raise _StaleError if self.used else WireError("IncompleteMessage")
        while (end := (head := bytes(memory[: min(received, HEAD_BYTES)])).find(b"\r\n\r\n")) < 0:
            if received >= HEAD_BYTES or b"\n\n" in head:
                raise _OtherError
            received += self.receive(memory[received:], 0, "IncompleteMessage")
        if (status := _STATUS.match(head)) is None:
            raise WireError("not HTTP")
        headers = head[: end + 2]
        self.is_closing = status[1] == b"0" or _CLOSING.search(headers) is not None
        return int(status[2]), headers, received

    def receive(self, buffer: memoryview, flags: int = socket.MSG_WAITALL, at_end: str = "IncompleteBody") -> int:
        """Receive into a buffer, all of it if nothing goes wrong; at least a byte."""
        try:
            received = self.socket.recv_into(buffer, 0, flags)
        except OSError as error:
            raise WireError(_words(error)) from None
        if not received:
            raise WireError(at_end)
        if monotonic() > self.latest:
            raise WireError("TimedOut")
        return received


class Direct:
    """Ranged gets of a bucket's objects, by any number of threads.

    ``signed`` returns the presigned address of a key.
    """

    def __init__(self, place: Place, signed: Callable[[str], str]) -> None:
        self._signed, self._place = signed, place
        self._idle: list[_Connection] = []
        self._memory = _Memory()
        #: False if the library makes all requests.
        self.is_usable = _is_plain(place)

    def pour(
        self, key: str, position: int, nbytes: int, take: Callable[[int, memoryview], None]
    ) -> tuple[int, int] | None:
        """Pass ``nbytes`` of an object from ``position`` on to ``take``, in pieces with their offsets.

        A piece is valid until ``take`` returns.

        Returns:
            The object's size, and the bytes passed, fewer at its end. None leaves the request to the library.

        Raises:
            WireError: the connection failed, or the store refuses.
            EndlessError: a refusal has no end.
        """
        if not self.is_usable or nbytes < 1:
            return None
        host, _, target = self._signed(key).partition("://")[2].partition("/")
        request = (
            f"GET /{target} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n"
            f"Range: bytes={position}-{position + nbytes - 1}\r\n\r\n"
        ).encode()
        memory = self._memory.view
        while True:
            connection = self._connection(host)
            connection.latest = monotonic() + self._place.longest(nbytes)
            try:
                size, length, begin, end = self._begun(connection, request, memory, position, nbytes)
            except _StaleError:
                continue
            except _OtherError:
                return None
            break
        left = length
        while True:
            while end < len(memory) and end - begin < left:
                end += connection.receive(memory[end : begin + left])
            take(position + length - left, memory[begin:end])
            left -= end - begin
            if not left:
                break
            begin = end = 0
        if not connection.is_closing:
            connection.used = monotonic()
            self._idle.append(connection)
        return size, length

    def _connection(self, host: str) -> _Connection:
        """Return the open connection that was used last, or a new one."""
        try:
            while (known := self._idle.pop()).used < monotonic() - IDLE_SECONDS or not known.is_quiet:
                pass
        except IndexError:
            return _Connection(*_address(host), self._place.timeout)
        return known

    def _begun(
        self, connection: _Connection, request: bytes, memory: memoryview, position: int, nbytes: int
    ) -> tuple[int, int, int, int]:
        """Send a request, and receive the beginning of its answer.

        Returns:
            The object's size, the length of the body, and where its first bytes begin and end in ``memory``.
        """
        status, headers, received = connection.ask(request, memory)
        begin = len(headers) + 2
        length = None if _OTHER_FORM.search(headers) else _LENGTH.search(headers)
        if status in _REFUSALS or status >= 500:
            code = _code(connection, memory, begin, received, None if length is None else int(length[1]))
            raise WireError(f"status code: {status} {code}")
        span = _RANGE.search(headers)
        if status != 206 or length is None or span is None:
            self.is_usable = self.is_usable and not 300 <= status < 400
            raise _OtherError
        first, end, size = int(span[1]), int(span[2]) + 1, int(span[3])
        if first != position or end != min(position + nbytes, size) or int(length[1]) != end - first:
            raise WireError("UnexpectedRange")
        if received - begin > end - first:
            raise _OtherError
        return size, end - first, begin, received


def _code(connection: _Connection, memory: memoryview, begin: int, received: int, length: int | None) -> str:
    """Return the error code of a refusal, which ends the connection; it has ``length`` bytes, or an unknown number.

    The rest of its body may repeat the signed address. The service may keep the connection open after it.

    Raises:
        EndlessError: it has no end.
        WireError: it broke off.
    """
    body, most = bytes(memory[begin:received]), REFUSAL_BYTES if length is None else min(length, REFUSAL_BYTES)
    try:
        while len(body) < most and (length is not None or not _OVER.search(body)):
            body += memory[: connection.receive(memory, 0)]
    except WireError:
        if length is not None:
            raise
    if len(body) >= REFUSAL_BYTES:
        raise EndlessError
    code = _CODE.search(body)
    return "" if code is None else code[0].decode()


def _is_plain(place: Place) -> bool:
    """Return True if requests go to the service itself, without encryption."""
    if place.endpoint is None or not place.endpoint.startswith("http://"):
        return False
    proxies = getproxies()
    host = urlsplit(place.endpoint).hostname or ""
    return not ({"http", "all"} & proxies.keys()) or bool(proxy_bypass(host))


@lru_cache(maxsize=8)
def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    return parts.hostname or "", parts.port or 80


def _words(error: OSError) -> str:
    """Return the library's words for a failed call."""
    match error:
        case ConnectionRefusedError():
            return "ConnectionRefused"
        case ConnectionError():
            return "ConnectionReset"
        case TimeoutError() | BlockingIOError():
            return "TimedOut"
        case socket.gaierror():
            return "dns error"
    return "kind: Connect"
