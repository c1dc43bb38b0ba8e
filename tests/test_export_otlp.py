"""OTLP: bytes as the official classes write them, and collectors on loopback that take, refuse, stumble and die."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import ports
import pyarrow as pa
import pytest
from collectors import Collector, grpc_, http, partial, plain, stored
from exports import foreign, told, training
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rayio.errors import ExportError
from rayio.export import otlp
from rayio.export.collectors.pauses import Patience, retry_after, retry_info
from rayio.export.collectors.sending import Request, Sender, deliver, send_all
from rayio.export.collectors.settings import Settings, endpoint
from rayio.export.collectors.transport import Grpc, Http
from rayio.export.spans import SERVICES, Origin
from rayio.export.traces import spans_of
from rayio.place import batch_id

grpc: Any = pytest.importorskip("grpc")

#: A run of two hosts, of which one is known by its node.
ORIGIN = Origin("my run", "9.9", "storage-3.example", {0: "gpu-7.example"})
QUICK = Patience(tries=3, first_seconds=0.001, longest_seconds=0.01)
Serve = Callable[..., AbstractContextManager[Collector]]
both = pytest.mark.parametrize("protocol", ["otlp", "grpc"])


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE", "INSECURE", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def serve(protocol: str, answers: list[Any] | None = None) -> AbstractContextManager[Collector]:
    return (http if protocol == "otlp" else grpc_)(answers or [])


def sender(protocol: str, collector: Collector, **variables: str) -> Sender:
    settings = Settings.of({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()})
    return Http(endpoint(collector.url, grpc=False), settings) if protocol == "otlp" else Grpc(collector.url, settings)


def mixed() -> pa.Table:
    """Give spans of every kind."""
    return pa.concat_tables([training(trace__level="io"), foreign()])


def requests(table: pa.Table, **limits: int) -> list[Request]:
    return [*otlp.requests(spans_of(table, "r"), ORIGIN, **limits)]


def test_the_bytes_are_those_of_the_official_classes() -> None:
    for request in requests(mixed()):
        assert ExportTraceServiceRequest.FromString(request.body).SerializeToString() == request.body


def test_every_span_says_what_its_row_says() -> None:
    """Rows and spans are compared as bags of values, each worked out in another way."""
    table = training(trace__level="io")
    (request,) = requests(table)
    spans = plain(ExportTraceServiceRequest.FromString(request.body))
    assert (request.spans, request.spans + request.added) == (len(table), len(spans))

    def number(value: int, least: int = 0) -> int | None:
        return value if value >= least else None

    expected = Counter(
        (
            row["name"], row["start_ns"], row["start_ns"] + row["duration_ns"], SERVICES[row["role"]],
            f"{row['role']}-{row['index']}", number(row["node"]), number(row["rank"]), number(row["epoch"]),
            number(row["step"]), number(row["lane"], 1), number(row["bytes"], 1), number(row["requests"], 1),
            row["file"] or None, number(row["offset"]),
        )
        for row in table.to_pylist()
    )  # fmt: skip
    found: Counter[tuple[Any, ...]] = Counter()
    for span in spans:
        said, by = span["attributes"], span["resource"]
        if span["name"] in ("step", "rank") or span["name"].startswith("send "):
            continue
        if span["name"] == "checkpoint" and not span["parent"]:
            continue
        found[
            said.get("rayio.span", span["name"]), span["start"], span["end"], by["service.name"],
            by["service.instance.id"], by.get("rayio.node"),
            *(said.get(f"rayio.{name}") for name in ("rank", "epoch", "step", "lane", "bytes", "requests")),
            said.get("file.path"), said.get("rayio.offset"),
        ] += 1  # fmt: skip
    assert found == expected


def test_messages_are_named_as_opentelemetry_names_them() -> None:
    spans = plain(ExportTraceServiceRequest.FromString(requests(training())[0].body))
    sent = [span for span in spans if span["name"] == "send queue-1"]
    got = [span for span in spans if span["name"] == "receive queue-1"]
    assert len(sent) == len(got) == 24
    for span, operation in [(sent[0], "send"), (got[0], "receive")]:
        said = {name: value for name, value in span["attributes"].items() if name.startswith("messaging")}
        assert said == {
            "messaging.system": "rayio", "messaging.operation.name": operation, "messaging.operation.type": operation,
            "messaging.destination.name": "queue-1",
        }, "and no count of a batch: each span is of one message"  # fmt: skip
        assert span["name"] == f"{said['messaging.operation.name']} {said['messaging.destination.name']}"
    assert sent[0]["resource"]["service.name"] == "rayio-prefetch-queue"
    assert got[0]["resource"] == {
        "service.name": "rayio-trainer", "service.namespace": "rayio", "service.instance.id": "rank-1",
        "service.version": "9.9", "host.name": "gpu-7.example", "rayio.run": "my run", "rayio.node": 0,
        "telemetry.sdk.name": "rayio.trace.otel", "telemetry.sdk.language": "python", "telemetry.sdk.version": "9.9",
        **({"process.pid": pid} if (pid := _pid(got[0])) else {}),
    }  # fmt: skip
    ids = {(span["trace"], span["span"]) for span in sent}
    assert {span["links"][0][:2] for span in got} == ids


def known_names() -> set[str]:
    """Every attribute that OpenTelemetry's own package of conventions knows."""
    import opentelemetry.semconv._incubating.attributes as modules
    from opentelemetry.semconv import attributes as stable

    found: set[str] = set()
    for package in (modules, stable):
        for one in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{one.name}")
            found |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    return found


def test_every_name_that_is_not_ours_is_one_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.attributes.messaging_attributes import MessagingOperationTypeValues
    from opentelemetry.semconv.schemas import Schemas

    names, operations = known_names(), set()
    for request in requests(training(trace__level="io")):
        message = ExportTraceServiceRequest.FromString(request.body)
        for of_resource in message.resource_spans:
            assert of_resource.schema_url in {one.value for one in Schemas}
            assert {one.schema_url for one in of_resource.scope_spans} == {of_resource.schema_url}
        for span in plain(message):
            assert not {key for key in span["attributes"] | span["resource"] if not key.startswith("rayio.")} - names
            assert span["resource"]["service.name"].startswith("rayio-")
            operations.add(span["attributes"].get("messaging.operation.type"))
    assert operations - {None} == {"send", "receive"} <= {one.value for one in MessagingOperationTypeValues} | {None}


def test_what_another_library_recorded_keeps_its_own_names() -> None:
    table = foreign()
    (request,) = requests(table)
    message = ExportTraceServiceRequest.FromString(request.body)
    assert {one.schema_url for of in message.resource_spans for one in of.scope_spans} == {""}
    assert {one["resource"]["host.name"] for one in plain(message)} == {"storage-3.example"}, "node 3 is not known"


@pytest.mark.parametrize(
    ("info", "host", "hosts", "version"),
    [
        ({"rayio": "0.3", "engine": "virtual", "host": "laptop"}, "laptop", {}, "0.3"),
        ({"rayio": "0.3", "engine": "dlio", "imported": {"host": "?"}}, "", {}, ""),
        ({"nodes": [{"id": "a", "host": "one"}, {"id": "b", "host": "one"}]}, "one", {}, ""),
        (
            {
                "host": "driver",
                "nodes": [{"id": "a", "host": "one"}, {"id": "b", "host": "two"}],
                "actors": [{"node": 0, "ray_node": "b"}, {"node": 1, "ray_node": "a"}, {"ray_node": "a"}],
            },
            "driver", {0: "two", 1: "one"}, "",
        ),
        ({"rayio": 3, "host": None, "nodes": "x", "actors": [7, {"node": True, "ray_node": []}]}, "", {}, ""),
    ],
)  # fmt: skip
def test_hosts_are_those_that_the_run_was_on(
    info: dict[str, Any], host: str, hosts: dict[int, str], version: str
) -> None:
    assert Origin.of("run", info) == Origin("run", version, host, hosts)


def _pid(span: dict[str, Any]) -> int:
    return int(span["resource"].get("process.pid", 0))


def test_all_that_another_library_said_is_kept() -> None:
    spans = {
        span["name"]: span
        for request in requests(foreign())
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    }
    assert {*spans} == {"GET /", "inner", "in a batch"}
    outer, inner = spans["GET /"], spans["inner"]
    assert outer["scope"] == "requests"
    assert outer["kind"] == 3
    assert inner["kind"] == 2
    assert outer["attributes"] == {
        "url": "/ä", "n": 3, "big": str(1 << 70), "ratio": 0.5, "ok": True, "names": ["a", "b"], "whole": -5,
    }  # fmt: skip
    assert [(name, said) for name, _, said in outer["events"]] == [("sent", {"bytes": 5}), ("bare", {})]
    assert outer["start"] < outer["events"][0][1] < outer["events"][1][1] < inner["start"]
    assert outer["links"] == [(f"{7 << 100:032x}", f"{9 << 60:016x}", {"w": "c"})]
    assert (inner["parent"], inner["trace"]) == (outer["span"], outer["trace"])
    assert inner["status"] == (2, "broke")
    assert outer["resource"]["service.instance.id"] == "reader-1-0"


def test_requests_stay_below_the_limit_and_hold_every_span_once() -> None:
    table = mixed()
    whole = [span for request in requests(table) for span in plain(ExportTraceServiceRequest.FromString(request.body))]
    small = requests(table, max_bytes=20_000)
    assert len(small) > 5
    assert max(len(request.body) for request in small) <= 20_000
    parts = [span for request in small for span in plain(ExportTraceServiceRequest.FromString(request.body))]
    assert sorted(span["span"] for span in parts) == sorted(span["span"] for span in whole)
    assert sum(request.spans for request in small) == len(table)
    assert sum(request.spans + request.added for request in small) == len(whole)


def test_a_status_that_is_not_ok_is_an_error_with_its_word() -> None:
    from rayio.trace.recorder import Recorder

    recorder = Recorder()
    writer = recorder.register("reader", "0-0", 0)
    recorder.add(writer, "lost", 1, 2, 1, status="lost")
    recorder.add(writer, "read", 1, 2, 0, 0, 0, 0)
    table = recorder.drain()
    assert table is not None
    spans = plain(ExportTraceServiceRequest.FromString(requests(table)[0].body))
    assert {span["name"]: span["status"] for span in spans if span["name"] in ("lost", "read")} == {
        "lost": (2, "lost"), "read": (0, ""),
    }  # fmt: skip


@both
def test_a_run_arrives_whole(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = mixed()
    stored(tmp_path / "run", table)
    with serve(protocol) as collector:
        code, out, err = told(capsys, "export", tmp_path / "run", f"--{protocol}", collector.url, "--select", "all")
    assert (code, err) == (0, "")
    assert f"{len(table)} stored" in out
    assert f"{len(table)} spans exported" in out
    expected = [
        span
        for request in otlp.requests(spans_of(table, "rayio-test"), Origin("run"))
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    ]
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    assert sorted(collector.spans, key=key) == sorted(expected, key=key)


def test_http_goes_to_the_path_of_traces_packed_and_with_headers(tmp_path: Path) -> None:
    with http() as collector:
        way = sender("otlp", collector, HEADERS="api-key=secret%20one, x=y")
        assert send_all(way, requests(training())).is_whole
        way.close()
    assert collector.paths == ["/v1/traces"]
    (headers,) = collector.headers
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"] == "application/x-protobuf"
    assert (headers["api-key"], headers["x"]) == ("secret one", "y")


def test_grpc_carries_headers_too() -> None:
    with grpc_() as collector:
        way = sender("grpc", collector, HEADERS="api-key=secret")
        assert send_all(way, requests(training())).is_whole
        way.close()
    assert collector.headers[0]["api-key"] == "secret"


def test_compression_can_be_switched_off() -> None:
    with http() as collector:
        assert send_all(sender("otlp", collector, COMPRESSION="none"), requests(training())).is_whole
    assert "content-encoding" not in collector.headers[0]


def delay(seconds: float, *others: Any) -> tuple[tuple[str, bytes], ...]:
    """Give the trailers of a gRPC server that asks for a pause, among other details."""
    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.duration_pb2 import Duration
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    info = RetryInfo(retry_delay=Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9)))
    status = Status(code=8, message="busy")
    for detail in (*others, info):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


BUSY = (503, {"Retry-After": "0"}, b"")
ONCE_MORE: dict[str, list[list[Any]]] = {
    "otlp": [[BUSY], [(429, {}, b""), (502, {}, b""), ], [(504, {}, b"")], ["close"], ["break"]],
    "grpc": [[grpc.StatusCode.UNAVAILABLE], [grpc.StatusCode.DATA_LOSS, grpc.StatusCode.ABORTED],
             [(grpc.StatusCode.RESOURCE_EXHAUSTED, delay(0.001)), (grpc.StatusCode.UNAVAILABLE, delay(0))]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "answers"), [(protocol, answers) for protocol, all_ in ONCE_MORE.items() for answers in all_]
)
def test_what_may_be_sent_again_is_and_arrives_once(protocol: str, answers: list[Any]) -> None:
    table = training()
    with serve(protocol, answers) as collector:
        sent = send_all(sender(protocol, collector), requests(table), QUICK)
    assert sent.is_whole
    assert sent.spans == len(table)
    assert sent.retries == len(answers)
    assert collector.tries == len(answers) + 1
    assert len({span["span"] for span in collector.spans}) == len(collector.spans) == sent.spans + sent.added


FOR_GOOD = {"otlp": (400, {"Content-Type": "text/plain"}, b"bad request"), "grpc": grpc.StatusCode.UNAUTHENTICATED}


@both
def test_what_is_refused_for_good_is_sent_once_and_told(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = training()
    stored(tmp_path / "run", table)
    with serve(protocol, [FOR_GOOD[protocol]]) as collector:
        command = ("export", tmp_path / "run", f"--{protocol}", collector.url, "--select", "all")
        code, _, err = told(capsys, *command)
        assert (code, collector.tries) == (2, 1)
        assert f"{len(table)} of {len(table)} spans were not exported to" in err
        assert ("HTTP 400 bad request" if protocol == "otlp" else "UNAUTHENTICATED: as told") in err
        assert err.count("\n") == 1
        assert told(capsys, *command)[0] == 0
    assert len(collector.spans) > len(table)


@both
def test_a_partial_success_is_counted_and_told(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = training()
    stored(tmp_path / "run", table)
    with serve(protocol, [partial(7, "too old")]) as collector:
        command = ("export", tmp_path / "run", f"--{protocol}", collector.url, "--select", "all")
        code, _, err = told(capsys, *command)
    assert code == 2
    assert f"7 of {len(table)} spans were not exported" in err
    assert "7 rejected (too old)" in err
    assert collector.tries == 1


@both
def test_a_collector_that_dies_midway_leaves_the_rest_counted(protocol: str) -> None:
    table = training()
    small = requests(table, max_bytes=4000)
    refused = BUSY if protocol == "otlp" else grpc.StatusCode.UNAVAILABLE
    with serve(protocol, [None, None, *[refused] * 10_000]) as collector:
        sent = send_all(sender(protocol, collector), small, QUICK)
    assert len(small) > 20
    assert sent.requests == len(collector.requests) == 2
    assert not sent.is_whole
    assert sent.spans + sent.unsent == len(table)
    arrived = {span["span"] for span in collector.spans}
    assert len(arrived) == sent.spans + sent.added


@both
def test_nobody_listening_is_one_line(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Patience, "pause", lambda *_: 0.001)
    stored(tmp_path / "run", training())
    url = f"http://127.0.0.1:{ports.unused()}" if protocol == "otlp" else f"127.0.0.1:{ports.unused()}"
    code, _, err = told(capsys, "export", tmp_path / "run", f"--{protocol}", url)
    assert code == 2
    assert "spans were not exported to" in err
    assert f"the run still has all spans: rayio export {tmp_path / 'run'} --{protocol} {url}" in err
    assert err.count("\n") == 1


@both
def test_a_collector_that_does_not_answer_is_given_up(protocol: str) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"http://{address}" if protocol == "otlp" else address
        sent = send_all(sender(protocol, Collector(url), TIMEOUT="0.05"), requests(training()), QUICK)
    assert sent.unsent > 0
    assert ("no answer within 0.05 s" if protocol == "otlp" else "gRPC") in sent.why


@both
def test_a_collector_that_hangs_is_one_line_and_the_run_can_be_exported_again(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Patience, "pause", lambda *_: 0.001)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    table = training()
    stored(tmp_path / "run", table)
    with serve(protocol, ["hang"] * Patience().tries) as collector:
        command = ("export", tmp_path / "run", f"--{protocol}", collector.url, "--select", "all")
        code, _, err = told(capsys, *command)
        assert (code, err.count("\n"), collector.tries) == (2, 1, Patience().tries)
        assert f"{len(table)} of {len(table)} spans were not exported to" in err
        assert ("no answer within 0.1 s" if protocol == "otlp" else "DEADLINE_EXCEEDED") in err
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT")
        assert told(capsys, *command)[0] == 0
    assert len({span["span"] for span in collector.spans}) > len(table)


def test_a_pause_that_the_collector_asks_for_is_kept_to_within_reason() -> None:
    patience = Patience(first_seconds=1, longest_seconds=8)
    assert patience.pause(1, 3.0) == 3.0
    assert patience.pause(1, 1000.0) == 8
    for tried, seconds in [(1, 1), (2, 2), (3, 4), (4, 8), (9, 8)]:
        assert 0.8 * seconds <= patience.pause(tried, None) <= 1.2 * seconds


class Told(Patience):
    """Patience that notes what it was asked for, and does not wait."""

    asked: ClassVar[list[float | None]] = []

    def pause(self, tried: int, asked: float | None) -> float:
        self.asked.append(asked)
        return 0.0


ASKED: list[tuple[str, Any, float | None]] = [
    ("otlp", (503, {"Retry-After": "7"}, b""), 7.0),
    (
        "otlp",
        (429, {"Retry-After": "Sun, 06 Nov 2094 08:49:37 GMT", "Date": "Sun, 06 Nov 2094 08:49:07 GMT"}, b""),
        30.0,
    ),
    ("otlp", (502, {}, b""), None),
    ("grpc", (grpc.StatusCode.RESOURCE_EXHAUSTED, delay(2.5)), 2.5),
    ("grpc", (grpc.StatusCode.UNAVAILABLE, delay(90)), 90.0),
    ("grpc", grpc.StatusCode.UNAVAILABLE, None),
]


@pytest.mark.parametrize(("protocol", "answer", "seconds"), ASKED)
def test_the_pause_is_the_one_that_the_collector_asks_for(protocol: str, answer: Any, seconds: float | None) -> None:
    Told.asked.clear()
    with serve(protocol, [answer]) as collector:
        sent = send_all(sender(protocol, collector), requests(training()), Told(tries=3))
    assert (sent.is_whole, sent.retries, Told.asked) == (True, 1, [seconds])


def test_an_exhausted_server_that_does_not_say_when_is_not_asked_again() -> None:
    with serve("grpc", [grpc.StatusCode.RESOURCE_EXHAUSTED]) as collector:
        sent = send_all(sender("grpc", collector), requests(training()), QUICK)
    assert (sent.spans, sent.retries, collector.tries) == (0, 0, 1)
    assert "RESOURCE_EXHAUSTED" in sent.why


NOW = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("said", "date", "seconds"),
    [
        ("120", NOW, 120.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        ("Sun, 06 Nov 1994 08:50:37 GMT", NOW, 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", NOW, 60.0),
        ("Sun Nov  6 08:50:37 1994", NOW, 60.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", NOW, 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", None, 0.0),
        ("-5", NOW, None),
        ("nan", NOW, None),
        ("inf", NOW, None),
        ("soon", NOW, None),
        ("Sun, 99 Nov 1994 08:00:00 GMT", NOW, None),
        ("", NOW, None),
        (None, NOW, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(said: str | None, date: str | None, seconds: float | None) -> None:
    headers = {name: value for name, value in (("Retry-After", said), ("Date", date)) if value is not None}
    assert retry_after(headers) == seconds


def test_without_a_date_of_its_own_an_answer_counts_from_now() -> None:
    from datetime import UTC, datetime, timedelta
    from email.utils import format_datetime

    until = datetime.now(UTC) + timedelta(hours=1)
    seconds = retry_after({"Retry-After": format_datetime(until, usegmt=True)})
    assert seconds is not None
    assert 3000 < seconds <= 3600


def test_the_message_of_a_status_is_told() -> None:
    from google.rpc.status_pb2 import Status

    body = Status(code=3, message="no such tenant: ä").SerializeToString()
    answer = (400, {"Content-Type": "application/x-protobuf"}, body)
    with http([answer, (400, answer[1], b"\xff")]) as collector:
        for expected in ("HTTP 400 no such tenant: ä", "HTTP 400 Bad Request"):
            assert send_all(sender("otlp", collector), requests(training()), QUICK).why == expected


def test_a_pause_is_read_from_among_other_details_and_damage_asks_for_none() -> None:
    from google.rpc.error_details_pb2 import DebugInfo

    assert retry_info(delay(1.25, DebugInfo(detail="busy"))) == 1.25
    (trailer,) = delay(3)
    assert retry_info([("other", b"x"), trailer]) == 3.0
    assert retry_info([]) is None
    assert retry_info([("grpc-status-details-bin", b"\xff\xff")]) is None
    from google.rpc.status_pb2 import Status

    assert retry_info([("grpc-status-details-bin", Status(code=8).SerializeToString())]) is None


def test_whoever_waits_to_try_again_can_be_stopped() -> None:
    stop = threading.Event()
    stop.set()
    with http([BUSY] * 9) as collector, pytest.raises(Exception, match="HTTP 503"):
        deliver(sender("otlp", collector), requests(training())[0].body, Patience(), stop, lambda: None)
    assert collector.tries == 1


def test_an_interrupt_does_not_wait_for_those_who_wait_to_try_again() -> None:
    waiting = threading.Event()

    class Long(Patience):
        def pause(self, tried: int, asked: float | None) -> float:
            waiting.set()
            return 1e6

    def interrupted() -> Iterator[Request]:
        yield requests(training())[0]
        waiting.wait()
        raise KeyboardInterrupt

    with http([BUSY] * 9) as collector, pytest.raises(KeyboardInterrupt):
        send_all(sender("otlp", collector), interrupted(), Long())
    assert collector.tries == 1


@pytest.mark.parametrize(
    ("given", "by_grpc", "variables", "expected"),
    [
        ("http://h:4318", False, {}, "http://h:4318/v1/traces"),
        ("http://h:4318/", False, {}, "http://h:4318/v1/traces"),
        ("https://h/x/v1/traces", False, {}, "https://h/x/v1/traces"),
        ("h:4317", True, {}, "h:4317"),
        ("https://h:4317", True, {}, "https://h:4317"),
        (None, False, {"ENDPOINT": "http://e:1/base"}, "http://e:1/base/v1/traces"),
        (None, False, {"ENDPOINT": "http://e:1", "TRACES_ENDPOINT": "http://t:2/as-is"}, "http://t:2/as-is"),
        (None, True, {"ENDPOINT": "http://e:4317"}, "http://e:4317"),
    ],
)
def test_where_to_is_given_or_said_by_the_standard_variables(
    given: str | None, by_grpc: bool, variables: dict[str, str], expected: str
) -> None:
    named = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    assert endpoint(given, grpc=by_grpc, variables=named) == expected


@pytest.mark.parametrize("given", ["", "localhost", "ftp://x", "http://", "http://h:99999", "http://user:secret@"])
def test_an_address_that_cannot_be_is_one_line_without_its_password(given: str) -> None:
    with pytest.raises(ExportError) as error:
        endpoint(given or None, grpc=False, variables={})
    assert "secret" not in str(error.value)
    assert "--otlp" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "-1"),
        ("COMPRESSION", "zip"),
        ("HEADERS", "secret"),
        ("CERTIFICATE", "/no/file"),
    ],
)
def test_variables_that_cannot_be_are_one_line(name: str, value: str) -> None:
    with pytest.raises(ExportError, match="OTEL_EXPORTER_OTLP_") as error:
        Settings.of({f"OTEL_EXPORTER_OTLP_{name}": value})
    assert "secret" not in str(error.value)


def test_without_a_value_the_variables_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "run", training())
    with http() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        code, _, _ = told(capsys, "export", tmp_path / "run", "--otlp", "--select", "first")
        assert (code, len(collector.requests)) == (0, 1)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        code, _, err = told(capsys, "export", tmp_path / "run", "--otlp")
    assert code == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in err


def test_a_trace_too_large_to_look_at_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rayio.trace.recorder import Recorder

    recorder = Recorder()
    for rank in range(700):
        writer = recorder.register("rank", str(rank), 0)
        for name, start in (("data_wait", 0), ("compute", 5)):
            recorder.add(writer, name, start, start + 5, 0, rank, 0, 0, link=batch_id(rank, 0, 0))
    table = recorder.drain()
    assert table is not None
    stored(tmp_path / "run", table)
    with http() as collector:
        code, _, err = told(capsys, "export", tmp_path / "run", "--otlp", collector.url)
    assert code == 0
    assert "viewers are slow with large traces: 1 have more than 2000 spans (the largest 2101)" in err
    for form, warned in (("--otlp-json", True), ("--csv", False)):
        _, _, err = told(capsys, "export", tmp_path / "run", form, tmp_path / form)
        assert ("viewers are slow" in err) == warned


def test_empty_and_damaged_runs_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "empty", training().slice(0, 0))
    directory = stored(tmp_path / "cut", training())
    file = directory.write_spans(training(), "part-00001")
    file.write_bytes(file.read_bytes()[:100])
    with http() as collector:
        code, out, err = told(capsys, "export", tmp_path / "empty", "--otlp", collector.url)
        assert (code, err) == (0, "rayio: the run has no spans\n")
        code, out, err = told(capsys, "export", tmp_path / "cut", "--otlp", collector.url, "--select", "all")
    assert code == 0
    assert "part-00001.parquet is damaged; its spans are left out" in err
    assert f"{len(training())} spans exported" in out
    for whole in (directory.path / "spans").glob("*.parquet"):
        whole.write_bytes(whole.read_bytes()[:100])
    code, _, err = told(capsys, "export", tmp_path / "cut", "--csv", tmp_path / "none.csv")
    assert (code, (tmp_path / "none.csv").exists()) == (2, False)
    assert "cut/spans: nothing to export, because no span is readable (damaged: part-0000" in err


@pytest.fixture
def rotel(tmp_path: Path) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Start a collector that others wrote; give what starts one towards a URL: its addresses for HTTP and gRPC."""
    import os
    import subprocess

    package: Any = pytest.importorskip("rotel")
    agent = Path(package.__file__).parent / "rotel-agent"
    if not agent.exists():
        pytest.skip("rotel is installed without its agent")
    started: list[subprocess.Popen[bytes]] = []

    def start(towards: str) -> tuple[str, str]:
        by_http, by_grpc = ports.unused(), ports.unused()
        command = [
            str(agent), "start", "--otlp-http-endpoint", f"127.0.0.1:{by_http}", "--otlp-grpc-endpoint",
            f"127.0.0.1:{by_grpc}", "--exporter", "otlp", "--otlp-exporter-endpoint", towards,
            "--otlp-exporter-protocol", "http", "--pid-file", str(tmp_path / "pid"), "--log-file",
            str(tmp_path / "log"),
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment))
        return f"http://127.0.0.1:{by_http}", f"127.0.0.1:{by_grpc}"

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=10)


@both
def test_a_real_collector_takes_everything_and_passes_every_value_on(
    protocol: str, rotel: Callable[[str], tuple[str, str]], tmp_path: Path
) -> None:
    table = mixed()
    wanted = requests(table)
    expected = [span for one in wanted for span in plain(ExportTraceServiceRequest.FromString(one.body))]
    with http() as far_end:
        by_http, by_grpc = rotel(far_end.url)
        patient = Patience(tries=60, first_seconds=0.05, longest_seconds=0.5)
        sent = send_all(sender(protocol, Collector(by_http if protocol == "otlp" else by_grpc)), wanted, patient)
        assert sent.is_whole, sent
        waiting = threading.Event()
        for _ in range(600):
            if len(far_end.spans) >= len(expected):
                break
            waiting.wait(0.05)
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    assert sorted(far_end.spans, key=key) == sorted(expected, key=key)
