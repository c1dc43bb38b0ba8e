"""Collectors on loopback that take OTLP over HTTP and gRPC, and can be told to behave badly; runs to send to them."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from rayio.trace.run_directory import RunDirectory


@dataclass
class Collector:
    """What came in; ``answers`` say how the next requests are answered, then all are taken."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    #: Of HTTP: (status, headers, body), "close" to hang up, "break" to do so within the answer. Of gRPC: a code, or
    #: (code, trailers). Of both: a partial success, "hang" to say nothing until the end, None to take.
    answers: list[Any] = field(default_factory=list)
    tries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def next_answer(self) -> Any:
        with self.lock:
            self.tries += 1
            answer = self.answers.pop(0) if self.answers else None
        if answer == "hang":
            self.over.wait(60)
        return answer

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        with self.lock:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
            self.headers.append(headers)
            self.sizes.append(len(body))

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [span for request in self.requests for span in plain(request)]


def partial(rejected: int, why: str = "") -> ExportTraceServiceResponse:
    """Give the answer of a collector that takes a request but for some spans."""
    return ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=rejected, error_message=why)
    )


@dataclass(frozen=True)
class Shown:
    """What a server of TLS shows (PEM), and the authority that its clients must be signed by, if they must."""

    certificate: bytes
    key: bytes
    clients: bytes | None = None

    def context(self) -> ssl.SSLContext:
        """Give it as Python's servers have it."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with NamedTemporaryFile() as file:
            file.write(self.key + self.certificate)
            file.flush()
            made.load_cert_chain(file.name)
        if self.clients is not None:
            made.verify_mode = ssl.CERT_REQUIRED
            made.load_verify_locations(cadata=self.clients.decode())
        return made


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that hang up."""


@contextmanager
def http(answers: Sequence[Any] = (), secure: Shown | None = None) -> Iterator[Collector]:
    """Serve OTLP over HTTP on a free port."""
    collector = Collector(answers=[*answers])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            answer = collector.next_answer()
            if answer in ("close", "hang"):
                self.close_connection = True
                return
            if answer == "break":
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.close_connection = True
                return
            if isinstance(answer, tuple):
                status, headers, text = answer
                self.reply(status, text, headers)
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(body, {name.lower(): value for name, value in self.headers.items()})
            self.reply(200, (answer or ExportTraceServiceResponse()).SerializeToString(), {})

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            if "Date" in headers:
                self.send_response_only(status)
            else:
                self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = _Quiet(("127.0.0.1", 0), Handler)
    if secure is not None:
        server.socket = secure.context().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    collector.url = f"{'https' if secure else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_(answers: Sequence[Any] = (), secure: Shown | None = None) -> Iterator[Collector]:
    """Serve OTLP over gRPC on a free port."""
    import grpc

    collector = Collector(answers=[*answers])

    def export(body: bytes, context: Any) -> bytes:
        answer = collector.next_answer()
        if answer == "hang":
            context.abort(grpc.StatusCode.UNAVAILABLE, "over")
        if isinstance(answer, tuple):
            code, trailers = answer
            context.set_trailing_metadata(trailers)
            context.abort(code, "as told")
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "as told")
        collector.take(body, dict(context.invocation_metadata()))
        return bytes((answer or ExportTraceServiceResponse()).SerializeToString())

    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("opentelemetry.proto.collector.trace.v1.TraceService", handlers)]
    )
    if secure is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = [(secure.key, secure.certificate)]
        credentials = grpc.ssl_server_credentials(pair, secure.clients, secure.clients is not None)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    collector.url = f"127.0.0.1:{port}"
    try:
        yield collector
    finally:
        collector.over.set()
        server.stop(0).wait()


def value(one: AnyValue) -> Any:
    """Give a value of OTLP as Python has it."""
    kind = one.WhichOneof("value")
    if kind == "array_value":
        return [value(inner) for inner in one.array_value.values]
    if kind == "kvlist_value":
        return attributes(one.kvlist_value.values)
    return getattr(one, kind) if kind else None


def attributes(said: Sequence[KeyValue]) -> dict[str, Any]:
    """Give attributes as a dict."""
    return {one.key: value(one.value) for one in said}


def plain(request: ExportTraceServiceRequest) -> list[dict[str, Any]]:
    """Give the spans of a request with everything that they say, as values that compare."""
    return [
        {
            "resource": attributes(of_resource.resource.attributes), "scope": of_scope.scope.name,
            "schema": (of_resource.schema_url, of_scope.schema_url),
            "trace": span.trace_id.hex(), "span": span.span_id.hex(), "parent": span.parent_span_id.hex(),
            "name": span.name, "kind": span.kind, "start": span.start_time_unix_nano, "end": span.end_time_unix_nano,
            "attributes": attributes(span.attributes),
            "events": [(e.name, e.time_unix_nano, attributes(e.attributes)) for e in span.events],
            "links": [(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes)) for link in span.links],
            "status": (span.status.code, span.status.message),
        }
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]  # fmt: skip


def stored(path: Path, table: pa.Table, **info: Any) -> RunDirectory:
    """Make a run directory that holds these spans."""
    directory = RunDirectory.create(path, {"run_id": "rayio-test", "engine": "local"} | info)
    if len(table):
        directory.write_spans(table, "part-00000")
    return directory
