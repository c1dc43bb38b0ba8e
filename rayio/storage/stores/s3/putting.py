"""Objects on their way up: appended part by part, or sent where a store redirected a put to."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

#: Bytes of a part; what is no larger is put in one request.
PART_BYTES = 8 << 20
#: Parts under way at a time: with the one that is being filled, this bounds the memory of an upload.
PARTS = 4
#: Redirects that one put follows.
MOST_REDIRECTS = 10
#: Bytes sent at a time to where a put was redirected.
PIECE_BYTES = 1 << 20


class Appended(io.RawIOBase):
    """An object that is written from its beginning to its end; it appears with :meth:`finish`, or never."""

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key
        self._held = bytearray()
        self._upload: Any = None
        self._nbytes = 0
        #: Whether the client is at it, or has failed: an error is then its own, and no writer's.
        self.is_asking = False

    def writable(self) -> bool:
        """Say yes."""
        return True

    def write(self, buffer: Any) -> int:
        """Take some bytes; whole parts go up."""
        import obstore

        view = memoryview(buffer).cast("B")
        self._nbytes += len(view)
        self._held += view
        self.is_asking = True
        while len(self._held) > PART_BYTES:
            if self._upload is None:
                self._upload = obstore.open_writer(
                    self._client, self._key, buffer_size=PART_BYTES, max_concurrency=PARTS
                )
            self._upload.write(bytes(self._held[:PART_BYTES]))
            del self._held[:PART_BYTES]
        self.is_asking = False
        return len(view)

    def finish(self) -> int:
        """Put what is left, and have the object appear; give its bytes."""
        import obstore

        if self._upload is None:
            obstore.put(self._client, self._key, bytes(self._held), use_multipart=False)
        else:
            self._upload.write(bytes(self._held))
            self._upload.close()
        return self._nbytes


class PutError(Exception):
    """A put to where it was redirected was refused; worded as the client of the store words it."""


def put_redirected(address: str, content: BinaryIO, nbytes: int, timeout: float) -> None:
    """Put one object at a presigned address, following redirects with the body; ``address`` is shown nowhere.

    Raises:
        PutError: the store refuses, or redirects go round in a circle; also when the connection breaks.
    """
    for _ in range(MOST_REDIRECTS):
        parts = urlsplit(address)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = make(parts.netloc, timeout=timeout)
        content.seek(0)
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("PUT", target, iter(lambda: content.read(PIECE_BYTES), b""), _length(nbytes))
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


def _length(nbytes: int) -> dict[str, str]:
    return {"Content-Length": str(nbytes)}
