"""A small S3 server on loopback for benchmarks: objects in memory, each GET of one answered after a delay.

``python benchmarks/object_server.py 0.02`` prints its port and serves until its standard input ends. It knows what a
dataset needs: puts (also in parts), ranged gets, heads, listings of a folder, deletes. It checks no signature.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import sys
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: Bytes that a write may have waiting for its reader.
HIGH_BYTES = 64 << 20
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"


class Objects:
    """What is stored, by path; and uploads in parts, by their number."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.stored: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}


class Connection(asyncio.Protocol):
    """A connection, which answers one request after the other."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.read = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete."""
        self.read += data
        while (end := self.read.find(b"\r\n\r\n")) >= 0:
            first, *lines = self.read[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            if len(self.read) < end + 4 + length:
                return
            body = bytes(self.read[end + 4 : end + 4 + length])
            del self.read[: end + 4 + length]
            method, target, _ = first.split(" ")
            self.serve(method, target, headers, body)

    def serve(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        """Carry out a request."""
        parts, stored = urlsplit(target), self.objects.stored
        path, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        if method == "PUT" and "partNumber" in query:
            self.objects.parts.setdefault(path, {})[int(query["partNumber"][0])] = body
            self.answer("200 OK", b"", 'ETag: "x"\r\n')
        elif method == "PUT":
            stored[path] = body
            self.answer("200 OK", b"", 'ETag: "x"\r\n')
        elif method == "POST" and "uploads" in query:
            self.answer(
                "200 OK", b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
            )
        elif method == "POST" and "uploadId" in query:
            stored[path] = b"".join(piece for _, piece in sorted(self.objects.parts.pop(path, {}).items()))
            self.answer("200 OK", b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")
        elif method == "POST":
            keys = re.findall(rb"<Key>([^<]*)</Key>", body)
            for key in keys:
                stored.pop(f"{path.rstrip('/')}/{key.decode()}", None)
            inner = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % key for key in keys)
            self.answer("200 OK", b"<DeleteResult>%s</DeleteResult>" % inner)
        elif method == "DELETE":
            stored.pop(path, None)
            self.answer("204 No Content", b"")
        elif "list-type" in query:
            self.answer("200 OK", self.listed(path, query).encode())
        elif path not in stored:
            self.answer("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
        elif method == "HEAD":
            self.answer("200 OK", b"", f'ETag: "x"\r\nLast-Modified: {DATE}\r\n', len(stored[path]))
        elif self.objects.delay:
            asyncio.get_running_loop().call_later(self.objects.delay, self.get, path, headers.get("range", ""))
        else:
            self.get(path, headers.get("range", ""))

    def get(self, path: str, wanted: str) -> None:
        """Answer with an object, or a range of one."""
        content, more = self.objects.stored[path], f'ETag: "x"\r\nLast-Modified: {DATE}\r\n'
        if not wanted:
            self.answer("200 OK", content, more)
            return
        begin, _, last = wanted.removeprefix("bytes=").partition("-")
        first, end = int(begin), min(int(last) + 1, len(content))
        if first >= len(content):
            self.answer("416 Requested Range Not Satisfiable", b"<Error><Code>InvalidRange</Code></Error>")
            return
        ranged = f"{more}Content-Range: bytes {first}-{end - 1}/{len(content)}\r\n"
        self.answer("206 Partial Content", memoryview(content)[first:end], ranged)

    def listed(self, path: str, query: dict[str, list[str]]) -> str:
        """Return a listing, in one page."""
        bucket = f"/{path.strip('/')}/"
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found, folders = [], set()
        for name, content in sorted(self.objects.stored.items()):
            key = name.removeprefix(bucket)
            if name.startswith(bucket) and key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                if cut:
                    folders.add(prefix + head + delimiter)
                else:
                    found.append((key, len(content)))
        contents = "".join(
            f'<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>"x"</ETag>'
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in found
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"

    def answer(self, status: str, body: bytes | memoryview, headers: str = "", length: int | None = None) -> None:
        """Write an answer."""
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n{headers}\r\n"
        self.transport.write(head.encode())
        if len(body):
            self.transport.write(body)


async def serve(delay: float) -> None:
    """Serve on a free port until standard input ends."""
    loop, objects = asyncio.get_running_loop(), Objects(delay)
    server = await loop.create_server(lambda: Connection(objects), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def exact_loop() -> asyncio.SelectorEventLoop:
    """Return a loop with timers of microseconds: those of epoll are late by up to a millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__" and len(sys.argv) > 1:
    with asyncio.Runner(loop_factory=exact_loop) as runner:
        runner.run(serve(float(sys.argv[1])))
