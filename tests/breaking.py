"""A small S3 server of raw sockets that breaks off at any point of any request: resets, cut and endless answers."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

STAGES = ("get", "head", "put", "create", "part", "complete", "list", "delete", "abort", "uploads")


@dataclass
class Request:
    """A request with its whole body."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def stage(self) -> str:
        """What it is for."""
        query = self.query
        if "list-type" in query:
            return "list"
        if "uploads" in query:
            return "create" if self.method == "POST" else "uploads"
        if "uploadId" in query:
            return {"PUT": "part", "POST": "complete", "DELETE": "abort"}[self.method]
        if "delete" in query or self.method == "DELETE":
            return "delete"
        return self.method.lower()


#: Does something to a connection in place of an answer.
Fault = Callable[["Server", socket.socket, Request], None]


def reset(server: Server, connection: socket.socket, request: Request) -> None:
    """Reset the connection instead of an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def closed(server: Server, connection: socket.socket, request: Request) -> None:
    """Close the connection without an answer."""
    connection.close()


def half_a_header(server: Server, connection: socket.socket, request: Request) -> None:
    """Close the connection within the headers."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
    connection.close()


def cut(server: Server, connection: socket.socket, request: Request) -> None:
    """Close the connection within the answer."""
    status, headers, body = server.answer(request)
    if request.method == "HEAD":
        half_a_header(server, connection, request)
        return
    body = body or b"<x></x>"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) + 100}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body[: len(body) // 2])
    connection.close()


def garbage(server: Server, connection: socket.socket, request: Request) -> None:
    """Answer with what is no HTTP."""
    connection.sendall(b"\x00\x01garbage\r\n\r\n")
    connection.close()


def busy(server: Server, connection: socket.socket, request: Request) -> None:
    """Answer 503."""
    body = b"<Error><Code>SlowDown</Code></Error>"
    connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def flooding(status: str) -> Fault:
    """Answer with a status and a body without an end, as long as somebody reads."""

    def flood(server: Server, connection: socket.socket, request: Request) -> None:
        connection.sendall(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with contextlib.suppress(OSError):
            while not server.is_over.is_set():
                connection.sendall(piece)
                server.flooded += 1 << 20
        connection.close()

    return flood


def silent(server: Server, connection: socket.socket, request: Request) -> None:
    """Say nothing until the end."""
    server.is_over.wait()


def trickling(server: Server, connection: socket.socket, request: Request) -> None:
    """Send a byte of the answer now and then."""
    status, headers, _ = server.answer(request)
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {1 << 30}\r\n{headers}\r\n".encode())
    with contextlib.suppress(OSError):
        while not server.is_over.wait(0.05):
            connection.sendall(b" ")


def another_page(server: Server, connection: socket.socket, request: Request) -> None:
    """Answer a listing with a page, and say that there is one more."""
    server.pages += 1
    keys = "".join(
        f"<Contents><Key>{request.query.get('prefix', [''])[0]}k{server.pages:09d}-{n}</Key><Size>1</Size>"
        '<ETag>"x"</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>'
        for n in range(1000)
    )
    body = (
        f"<ListBucketResult><IsTruncated>true</IsTruncated>{keys}"
        f"<NextContinuationToken>{server.pages}</NextContinuationToken></ListBucketResult>"
    ).encode()
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


BREAKS: dict[str, Fault] = {
    "reset": reset, "closed": closed, "half_a_header": half_a_header, "cut": cut, "garbage": garbage, "busy": busy,
}  # fmt: skip


@dataclass
class Server:
    """What is stored, what was asked, and what breaks."""

    url: str = ""
    stored: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    #: Faults of the next requests of a stage; the last stays if it is in ``lasting``.
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    lasting: dict[str, Fault] = field(default_factory=dict)
    flooded: int = 0
    pages: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, stage: str) -> Fault | None:
        """Take the fault of a request of a stage."""
        with self.lock:
            self.asked[stage] += 1
            if self.faults.get(stage):
                return self.faults[stage].pop(0)
            return self.lasting.get(stage)

    def answer(self, request: Request) -> tuple[str, str, bytes]:
        """Carry out a request; return status, headers and body."""
        with self.lock:
            return self._answer(request)

    def _answer(self, request: Request) -> tuple[str, str, bytes]:
        path, query, date = request.path, request.query, "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
        tag = 'ETag: "x"\r\n'
        match request.stage:
            case "create":
                number = f"upload-{len(self.uploads)}"
                self.uploads[number] = path, {}
                inner = f"<UploadId>{number}</UploadId>"
                return "200 OK", "", f"<InitiateMultipartUploadResult>{inner}</InitiateMultipartUploadResult>".encode()
            case "part":
                if query["uploadId"][0] not in self.uploads:
                    return "404 Not Found", "", b"<Error><Code>NoSuchUpload</Code></Error>"
                self.uploads[query["uploadId"][0]][1][int(query["partNumber"][0])] = request.body
                return "200 OK", tag, b""
            case "complete":
                _, parts = self.uploads.pop(query["uploadId"][0], (path, {}))
                if parts:
                    self.stored[path] = b"".join(part for _, part in sorted(parts.items()))
                return "200 OK", "", b'<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>'
            case "abort":
                self.uploads.pop(query["uploadId"][0], None)
                return "204 No Content", "", b""
            case "uploads":
                prefix = query.get("prefix", [""])[0]
                inner = "".join(
                    f"<Upload><Key>{key.split('/', 2)[2]}</Key><UploadId>{number}</UploadId></Upload>"
                    for number, (key, _) in self.uploads.items()
                    if key.split("/", 2)[2].startswith(prefix)
                )
                return "200 OK", "", f"<ListMultipartUploadsResult>{inner}</ListMultipartUploadsResult>".encode()
            case "put":
                self.stored[path] = request.body
                return "200 OK", tag, b""
            case "delete":
                keys = re.findall(rb"<Key>([^<]*)</Key>", request.body)
                for key in keys:
                    self.stored.pop(f"{path.rstrip('/')}/{key.decode()}", None)
                gone = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % key for key in keys)
                return "200 OK", "", b"<DeleteResult>%s</DeleteResult>" % gone
            case "list":
                return "200 OK", "", self._listed(path, query)
        if path not in self.stored:
            return "404 Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>"
        content = self.stored[path]
        if request.method == "GET" and (wanted := request.headers.get("range")):
            begin, _, last = wanted.removeprefix("bytes=").partition("-")
            first, end = int(begin), min(int(last) + 1, len(content))
            ranged = f"Content-Range: bytes {first}-{end - 1}/{len(content)}\r\n"
            return "206 Partial Content", tag + date + ranged, content[first:end]
        return "200 OK", tag + date, content

    def _listed(self, path: str, query: dict[str, list[str]]) -> bytes:
        prefix, bucket = query.get("prefix", [""])[0], f"/{path.strip('/')}/"
        inner, folders = "", set()
        for name, content in sorted(self.stored.items()):
            key = name.removeprefix(bucket)
            if name.startswith(bucket) and key.startswith(prefix):
                head, slash, _ = key[len(prefix) :].partition("/")
                if slash and "delimiter" in query:
                    folders.add(f"{prefix}{head}/")
                else:
                    inner += (
                        f'<Contents><Key>{key}</Key><Size>{len(content)}</Size><ETag>"x"</ETag>'
                        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
                    )
        inner += "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{inner}</ListBucketResult>".encode()


@contextlib.contextmanager
def breaking() -> Iterator[Server]:
    """Start the server, and stop it."""
    server, listening = Server(), socket.create_server(("127.0.0.1", 0), backlog=128)
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                method, target, _ = line.decode("latin-1").split()
                headers = {}
                while (header := lines.readline().strip()) != b"":
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = lines.read(int(headers.get("content-length", 0)))
                parts = urlsplit(target)
                request = Request(
                    method, unquote(parts.path), parse_qs(parts.query, keep_blank_values=True), headers, body
                )
                if (fault := server.fault(request.stage)) is not None:
                    fault(server, connection, request)
                    if fault not in (busy, another_page):
                        return
                    continue
                status, more, content = server.answer(request)
                length = len(content)
                head = f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()
                connection.sendall(head + (b"" if method == "HEAD" else content))

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        server.is_over.set()
        listening.close()
        time.sleep(0)
