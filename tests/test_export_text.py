"""OTLP JSON and CSV say what the protobuf and the rows say."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from collectors import plain, stored
from exports import foreign, told, training
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyarrow import csv

from rayio.errors import ExportError
from rayio.export import otlp
from rayio.export.exporting import Chosen, write_csv
from rayio.export.spans import Origin, Spans
from rayio.export.traces import spans_of


@pytest.fixture
def table() -> pa.Table:
    return pa.concat_tables([training(trace__level="io"), foreign()])


def by_protobuf(spans: Spans) -> list[dict[str, Any]]:
    return [
        span
        for request in otlp.requests(spans, Origin("run"))
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    ]


def with_ids(value: Any) -> Any:
    """Turn ids from hex, which is OTLP's JSON, into base64, which is protobuf's."""
    if isinstance(value, list):
        return [with_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    import base64

    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else with_ids(one)
        for key, one in value.items()
    }


def test_json_lines_say_what_the_protobuf_says(
    table: pa.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "run", table)
    file = tmp_path / "spans.jsonl"
    code, out, _ = told(capsys, "export", tmp_path / "run", "--otlp-json", file)
    assert code == 0
    assert f"{len(table)} spans written" in out
    spans = []
    for line in file.read_text(encoding="utf-8").splitlines():
        message = json_format.ParseDict(with_ids(json.loads(line)), ExportTraceServiceRequest())
        spans += plain(message)
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    assert sorted(spans, key=key) == sorted(by_protobuf(spans_of(table, "rayio-test")), key=key)
    assert len({span["schema"] for span in spans}) == 2, "rayio's own, and those of others"


def test_roots_that_nobody_recorded_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "run", recorded := training())
    code, out, _ = told(capsys, "export", tmp_path / "run", "--otlp-json", tmp_path / "a.jsonl")
    lines = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    written = sum(len(scope["spans"]) for line in lines for one in line["resourceSpans"] for scope in one["scopeSpans"])
    assert code == 0
    assert f": {len(recorded)} spans written, and {written - len(recorded)} roots added in " in out


def test_csv_has_the_rows_and_their_ids(table: pa.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = stored(tmp_path / "run", table)
    file = tmp_path / "spans.csv"
    assert told(capsys, "export", tmp_path / "run", "--csv", file)[0] == 0
    strings = {name: pa.string() for name in ("index", "file", "attributes", "trace_id", "span_id", "parent_id")}
    options = csv.ConvertOptions(column_types=strings)
    found = csv.read_csv(file, convert_options=options, parse_options=csv.ParseOptions(newlines_in_values=True))
    rows = directory.spans()
    for name in rows.column_names:
        column = rows[name].cast(pa.string()) if pa.types.is_dictionary(rows.schema.field(name).type) else rows[name]
        assert found[name].to_pylist() == column.to_pylist(), name
    ids = {
        (span["trace"], span["span"], span["parent"] or "0" * 16) for span in by_protobuf(spans_of(rows, "rayio-test"))
    }
    assert {*zip(*(found[name].to_pylist() for name in ("trace_id", "span_id", "parent_id")), strict=True)} <= ids
    assert pc.count_distinct(found["span_id"]).as_py() == len(table)


def test_a_run_without_spans_gives_files_without_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "run", training().slice(0, 0))
    code, _, err = told(
        capsys, "export", tmp_path / "run", "--csv", tmp_path / "a.csv", "--otlp-json", tmp_path / "a.jsonl"
    )  # fmt: skip
    assert (code, err) == (0, "rayio: the run has no spans\n")
    assert (tmp_path / "a.csv").read_text().count("\n") == 1
    assert (tmp_path / "a.jsonl").read_text() == ""


def test_files_that_cannot_be_written_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "run", training())
    (tmp_path / "file").write_text("")
    for path, why in [(tmp_path, "is a folder"), (tmp_path / "file" / "x.csv", "cannot write")]:
        code, _, err = told(capsys, "export", tmp_path / "run", "--csv", path)
        assert code == 2
        assert why in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("form", ["--csv", "--otlp-json", "--perfetto"])
def test_what_is_no_plain_file_is_not_replaced(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "run", training())
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("run/run.json")
    for name in ("pipe", "link"):
        code, _, err = told(capsys, "export", tmp_path / "run", form, tmp_path / name, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert "it is a device, a pipe or a link, and would be replaced; give the name of a file" in err
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "run"]


def test_from_python_too_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    chosen = Chosen.of(stored(tmp_path / "run", training()), "first")
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(ExportError, match="exists"):
        write_csv(chosen, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "mine"
    assert write_csv(chosen, tmp_path / "a.csv", force=True) > 0


def test_nothing_is_written_when_one_of_the_files_may_not_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "run", training())
    (tmp_path / "a.csv").write_text("mine")
    for name, why in [("a.csv", "exists; replace it with --force"), ("new", "is given twice")]:
        code, _, err = told(
            capsys, "export", tmp_path / "run", "--perfetto", tmp_path / "new", "--csv", tmp_path / name
        )  # fmt: skip
        assert code == 2
        assert why in err
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "a.csv").read_text() == "mine"


def test_nowhere_to_export_to_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path / "run", training())
    code, _, err = told(capsys, "export", tmp_path / "run")
    assert code == 2
    assert "--perfetto" in err


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ("all", "all selected"),
        ("first", "{kept} selected: 1 step (first) and spans without a step"),
        ("first,last", "{kept} selected: 2 steps (first,last) and spans without a step"),
    ],
)
def test_what_is_chosen_is_told_in_spans_and_in_steps(tmp_path: Path, selection: str, said: str) -> None:
    chosen = Chosen.of(stored(tmp_path / "run", training()), selection)
    assert chosen.counts().endswith(f", {chosen.stored} stored, " + said.format(kept=len(chosen.table)))
