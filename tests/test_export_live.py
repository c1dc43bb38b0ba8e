"""Live export: a run's spans reach a collector as it goes, and a run does not care when they do not."""

from __future__ import annotations

import json
import os
import platform
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ports
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from collectors import Collector, grpc_, http, partial, plain, stored
from datasets import on_disk
from exports import foreign, told, training
from handmade import Trace
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rayio import session
from rayio.export import live_export, otlp
from rayio.export.collectors.pauses import Patience
from rayio.export.collectors.transport import connect
from rayio.export.follow import Following
from rayio.export.live_export import LiveExport
from rayio.export.select import chosen, parse
from rayio.export.spans import Origin
from rayio.export.trace_kinds import of_steps
from rayio.export.traces import epoch_ns, run_key, spans_of
from rayio.scenario.write import to_yaml
from rayio.trace.run_directory import RunDirectory
from scenarios import scenario

grpc: Any = pytest.importorskip("grpc")

QUICK = Patience(tries=2, first_seconds=0.001, longest_seconds=0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(live_export, "LOOK_SECONDS", 0.01)
    for name in [*os.environ]:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def export(directory: RunDirectory, collector: Collector) -> LiveExport:
    return LiveExport(directory, "rayio-test", connect(collector.url, grpc=False), QUICK)


def by(spans: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((span["trace"], span["span"]) for span in spans)


def whole(table: pa.Table) -> list[dict[str, Any]]:
    return [
        span
        for request in otlp.requests(spans_of(table, "rayio-test"), Origin("run"))
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
    assert f"rayio export {directory.path} --otlp {collector.url}" in told


def test_a_collector_that_is_up_again_gets_what_comes_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_export, "QUIET_SECONDS", 0.0)
    table = foreign()
    directory = stored(tmp_path / "run", table.slice(0, 0))
    with http([(401, {}, b"")]) as collector:
        exporting = export(directory, collector)
        for number in range(3):
            directory.write_spans(table, f"part-{number:05d}")
            exporting._look()
            assert exporting.sent.spans == number * len(table)  # those of other libraries are held for nothing
        exporting.start()
        told = exporting.finish(3 * len(table))
    assert f"{len(table)} of {3 * len(table)} spans were not exported to" in told


def test_more_than_can_be_held_is_left_to_a_later_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_export, "HELD_SPANS", 10)
    table = training()
    with http() as collector:
        exporting = export(stored(tmp_path / "run", table), collector)
        exporting.start()
        told = exporting.finish(len(table))
    assert f"{len(table)} of {len(table)} spans were not exported" in told
    assert "more than 10 spans" in told


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batches out of order": {"loader__in_order": False, "loader__num_workers": 3},
    "ranks that read for themselves": {"loader__num_workers": 0, "trace__level": "io"},
    "a rank behind": {"train__stragglers": {"ranks": [1], "factor": 3}, "train__sync": "none"},
    "ranks with a step less": {"loader__drop_last": False, "dataset__num_files": 47, "trace__level": "io"},
    "evaluated": {
        "dataset__eval": {"num_files": 8}, "train__evaluate": {"every": {"steps": 5}, "compute": "1 ms"},
    },
    "of ranks only": {"trace__level": "step"},
}  # fmt: skip


def as_recorded(table: pa.Table) -> pa.Table:
    """Put spans in the order in which they come: of their ends."""
    ends = pc.add(table["start_ns"], table["duration_ns"])
    return table.take(pc.sort_indices(pa.table({"ends": ends, "row": range(len(table))}), [("ends", "ascending")]))


class Followed(NamedTuple):
    """A live export that is over, what it said, and what arrived."""

    exporting: LiveExport
    told: str
    arrived: list[dict[str, Any]]


def followed(folder: Path, table: pa.Table, selection: str, rows: int, world_size: int = 2) -> Followed:
    """Send a table that comes in files of so many rows."""
    directory = stored(folder, table.slice(0, 0))
    with http() as collector:
        way = connect(collector.url, grpc=False)
        exporting = LiveExport(directory, "rayio-test", way, QUICK, selection=selection, world_size=world_size)
        for number, first in enumerate(range(0, len(table), rows)):
            directory.write_spans(table.slice(first, rows), f"part-{number:05d}")
            exporting._look()
        exporting.start()
        said = exporting.finish(len(table))
    return Followed(exporting, said, collector.spans)


def offline(table: pa.Table, selection: str) -> list[dict[str, Any]]:
    """Give what an export of the whole run sends."""
    return whole(of_steps(table, chosen(table, parse(selection))))


@pytest.mark.parametrize("selection", ["all", "every:999", "first,every:4"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_selection_takes_while_the_run_goes_what_it_takes_of_the_whole(
    kind: str, selection: str, tmp_path: Path
) -> None:
    table = as_recorded(pa.concat_tables([training(**RUNS[kind]), foreign()]))
    exporting, said, arrived = followed(tmp_path / "run", table, selection, 37)
    assert by(arrived) == by(offline(table, selection))
    taken = of_steps(table, chosen(table, parse(selection)))
    assert (exporting.sent.spans, exporting.left_out) == (len(taken), len(table) - len(taken))
    assert f"{len(taken)} spans were exported to" in said
    others = f", {exporting.left_out} belong to steps outside --select {selection}"
    assert said.endswith("during the run" + (others if selection != "all" else ""))


@pytest.mark.parametrize("kind", ["plain", "evaluated"])
def test_a_step_is_sent_or_let_go_while_the_run_goes(kind: str, tmp_path: Path) -> None:
    table = as_recorded(training(train__epochs=8, **RUNS[kind]))
    directory = stored(tmp_path / "run", table.slice(0, 0))
    with http() as collector:
        way = connect(collector.url, grpc=False)
        exporting = LiveExport(directory, "rayio-test", way, QUICK, selection="every:2", world_size=2)
        held, arrived = [], []
        for number, first in enumerate(range(0, len(table), 60)):
            directory.write_spans(table.slice(first, 60), f"part-{number:05d}")
            exporting._look()
            held.append(len(exporting._waiting))
            arrived.append(len(collector.spans))
        assert len(held) > 12
        assert max(held) < 200
        assert arrived[-1] > 0.8 * len(offline(table, "every:2"))
        assert exporting.left_out > 0.3 * len(table)
        exporting.start()
        exporting.finish(len(table))
    assert by(collector.spans) == by(offline(table, "every:2"))


class Lived(NamedTuple):
    """What a rank does: waits and computations (ns), steps an epoch, and how late the news of it comes (ns)."""

    steps: list[tuple[int, int]]
    per_epoch: int
    late: int


lengths = st.integers(1, 60)
lived = st.builds(
    Lived, st.lists(st.tuples(lengths, lengths), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 300)
)


@given(st.lists(lived, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_steps_are_counted_as_they_began_however_far_ranks_drift_apart(
    ranks: list[Lived], every: int, rows: int
) -> None:
    """Ranks that run out of steps go on to their next epoch alone, so steps need not begin in the order of numbers."""
    trace = Trace()
    for rank, one in enumerate(ranks):
        story = [part for wait, work in one.steps for part in (("data_wait", wait), ("compute", work))]
        trace.rank(rank, story, per_epoch=one.per_epoch)
    table = trace.spans
    late = np.array([one.late for one in ranks])[table["rank"].to_numpy()]
    table = table.take(np.argsort(table["start_ns"].to_numpy() + table["duration_ns"].to_numpy() + late, kind="stable"))
    following = Following({"every": every}, len(ranks))
    held, kept = table.slice(0, 0), []
    for first in range(0, len(table), rows):
        part = table.slice(first, rows)
        following.add(part)
        held = pa.concat_tables([held, part])
        taken, others = following.sort(held)
        assert not (taken & others).any()
        kept.append(held.filter(taken))
        held = held.filter(~(taken | others))
    kept.append(held.filter(following.sort(held, is_over=True)[0]))
    row = lambda one: tuple(one[name] for name in ("rank", "epoch", "step", "start_ns", "name"))  # noqa: E731
    expected = of_steps(table, chosen(table, {"every": every}))
    assert sorted(map(row, pa.concat_tables(kept).to_pylist())) == sorted(map(row, expected.to_pylist()))


def test_steps_do_not_wait_for_a_rank_that_is_done() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 1), ("compute", 2)])
    trace.rank(1, [("data_wait", 1), ("compute", 2)] * 20, life=False)
    following = Following({"every": 2}, 2)
    following.add(table := trace.spans)
    taken, others = following.sort(table)
    assert (taken | others).all()


@pytest.mark.parametrize("text", ["slowest:20", "last", "first,last,slowest:20,every:50"])
def test_steps_that_only_the_end_knows_are_refused_while_the_run_goes(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("run", "unet3d-small", "--engine", "local", "--root", tmp_path, "--otlp", "http://127.0.0.1:9")
    code, _, err = told(capsys, *command, "--select", text)
    assert (code, err.count("\n")) == (2, 1)
    assert f"--select {text}" in err
    assert "rayio export RUN --otlp URL" in err
    assert not list(tmp_path.iterdir())


def test_a_selection_without_a_collector_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "unet3d-small", "--engine", "local", "--root", tmp_path, "--select", "every:5")
    code, _, err = told(capsys, *command)
    assert code == 2
    assert "give --otlp URL or --grpc HOST:PORT" in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_traces_too_large_to_look_at_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = as_recorded(training())
    assert followed(tmp_path / "one", table, "all", 60).exporting.big_traces() is None
    monkeypatch.setattr(live_export, "MANY_SPANS", 6)
    said = followed(tmp_path / "two", table, "all", 60).exporting.big_traces()
    assert said is not None
    assert "viewers are slow" in said


TROUBLE: dict[str, dict[str, list[Any]]] = {
    "hanging": {"otlp": ["hang"] * 99, "grpc": ["hang"] * 99},
    "refusing": {"otlp": [(401, {}, b"")] * 99, "grpc": [grpc.StatusCode.PERMISSION_DENIED] * 99},
    "busy": {"otlp": [(503, {}, b"")] * 99, "grpc": [grpc.StatusCode.UNAVAILABLE] * 99},
    "hanging up": {"otlp": ["close"] * 99, "grpc": [grpc.StatusCode.CANCELLED] * 99},
    "partly": {"otlp": [partial(3, "too old")], "grpc": [partial(3, "too old")]},
    "dying midway": {"otlp": [None, *["close"] * 99], "grpc": [None, *[grpc.StatusCode.UNAVAILABLE] * 99]},
}


@pytest.mark.parametrize("protocol", ["otlp", "grpc"])
@pytest.mark.parametrize("trouble", TROUBLE)
def test_what_a_collector_in_trouble_did_not_take_is_counted_and_can_be_exported_again(
    trouble: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if trouble == "hanging":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    table = as_recorded(training())
    directory = stored(tmp_path / "run", table.slice(0, 0))
    serve = http if protocol == "otlp" else grpc_
    with serve(TROUBLE[trouble][protocol]) as collector:
        exporting = LiveExport(directory, "rayio-test", connect(collector.url, grpc=protocol == "grpc"), QUICK)
        for number, first in enumerate(range(0, len(table), 60)):
            directory.write_spans(table.slice(first, 60), f"part-{number:05d}")
            exporting._look()
        exporting.start()
        said = exporting.finish(len(table))
    rows = {*spans_of(table, "rayio-test").span[: len(table)].tolist()}
    arrived = sum(int(span["span"], 16) in rows for span in collector.spans)
    failed = len(table) - (arrived - 3 if trouble == "partly" else arrived)
    assert (arrived > 0) == (trouble in ("partly", "dying midway"))
    assert failed > 0
    assert f"{failed} of {len(table)} spans were not exported to" in said
    again = shlex.split(said.partition("the run has all spans: ")[2])
    assert again == ["rayio", "export", str(directory.path), f"--{protocol}", collector.url]
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT", raising=False)
    with serve() as healthy:
        again[-1] = healthy.url
        assert told(capsys, *again[1:], "--select", "all")[0] == 0
    assert by(healthy.spans) == by(whole(table))


@pytest.mark.parametrize("protocol", ["otlp", "grpc"])
def test_a_run_waits_a_bounded_time_for_a_collector_that_hangs(protocol: str, tmp_path: Path) -> None:
    """Whatever the variables allow a request: no thread of it may be left that holds the process up."""
    table = as_recorded(training())
    directory = stored(tmp_path / "run", table)
    with (http if protocol == "otlp" else grpc_)(["hang"] * 9) as collector:
        way = connect(collector.url, grpc=protocol == "grpc", longest_seconds=0.1)
        exporting = LiveExport(directory, "rayio-test", way, QUICK)
        exporting.start()
        said = exporting.finish(len(table))
        assert not exporting._thread.is_alive()
        # A try that is given up before its connection is there is none to the collector.
        assert exporting.sent.retries == QUICK.tries - 1
        assert collector.tries <= QUICK.tries
        assert f"{len(table)} of {len(table)} spans were not exported" in said


def test_a_run_that_ends_before_all_was_sent_still_says_what_was_not_selected(tmp_path: Path) -> None:
    table = as_recorded(training())
    directory = stored(tmp_path / "run", table.slice(0, 0))
    with http(["hang"] * 9) as collector:
        exporting = LiveExport(
            directory, "rayio-test", connect(collector.url, grpc=False, longest_seconds=0.3), QUICK,
            selection="every:4", world_size=2,
        )  # fmt: skip
        for number, first in enumerate(range(0, len(table), 60)):
            directory.write_spans(table.slice(first, 60), f"part-{number:05d}")
        exporting.start()
        for _ in range(1000):
            if collector.tries:
                break
            exporting._over.wait(0.01)
        exporting._stop.set()
        said = exporting.finish(len(table))
    taken = len(of_steps(table, chosen(table, parse("every:4"))))
    assert f"{taken} of {len(table)} spans were not exported to" in said
    assert f", 0 were, {len(table) - taken} belong to steps outside --select every:4; the run has all spans: " in said
    assert said.endswith(f"--otlp {collector.url} --select every:4")


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
        for request in otlp.requests(
            spans_of(done.directory.spans(), run_key(info), epoch_ns(info)), Origin.of("run", info)
        )
        for span in plain(ExportTraceServiceRequest.FromString(request.body))
    ]
    key = lambda span: (span["trace"], span["span"])  # noqa: E731
    assert sorted(collector.spans, key=key) == sorted(later, key=key)


def test_a_run_that_was_followed_in_part_exports_the_same_part_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = scenario(dataset__path="data", dataset__num_files=32, train__epochs=3, train__compute="1 ms")
    on_disk(wanted, tmp_path)
    (tmp_path / "s.yaml").write_text(to_yaml(wanted))
    for selection in ("every:3", "all"):
        run = tmp_path / f"run-{selection}"
        with http() as live_, http() as later:
            command = ("run", tmp_path / "s.yaml", "--engine", "local", "--root", tmp_path, "--out", run)
            code, out, _ = told(capsys, *command, "--otlp", live_.url, "--select", selection)
            assert code == 0
            assert told(capsys, "export", run, "--otlp", later.url, "--select", selection)[0] == 0
        assert by(live_.spans) == by(later.spans)
        assert len(live_.spans) > 20
        trace = json.loads((run / "result.json").read_text())["trace"]
        assert trace["exported"] + trace.get("not_selected", 0) == trace["stored"]
        assert (trace.get("not_selected", 0) > 0) == (selection != "all")
        if selection != "all":
            assert f"{trace['exported']} exported, {trace['not_selected']} not selected" in out


def test_the_option_that_sends_again_keeps_what_matters_of_the_address() -> None:
    for address in ("c.example", "https://c.example:5"):
        sender = connect(address, grpc=True)
        sender.close()
        assert sender.option == f"--grpc {address}"


def test_a_run_goes_well_with_nobody_listening(tmp_path: Path) -> None:
    done = run(tmp_path, f"http://127.0.0.1:{ports.unused()}")
    assert done.exit_code == 0
    assert done.result["trace"]["exported"] == 0
    assert any("spans were not exported to" in note and "Connection refused" in note for note in done.result["notes"])


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_run_on_ray_sends_the_spans_of_all_its_actors_for_the_steps_that_are_selected(tmp_path: Path) -> None:
    wanted = scenario(
        dataset__path="data", dataset__num_files=16, cluster__ranks_per_node=1, train__epochs=2, train__sync="none",
        loader__num_workers=1,
    )  # fmt: skip
    with http() as collector:
        way = connect(collector.url, grpc=False)
        done = session.run(
            on_disk(wanted, tmp_path), root=tmp_path, out="run", collector=way, select="every:3"
        )  # fmt: skip
    table, trace = done.directory.spans(), done.result["trace"]
    assert trace["stored"] == len(table)
    services = {span["resource"]["service.name"] for span in collector.spans}
    assert services == {"rayio-reader", "rayio-prefetch-queue", "rayio-trainer"}
    assert {span["resource"]["host.name"] for span in collector.spans} == {platform.node()}
    taken = of_steps(table, chosen(table, parse("every:3")))
    assert (trace["exported"], trace["not_selected"]) == (len(taken), len(table) - len(taken))
    later = spans_of(taken, run_key(done.directory.info))
    assert sorted(span["span"] for span in collector.spans) == sorted(f"{one:016x}" for one in later.span.tolist())
