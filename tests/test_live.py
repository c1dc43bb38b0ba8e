"""A run while it goes: what is told of it, the metrics of it, and the command that shows it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from documents import ROOT

from rayio import cli
from rayio.analyze.part import Part
from rayio.analyze.stages import STAGES, cut
from rayio.analyze.waits import Waits
from rayio.analyze.watching import Watched, recent
from rayio.cli.terminal import Terminal
from rayio.cli.top import _lines
from rayio.model.queue_levels import Levels
from rayio.records.running import LIVE_VARIABLE, METRICS, PREFIX, Live, LiveQueues, LiveRecent, samples, table
from rayio.remote.jobs.job_progress import last_line
from rayio.report.text.progress import block, line
from rayio.reporter import Reporter
from rayio.session import run
from rayio.session.progress import look
from rayio.trace.arrow import plain, rows
from rayio.trace.clocks import boot_id
from rayio.trace.live_file import LIVE, read_live, write_live
from rayio.trace.run_directory import RunDirectory
from scenarios import scenario, simulated

DASHBOARD = ROOT / "k8s" / "overlays" / "monitoring" / "dashboard.json"

BEGUN = Live(
    state="starting", run="one", scenario="small", engine="ray", started="2026-01-01T00:00:00+00:00",
    updated="2026-01-01T00:00:00+00:00", pid=1, boot_id="b", ranks=2, planned_steps=40, time={}, waits={},
)  # fmt: skip
#: A run of which everything is known.
FULL = replace(
    BEGUN, state="running", seconds=20.0, steps=10, samples=20, nbytes=4000, spans=99, restarts=1,
    time={"compute": 3.0, "data_wait": 1.0}, waits={"read": 0.75, "decode": 0.25},
    queues=LiveQueues(ready=3, leased=2, in_flight_bytes=5000, readers=4, busy_readers=2),
    recent=LiveRecent(seconds=10.0, au=0.75, samples_per_second=1.5, bytes_per_second=100.0, steps_per_second=0.5,
                      shares={"compute": 0.75, "data_wait": 0.25}),
)  # fmt: skip


def in_slices(spans: Any, every_ns: int) -> Iterator[tuple[int, Any]]:
    """A run's spans as they would come in: those that ended in each stretch of time, with its end."""
    over = plain(spans["start_ns"]) + plain(spans["duration_ns"])
    for until in range(every_ns, int(over.max()) + 2 * every_ns, every_ns):
        yield until, rows(spans, (over > until - every_ns) & (over <= until))


@pytest.mark.parametrize(
    "how",
    [
        {"storage__model": "s3", "dataset__sample_bytes": "1 MB"},
        {"loader__decode": "30 ms", "loader__num_workers": 1, "loader__prefetch_factor": 4},
        {"train__compute": "3 s", "loader__decode": "2 s"},
        {"train__compute": "30 s", "costs__receive": "1 ms", "loader__prefetch_factor": 1, "dataset__num_files": 48},
    ],
    ids=["storage", "decode", "long steps", "batches that lay ready for half a minute"],
)
def test_waits_charged_while_a_run_goes_are_those_that_explain_charges_afterwards(how: dict[str, Any]) -> None:
    done = simulated(scenario(**{"dataset__num_files": 240, **how}))
    spans = done.spans.unify_dictionaries()
    part = Part(spans)
    meant = dict.fromkeys(STAGES, 0) | {stage: int(ns.sum()) for stage, ns in cut(part, payload=False).items()}
    waits = Waits(payload=False)
    for until, some in in_slices(done.spans, 3_000_000_000):
        waits.add(some)
        waits.charge(until)
    assert sum(waits.ns.values()) == sum(meant.values()) == int(part.timed[1].parts["data_wait"].sum()) > 0
    for stage, ns in meant.items():
        assert waits.ns[stage] == pytest.approx(ns, abs=0.03 * sum(meant.values())), stage


def test_of_many_spans_some_ranks_stand_for_all() -> None:
    done = simulated(scenario(dataset__num_files=960, cluster__ranks_per_node=8, loader__decode="30 ms"))
    whole, some = Waits(payload=False), Waits(payload=False, most_rows=300)
    for until, table_ in in_slices(done.spans, 200_000_000):
        for waits in (whole, some):
            waits.add(table_)
            waits.charge(until)
    assert sum(some.ns.values()) == pytest.approx(sum(whole.ns.values()), rel=0.2)
    assert some.ns["decode"] / sum(some.ns.values()) == pytest.approx(
        whole.ns["decode"] / sum(whole.ns.values()), abs=0.05
    )


def test_the_last_seconds_are_what_happened_between_two_looks() -> None:
    before = replace(BEGUN, seconds=10.0, steps=10, samples=20, nbytes=1000, time={"compute": 8.0, "data_wait": 2.0})
    now = replace(BEGUN, seconds=20.0, steps=25, samples=50, nbytes=3000, time={"compute": 11.0, "data_wait": 3.0})
    assert recent(before, now) == LiveRecent(
        seconds=10.0, au=0.75, samples_per_second=3.0, bytes_per_second=200.0, steps_per_second=1.5,
        shares={"compute": 0.75, "data_wait": 0.25},
    )  # fmt: skip
    assert recent(now, now) is None


def test_a_sample_that_all_ranks_of_a_replica_read_counts_once(tmp_path: Path) -> None:
    watched = Watched(replace(BEGUN, ranks_of_sample=2))
    progress = {"steps": 1, "bytes": 0, "spans": 0, "time": {}, "levels": Levels(ranks=4, samples=32)}
    assert watched.look(progress, 1.0, "now").samples == 16

    class Progress(Reporter):
        seen: ClassVar[list[Live]] = []

        def progress(self, live: Live) -> None:
            self.seen.append(live)

    wanted = scenario(dataset__path="model://x", train__parallelism={"tensor": 2}, train__compute=0)
    done = run(wanted, engine="local", out=tmp_path / "run", reporter=Progress())
    assert {live.ranks_of_sample for live in Progress.seen} == {2}
    books = done.result.ledger
    assert books is not None
    assert look(str(done.path)).samples == books.delivered_samples // 2
    assert f"all {books.planned_samples // 2:,} samples delivered exactly once to each of 2 ranks" in done.summary()
    assert "samples/s  a sample counts once for the 2 ranks that read it" in done.summary()


def test_a_look_back_is_over_ten_seconds_however_long_the_run() -> None:
    watched = Watched(BEGUN)
    for second in range(60):
        progress = {"steps": second**2, "bytes": 0, "spans": 0, "time": {}, "levels": Levels(ranks=1, samples=second)}
        live = watched.look(progress, float(second), "now")
    assert live.recent is not None
    assert (live.recent.seconds, live.recent.steps_per_second) == (10.0, (59**2 - 49**2) / 10)
    assert (live.samples, live.queues) == (59, None)


def test_metrics_have_names_as_prometheus_wants_them_and_each_has_its_value() -> None:
    told = list(samples(FULL))
    assert {name for name, _, _ in told} == {*METRICS}
    for name, labels, _ in told:
        assert len(labels) == len(METRICS[name].labels)
        assert name.endswith("_total") == (METRICS[name].kind == "counter"), name
        assert re.fullmatch(r"rayio(_[a-z]+)+", name)
    assert ("rayio_rank_seconds_total", ("compute",), 3.0) in told
    assert ("rayio_data_wait_seconds_total", ("decode",), 0.25) in told
    assert ("rayio_in_flight_bytes", (), 5000) in told
    assert "rayio_queue_depth_batches" not in {name for name, _, _ in samples(replace(FULL, queues=None))}


def test_the_page_and_the_dashboard_have_every_metric_and_no_other() -> None:
    served = {PREFIX + name for name in METRICS}
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert table() in page, "stale: python -c 'from rayio.records.running import table; print(table())'"
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"ray_rayio_\w+", one["expr"])}
    assert asked == served
    for panel in panels:
        for one in panel["targets"]:
            for name in re.findall(r"ray_rayio_\w+_total", one["expr"]):
                is_rate = re.search(rf"(rate|increase)\({name}\b", one["expr"])
                assert is_rate or "planned_steps" in one["expr"], "a counter says nothing by itself"


@pytest.mark.ray
def test_gauges_and_counters_of_ray_are_given_what_they_take(local_ray: None) -> None:
    from rayio.engines.ray.actors.showing import Exposed

    exposed = Exposed(replace(FULL, run="läufe/ü", scenario="名前"))
    exposed.show(FULL)
    exposed.show(replace(FULL, steps=15))
    assert exposed._counted["rayio_steps_total", ()] == 15
    assert exposed._counted["rayio_rank_seconds_total", ("compute",)] == 3.0


class Looking(Reporter):
    def __init__(self) -> None:
        self.lives: list[Live] = []

    def progress(self, live: Live) -> None:
        self.lives.append(live)


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Path]:
    """A run on the local engine that is under way."""
    out = tmp_path / "one"
    process = subprocess.Popen(
        [sys.executable, "-m", "rayio", "run", "unet3d-small", "dataset.path=model://x", "train.epochs=4000",
         "checkpoint=none", "--engine", "local", "--out", str(out), "--no-report"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while process.poll() is None and not ((out / LIVE).exists() and look(str(out)).recent is not None):
            time.sleep(0.05)
        yield out
    finally:
        process.kill()
        process.wait()


def test_a_run_is_looked_at_while_it_goes_and_when_it_was_killed(
    going: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = look(str(going))
    assert (live.state, live.scenario, live.ranks) == ("running", "unet3d-small", 2)
    assert live.queues is not None
    assert live.queues.readers > 0
    assert live.samples
    with pytest.raises(SystemExit) as left:
        cli.main(["top", str(going), "--once", "--json"])
    assert not left.value.code
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["run"]) == ("running", "one")
    os.kill(live.pid, signal.SIGKILL)
    while look(str(going)).state == "running":
        time.sleep(0.05)  # until whoever started it has heard of it
    assert look(str(going)).state == "gone"


def directory(folder: Path, live: Live) -> Path:
    """A run directory of a run that is at work, as far as it says."""
    made = RunDirectory.create(folder)
    write_live(made, live)
    return folder


def ours(**changed: Any) -> Live:
    return replace(FULL, pid=os.getpid(), boot_id=boot_id(), **changed)


def test_what_is_told_comes_back_and_is_refused_where_it_is_damaged(tmp_path: Path) -> None:
    made = RunDirectory.open(directory(tmp_path / "one", FULL))
    assert read_live(made) == FULL
    (tmp_path / "one" / LIVE).write_text('{"state": 3}')
    code, _, err = top(str(tmp_path / "one"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "live.json: state is 3, expected a text: the file is damaged" in err


@pytest.mark.parametrize(
    "changed",
    [{"pid": -1}, {"recent": LiveRecent(seconds=1.0, shares={}, steps_per_second=5e-324)}],
    ids=["process", "rate"],
)
def test_numbers_that_cannot_be_are_no_fault_of_ours(changed: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = top(str(directory(tmp_path / "one", replace(ours(), **changed))), "--once")
    assert (code, err) == (0, "")
    assert all(len(text) < 150 for text in out.splitlines())


def test_no_terminal_obeys_what_a_file_says() -> None:
    told = ours(scenario="\x1b]0;title\x07", run="a\x1b[2J", error="b\r\nc")
    assert (block(told) + line(told)).replace("\n", "").isprintable()
    assert len(block(told).splitlines()) == len(block(replace(told, error="b")).splitlines())


def top(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; give its exit code and what it printed."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        cli.main(["top", *arguments])
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def test_a_run_that_is_over_shows_its_last_state_and_ends(tmp_path: Path) -> None:
    looking = Looking()
    done = run(
        "unet3d-small", ["dataset.path=model://x", "train.steps=4", "train.epochs=1", "checkpoint=none",
         "expect.au=>= 0.9999"],
        engine="local", out=tmp_path / "one", reporter=looking,
    )  # fmt: skip
    assert looking.lives[0].state == "starting"
    assert not (tmp_path / "one" / LIVE).exists(), "the result takes its place"
    live = look(str(tmp_path / "one"))
    assert done.result.ledger is not None
    assert (live.state, live.steps, live.samples) == ("over", 8, done.result.ledger.delivered_samples)
    code, out, err = top(str(tmp_path / "one"))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("exit code 3")
    assert "8/8 rank-steps (100 %)" in out


def test_nothing_is_told_where_the_scenario_says_so(tmp_path: Path) -> None:
    looking = Looking()
    run("unet3d-small", ["dataset.path=model://x", "train.steps=2", "train.epochs=1", "checkpoint=none",
                         "trace.live=false"],
        engine="local", out=tmp_path / "one", reporter=looking)  # fmt: skip
    assert not looking.lives


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "nothing is not a run directory here; for a job, give its cluster: --address"),
        (["no/such"], "no/such is not a run directory: no such path"),
        (["."], ". is not a run directory"),
        (["job", "--address", "ray://head:1"], "give the dashboard's address"),
    ],
)
def test_what_cannot_be_looked_at_is_named_in_one_line(arguments: list[str], said: str, home: Path) -> None:
    code, out, err = top(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


def test_a_directory_of_a_run_that_tells_nothing_is_refused_with_what_may_be_the_reason(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "one")
    code, _, err = top(str(tmp_path / "one"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "neither live.json nor result.json" in err


def test_where_nobody_watches_lines_are_printed_until_the_run_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [replace(FULL, state="gone"), replace(FULL, steps=11), FULL]
    _lines(FULL, states.pop, 0.0, as_json=False)
    assert capsys.readouterr().out.splitlines() == [line(FULL), line(replace(FULL, state="gone"))], "a line every 5 s"
    states = [replace(FULL, state="gone"), FULL]
    _lines(FULL, states.pop, 0.0, as_json=True)
    first, last = capsys.readouterr().out.splitlines()
    assert (json.loads(first)["state"], json.loads(last)["state"]) == ("running", "gone")
    code, out, _ = top(str(directory(tmp_path / "one", replace(FULL, pid=2**22 + 1, boot_id=boot_id()))))
    assert code == 0
    assert out.splitlines()[0].endswith("on ray: gone")


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)], ids=["q", "ctrl-c"])
def test_keys_end_the_screen_and_leave_the_last_state(key: bytes, code: int, tmp_path: Path) -> None:
    directory(tmp_path / "one", ours())
    ours_, theirs = pty.openpty()
    text = (
        "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from rayio.cli import main; main(['top', "
        f"{str(tmp_path / 'one')!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"q: end" not in shown:
        shown += read(ours_)
    os.write(ours_, key)
    while more := read(ours_):
        shown += more
    assert process.wait() == code
    os.close(ours_)
    assert b"AU          0.750 in the last 10 s" in shown
    assert b"\x1b[?1049l" in shown, "the terminal is as it was"
    after = shown.partition(b"\x1b[?1049l")[2]
    assert (b"rank-steps" if key == b"q" else b"rayio: interrupted") in after


def read(terminal: int) -> bytes:
    """What a terminal shows next; nothing when whoever wrote to it has ended."""
    select.select([terminal], [], [], 60)
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def test_all_that_is_known_is_in_the_text() -> None:
    text = block(FULL)
    for words in (
        "running for 20 s", "10/40 rank-steps (25 %) · 0.5/s · about 60 s left", "0.750 in the last 10 s",
        "1.5 samples/s", "compute 75.0 % · data loading 25.0 %", "read 75.0 % · decode 25.0 %",
        "3 batches ready · 2 with workers", "4, 2 of them busy",
    ):  # fmt: skip
        assert words in text
    assert "AU 0.750 · 1.5 samples/s · data loading 25.0 % · 3 batches ready" in line(FULL)


def test_a_job_tells_of_its_run_in_lines_of_its_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal().progress(FULL)
    assert capsys.readouterr().err == "", "nobody asked"
    monkeypatch.setenv(LIVE_VARIABLE, "1")
    terminal = Terminal()
    terminal.progress(FULL)
    terminal.progress(replace(FULL, steps=11))
    (told,) = capsys.readouterr().err.splitlines()
    assert last_line(f"cut off\n{told}\nrayio: 5 s\n") == FULL
    assert last_line(told[:-9]) is None
