"""Live export: a run's spans reach a collector as it goes, and a run does not care when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from collectors import Collector, http, plain, stored
from datasets import on_disk
from exports import training
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rayio import session
from rayio.export import live, otlp
from rayio.export.live import LiveExport
from rayio.export.traces import epoch_ns, run_key, spans_of
from rayio.export.transport import Patience, connect
from rayio.trace.store import RunDirectory
from scenarios import scenario

QUICK = Patience(tries=2, first_seconds=0.001, longest_seconds=0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)


def export(directory: RunDirectory, collector: Collector) -> LiveExport:
    return LiveExport(directory, "rayio-test", connect(collector.url, grpc=False), QUICK)


def by(spans: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((span["trace"], span["span"]) for span in spans)


def whole(table: pa.Table) -> list[dict[str, Any]]:
    return [
        span
        for request in otlp.requests(spans_of(table, "rayio-test"), "run")
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    ]


def test_what_comes_in_files_arrives_as_a_later_export_would_send_it(tmp_path: Path) -> None:
    table = training()
    directory = stored(tmp_path / "run", table.slice(0, 0))
    with http() as collector:
        exporting = export(directory, collector)
        for number, first in enumerate(range(0, len(table), 60)):
            directory.write_spans(table.slice(first, 60), f"part-{number:05d}")
            exporting._look()
        assert exporting.sent.requests >= 3
        assert 0 < exporting.sent.spans < len(table)
        exporting.start()
        assert f"{len(table)} spans were exported" in exporting.finish(len(table))
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    # A wait's batch was perhaps produced in a file that was still to come: but the first file knows of production.
    assert sorted(collector.spans, key=key) == sorted(whole(table), key=key)


def test_what_comes_late_of_a_trace_comes_without_a_second_root(tmp_path: Path) -> None:
    table = training()
    directory = stored(tmp_path / "run", table.slice(0, 0))
    places = [row for row, one in enumerate(table.to_pylist()) if one["name"] == "sync"]
    late = table.take(places)
    rest = table.take([row for row in range(len(table)) if row not in {*places}])
    empty = table.slice(0, 0)
    with http() as collector:
        exporting = export(directory, collector)
        for number, part in enumerate((rest, empty, late)):
            directory.write_spans(part, f"part-{number:05d}")
            exporting._look()
        exporting.start()
        exporting.finish(len(table))
    assert by(collector.spans) == by(whole(table))


def test_a_collector_that_is_down_is_told_and_left_alone(tmp_path: Path) -> None:
    table = training()
    directory = stored(tmp_path / "run", table.slice(0, 0))
    with http([(503, {}, b"")] * 100) as collector:
        exporting = export(directory, collector)
        for number, part in enumerate((table, table.slice(0, 0), table, table.slice(0, 0))):
            directory.write_spans(part, f"part-{number:05d}")
            exporting._look()
            assert collector.tries == (0 if number == 0 else QUICK.tries)
        exporting.start()
        told = exporting.finish(2 * len(table))
        assert collector.tries == QUICK.tries
    assert f"{2 * len(table)} of {2 * len(table)} spans were not exported to" in told
    assert "HTTP 503" in told
    assert f"rayio export {directory.path} --otlp {collector.url}/v1/traces" in told


def test_more_than_can_be_held_is_left_to_a_later_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HELD_SPANS", 10)
    table = training()
    with http() as collector:
        exporting = export(stored(tmp_path / "run", table), collector)
        exporting.start()
        told = exporting.finish(len(table))
    assert f"{len(table)} of {len(table)} spans were not exported" in told
    assert "more than 10 spans" in told


def run(root: Path, url: str) -> session.Run:
    wanted = scenario(dataset__path="data", dataset__num_files=16, train__epochs=1, train__compute="1 ms")
    return session.run(
        on_disk(wanted, root), engine="local", root=root, out="run", collector=connect(url, grpc=False)
    )  # fmt: skip


def test_a_run_sends_its_spans_under_the_ids_of_a_later_export(tmp_path: Path) -> None:
    with http() as collector:
        done = run(tmp_path, collector.url)
    spans = done.spans()
    assert done.result["trace"]["exported"] == done.result["trace"]["stored"] == len(spans)
    assert any("spans were exported to" in note for note in done.result["notes"])
    info = done.directory.info
    later = [
        span
        for request in otlp.requests(spans_of(done.directory.spans(), run_key(info), epoch_ns(info)), "run")
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    ]
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    assert sorted(collector.spans, key=key) == sorted(later, key=key)


def test_the_option_that_sends_again_keeps_what_matters_of_the_address() -> None:
    for given, again in [("c.example", "c.example:4317"), ("https://c.example:5", "https://c.example:5")]:
        sender = connect(given, grpc=True)
        sender.close()
        assert sender.option == f"--grpc {again}"


def test_a_run_goes_well_with_nobody_listening(tmp_path: Path) -> None:
    with http() as collector:
        url = collector.url
    done = run(tmp_path, url)
    assert done.exit_code == 0
    assert done.result["trace"]["exported"] == 0
    assert any("spans were not exported to" in note and "Connection refused" in note for note in done.result["notes"])


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_run_on_ray_sends_the_spans_of_all_its_actors(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", dataset__num_files=16, train__epochs=1)
    with http() as collector:
        done = session.run(
            on_disk(wanted, tmp_path), root=tmp_path, out="run", collector=connect(collector.url, grpc=False)
        )  # fmt: skip
    assert done.result["trace"]["exported"] == done.result["trace"]["stored"] == len(done.spans())
    services = {span["resource"]["service.name"] for span in collector.spans}
    assert services == {"reader", "prefetch-queue", "trainer"}
