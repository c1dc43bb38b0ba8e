"""Gets without the client library give what the library gives, whatever a server answers, and use connections again."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from typing import Any

import pytest
from breaking import Request, Server, breaking
from objects import KEY, SECRET

from rayio import storage
from rayio.errors import RayioError
from rayio.scenario.s3 import S3Options
from rayio.storage.stores import retrying
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Settings
from rayio.storage.stores.s3 import direct
from rayio.storage.stores.s3.bucket import Place
from rayio.storage.stores.s3.direct import Direct

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with breaking() as started:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
        monkeypatch.setattr(retrying, "FIRST_SECONDS", 0.001)
        started.stored["/bucket/some/f"] = CONTENT
        yield started


def store_at(**options: Any) -> Any:
    wanted = S3Options.model_construct(max_attempts=3, timeout=20, **options)
    return storage.open("s3://bucket/some", Settings({"s3": wanted}))


def got(position: int, nbytes: int) -> tuple[Any, int]:
    """Return the bytes of a get, or its error; and the number of attempts that failed."""
    store, traffic, content = store_at(), Traffic(0), bytearray(nbytes)

    def take(begin: int, piece: Any) -> None:
        content[begin - position : begin - position + len(piece)] = piece

    try:
        size, length = store.pour("f", position, nbytes, traffic, take)
        done: Any = size, bytes(content[:length])
    except RayioError as error:
        done = re.sub(r"\d+\.\d+ s", "N s", str(error))
    return done, 0 if traffic.retried is None else len(traffic.retried.rows)


def said(status: str, *headers: str, body: bytes | None = None, length: int | None = None) -> Callable[..., None]:
    """Return a fault that answers with the status and more headers; the body is the range by default."""

    def answer(server: Server, connection: socket.socket, request: Request) -> None:
        _, more, content = server.answer(request)
        content = content if body is None else body
        named = {line.partition(":")[0].lower() for line in headers}
        lines = [line for line in more.split("\r\n") if line and line.partition(":")[0].lower() not in named]
        if not named & {"transfer-encoding", "content-length"}:
            lines.append(f"Content-Length: {len(content) if length is None else length}")
        head = "\r\n".join(
            [f"HTTP/1.1 {status}", *lines, *(line for line in headers if line.partition(":")[2]), "", ""]
        )
        connection.sendall(head.encode() + content)
        connection.close()

    return answer


def slowly(server: Server, connection: socket.socket, request: Request) -> None:
    """Send an answer in pieces of which none ends where the headers or the body do."""
    status, headers, body = server.answer(request)
    whole = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for begin in range(0, len(whole), 997):
        connection.sendall(whole[begin : begin + 997])
        time.sleep(0.001)
    connection.close()


def bare_lines(server: Server, connection: socket.socket, request: Request) -> None:
    """Answer with lines that end without a carriage return, and leave the connection open."""
    status, headers, body = server.answer(request)
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".replace("\r\n", "\n")
    connection.sendall(head.encode() + body)
    server.is_over.wait(0.2)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


ANSWERS: dict[str, Callable[..., None]] = {
    "slowly": slowly,
    "chunked": said("206 Partial Content", "Transfer-Encoding: chunked", body=chunked(CONTENT[5:1005])),
    "long headers": said("206 Partial Content", f"X-Long: {'x' * 9000}"),
    "bare lines": bare_lines,
    "lower case": said("206 Partial Content", "content-length:1000"),
    "other range": said("206 Partial Content", "Content-Range: bytes 6-1005/10240"),
    "short range": said("206 Partial Content", "Content-Range: bytes 5-503/10240", body=CONTENT[5:504]),
    "longer than its range": said("206 Partial Content", body=CONTENT[5:1006]),
    "no range": said("206 Partial Content", "Content-Range:"),
    "range without end": said("206 Partial Content", "Content-Range: bytes 5-1004/*"),
    "a whole object": said("200 OK", "Content-Range:", body=CONTENT),
    "nothing": said("204 No Content", "Content-Range:", body=b""),
    "cut": said("206 Partial Content", body=CONTENT[5:400], length=1000),
    "gone": said("404 Not Found", "Content-Range:", body=b"<Error><Code>NoSuchKey</Code></Error>"),
    "no bucket": said("404 Not Found", "Content-Range:", body=b"<Error><Code>NoSuchBucket</Code></Error>"),
    "refused": said("403 Forbidden", "Content-Range:", body=b"<Error><Code>AccessDenied</Code></Error>"),
    "refused without a body": said("403 Forbidden", "Content-Range:", body=b""),
    "refused, and cut": said("403 Forbidden", "Content-Range:", body=b"<Error><Code>Acc", length=900),
    "bad request": said("400 Bad Request", "Content-Range:", body=b"<Error><Code>InvalidArgument</Code></Error>"),
    "busy": said("503 Slow Down", "Content-Range:", body=b"<Error><Code>SlowDown</Code></Error>"),
    "too many": said("429 Too Many", "Content-Range:", body=b""),
    "failed": said("500 Oops", "Content-Range:", body=b"<html>"),
    "teapot": said("418 Teapot", "Content-Range:", body=b"short and stout"),
    "moved": said("301 Moved", "Content-Range:", body=b""),
    "moved to nowhere": said("307 Moved", "Content-Range:", "Location: http://127.0.0.1:1/x", body=b""),
}


@pytest.mark.parametrize("answer", ["as asked", *ANSWERS])
def test_any_answer_gives_what_the_library_gives(answer: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if answer in ANSWERS:
        server.lasting["get"] = ANSWERS[answer]
    is_plain = direct._is_plain
    for _ in range(5):  # now and then the library meets a connection that closes, and has other words
        monkeypatch.setattr(direct, "_is_plain", is_plain)
        mine = got(5, 1000)
        monkeypatch.setattr(direct, "_is_plain", lambda place: False)
        if mine == (theirs := got(5, 1000)):
            break
    assert mine == theirs
    if answer in ("as asked", "slowly", "lower case", "long headers", "bare lines"):
        assert mine == ((len(CONTENT), CONTENT[5:1005]), 0)


def test_a_refusal_that_repeats_what_was_signed_is_about_the_signature(server: Server) -> None:
    signed = b"<CanonicalRequest>GET X-Amz-Credential=A</CanonicalRequest>"
    body = b"<Error><Code>SignatureDoesNotMatch</Code>%s</Error>" % signed
    server.lasting["get"] = said("403 Forbidden", "Content-Range:", body=body)
    done, attempts = got(5, 1000)
    assert "the secret key does not fit the access key" in done
    assert attempts == 0


def test_a_range_beyond_the_end_gives_the_size(server: Server) -> None:
    """The library may ask for it over the connection that the server closes, so this is not compared."""
    refused = b"<Error><Code>InvalidRange</Code></Error>"
    server.lasting["get"] = said("416 Out Of Range", "Content-Range: bytes */10240", body=refused)
    assert got(20_000, 1000) == ((len(CONTENT), b""), 0)


@pytest.mark.parametrize(("position", "nbytes"), [(0, 10240), (0, 10241), (10239, 1), (10239, 50)])
def test_the_end_of_an_object(position: int, nbytes: int, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "PIECE_BYTES", 1000)
    monkeypatch.setattr(direct, "HEAD_BYTES", 300)
    assert got(position, nbytes) == ((len(CONTENT), CONTENT[position : position + nbytes]), 0)


def test_a_body_that_says_it_is_compressed_is_not_a_sample(server: Server) -> None:
    packed = gzip.compress(CONTENT[5:1005])
    server.lasting["get"] = said(
        "206 Partial Content", "Content-Encoding: gzip", body=packed + bytes(1000 - len(packed))
    )
    done, _ = got(5, 1000)
    assert done[1] == packed + bytes(1000 - len(packed)), "the library decodes nothing: objects are bytes"


@pytest.mark.parametrize("closes_at_request", [False, True])
@pytest.mark.parametrize(("answers", "idle", "connections"), [(1, 60, 6), (2, 60, 3), (9, 60, 1), (9, 0, 6)])
def test_a_connection_is_used_until_the_server_closes_it_or_it_is_old(
    answers: int, idle: float, connections: int, closes_at_request: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "IDLE_SECONDS", idle)
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\n0123456789"
    asked: list[int] = []

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for number in count():
                connection, _ = listening.accept()
                with connection, connection.makefile("rb") as lines:
                    for _ in range(answers):
                        if not [*takewhile(bytes.strip, lines)]:
                            break
                        asked.append(number)
                        connection.sendall(answer)
                    if closes_at_request:  # of which the client could not know when it asked
                        [*takewhile(bytes.strip, lines)]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        store, traffic = store_at(anonymous=True), Traffic(0)
        for _ in range(6):
            assert store.pour("f", 0, 10, traffic, lambda begin, piece: None) == (10, 10)
    assert len(asked) == 6
    assert len({*asked}) == connections
    assert traffic.retried is None, "a connection that the server closed between two requests is no failed attempt"


@pytest.mark.parametrize(
    "late",
    [
        b"",
        b"\r\n",
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\nother text",
    ],
    ids=["end", "line", "refusal", "answer"],
)
def test_a_connection_with_an_answer_that_nobody_asked_for_is_not_used_again(late: bytes, server: Server) -> None:
    """Some services announce with a refusal that they close an idle connection."""
    is_idle, requests = threading.Event(), []

    def answer(server: Server, connection: socket.socket, request: Request) -> None:
        requests.append(request)
        status, headers, body = server.answer(request)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
        if len(requests) == 1:
            is_idle.wait()
            connection.sendall(late)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

    server.lasting["get"] = answer
    store, traffic, content = store_at(), Traffic(0), [b""]
    store.pour("f", 5, 10, traffic, lambda begin, piece: None)
    is_idle.set()
    store.direct._idle[0].socket.recv(1, socket.MSG_PEEK)  # waits for it
    store.pour("f", 5, 10, traffic, lambda begin, piece: content.append(bytes(piece)))
    assert b"".join(content) == CONTENT[5:15]
    assert len(requests) == 2
    assert traffic.retried is None


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("Transfer-Encoding: chunked", chunked(b"<Error><Code>SlowDown</Code></Error>")),
        ("Transfer-Encoding: chunked", chunked(b"<html>")),
        ("Transfer-Encoding: chunked", b"0\r\n\r\n"),
        ("Content-Length:", b"<Error><Code>SlowDown</Code></Error>"),
    ],
)
def test_a_refusal_without_a_length_is_over_with_its_last_chunk_or_its_code(
    form: str, body: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service may leave the connection open: waiting for more would take the whole timeout."""
    server.lasting["get"] = said("503 Slow Down", "Content-Range:", form, body=body)
    monkeypatch.setattr(direct._Connection, "receive", lambda *_: pytest.fail("waits for more of a refusal"))
    done, attempts = got(5, 1000)
    assert "503" in done
    assert ("SlowDown" in done) == (b"SlowDown" in body)
    assert attempts == 2


def test_a_store_that_redirects_is_left_to_the_library_from_then_on(server: Server) -> None:
    store, traffic = store_at(), Traffic(0)
    server.faults["get"] = [said("307 Moved", "Content-Range:", f"Location: {server.url}/bucket/some/f", body=b"")] * 2
    for requests in (3, 4):  # the first get by both, each redirected, and once by the library to the end
        assert store.pour("f", 0, 10, traffic, lambda begin, piece: None) == (len(CONTENT), 10)
        assert server.asked["get"] == requests
    assert not store.direct.is_usable


@pytest.mark.parametrize(
    ("endpoint", "variables", "is_plain"),
    [
        ("http://10.0.0.1:9000", {}, True),
        ("https://10.0.0.1:9000", {}, False),
        (None, {}, False),
        ("http://10.0.0.1:9000", {"http_proxy": "http://proxy:3128"}, False),
        ("http://10.0.0.1:9000", {"https_proxy": "http://proxy:3128"}, True),
        ("http://10.0.0.1:9000", {"http_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1"}, True),
    ],
)
def test_encryption_and_proxies_are_left_to_the_library(
    endpoint: str | None, variables: dict[str, str], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    place = Place.of("s3://bucket/some", S3Options.model_construct(endpoint=endpoint))
    assert Direct(place, place.url).is_usable == is_plain
