"""Spans through exporters of OpenTelemetry's SDK: the same as by OTLP, in bounded batches, failures in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from collectors import stored
from exports import foreign, told, training
from opentelemetry.sdk.trace import ReadableSpan
from sdk_exporters import POINTS, Memory, installed

from rayio.cli import application, completion
from rayio.export.collectors.installed import installed_exporters


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    with installed(tmp_path) as patch:
        yield patch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with rayio's spans at every level, failed ones, and those of other libraries."""
    spans = training(trace__level="io")
    failed = pa.array(["error" if n % 7 == 0 else "ok" for n in range(len(spans))]).dictionary_encode()
    at = spans.column_names.index("status")
    spans = spans.set_column(at, "status", failed.cast(spans.schema.field("status").type))
    stored(tmp_path / "run", pa.concat_tables([spans, foreign()]))
    return tmp_path / "run"


def value(of: dict[str, Any]) -> Any:
    """Give a value of OTLP's JSON as Python's."""
    for kind, what in of.items():
        if kind == "intValue":
            return int(what)
        if kind == "arrayValue":
            return tuple(value(one) for one in what.get("values", ()))
        return what
    return None


def values(of: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: value(one["value"]) for one in of}


def by_json(path: Path) -> Iterator[dict[str, Any]]:
    """Give the spans of an OTLP JSON file, which other tests hold against OTLP's own classes."""
    for line in path.read_text(encoding="utf-8").splitlines():
        for part in json.loads(line)["resourceSpans"]:
            for within in part["scopeSpans"]:
                for span in within["spans"]:
                    yield {
                        "trace": span["traceId"], "span": span["spanId"], "parent": span.get("parentSpanId"),
                        "name": span["name"], "kind": span["kind"], "start": int(span["startTimeUnixNano"]),
                        "end": int(span["endTimeUnixNano"]), "attributes": values(span.get("attributes", [])),
                        "events": [
                            (e["name"], int(e["timeUnixNano"]), values(e.get("attributes", [])))
                            for e in span.get("events", ())
                        ],
                        "links": [
                            (to["traceId"], to["spanId"], values(to.get("attributes", [])))
                            for to in span.get("links", ())
                        ],
                        "status": (span.get("status", {}).get("code", 0), span.get("status", {}).get("message")),
                        "resource": values(part["resource"]["attributes"]), "schema": part.get("schemaUrl"),
                        "scope": (within["scope"]["name"], within["scope"].get("version"), within.get("schemaUrl")),
                    }  # fmt: skip


def by_sdk(span: ReadableSpan) -> dict[str, Any]:
    """Give a span of the SDK in the same form."""
    context, scope = span.context, span.instrumentation_scope
    assert context is not None
    assert scope is not None
    assert context.trace_flags.sampled
    assert span.parent is None or span.parent.trace_id == context.trace_id
    return {
        "trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None, "name": span.name,
        "kind": span.kind.value + 1, "start": span.start_time, "end": span.end_time,
        "attributes": dict(span.attributes or {}),
        "events": [(e.name, e.timestamp, dict(e.attributes or {})) for e in span.events],
        "links": [
            (f"{to.context.trace_id:032x}", f"{to.context.span_id:016x}", dict(to.attributes or {}))
            for to in span.links
        ],
        "status": (span.status.status_code.value, span.status.description),
        "resource": dict(span.resource.attributes), "schema": span.resource.schema_url,
        "scope": (scope.name, scope.version, scope.schema_url or None),
    }  # fmt: skip


def key(span: dict[str, Any]) -> tuple[str, str]:
    return span["trace"], span["span"]


def test_the_sdk_gets_the_spans_that_otlp_gets(
    run: Path, tmp_path: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "export", run, "--otlp-json", tmp_path / "a.jsonl")[0] == 0
    code, out, err = told(capsys, "export", "sdk", "--exporter", "memory", run, "--select", "all")
    assert (code, out) == (0, "")
    expected = sorted(by_json(tmp_path / "a.jsonl"), key=key)
    spans = Memory.last.get_finished_spans()
    assert sorted(map(by_sdk, spans), key=key) == expected
    assert {span["status"][0] for span in expected} == {0, 2}
    assert any(span["links"] for span in expected)
    assert any(span["events"] for span in expected)
    assert Memory.last.is_shut
    ends = [span.end_time or 0 for span in spans]
    assert ends == sorted(ends), "in the order in which a program would end them"
    assert f"{len(ends) - err_number(err, 'and ')} spans exported to memory of package vendor-exporter 2.0" in err


def err_number(text: str, before: str) -> int:
    """Give the number that follows some text."""
    return int(text.partition(f", {before}")[2].split()[0])


def test_batches_are_of_the_size_that_the_standard_variable_says(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("export", "sdk", "--exporter", "memory", run, "--select", "all")
    assert told(capsys, *command)[0] == 0
    whole = sum(Memory.last.sizes)
    assert max(Memory.last.sizes) == 512
    vendor.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    assert told(capsys, *command)[0] == 0
    assert {*Memory.last.sizes[:-1]} == {100}
    assert sum(Memory.last.sizes) == whole
    vendor.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many")
    code, out, err = told(capsys, *command)
    assert (code, out) == (2, "")
    assert err.endswith("rayio: OTEL_BSP_MAX_EXPORT_BATCH_SIZE=many: not a whole number from 1 on\n")


def test_objects_are_made_a_batch_at_a_time(run: Path, vendor: pytest.MonkeyPatch) -> None:
    from rayio.export import sdk_spans
    from rayio.export.exporting import Chosen
    from rayio.trace.run_directory import RunDirectory

    chosen = Chosen.of(RunDirectory.open(str(run)), "all")
    made = 0
    objects = sdk_spans._objects

    def counted(*arguments: Any) -> Iterator[ReadableSpan]:
        nonlocal made
        for span in objects(*arguments):
            made += 1
            yield span

    vendor.setattr(sdk_spans, "_objects", counted)
    batches = sdk_spans.batches(chosen.spans, chosen.origin, 10)
    first, added = next(batches)
    assert len(first) == made == 10
    assert 0 <= added <= 10
    assert len(chosen.spans) > 500


def test_a_collectors_selection_is_the_default(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, err = told(capsys, "export", "sdk", "--exporter", "memory", run)
    assert "(first,last,slowest:20,every:50)" in err
    few = len(Memory.last.get_finished_spans())
    told(capsys, "export", "sdk", "--exporter", "memory", run, "--select", "first")
    assert 0 < len(Memory.last.get_finished_spans()) < few


def test_the_standard_variable_names_the_exporters(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vendor.setenv("OTEL_TRACES_EXPORTER", "warning, memory")
    code, _, err = told(capsys, "export", "sdk", run)
    assert code == 0
    assert err.count("spans exported to ") == 2
    assert Memory.last.get_finished_spans()
    for nothing in ("none", " ", ","):
        vendor.setenv("OTEL_TRACES_EXPORTER", nothing)
        code, _, err = told(capsys, "export", "sdk", run)
        assert (code, err.count("\n")) == (2, 1)
        assert "give --exporter NAME, or set OTEL_TRACES_EXPORTER; installed: console, " in err


def test_a_name_that_is_not_installed_is_one_line_with_those_that_are(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, "export", "sdk", "--exporter", "zipki", run)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rayio: no exporter named 'zipki'; installed: console, ")
    assert all(name in err for name in POINTS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raising", "ValueError: no such tenant"),
        ("refusing", "FAILURE: Failed to export batch code: 503"),
        ("unflushed", "its buffer could not be flushed"),
        ("unclosed", "OSError: lost at the end"),
    ],
)
def test_an_exporter_that_fails_is_one_line(
    name: str, reason: str, run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, "export", "sdk", "--exporter", name, run, "--select", "all")
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert err.count("\n") == 1, "nothing of the exporter's log besides"
    assert f"spans were not exported to {name} of package vendor-exporter 2.0" in line
    assert f"({reason})" in line
    assert line.endswith(f"the run still has all spans: rayio export sdk --exporter {name} {run} --select all")
    number, of = (int(word) for word in line.removeprefix("rayio: ").partition(" spans ")[0].split(" of "))
    assert number == of if name != "refusing" else 0 < number < of


@pytest.mark.parametrize(
    ("name", "reason"), [("unmade", "RuntimeError: VENDOR_TOKEN is not set"), ("gone", "AttributeError: ")]
)
def test_an_exporter_that_cannot_be_made_is_one_line(
    name: str, reason: str, run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, "export", "sdk", "--exporter", name, run)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rayio: exporter {name} of package vendor-exporter 2.0 cannot be used: {reason}")


def test_a_warning_of_an_exporter_is_shown_once(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, "export", "sdk", "--exporter", "warning", run)
    assert code == 0
    assert err.count("rayio: exporter warning of package vendor-exporter 2.0: the quota is nearly used\n") == 1


def test_the_console_gets_standard_output_alone(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rayio", "export", "sdk", "--exporter", "console", str(run), "--select", "all"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    decoder, spans, text = json.JSONDecoder(), {}, done.stdout.strip()
    while text:
        span, end = decoder.raw_decode(text)
        spans[span["context"]["trace_id"][2:], span["context"]["span_id"][2:]] = span
        text = text[end:].lstrip()
    words = [sys.executable, "-m", "rayio", "export", str(run), "--otlp-json", str(tmp_path / "a.jsonl")]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    expected = {key(span): span for span in by_json(tmp_path / "a.jsonl")}
    assert spans.keys() == expected.keys()
    for one, span in spans.items():
        assert span["name"] == expected[one]["name"]
        assert (span["parent_id"] or "0x")[2:] == (expected[one]["parent"] or "")
    assert "spans exported to console" in done.stderr


def test_json_is_that_of_the_other_exports(
    run: Path, vendor: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, "export", "sdk", "--exporter", "memory", run, "--json")
    (sent,) = json.loads(out)["collectors"]
    assert code == 0
    assert sent["target"] == "memory of package vendor-exporter 2.0"
    assert sent["spans"] + sent["roots"] == len(Memory.last.get_finished_spans())
    assert sent["requests"] == len(Memory.last.sizes)


def test_names_are_completed(vendor: pytest.MonkeyPatch) -> None:
    answers = completion.answer(application(), "rayio export sdk --exporter m")
    assert answers.startswith("memory")
    assert "console" in completion.answer(application(), "rayio export sdk --exporter ")
    assert [line.partition("\t")[0] for line in completion.answer(application(), "rayio exp").splitlines()] == [
        "explain",
        "export",
    ], "a shell would quote two words"
    assert completion.answer(application(), "rayio export s").partition("\t")[0] == "sdk"
    assert {"console", "memory"} <= {*installed_exporters()}


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "export", "sdk", "--help")
    assert code == 0
    assert "Usage: rayio export sdk " in out
    assert "Example:  rayio export sdk --exporter console runs/four" in out


def test_the_sdk_is_loaded_by_nothing_else() -> None:
    """OpenTelemetry's SDK takes as long to load as the rest of the start."""
    program = """
import sys
from rayio import cli
from rayio.cli import application, completion
import rayio.trace.otel, rayio.trace.otel.provider, rayio.export.exporting, rayio.export.otlp
for arguments in (["--help"], ["validate", "unet3d-small"], ["export", "--help"], ["export", "sdk", "--help"]):
    try:
        cli.main(arguments)
    except SystemExit as left:
        assert left.code == 0, arguments
completion.answer(application(), "rayio export sdk --exporter ")
found = [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
