"""Stages: processes that come and go, on every engine with the same requests."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rayio
from rayio.analyze.workflow import activity
from rayio.engines import local
from rayio.engines.ray.cluster.control import Control
from rayio.engines.virtual.simulation import simulate
from rayio.errors import DataError, ScenarioError, StorageError
from rayio.model import resuming
from rayio.model.attempts import Attempts
from rayio.model.marks import Saved
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.workflow import Progress, StageTally
from rayio.records.workflow import StageResult, Workflow
from rayio.report.tables import workflow as table_of
from rayio.reporter import SILENT
from rayio.scenario.model import Scenario
from rayio.session.conclude import _verdict, in_memory
from rayio.session.resume import resume
from rayio.session.stage_files import prepare_stages
from rayio.session.worked import tallied
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from scenarios import scenario

#: A system whose requests take 1 ms and whose bytes take 1 us each, and nothing else.
PLAIN = {"first_byte": "1 ms", "connection_bandwidth": "1 MB/s", "bandwidth": "1 TB/s"}

Row = dict[str, Any]


def workflow(stages: list[dict[str, Any]], **overrides: Any) -> Scenario:
    return scenario(stages=stages, storage={"model": PLAIN}, **overrides)


def virtual(wanted: Scenario) -> tuple[Plan, list[StageTally], list[Row]]:
    """Give the plan, what stages did and the spans of their processes."""
    plan = plan_of(wanted, modelled=True)
    recorder = Recorder()
    done = simulate(plan, recorder, plan.tallies())
    return plan, done.stages.tallies, rows_of(recorder)


def rows_of(recorder: Recorder) -> list[Row]:
    spans = recorder.drain()
    assert spans is not None
    return sorted((row for row in spans.to_pylist() if row["role"] == "stage"), key=lambda row: row["start_ns"])


def on_disk(wanted: Scenario, root: Path) -> tuple[list[StageTally], list[Row]]:
    """Give the same of a run in this process with real files below ``root``."""
    plan = plan_of(wanted, modelled=False)
    rayio.generate(wanted, root=root)
    prepare_stages(plan, str(root), SILENT)
    recorder, attempts = Recorder(), Attempts(plan, plan.tallies(), Saved(plan.world_size))
    local.run(plan, recorder, root, attempts.tallies, attempts=attempts)
    return attempts.stages.tallies, rows_of(recorder)


def requests(rows: list[Row]) -> dict[str, list[tuple[str, int, int]]]:
    """Give the reads and writes of each process in order: name, bytes and requests."""
    made = defaultdict[str, list[tuple[str, int, int]]](list)
    for row in rows:
        if row["name"] in ("stage_read", "stage_write"):
            made[row["index"]].append((row["name"], row["bytes"], row["requests"]))
    return dict(made)


def lives(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Give the begin and the end of each process in milliseconds."""
    return {
        row["index"]: (row["start_ns"] / 1e6, (row["start_ns"] + row["duration_ns"]) / 1e6)
        for row in rows if row["name"] == "life"
    }  # fmt: skip


def test_a_process_reads_then_computes_and_writes_in_turns() -> None:
    stage = {
        "name": "one", "count": 1, "reads": {"size": "3000 B"}, "compute": "10 ms",
        "writes": {"files": 2, "size": "1 KB"},
    }  # fmt: skip
    _, tallies, rows = virtual(workflow([stage]))
    times = [(row["name"], row["start_ns"] / 1e6, row["duration_ns"] / 1e6) for row in rows if row["name"] != "life"]
    assert times == [
        ("stage_read", 0, 4), ("stage_compute", 4, 5), ("stage_write", 9, 2), ("stage_compute", 11, 5),
        ("stage_write", 16, 2),
    ]  # fmt: skip
    assert tallies == [StageTally(1, 1, 1, 3000, 2, 2, 2000)]


def test_processes_arrive_one_after_another_and_wait_for_room() -> None:
    _, _, rows = virtual(workflow([{"name": "a", "count": 4, "arrivals": "3 ms", "compute": "10 ms", "at_once": 2}]))
    assert lives(rows) == {"a-0": (0, 10), "a-1": (3, 13), "a-2": (10, 20), "a-3": (13, 23)}


def test_a_stage_begins_after_others_or_follows_one_in_step() -> None:
    stages = [
        {"name": "a", "count": 4, "arrivals": "3 ms", "compute": "10 ms", "writes": {"size": "1 KB"}},
        {"name": "b", "count": 2, "follows": "a", "reads": {"of": "a"}},
        {"name": "c", "count": 8, "follows": "a", "compute": "1 ms"},
        {"name": "d", "count": 1, "after": ["b", "c"], "compute": "1 ms"},
    ]
    found = lives(virtual(workflow(stages))[2])
    assert [found[f"a-{n}"][1] for n in range(4)] == [12, 15, 18, 21]
    assert found["b-0"] == (12, 14)
    assert found["b-1"] == (18, 20), "process 1 of 2 follows process 2 of 4"
    assert [found[f"c-{n}"][0] for n in range(8)] == [12, 12, 15, 15, 18, 18, 21, 21]
    assert found["d-0"] == (22, 23)


def test_a_process_reads_the_files_that_its_partner_wrote() -> None:
    """Files of different sizes show whose they are; so do the planned sums, which are computed for all at once."""
    stages = [
        {"name": "a", "count": 6, "writes": {"files": 2, "size": {"kind": "uniform", "low": 1, "high": 9000}}},
        {"name": "b", "count": 3, "follows": "a", "reads": {"of": "a"}},
    ]
    plan, tallies, rows = virtual(workflow(stages))
    made = {name: [nbytes for _, nbytes, _ in each] for name, each in requests(rows).items()}
    assert [made[f"b-{number}"] for number in range(3)] == [made["a-0"], made["a-2"], made["a-4"]]
    assert len({tuple(sizes) for sizes in made.values()}) == 6
    assert tallies == plan.workflow.planned()


def test_stages_and_ranks_share_one_storage() -> None:
    """The shared bandwidth serves who comes first: 1 MB of a process delay a rank's first batch by a second."""
    shared = {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1 MB/s"}
    stages = [{"name": "a", "count": 1, "reads": {"size": "1 MB"}}]
    alone, both = (in_memory(scenario(storage={"model": shared}, stages=some)) for some in ([], stages))
    waited = [result.time.data_wait or 0.0 for result in (alone, both)]
    assert waited[1] == pytest.approx(waited[0] + 2 * 1.0, rel=0.05), "of two ranks"


@st.composite
def stages_of(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw one to three stages, of which each may wait for, follow and read an earlier one."""
    size = st.sampled_from(["700 B", {"kind": "uniform", "low": 1, "high": 3000}])
    requested = st.sampled_from([None, 300, 1 << 20])
    made: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        stage: dict[str, Any] = {
            "name": f"s{number}", "count": draw(st.integers(1, 5)), "at_once": draw(st.sampled_from([None, 1, 2])),
            "arrivals": draw(st.sampled_from(["0 s", "1 ms"])), "compute": draw(st.sampled_from(["0 s", "1 ms"])),
        }  # fmt: skip
        if draw(st.booleans()):
            stage["writes"] = {"files": draw(st.integers(1, 3)), "size": draw(size), "request_bytes": draw(requested)}
        before: dict[str, Any] | None = None
        is_linked = draw(st.booleans())
        if made and is_linked:
            before = draw(st.sampled_from(made))
        if before is not None:
            stage |= {"follows": before["name"]} if draw(st.booleans()) else {"after": [before["name"]]}
        if before is not None and "writes" in before and draw(st.booleans()):
            stage["reads"] = {"of": before["name"], "request_bytes": draw(requested)}
        elif draw(st.booleans()):
            stage["reads"] = {"files": draw(st.integers(1, 3)), "size": draw(size), "request_bytes": draw(requested)}
        made.append(stage)
    return made


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(stages=stages_of(), seed=st.integers(0, 99))
def test_stages_make_the_same_requests_on_the_clock_and_on_disk(
    tmp_path_factory: pytest.TempPathFactory, stages: list[dict[str, Any]], seed: int
) -> None:
    wanted = workflow(stages, seed=seed, dataset__path="data", train__compute="0 s", loader__num_workers=0)
    plan, foretold, modelled = virtual(wanted)
    measured, real = on_disk(wanted, tmp_path_factory.mktemp("stages"))
    assert foretold == measured == plan.workflow.planned()
    assert requests(modelled) == requests(real)
    assert lives(modelled).keys() == lives(real).keys()


def test_a_run_counts_its_stages_by_three_ways(tmp_path: Path) -> None:
    """The tallies, the spans, and the files on disk agree."""
    stages = [
        {"name": "a", "count": 5, "writes": {"files": 2, "size": "3 KB", "request_bytes": "1 KB"}},
        {"name": "b", "count": 2, "after": "a", "reads": {"of": "a"}, "compute": "1 ms"},
    ]
    run = rayio.run(workflow(stages, dataset__path="data"), engine="local", root=tmp_path)
    found = run.result.workflow
    assert found is not None
    first, second = found.stages
    assert found.even
    assert found.processes == 7
    assert (first.planned, first.processes, first.writes, first.written_bytes) == (5, 5, 30, 30_000)
    assert (second.files_read, second.reads, second.read_bytes) == (4, 4, 12_000)
    written = [path.stat().st_size for path in tmp_path.glob("stages/small/a/out-*.bin")]
    assert written == [3000] * 10
    spans = run.spans()
    assert spans[spans.name == "stage_write"].requests.sum() == 30
    assert spans[spans.name == "stage_read"].bytes.sum() == 12_000
    assert "2 stages, 7 processes" in run.summary()
    assert "2 stages, 7 processes" in table_of(run.result)


def test_times_of_stages_follow_from_their_spans() -> None:
    """Two processes read for 4 ms each, 2 ms of them at once; the second computes for 3 ms."""
    stages = [{"name": "a", "count": 2, "arrivals": "2 ms", "reads": {"size": "3000 B"}, "compute": "3 ms"}]
    wanted = workflow(stages, train__compute="0 s", dataset__sample_bytes=16)
    plan = plan_of(wanted, modelled=True)
    recorder = Recorder()
    simulate(plan, recorder, plan.tallies())
    spans = recorder.drain()
    assert spans is not None
    seen = activity(spans, ["a"])
    mine = seen.moves.of(0)
    assert (mine.covered, seen.lives.of(0).extent) == (0.006, 0.009)
    assert seen.lives.of(0).most_at_once == 2
    reads = [(row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in spans.to_pylist()
             if row["name"] in ("read", "stage_read")]  # fmt: skip
    covered = sum(any(begin <= at < end for begin, end in reads) for at in range(0, max(e for _, e in reads), 10_000))
    assert seen.moves.covered == pytest.approx(covered * 1e-5, abs=2e-4)


def test_a_lost_process_ends_with_exit_code_4() -> None:
    wanted = workflow([{"name": "a", "count": 3, "writes": {"size": "1 KB"}}])
    plan, tallies, _ = virtual(wanted)
    result = in_memory(wanted)
    assert result.exit_code == 0
    tallies[0].written_bytes -= 1
    short = tallied(result, plan, tallies, None)
    assert short.workflow is not None
    assert short.ledger is not None
    assert short.workflow.differences == ("stage a: 2,999 of 3,000 bytes were written",)
    assert _verdict(None, short.ledger, wanted, short) == (
        "processes did not do what was planned: stage a: 2,999 of 3,000 bytes were written", 4,
    )  # fmt: skip


def test_explain_says_what_stages_cost_as_the_run_without_them_does(tmp_path: Path) -> None:
    """Predicted from the run with stages, and really made."""
    shared = {"first_byte": "1 ms", "connection_bandwidth": "100 MB/s", "bandwidth": "100 MB/s"}
    hog = [{"name": "hog", "count": 10, "arrivals": "60 ms", "reads": {"files": 20, "size": "1 MB"}}]
    of = {"dataset__num_files": 320, "dataset__sample_bytes": "100 KB", "storage": {"model": shared}}
    rayio.simulate(scenario(stages=hog, **of), out=tmp_path / "run")
    simulated = rayio.explain(tmp_path / "run").simulated
    assert simulated is not None
    rows = {row.change: row for row in simulated.changes}
    without = in_memory(scenario(**of))
    assert simulated.au == pytest.approx(rayio.Run.open(tmp_path / "run").au, abs=1e-6)
    assert rows["no stages"].au == pytest.approx(without.au, abs=1e-6)
    assert without.au is not None
    assert without.au > (simulated.au or 0.0) + 0.2


def test_an_error_of_a_process_ends_the_run_with_its_line(tmp_path: Path) -> None:
    stages = [{"name": "a", "count": 2, "reads": {"size": "1 KB"}}, {"name": "b", "count": 1, "compute": "60 s"}]
    wanted = workflow(stages, dataset__path="data")
    rayio.generate(wanted, root=tmp_path)
    prepare_stages(plan_of(wanted, modelled=False), str(tmp_path), SILENT)
    damaged = tmp_path / "stages/small/a/in-0000001-0.bin"
    damaged.write_bytes(bytes(1000))
    with pytest.raises(DataError, match=r"in-0000001-0\.bin: byte 0 is not what was written.*remove the folder"):
        rayio.run(wanted, engine="local", root=tmp_path)
    damaged.write_bytes(bytes(10))  # another size: a run generates it again
    short = workflow(stages[:1], dataset__path="data")
    assert rayio.run(short, engine="local", root=tmp_path).result.exit_code == 0


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    wanted = workflow([{"name": "a", "count": 1, "writes": {"size": "1 KB"}, "path": "mine"}], dataset__path="data")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years")
    with pytest.raises(StorageError, match=r"mine holds thesis\.tex, which is no file of a stage"):
        rayio.run(wanted, engine="local", root=tmp_path)
    huge = workflow([{"name": "a", "count": 9000, "writes": {"size": "1 TB"}}], dataset__path="data")
    with pytest.raises(StorageError, match=r"stage a needs 7\.99 PiB"):
        rayio.run(huge, engine="local", root=tmp_path)


ONE = {"name": "a", "count": 1}


@pytest.mark.parametrize(
    ("stages", "line"),
    [
        (5, "stages=5: must be a list of mappings with name and count"),
        ([{"name": "a"}], "stages[0].count: is required and missing"),
        ([{**ONE, "cuont": 1}], "stages[0].cuont=1: no such key; did you mean count?"),
        ([ONE, ONE], "stages[1].name=a: another stage has this name; choose another one"),
        ([{**ONE, "after": "b"}], "stages[0].after=b: this stage is unknown; name stages that are listed before, there "
         "is none before the first"),
        ([{**ONE, "follows": "b"}, {"name": "b", "count": 1}], "stages[0].follows=b: this stage is listed later"),
        ([{**ONE, "reads": {"files": 2}}], "needs size (input files) or of (files of another stage), and not both"),
        ([ONE, {"name": "b", "count": 1, "after": "a", "reads": {"of": "a"}}],
         "stages[1].reads.of=a: this stage writes no files; give it writes, or give size here"),
        ([{**ONE, "reads": {"of": "c"}}], "stages[0].reads.of=c: must be in after or follows"),
        ([{**ONE, "count": 10**6, "writes": {"files": 11, "size": "1 KB"}}], "11000000 files; at most 10000000"),
        ([{**ONE, "path": "s3://x/y"}, {"name": "b", "count": 1, "path": "s3://x/y/z"}], "lies in stages[0].path"),
        ([{**ONE, "count": 600_000}, {"name": "b", "count": 600_000}], "stages: 1200000 processes in all; at most"),
    ],
)  # fmt: skip
def test_impossible_stages_are_refused_in_one_line(stages: Any, line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        workflow(stages, dataset__path="data")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


#: Of 250 ms, and 50 ms later everything begins again.
FAILURE = {"events": [{"kind": "rank", "number": 0, "at": "250 ms"}], "detect": "20 ms", "restart": "30 ms"}


def test_after_a_failure_processes_that_had_not_ended_begin_again() -> None:
    """One at a time of 100 ms: the third dies half done. The fourth arrives at 390 ms as it would have."""
    line = {"name": "line", "count": 4, "compute": "100 ms", "at_once": 1, "arrivals": "130 ms"}
    stages = [line, {"name": "next", "count": 4, "compute": "10 ms", "follows": "line"}]
    _, done, rows = virtual(workflow(stages, failures=FAILURE, train__compute="60 ms"))
    assert [tally.processes for tally in done] == [4, 4]
    assert lives(rows) == {
        "line-0": (0, 100), "line-1": (130, 230), "line-2": (300, 400), "line-3": (400, 500),
        "next-0": (100, 110), "next-1": (230, 240), "next-2": (400, 410), "next-3": (500, 510),
    }  # fmt: skip


@pytest.mark.parametrize("is_virtual", [True, False], ids=["virtual", "local"])
def test_what_is_written_twice_after_a_failure_counts_once(is_virtual: bool, tmp_path: Path) -> None:
    """A process writes ten files in 500 ms; after 250 ms it begins again, and writes all of them."""
    stages = [{"name": "w", "count": 2, "compute": "500 ms", "writes": {"files": 10, "size": "1 KB"}, "path": "w"}]
    path: dict[str, Any] = {} if is_virtual else {"dataset__path": "data"}
    wanted = workflow(stages, failures=FAILURE, train__compute="60 ms", **path)
    plan = plan_of(wanted, modelled=is_virtual)
    done, rows = virtual(wanted)[1:] if is_virtual else on_disk(wanted, tmp_path)
    assert done == plan.workflow.planned()
    assert len([row for row in rows if row["name"] == "stage_write"]) > done[0].writes == 20
    if not is_virtual:
        assert sorted(path.stat().st_size for path in (tmp_path / "w").glob("out-*")) == [1000] * 20


def test_opens_take_the_time_of_opens_and_no_bytes(tmp_path: Path) -> None:
    """Three processes at once open their files seven times each, in 5 ms."""
    stages = [{"name": "touch", "count": 3, "opens": 7, "writes": {"files": 2, "size": "1 KB"}, "path": "t"}]
    system = PLAIN | {"open": "5 ms"}
    plan, done, rows = virtual(scenario(stages=stages, storage={"model": system}))
    opened = [row for row in rows if row["name"] == "stage_open"]
    assert [(row["duration_ns"], row["bytes"], row["requests"]) for row in opened] == [(35_000_000, 0, 7)] * 3
    assert done[0].opens == 21
    assert done == plan.workflow.planned()
    real, there = on_disk(scenario(stages=stages, dataset__path="data"), tmp_path)
    assert real == done
    assert [row["requests"] for row in there if row["name"] == "stage_open"] == [7] * 3


def test_fsync_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real, before = list[int](), os.fsync, 0

    def counted(file: int) -> None:
        synced.append(file)
        real(file)

    monkeypatch.setattr(os, "fsync", counted)
    for is_durable in (False, True):
        before = len(synced) - before
        writes = {"files": 3, "size": "1 KB", "fsync": is_durable}
        stages = [{"name": "w", "count": 2, "writes": writes, "path": "w"}]
        on_disk(scenario(stages=stages, dataset__path="data"), tmp_path / str(is_durable))
    assert len(synced) - 2 * before == 2 * 2 * 3, "each file and its folder, besides what a run without fsync syncs"


def test_a_result_with_stages_is_read_back(tmp_path: Path) -> None:
    run = rayio.simulate(workflow([ONE]), out=tmp_path / "run")
    found = rayio.Run.open(tmp_path / "run").result.workflow
    assert found == run.result.workflow
    assert isinstance(found, Workflow)
    assert isinstance(found.stages[0], StageResult)


def test_a_run_that_broke_off_goes_on_with_the_processes_that_had_not_ended(tmp_path: Path) -> None:
    """One at a time: the third finds a damaged file, which ends the run; then somebody repairs it."""
    stage = {"name": "w", "count": 4, "at_once": 1, "reads": {"size": "2 KB"}, "writes": {"size": "1 KB"}, "path": "w"}
    later = {"name": "r", "count": 2, "after": ["w"], "reads": {"of": "w"}}
    wanted = workflow([stage, later], dataset__path="data", train__compute="2 ms")
    rayio.generate(wanted, root=tmp_path)
    plan = plan_of(wanted, modelled=False)
    prepare_stages(plan, str(tmp_path), SILENT)
    damaged = tmp_path / "w" / "in-0000002-0.bin"
    right = damaged.read_bytes()
    damaged.write_bytes(b"?" + right[1:])
    with pytest.raises(DataError, match=damaged.name):
        rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "run")
    assert resuming.stages_of(RunDirectory(str(tmp_path / "run")), plan.workflow).ended == [{0, 1}, set()]
    damaged.write_bytes(right)
    run = resume(str(tmp_path / "run"))
    assert run.result.exit_code == 0
    assert run.result.workflow is not None
    assert run.result.workflow.even
    spans = run.spans().query("role == 'stage' and name == 'life'")
    assert sorted(spans["index"]) == ["r-0", "r-1", "w-0", "w-1", "w-2", "w-3"]


def test_what_processes_did_survives_as_text() -> None:
    plan = plan_of(workflow([{**ONE, "count": 9}, {"name": "b", "count": 2}]), modelled=True)
    progress = Progress(plan.workflow)
    for process in (0, 1, 2, 7, 5):
        progress.end(0, process, StageTally(1, 1, 2, 3))
    progress.began[0] = 17
    plain = json.loads(json.dumps(progress.plain()))
    assert plain[0]["ended"] == [[0, 2], [5, 5], [7, 7]]
    again = Progress.of_plain(plan.workflow, plain)
    assert (again.ended, again.tallies, again.began) == (progress.ended, progress.tallies, [17, None])
    plain[0]["ended"] = [[0, 9]]
    with pytest.raises(ValueError, match="has other processes"):
        Progress.of_plain(plan.workflow, plain)


@pytest.mark.ray
def test_processes_on_ray_are_actors_that_come_and_go(tmp_path: Path, local_ray: None) -> None:
    """The same requests as on the clock; each process is another operating system's process, and ends."""
    import psutil

    stages = [
        {"name": "a", "count": 2, "arrivals": "10 ms", "writes": {"files": 2, "size": "3 KB", "request_bytes": "1 KB"}},
        {"name": "b", "count": 1, "follows": "a", "reads": {"of": "a"}, "compute": "10 ms"},
    ]
    alone = {"cluster__ranks_per_node": 1, "loader__num_workers": 0, "train__sync": "none"}
    wanted = workflow(stages, dataset__path="data", **alone)
    run = rayio.run(wanted, root=tmp_path)
    _, _, modelled = virtual(wanted)
    assert run.result.workflow is not None
    assert run.result.workflow.even
    rows = sorted(run.directory.spans().to_pylist(), key=lambda row: row["start_ns"])
    real = [row for row in rows if row["role"] == "stage"]
    assert requests(real) == requests(modelled)
    pids = {row["index"]: row["pid"] for row in real}
    assert len({*pids.values()}) == 3
    for pid in pids.values():  # Ray ends a killed actor in the background
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(30)
    assert lives(real)["b-0"][0] >= lives(real)["a-0"][1]


@pytest.mark.ray
def test_on_ray_a_failure_ends_all_processes_and_each_file_counts_once(
    tmp_path: Path, local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever had ended when the rank died, and whether its life had. The restart waits for no answer in vain."""
    asked: list[tuple[int, int]] = []
    answers = Control.answers

    def counted(control: Control, references: Sequence[Any], seconds: float) -> list[Any]:
        found = answers(control, references, seconds)
        asked.append((len(references), len(found)))
        return found

    monkeypatch.setattr(Control, "answers", counted)
    stages = [
        {"name": "w", "count": 2, "compute": "400 ms", "writes": {"files": 4, "size": "1 KB"}, "path": "w"},
        {"name": "r", "count": 1, "after": ["w"], "reads": {"size": "2 KB"}, "compute": "10 ms"},
    ]
    wanted = workflow(
        stages, failures={"events": [{"kind": "rank", "number": 0, "at": "300 ms"}]}, dataset__path="data",
        cluster__ranks_per_node=1, loader__num_workers=0, train__compute="20 ms", train__sync="none",
    )  # fmt: skip
    run = rayio.run(wanted, root=tmp_path)
    assert run.result.failures is not None
    assert [restart.cause for restart in run.result.failures.attempts] == ["rank 0"]
    assert asked
    assert all(number == answered for number, answered in asked)
    assert run.result.exit_code == 0
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert run.result.workflow is not None
    assert run.result.workflow.even
    assert [stage.files_written for stage in run.result.workflow.stages] == [8, 0]
    assert sorted(path.stat().st_size for path in (tmp_path / "w").glob("out-*")) == [1000] * 8
