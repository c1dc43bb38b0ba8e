"""Uploads of objects: appended part by part, or put to the address of a redirect."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from rayio.storage.stores.opening import PART_BYTES, PARTS
from rayio.storage.stores.s3.answers import problem_of

#: Seconds between looks whether an upload has failed, and for the end of one that is given up.
LOOK_SECONDS, ABANDON_SECONDS = 0.1, 1.0
#: Redirects followed by one put.
MOST_REDIRECTS = 10
#: Bytes sent at a time to a redirected put.
PIECE_BYTES = 1 << 20


class _AbandonedError(Exception):
    """The writer gave up."""


class Again(io.RawIOBase):
    """A file from its beginning on, for one attempt: one that failed may go on reading while the next one reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._position = os.dup(descriptor), 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read what fits."""
        nbytes = os.preadv(self._descriptor, [buffer], self._position)
        self._position += nbytes
        return nbytes

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class Appended(io.RawIOBase):
    """An object written from beginning to end; it appears with :meth:`finish`, or never.

    A large one goes up in parts, by a thread. The parts in flight, and the one being filled, bound its memory. If
    anything fails the client library aborts the upload, so that no parts stay; :meth:`abandon` has it do so.
    """

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key
        self._buffer = bytearray()
        #: Parts for the thread; an exception ends the upload, None completes it.
        self._parts: queue.Queue[bytes | Exception | None] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._nbytes = 0
        #: True while the client works or after it failed: an error is then the client's, not the writer's.
        self.is_asking = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, buffer: Any) -> int:
        """Buffer bytes, and upload complete parts."""
        view = memoryview(buffer).cast("B")
        self._nbytes += len(view)
        self._buffer += view
        self.is_asking = True
        while len(self._buffer) > PART_BYTES:
            self._hand(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]
        self.is_asking = False
        return len(view)

    def finish(self) -> int:
        """Upload the rest and complete the object; return its bytes."""
        import obstore

        self.is_asking = True
        if self._thread is None:
            obstore.put(self._client, self._key, bytes(self._buffer), use_multipart=False)
            return self._nbytes
        self._hand(bytes(self._buffer))
        self._hand(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._nbytes

    def abandon(self) -> None:
        """End an upload that was begun, if the service answers soon."""
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(BaseException):
                self._hand(_AbandonedError())
            self._thread.join(ABANDON_SECONDS)

    def _hand(self, part: bytes | Exception | None) -> None:
        """Give a part to the thread, or raise its error."""
        if self._thread is None or self._parts is None:
            self._parts = queue.Queue(1)
            self._thread = threading.Thread(target=self._upload, args=(self._parts,), name="rayio-put", daemon=True)
            self._thread.start()
        while True:
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=LOOK_SECONDS)
                return
            if not self._thread.is_alive():
                self._thread.join()
                raise self._error or ConnectionError("kind: Request")

    def _upload(self, parts: queue.Queue[bytes | Exception | None]) -> None:
        import obstore

        def taken() -> Iterator[bytes]:
            while (part := parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                yield part

        try:
            obstore.put(
                self._client, self._key, taken(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS
            )
        except BaseException as error:
            self._error = error


def put_new(client: Any, key: str, content: bytes) -> bool | None:
    """Put a small object if there is none of its name; return False if there is another one.

    Returns None, and puts nothing, if the store has no conditional puts or redirects.
    """
    import obstore
    from obstore.exceptions import AlreadyExistsError, NotSupportedError

    try:
        obstore.put(client, key, content, mode="create", use_multipart=False)
    except AlreadyExistsError:  # perhaps by an earlier attempt, whose answer was lost
        return bytes(obstore.get(client, key).bytes()) == content
    except NotSupportedError:
        return None
    except Exception as error:
        if problem_of(error).status not in (307, 308, 501):
            raise
        return None
    return True


class PutError(Exception):
    """A redirected put was refused; worded like the errors of the store's client."""


def put_redirected(address: str, content: BinaryIO, nbytes: int, timeout: float) -> None:
    """Put an object at a presigned address and follow redirects with the body; ``address`` is never shown.

    Raises:
        PutError: the store refuses, redirects form a circle, or the connection breaks.
    """
    for _ in range(MOST_REDIRECTS):
        parts = urlsplit(address)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = make(parts.netloc, timeout=timeout)
        content.seek(0)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(
                "PUT", target, iter(lambda: content.read(PIECE_BYTES), b""), {"Content-Length": str(nbytes)}
            )
            answer = connection.getresponse()
            body = answer.read(4096).decode(errors="replace")
            status, location = answer.status, answer.getheader("Location")
        except TimeoutError:
            raise PutError("TimedOut") from None
        except (OSError, http.client.HTTPException, socket.gaierror) as error:
            raise PutError(type(error).__name__.replace("Error", "") + " kind: Request") from None
        finally:
            connection.close()
        if status in (307, 308) and location:
            address = urljoin(address, location)
            continue
        if not 200 <= status < 300:
            raise PutError(f"status code: {status} {body}")
        return
    raise PutError("TooManyRedirects")
