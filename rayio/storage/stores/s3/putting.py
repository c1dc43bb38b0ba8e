"""Uploads of objects: appended part by part, or put to the address of a redirect."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

#: Bytes of a part; smaller objects are put in one request.
PART_BYTES = 8 << 20
#: Parts in flight; with the part being filled, this bounds the memory of an upload.
PARTS = 4
#: Redirects followed by one put.
MOST_REDIRECTS = 10
#: Bytes sent at a time to a redirected put.
PIECE_BYTES = 1 << 20


class Appended(io.RawIOBase):
    """An object written from beginning to end; it appears with :meth:`finish`, or never."""

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key
        self._buffer = bytearray()
        self._upload: Any = None
        self._nbytes = 0
        #: True while the client works or after it failed: an error is then the client's, not the writer's.
        self.is_asking = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, buffer: Any) -> int:
        """Buffer bytes, and upload complete parts."""
        import obstore

        view = memoryview(buffer).cast("B")
        self._nbytes += len(view)
        self._buffer += view
        self.is_asking = True
        while len(self._buffer) > PART_BYTES:
            if self._upload is None:
                self._upload = obstore.open_writer(
                    self._client, self._key, buffer_size=PART_BYTES, max_concurrency=PARTS
                )
            self._upload.write(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]
        self.is_asking = False
        return len(view)

    def finish(self) -> int:
        """Upload the rest and complete the object; return its bytes."""
        import obstore

        if self._upload is None:
            obstore.put(self._client, self._key, bytes(self._buffer), use_multipart=False)
        else:
            self._upload.write(bytes(self._buffer))
            self._upload.close()
        return self._nbytes


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
