"""Spans of other libraries: recorded through OpenTelemetry's API, or exported by its SDK into a run directory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider as SdkProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.data.formats import FORMATS
from rayio.trace.ids import span_id, trace_id
from rayio.trace.otel import RunDirectoryExporter
from rayio.trace.otel.provider import Target, TracerProvider
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from rayio.trace.span import FOREIGN_LANE
from scenarios import run_locally, scenario, simulated

OTHER = SpanContext(7, 9, True, TraceFlags(1))


class Ours:
    """A provider over a recorder whose clock counts."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.time = 0
        writer = self.recorder.register("reader", "3-1", 2)
        self.provider = TracerProvider(Target(self.recorder, writer, self.now, "r1", "reader-3-1/42"))

    def now(self) -> int:
        self.time += 10
        return self.time

    def rows(self) -> list[dict[str, Any]]:
        table = self.recorder.drain()
        return [] if table is None else table.to_pylist()


class Sdk:
    """The SDK's provider with our exporter."""

    def __init__(self, path: Path) -> None:
        resource = Resource({"service.name": "loader", "service.instance.id": "5"})
        self.path = path
        self.provider = SdkProvider(resource=resource)
        self.provider.add_span_processor(SimpleSpanProcessor(RunDirectoryExporter(path)))

    def rows(self) -> list[dict[str, Any]]:
        self.provider.shutdown()
        rows: list[dict[str, Any]] = RunDirectory.open(self.path).spans().to_pylist()
        return rows


@pytest.fixture(params=["ours", "sdk"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return Ours() if request.param == "ours" else Sdk(tmp_path / "run")


def said(row: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(row["attributes"])
    return whole


def test_all_that_a_library_says_of_a_span_is_kept(world: Any) -> None:
    tracer = world.provider.get_tracer("requests", "2.1")
    with tracer.start_as_current_span(
        "GET /", kind=SpanKind.CLIENT, attributes={"url": "/", "n": 3}, links=[Link(OTHER, {"why": "cause"})]
    ) as span:
        span.set_attribute("ratio", 0.5)
        span.set_attributes({"ok": True, "names": ("a", "b")})
        span.add_event("retried", {"try": 2}, timestamp=123)
        span.set_status(Status(StatusCode.ERROR, "gave up"))
        span.update_name("GET")
    (row,) = world.rows()
    assert (row["name"], row["status"], row["parent"]) == ("GET", "error", 0)
    assert row["lane"] >= FOREIGN_LANE
    assert row["duration_ns"] >= 0
    whole = said(row)
    context = span.get_span_context()
    assert whole == {
        "trace": f"{context.trace_id:032x}",
        "span": f"{context.span_id:016x}",
        "kind": "client",
        "scope": {"name": "requests", "version": "2.1"},
        "attributes": {"url": "/", "n": 3, "ratio": 0.5, "ok": True, "names": ["a", "b"]},
        "events": [{"name": "retried", "time_ns": 123, "attributes": {"try": 2}}],
        "links": [{"trace": f"{7:032x}", "span": f"{9:016x}", "attributes": {"why": "cause"}}],
        "status": {"code": "error", "description": "gave up"},
    }


def test_children_know_their_parents_and_share_their_trace(world: Any) -> None:
    tracer = world.provider.get_tracer("lib")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        with tracer.start_span("leaf"):
            pass
        with tracer.start_span("alone", context=trace.set_span_in_context(trace.INVALID_SPAN)):
            pass
    by_name = {row["name"]: row for row in world.rows()}
    ids = {name: said(row) for name, row in by_name.items()}
    assert ids["inner"]["parent"] == ids["outer"]["span"]
    assert ids["leaf"]["parent"] == ids["inner"]["span"]
    assert by_name["leaf"]["parent"] & (1 << 64) - 1 == int(ids["inner"]["span"], 16)
    assert "parent" not in ids["outer"]
    assert "parent" not in ids["alone"]
    assert ids["leaf"]["trace"] == ids["outer"]["trace"] != ids["alone"]["trace"]
    assert len({one["span"] for one in ids.values()}) == 4


def test_an_exception_becomes_an_event_and_the_status(world: Any) -> None:
    tracer = world.provider.get_tracer("lib")
    with pytest.raises(KeyError), tracer.start_as_current_span("current"):
        raise KeyError("x")
    with pytest.raises(ValueError), tracer.start_span("plain"):
        raise ValueError("y")
    with (
        pytest.raises(ValueError),
        tracer.start_as_current_span("quiet", record_exception=False, set_status_on_exception=False),
    ):
        raise ValueError("z")
    rows = {row["name"]: row for row in world.rows()}
    assert {name: row["status"] for name, row in rows.items()} == {"current": "error", "plain": "error", "quiet": "ok"}
    for name, kind in (("current", "KeyError"), ("plain", "ValueError")):
        (event,) = said(rows[name])["events"]
        assert (event["name"], event["attributes"]["exception.type"]) == ("exception", kind)
        assert "Traceback" in event["attributes"]["exception.stacktrace"]
        assert kind in said(rows[name])["status"]["description"]
    assert "events" not in said(rows["quiet"])


def test_what_comes_after_the_end_changes_nothing(world: Any) -> None:
    span = world.provider.get_tracer("lib").start_span("once", start_time=100)
    span.set_status(StatusCode.OK)
    span.set_status(StatusCode.ERROR, "too late: ok is final")
    span.end(end_time=350)
    assert not span.is_recording()
    if isinstance(world, Ours):  # the SDK warns of each
        span.set_attribute("late", 1)
        span.add_event("late")
        span.update_name("late")
        span.end()
    (row,) = world.rows()
    assert (row["name"], row["start_ns"], row["duration_ns"]) == ("once", 100, 250)
    assert said(row)["status"] == {"code": "ok"}
    assert not {"attributes", "events"} & said(row).keys()


def test_values_that_json_has_no_word_for_are_kept_as_text() -> None:
    world = Ours()
    span = world.provider.get_tracer("lib").start_span("odd", attributes={"x": float("inf"), "deep": [float("nan")]})
    path: Any = Path("a/b")
    span.set_attribute("path", path)
    span.end()
    assert said(world.rows()[0])["attributes"] == {"x": "inf", "deep": ["nan"], "path": "a/b"}


def test_spans_of_ever_new_threads_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ours()
    tracer, threads = world.provider.get_tracer("lib"), iter(range(40_000))
    monkeypatch.setattr(threading, "get_native_id", lambda: next(threads))
    for _ in range(40_000):
        tracer.start_span("short").end()
    lanes = [row["lane"] for row in world.rows()]
    assert lanes[:2] == [FOREIGN_LANE, FOREIGN_LANE + 1]
    assert len(lanes) == 40_000


class Wordless:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_span_that_says_what_cannot_be_stored_takes_no_other_with_it(world: Any) -> None:
    tracer = world.provider.get_tracer("lib")
    name: Any
    for name in ("file \udcff", 7, "🙂"):
        tracer.start_span(name, attributes={"file \udcff": "of \udcff 🙂"}).end()
    rows = world.rows()
    assert [row["name"] for row in rows] == ["file ?", "7", "🙂"]
    assert [said(row)["attributes"] for row in rows] == [{"file ?": "of ? 🙂"}] * 3


def test_attributes_that_are_no_text_are_told_as_far_as_they_can_be() -> None:
    world = Ours()
    attributes: Any = {"wordless": Wordless(), (1, 2): 3}
    world.provider.get_tracer("lib").start_span("odd", attributes=attributes).end()
    assert said(world.rows()[0])["attributes"] == {"wordless": "<Wordless>", "(1, 2)": 3}


def test_ids_are_derived_from_run_actor_and_sequence() -> None:
    world = Ours()
    tracer = world.provider.get_tracer("lib")
    contexts = []
    for _ in range(2):
        with tracer.start_span("one") as span:
            contexts.append(span.get_span_context())
    assert [c.span_id for c in contexts] == [span_id("r1", "reader-3-1/42", n) for n in (0, 1)]
    process = trace_id("r1", "process", "reader-3-1/42") >> 64
    assert [c.trace_id for c in contexts] == [process << 64 | c.span_id for c in contexts]


def test_between_two_runs_nothing_is_recorded_and_contexts_pass_through() -> None:
    world = Ours()
    world.provider.target = None
    tracer = world.provider.get_tracer("lib")
    around = trace.set_span_in_context(trace.NonRecordingSpan(OTHER))
    with tracer.start_span("nothing", context=around) as span:
        assert span.get_span_context() == OTHER
        assert not span.is_recording()
    assert world.rows() == []


@pytest.fixture
def instrumented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the npz format's reader behave as an instrumented library does."""
    npz = type(FORMATS["npz"])
    read: Callable[..., Any] = npz.read

    def traced(*arguments: Any) -> Any:
        tracer = trace.get_tracer("npz-library")
        with tracer.start_as_current_span("read"), tracer.start_as_current_span("unzip", attributes={"members": 2}):
            return read(*arguments)

    monkeypatch.setattr(npz, "read", traced)


@pytest.mark.usefixtures("instrumented")
def test_spans_of_a_library_inside_a_read_belong_to_its_batch(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", train__compute="1 ms")
    run = run_locally(on_disk(wanted, tmp_path), tmp_path)
    rows = run.spans.to_pylist()
    reads = {row["batch"]: row for row in rows if row["name"] == "read" and row["lane"] < FOREIGN_LANE}
    foreign = [row for row in rows if row["lane"] >= FOREIGN_LANE]
    assert len(foreign) == 2 * len(reads) > 0
    for row in foreign:
        mine = reads[row["batch"]]
        assert (row["role"], row["index"], row["step"]) == (mine["role"], mine["index"], mine["step"])
        assert mine["start_ns"] <= row["start_ns"]
        assert row["start_ns"] + row["duration_ns"] <= mine["start_ns"] + mine["duration_ns"]
        place = (mine["rank"], mine["epoch"], mine["step"])
        assert said(row)["trace"] == f"{trace_id('local', 'batch', *place):032x}"
    without = measure(
        RunArrays.of_spans(run.spans.filter([row["lane"] < FOREIGN_LANE for row in rows])), RunShape.of(wanted)
    )
    assert measure(RunArrays.of_spans(run.spans), RunShape.of(wanted)) == without  # their names are their own


@pytest.mark.usefixtures("instrumented")
def test_after_a_run_and_in_coarse_ones_libraries_are_not_recorded(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", train__compute="1 ms", trace__level="step"), tmp_path)
    assert (run_locally(wanted, tmp_path).spans["lane"].to_numpy() < FOREIGN_LANE).all()
    assert simulated().spans["attributes"].unique().to_pylist() == [""]
    with trace.get_tracer("lib").start_span("later") as span:
        assert not span.is_recording()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_records_nothing_and_its_parent_goes_on(tmp_path: Path) -> None:
    recorder = Recorder()
    provider = TracerProvider(Target(recorder, recorder.register("reader", "0-0", 0), lambda: 7, "r1", "a"))
    tracer = provider.get_tracer("library")
    if (child := os.fork()) == 0:
        tracer.start_span("child").end()
        os._exit(recorder.recorded)
    assert os.waitpid(child, 0)[1] == 0
    tracer.start_span("parent").end()
    assert recorder.recorded == 1


def test_the_exporter_adds_to_a_run_that_is_there(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {"engine": "ray"})
    provider = SdkProvider()
    provider.add_span_processor(BatchSpanProcessor(RunDirectoryExporter(tmp_path / "run")))
    for number in range(1000):
        provider.get_tracer("lib").start_span(f"span {number}").end()
    provider.shutdown()
    assert run.info["engine"] == "ray"
    assert sorted(RunDirectory.open(run.path).columns("name")["name"].to_pylist()) == sorted(
        f"span {number}" for number in range(1000)
    )


def test_the_exporter_is_still_found_where_version_0_1_had_it() -> None:
    import rayio.trace

    assert rayio.trace.RunDirectoryExporter is RunDirectoryExporter
    with pytest.raises(AttributeError, match="no attribute 'Exporter'"):
        _ = rayio.trace.Exporter
