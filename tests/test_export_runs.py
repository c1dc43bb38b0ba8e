"""Every kind of run can be exported everywhere: imported, old, untraced, of one step, of the SDK's; what it says."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collectors import http, stored
from exports import told, training
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from test_import_dlio import results as results  # the fixture

from rayio import session
from rayio.imports.dlio_results import read
from rayio.imports.dlio_spans import record
from rayio.trace.otel import RunDirectoryExporter
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from rayio.trace.span import COLUMNS
from scenarios import scenario


def simulated(path: Path, **overrides: Any) -> RunDirectory:
    return session.simulate(scenario(**overrides), out=path, root=path.parent).directory


def of_version_1(path: Path) -> RunDirectory:
    directory = stored(path, training().slice(0, 0))
    old = training().select(list(COLUMNS)[:17]).replace_schema_metadata({"rayio.span_schema": "1"})
    pq.write_table(old, path / "spans" / "part-0.parquet")
    return directory


def of_the_sdk(path: Path) -> RunDirectory:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(RunDirectoryExporter(path)))
    with provider.get_tracer("mine").start_as_current_span("outer"), provider.get_tracer("mine").start_span("inner"):
        pass
    provider.shutdown()
    return RunDirectory.open(path)


RUNS: dict[str, Callable[[Path], RunDirectory]] = {
    "one step": lambda path: simulated(path, train__epochs=1, train__steps=1),
    "untraced": lambda path: simulated(path, trace__level="none"),
    "of ranks": lambda path: simulated(path, trace__level="step"),
    "evaluated": lambda path: simulated(
        path,
        dataset__eval={"num_files": 8},
        train__evaluate={"every": {"epochs": 1}, "compute": "1 ms"},
        loader__drop_last=False,
    ),
    "of version 1": of_version_1,
    "of the SDK": of_the_sdk,
}


def everywhere(directory: RunDirectory, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Export a run to everything; check the counts, and give what was said."""
    number = len(directory.spans())
    names = {"--perfetto": "a.pftrace", "--otlp-json": "a.jsonl.gz", "--csv": "a.csv"}
    files = [part for option, name in names.items() for part in (option, folder / name)]
    with http() as collector:
        code, out, err = told(
            capsys, "export", directory.path, *files, "--otlp", collector.url, "--select", "all"
        )  # fmt: skip
    assert (code, err) == (0, "")
    slices = [
        packet
        for packet in Trace.FromString((folder / "a.pftrace").read_bytes()).packet
        if packet.track_event.type == packet.track_event.TYPE_SLICE_BEGIN
    ]
    lines = gzip.decompress((folder / "a.jsonl.gz").read_bytes()).splitlines()
    in_json = [
        span["spanId"]
        for line in lines
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    ]
    told_of = re.search(r"a\.pftrace: (\d+) slices written(?:, (\d+) spans not drawn)?", out)
    assert told_of is not None
    assert [int(part or 0) for part in told_of.groups()] == [len(slices), number - len(slices)]
    assert number > 0
    assert sorted(in_json) == sorted(span["span"] for span in collector.spans)
    assert len(in_json) >= number
    assert (folder / "a.csv").read_text().count("\n") == number + 1
    return out


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_goes_everywhere(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RUNS[kind](tmp_path / "run")
    out = everywhere(directory, tmp_path, capsys)
    with http() as collector:
        assert told(capsys, "export", directory.path, "--otlp", collector.url)[0] == 0
    recorded = directory.result.trace.recorded if directory.result and directory.result.trace else None
    known = f"spans: {recorded if recorded else 'unknown'} recorded, "
    assert known in out


def test_results_of_dlio_go_everywhere(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    record(read(results), recorder)
    table = recorder.drain()
    assert isinstance(table, pa.Table)
    directory = stored(tmp_path / "run", table, engine="dlio", run_id=None)
    everywhere(directory, tmp_path, capsys)


def test_where_a_run_sends_its_spans_is_checked_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    command = ("run", "unet3d-small", "--engine", "local", "--root", tmp_path)
    for options, why in [
        (("--otlp", "nonsense"), "not the address of a collector"),
        (("--grpc", "localhost:99999"), "--grpc localhost:99999: not the address of a collector"),
        (("--otlp",), "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (("--otlp", "http://h:1", "--grpc", "h:2"), "exclude each other"),
    ]:
        code, _, err = told(capsys, *command, *options)
        assert code == 2
        assert why in err
    assert not list(tmp_path.iterdir())
