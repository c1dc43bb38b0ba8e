"""A real S3 server (moto's) on loopback, in this process: it counts what it is asked, and can be told to misbehave."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

#: Credentials that every test runs with: they must turn up nowhere.
KEY, SECRET = "AKIAPLANTEDPLANTED00", "plantedPLANTED/secretSECRET+0123456789abcd"

#: Seconds in which the server answers when it does, on a machine that is busy with other work.
PATIENCE = 2.0


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Objects]:
    """Start the server once."""
    with serving() as started:
        yield started


@pytest.fixture
def objects(s3_server: Objects, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """Give the server, with an environment that leads to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    return s3_server


@pytest.fixture
def place(objects: Objects) -> str:
    """Give an address below a new bucket."""
    return f"s3://{objects.bucket()}/some/prefix"


#: What a WSGI server is given, and what it answers: status, headers, body.
Environ = dict[str, Any]
Answer = tuple[str, dict[str, str], bytes]
Fault = Callable[[Environ], Answer | None]


@dataclass
class Objects:
    """The server: its address, what it was asked, and how it misbehaves."""

    url: str = ""
    #: Method, path with query but without a signature, range.
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    #: Those that were answered by the server itself.
    served: list[tuple[str, str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def bucket(self) -> str:
        """Make a bucket, and forget what was asked."""
        name = f"bucket-{uuid4().hex[:12]}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):
            pass
        self.forget()
        return name

    def forget(self) -> None:
        """Forget what was asked."""
        self.asked.clear()
        self.served.clear()

    @contextlib.contextmanager
    def misbehaving(self, fault: Fault) -> Iterator[None]:
        """Answer by ``fault`` where it gives an answer."""
        self.faults.append(fault)
        try:
            yield
        finally:
            self.faults.remove(fault)

    def methods(self, method: str) -> list[tuple[str, str, str]]:
        """What was asked by a method."""
        return [one for one in self.asked if one[0] == method]


def s3_error(status: str, code: str, more: str = "") -> Answer:
    """An answer as S3 refuses."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message>{more}</Error>'
    return status, {"Content-Type": "application/xml"}, body.encode()


def first(number: int, then: Fault, *, method: str = "GET", within: str = "") -> Fault:
    """Let the first requests of a kind go wrong, counted from when the fault is planted."""
    left = iter(range(number))  # of which every thread of the server takes the next

    def fault(environ: Environ) -> Answer | None:
        if environ["REQUEST_METHOD"] != method or within not in environ["PATH_INFO"] or next(left, None) is None:
            return None
        return then(environ)

    return fault


def slow_down(environ: Environ) -> Answer:
    """Answer 503, as S3 does when asked too often."""
    return s3_error("503 Slow Down", "SlowDown")


def reset(environ: Environ) -> Answer:
    """Break the connection without a word."""
    connection = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    return "200 OK", {}, b""


def broken_off(environ: Environ) -> Answer:
    """Say that more bytes come than do."""
    begin, _, end = environ.get("HTTP_RANGE", "bytes=0-99").removeprefix("bytes=").partition("-")
    length = int(end) - int(begin) + 1
    headers = {
        "Content-Length": str(length),
        "Content-Range": f"bytes {begin}-{end}/{int(end) + 100_000}",
        "ETag": '"x"',
        "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
    }
    return "206 Partial Content", headers, b"x" * min(10, length // 2)


def silent(environ: Environ) -> Answer:
    """Take longer than anybody waits who waits ``PATIENCE`` seconds."""
    time.sleep(2 * PATIENCE)
    return slow_down(environ)


@contextlib.contextmanager
def serving() -> Iterator[Objects]:
    """Start the server, and stop it."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    objects = Objects()
    moto = DomainDispatcherApplication(create_backend_app)
    conditions = threading.Lock()  # moto looks whether an object exists, and writes it later; S3 does both at once

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            pass

        def log_error(self, *_: Any) -> None:
            pass

    def application(environ: Environ, start: Any) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING")
        path = environ["PATH_INFO"] + (f"?{query}" if query and "X-Amz-Signature" not in query else "")
        said = environ["REQUEST_METHOD"], path, environ.get("HTTP_RANGE", "")
        objects.asked.append(said)
        for fault in list(objects.faults):
            if (answer := fault(environ)) is not None:
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) if said[0] == "PUT" else b""
                del body
                status, headers, content = answer
                start(status, list(({"Content-Length": str(len(content))} | headers).items()))
                return [content]
        objects.served.append(said)
        if environ["PATH_INFO"].startswith("/elsewhere/"):
            environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/elsewhere")
        if "RAW_URI" in environ:
            environ["RAW_URI"] = environ["REQUEST_URI"] = environ["RAW_URI"].replace("/elsewhere/", "/", 1)
        if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", ""):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read())
        has_condition = "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ
        with conditions if has_condition else contextlib.nullcontext():
            answered: Iterable[bytes] = moto(environ, start)
        return answered

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    objects.url = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def elsewhere(objects: Objects) -> Fault:
    """Send everybody to another address with 307, as a store behind a proxy does."""

    def fault(environ: Environ) -> Answer | None:
        if environ["PATH_INFO"].startswith("/elsewhere/"):
            return None
        query = environ.get("QUERY_STRING")
        target = f"{objects.url}/elsewhere{environ['PATH_INFO']}" + (f"?{query}" if query else "")
        return "307 Temporary Redirect", {"Location": target}, b""

    return fault


def round_in_a_circle(environ: Environ) -> Answer:
    """Send everybody back to where they were."""
    return "307 Temporary Redirect", {"Location": environ["PATH_INFO"]}, b""
