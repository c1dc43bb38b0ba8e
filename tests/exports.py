"""What exports are made of in tests: a simulated run, one with spans of other libraries, and commands."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rayio.cli import main
from rayio.trace.otel.foreign import HERE, Here
from rayio.trace.otel.provider import Target, TracerProvider
from rayio.trace.recorder import Recorder
from scenarios import simulated

SAVING = {"every": {"steps": 3}, "path": "ck", "model": {"bytes": 1000}}


def training(**overrides: Any) -> pa.Table:
    """Give the spans of a simulated training of 2 epochs × 12 steps on 2 ranks, with checkpoints."""
    return simulated(**{"checkpoint": SAVING, **overrides}).spans


def foreign() -> pa.Table:
    """Give spans that other libraries recorded: in a batch and outside, with all that OpenTelemetry lets them say."""
    recorder = Recorder()
    writer = recorder.register("reader", "1-0", 3)
    clock = iter(range(1_000_000_000_000, 2_000_000_000_000, 1000))
    target = Target(recorder, writer, lambda: next(clock), "rayio-test", "reader-1-0/42")
    tracer = TracerProvider(target).get_tracer("requests", "2.1")
    other = SpanContext(7 << 100, 9 << 60, True, TraceFlags(1))
    with tracer.start_as_current_span(
        "GET /", kind=SpanKind.CLIENT, attributes={"url": "/ä", "n": 3, "big": 1 << 70}, links=[Link(other, {"w": "c"})]
    ) as span:
        span.set_attributes({"ratio": 0.5, "ok": True, "names": ("a", "b"), "whole": -5})
        span.add_event("sent", {"bytes": 5})
        span.add_event("bare")
        with tracer.start_as_current_span("inner", kind=SpanKind.SERVER) as inner:
            inner.set_status(Status(StatusCode.ERROR, "broke"))
    token = HERE.set(Here(writer, (1, 0, 4, 0)))
    tracer.start_span("in a batch").end()
    HERE.reset(token)
    table = recorder.drain()
    assert table is not None
    return table


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command; give its exit code, and what it printed."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    code = left.value.code
    assert isinstance(code, int)
    out, err = capsys.readouterr()
    return code, out, err
