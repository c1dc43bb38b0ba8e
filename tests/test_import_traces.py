"""Traces of torch.profiler and of DFTracer: what comes out of planted and of real ones, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tries import tried_again

import rayio
from rayio.cli import main
from rayio.errors import DataError, RayioError, RunError
from rayio.imports import trace_files
from rayio.session.traces import import_dftracer, import_torch_profiler

MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def event(name: str, cat: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
    """An event from ``begin`` to ``end`` in ms."""
    whole = {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 7,
        "tid": 7,
        "ts": 1e6 + 1e3 * begin,
        "dur": 1e3 * (end - begin),
    }
    return whole | more


def kineto(path: Path, events: list[dict[str, Any]], rank: int | None = None, indent: int | None = 2) -> Path:
    head = {"schemaVersion": 1} | ({} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank}})
    text = json.dumps(head | {"traceEvents": events, "traceName": "x"}, indent=indent)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def steps(number: int, *, wait: float, work: float, own: float = 0.0, name: str = MULTI, marked: bool = True) -> Any:
    """The events of a loop: each step waits, works, and does ``own`` work after ``prof.step()``."""
    events, now = [], 0.0
    for n in range(number):
        events += [
            event(name, "user_annotation", now, now + wait),
            event("aten::mm", "cpu_op", now + wait, now + wait + 1),
        ]
        if marked:
            events.append(event(f"ProfilerStep#{n}", "user_annotation", now - own, now + wait + work))
        now += wait + work + own
    return [{"ph": "M", "name": "process_name"}, *events, event("aten::sum", "cpu_op", now - own - 1, now - own)]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("marked", [True, False])
def test_a_planted_trace_has_its_own_times(tmp_path: Path, suffix: str, marked: bool) -> None:
    path = kineto(tmp_path / f"trace{suffix}", steps(40, wait=30, work=60, own=10 if marked else 0, marked=marked))
    run = import_torch_profiler([path], tmp_path / "run", batch_size=8)
    assert run.result.steps == 40
    assert run.result.au == pytest.approx(0.6 if marked else 2 / 3, rel=1e-2)
    assert run.result.data_wait_share == pytest.approx(0.3 if marked else 1 / 3, rel=1e-2)
    assert run.result.samples_per_second == pytest.approx(80 if marked else 8 / 0.09, rel=1e-2)
    explained = rayio.explain(run)
    assert explained.verdict.bound == "input"
    assert any("no reads are known" in note and "rayio.watch does" in note for note in explained.notes)
    with pytest.raises(RunError, match="cannot be calibrated, because no reads are known"):
        rayio.calibrate(run)


def test_a_rank_without_workers_reads_while_it_waits_so_workers_can_be_predicted(tmp_path: Path) -> None:
    """A batch takes 30 ms and its step 60: with one worker all of it is hidden."""
    path = kineto(tmp_path / "trace.json", steps(60, wait=30, work=60, name=SINGLE))
    run = import_torch_profiler([path], tmp_path / "run", batch_size=4)
    assert run.result.au == pytest.approx(2 / 3, rel=1e-3)
    rayio.calibrate(run, busy_run=False, out=tmp_path / "learned.yaml")
    for workers, au in ((0, 2 / 3), (1, 1.0)):
        changed = {"loader.num_workers": workers}
        predicted = rayio.simulate(tmp_path / "learned.yaml", changed, out=tmp_path / f"with-{workers}")
        assert predicted.au == pytest.approx(au, abs=0.02)


@pytest.mark.parametrize("name", [SINGLE, MULTI])
@pytest.mark.parametrize("batch", [None, 4])
def test_a_trace_without_batch_size_says_so(name: str, batch: int | None, tmp_path: Path) -> None:
    """No trace of torch.profiler has a batch size, with workers or without; and none has bytes."""
    path = kineto(tmp_path / "trace.json", steps(20, wait=30, work=60, name=name))
    notes = " ".join(import_torch_profiler([path], tmp_path / "run", batch_size=batch).result.notes)
    assert ("samples/s counts batches; give batch_size=" in notes) is (batch is None)
    assert "workers read no bytes" not in notes
    assert ("no bytes of batches are known: sample_bytes is a placeholder" in notes) is (name == SINGLE)


def test_traces_of_ranks_are_one_run_and_meet(tmp_path: Path) -> None:
    """Rank 1 waits 30 of 90 ms; rank 0 has its batches at once, and its all-reduce waits for rank 1."""
    slow = kineto(tmp_path / "b.json", steps(30, wait=30, work=60), rank=1)
    fast = kineto(tmp_path / "a.json", steps(30, wait=0, work=90), rank=0)
    result = import_torch_profiler([slow, fast], tmp_path / "run").result
    assert result.world_size == 2
    assert result.au == pytest.approx(2 / 3, rel=1e-3)
    assert result.sync_share == pytest.approx(1 / 6, rel=1e-2)
    kineto(tmp_path / "c.json", steps(3, wait=1, work=1), rank=1)
    with pytest.raises(DataError, match=r"c.json: it has rank 1, as another file has"):
        import_torch_profiler([tmp_path], tmp_path / "other")


def test_work_of_the_accelerator_during_waits_is_noted(tmp_path: Path) -> None:
    kernels = [event("gemm", "kernel", 100 * n + 10, 100 * n + 100, tid=3) for n in range(30)]
    path = kineto(tmp_path / "trace.json", steps(30, wait=40, work=60) + kernels)
    notes = import_torch_profiler([path], tmp_path / "run").result.notes
    assert any("the accelerator worked in 75 % of the time in which its rank waited" in note for note in notes)


def test_a_trace_is_read_in_parts_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = steps(20, wait=30, work=60)
    paths = [kineto(tmp_path / f"{indent}.json", events, indent=indent) for indent in (None, 2)]
    whole = [*trace_files.TraceFile(paths[0]).of_object()]
    assert whole == events
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(trace_files, "CHUNK", size)
        for path in paths:
            assert [*trace_files.TraceFile(path).of_object()] == whole


def test_a_trace_that_breaks_off_gives_what_is_whole(tmp_path: Path) -> None:
    whole = kineto(tmp_path / "trace.json", steps(40, wait=30, work=60)).read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) // 2])
    result = import_torch_profiler([tmp_path / "cut.json"], tmp_path / "run").result
    assert 15 <= (result.steps or 0) <= 21
    lines = whole[: len(whole) // 2].count(b"\n")
    assert any(note.startswith("cut.json breaks off in line") and note.endswith("what is before counts")
               for note in result.notes)  # fmt: skip
    line = next(int(note.split()[5].rstrip(":")) for note in result.notes if "breaks off in line" in note)
    assert lines - 12 <= line <= lines + 1
    packed = gzip.compress(whole)
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) * 2 // 3])
    result = import_torch_profiler([tmp_path / "cut.json.gz"], tmp_path / "gz").result
    assert any("cut.json.gz breaks off in line" in note for note in result.notes)


def test_traces_cut_or_changed_anywhere_end_in_one_line_or_in_a_run(tmp_path: Path) -> None:
    whole = kineto(tmp_path / "trace.json", steps(12, wait=30, work=60)).read_bytes()
    draw = random.Random(5)
    for number in range(120):
        content = bytearray(whole[: draw.randrange(len(whole))] if number % 2 else whole)
        for _ in range(number % 3):
            if content:
                content[draw.randrange(len(content))] = draw.choice(b'{}[]",:0 x\xff')
        (tmp_path / "bad.json").write_bytes(content)
        message = _refusal(tmp_path / "bad.json")
        assert "\n" not in message
        assert message.startswith(str(tmp_path / "bad.json"))


def _refusal(path: Path) -> str:
    """Read a trace; return what is wrong with it, or its name."""
    try:
        assert len([*trace_files.TraceFile(path).of_object()]) <= 60
    except DataError as error:
        return str(error)
    return str(path)


def _line(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(RayioError) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_no_trace_is_one_line_and_makes_no_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "no such file; give traces that torch.profiler exported" in _line(
        import_torch_profiler, [tmp_path / "none.json"], out
    )
    (tmp_path / "empty").mkdir()
    assert "no file in it ends with .json" in _line(import_torch_profiler, [tmp_path / "empty"], out)
    (tmp_path / "other.json").write_text("{}")
    assert "it has no traceEvents" in _line(import_torch_profiler, [tmp_path / "other.json"], out)
    path = kineto(tmp_path / "ops.json", [event("aten::mm", "cpu_op", 0, 1)])
    assert "no enumerate(DataLoader)#...__next__ in it" in _line(import_torch_profiler, [path], out)
    text = path.read_text().replace("1000.0", '"long"')
    path.write_text(text)
    assert "dur='long' is no time in microseconds" in _line(import_torch_profiler, [path], out)
    path.write_text(text.replace('"cpu_op"', "cpu_op"))
    assert ", line 6: no event of a trace" in _line(import_torch_profiler, [path], out)
    (tmp_path / "a.pfw").write_text("[\n{}\nnonsense\n{}\n")
    assert "a.pfw, line 3: no event of a trace" in _line(import_dftracer, [tmp_path / "a.pfw"], out)
    (tmp_path / "a.pfw").write_text("[\n" + json.dumps(event("read", "POSIX", 0, 1)) + "\n]\n")
    assert "no process waited for a batch" in _line(import_dftracer, [tmp_path], out)
    assert not out.exists()
    path = kineto(tmp_path / "good.json", steps(12, wait=30, work=60))
    import_torch_profiler([path], out)
    assert "already holds a run" in _line(import_torch_profiler, [path], out)


@pytest.mark.parametrize("workers", [0, 1])
@tried_again
def test_a_real_trace_says_what_the_loop_measured_itself(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # which the profiler would set for good
    torch = pytest.importorskip("torch")

    class Slow(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.004)
            return torch.zeros(8)

    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=workers)
    waited, worked = 0.0, 0.0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        asked = time.perf_counter()
        for number, batch in enumerate(loader):
            arrived = time.perf_counter()
            batch.sum()
            time.sleep(0.006)
            done = time.perf_counter()
            if number:
                waited, worked = waited + arrived - asked, worked + done - arrived
            asked = time.perf_counter()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    run = import_torch_profiler([tmp_path / "trace.json"], tmp_path / "run", batch_size=4)
    assert run.result.steps == 12
    spans = run.spans()
    for name, seconds in (("data_wait", waited), ("compute", worked)):
        own = spans[(spans["name"] == name) & (spans["step"] > 0)]["duration_ns"].sum() / 1e9
        assert own == pytest.approx(seconds, rel=0.3), name


# ---- DFTracer


def line(name: str, cat: str, begin: float, end: float, pid: int = 1, **args: Any) -> dict[str, Any]:
    """An event of DFTracer from ``begin`` to ``end`` in ms; it is written when it ends."""
    return {"id": 0, "name": name, "cat": cat, "pid": pid, "tid": pid, "ts": round(1e6 + 1e3 * begin),
            "dur": round(1e3 * (end - begin)), "ph": "X", "args": args}  # fmt: skip


def pfw(path: Path, events: list[dict[str, Any]], *, spare_commas: bool = False) -> Path:
    text = "\n".join(["[", *(json.dumps(each, separators=(",", ":")) for each in events), "]", ""])
    text = text.replace("}}", ",}}").replace("{,}", "{}") if spare_commas else text
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def loop_of_dlio(
    number: int, *, is_old: bool, pid: int = 1, epochs: int = 1, first: float = 30
) -> list[dict[str, Any]]:
    """Each step waits 30 ms for its batch (``first`` for the first) and computes 60, then 10 pass."""
    fetch, compute = ("_train.iter", "dlio_benchmark"), ("TorchFramework.compute", "ai_framework")
    if not is_old:
        fetch, compute = ("fetch.iter", "dataloader"), ("compute", "compute")
    events, now = [], 0.0
    for _ in range(epochs):
        for n in range(1, number + 1):
            arrived = now + (first if n == 1 else 30)
            events.append(line(*fetch, now, arrived, pid, step=n))
            events.append(line(*compute, arrived, arrived + 60, pid, step=n))
            now = arrived + 70
    return events


def loaded(number: int, workers: int) -> list[dict[str, Any]]:
    """Batch n of two samples is of worker n mod W, which has it when its rank gets it; 4/5 of its time are in reads."""
    events = []
    for n in range(number):
        pid, half = 100 + n % workers, 50 * workers
        for sample in range(2):
            begin = 100 * n + half * sample
            events.append(line("read", "POSIX", begin + 1, begin + 1 + 0.8 * half, pid, ret=50_000))
            events.append(line("item", "data", begin, begin + half, pid, step=n // workers + 1))
    return events


#: Microseconds from 1970 to a trace of 2026.
SINCE_1970 = 1_795_000_000_000_000


def in_version_2(events: list[dict[str, Any]], unit: str = "US", parent: int = 1) -> list[dict[str, Any]]:
    """Events as DFTracer 2 writes them: phases are numbers, times count since 1970, and a unit is named."""
    in_us = 1000 if unit == "NS" else 1
    args = events[0]["args"] if events else {}
    head = {"cat": "dftracer", "type": 1, "pid": events[0]["pid"], "tid": 1}
    start = head | {"name": "start", "ts": SINCE_1970 * in_us, "dur": 0, "ph": 1, "args": args | {"ppid": parent}}
    metric = head | {"name": "CM", "ph": 4, "args": args | {"name": "time_metric", "value": unit}}
    rest = [
        each | {"ph": 1, "type": 6, "ts": (SINCE_1970 + each["ts"]) * in_us, "dur": each["dur"] * in_us}
        for each in events
    ]
    return [metric, start, *rest]


@pytest.mark.parametrize("form", ["old", "new", "NS", "US"])
def test_a_trace_of_dlio_has_its_own_times(tmp_path: Path, form: str) -> None:
    is_old = form == "old"
    events = loop_of_dlio(20, is_old=is_old, epochs=2)
    events = events if form in ("old", "new") else in_version_2(events, form)
    path = pfw(tmp_path / ("trace.pfw" if is_old else "trace.pfw.gz"), events, spare_commas=is_old)
    run = import_dftracer([path], tmp_path / "run", batch_size=4)
    result = run.result
    assert (result.steps, result.window_epochs) == (40, 2)
    assert result.au == pytest.approx(0.6, rel=0.01)
    assert result.data_wait_share == pytest.approx(0.3, rel=0.01)
    assert any("the trace has no samples" in note for note in result.notes)


@pytest.mark.parametrize("workers", [1, 2])
def test_samples_of_workers_are_reads_that_can_be_explained_and_calibrated(tmp_path: Path, workers: int) -> None:
    pfw(tmp_path / "rank.pfw", loop_of_dlio(60, is_old=False, first=100 * workers))
    pfw(tmp_path / "workers.pfw", loaded(60, workers))
    run = import_dftracer([tmp_path], tmp_path / "run")
    spans = run.spans()
    reads = spans[spans["name"] == "read"].sort_values("step")
    assert [*reads["step"]] == [*range(60)]
    assert [*reads["index"]] == [f"0-{n % workers}" for n in range(60)]
    assert {*reads["duration_ns"]} == {80_000_000 * workers}
    assert {*reads["bytes"]} == {100_000}
    assert rayio.explain(run).verdict.cause == "read"
    learned = rayio.calibrate(run, busy_run=False)
    assert learned.scenario.loader.num_workers == workers
    assert learned.scenario.dataset.sample_bytes.expected == 50_000


def test_calls_of_a_workers_start_say_nothing_of_what_workers_sustain(tmp_path: Path) -> None:
    pfw(tmp_path / "rank.pfw", loop_of_dlio(40, is_old=False, first=200))
    samples = [each for each in loaded(40, 2) if each["name"] == "item"]
    pfw(tmp_path / "workers.pfw", [line("open64", "POSIX", 0, 1, 100 + n) for n in range(2)] + samples)
    result = import_dftracer([tmp_path], tmp_path / "run").result
    assert not [doubt.sentence for doubt in result.doubts or () if doubt.code == "short_run"]


def test_workers_begin_on_an_epoch_before_its_first_batch_is_waited_for(tmp_path: Path) -> None:
    """Iterators are made 100 ms before their first batch is asked for."""
    events, made = loop_of_dlio(40, is_old=False, epochs=2, first=100), []
    for epoch in range(2):
        late = 100_000 * (epoch + 1)
        for each in events[80 * epoch : 80 * (epoch + 1)]:
            each["ts"] += late
        made += [each | {"ts": each["ts"] + epoch * (4_170_000)} for each in loaded(40, 2)]
    pfw(tmp_path / "a.pfw", events + made)
    reads = import_dftracer([tmp_path], tmp_path / "run").spans().query("name == 'read'")
    assert [*reads.groupby("epoch").size()] == [40, 40]


def test_workers_are_in_the_order_of_their_forks_whichever_begins_first(tmp_path: Path) -> None:
    """Worker 0 was forked first, and begins its first batch after worker 1 began its own."""
    made = loaded(40, 2)
    for each, begin in zip(made[:4], (120, 120, 160, 160), strict=True):
        each.update(ts=round(1e6 + 1e3 * begin), dur=30_000)
    forks = [line("fork", "POSIX", n, n, 1, ret=100 + n) for n in range(2)]
    pfw(tmp_path / "a.pfw", forks + loop_of_dlio(40, is_old=False, first=300) + made)
    reads = import_dftracer([tmp_path], tmp_path / "run").spans().query("name == 'read'").sort_values("step")
    assert [*reads["index"]] == [f"0-{n % 2}" for n in range(40)]
    assert reads["start_ns"].iloc[0] > reads["start_ns"].iloc[1]


def test_evaluations_and_checkpoints_of_a_trace_are_pauses(tmp_path: Path) -> None:
    events = loop_of_dlio(20, is_old=False)
    events.append(line("capture", "checkpoint", 1992, 2050))
    events += [line("fetch.iter", "dataloader", 2100 + n, 2101 + n, count=n) for n in range(3)]
    events.append(line("evaluate", "pipeline", 2090, 2200))
    spans = import_dftracer([pfw(tmp_path / "a.pfw", events)], tmp_path / "run").spans()
    assert (spans["name"] == "data_wait").sum() == 20
    lasted = spans.set_index("name")["duration_ns"]
    assert (lasted["checkpoint"], lasted["evaluate"]) == (58_000_000, 110_000_000)


def ranks_of(folder: Path, how: str, *, hosts: int = 1, ahead: float = 0.0, workers: int = 2, number: int = 40) -> None:
    """Write the traces of two ranks with ``workers`` each, which meet at the end of each step.

    Rank 1 has 60 ms of compute, rank 0 only 40 and waits 20 for it. The clock of the second host is ``ahead`` (ms).
    ``how`` tells whose the workers are: names of files, calls of fork, names or parents
    as DFTracer 2 writes them, or nothing.
    """
    for rank in range(2):
        host = {"hhash": f"host{rank % hosts}"}
        later = ahead if hosts > 1 and rank else 0.0
        first, pid = 1000 * (rank + 1), 7 if hosts > 1 else 7 + rank
        events, now = [], 100.0 * workers
        for n in range(1, number + 1):
            events.append(line("fetch.iter", "dataloader", 0 if n == 1 else now - 30, now, pid, step=n, **host))
            events.append(line("compute", "compute", now, now + 60, pid, step=n, **host))  # with the all-reduce
            now += 100
        if how == "fork":
            events = [line("fork", "POSIX", 0, 1, pid, ret=first + w, **host) for w in range(workers)] + events
        parts = {pid: events}
        for n in range(number):
            worker, half = first + n % workers, 50 * workers
            for sample in range(2):
                begin = 100 * n + half * sample
                size = 50_000 * (rank + 1)
                parts.setdefault(worker, []).append(
                    line("read", "POSIX", begin + 1, begin + 1 + 0.8 * half, worker, ret=size, **host)
                )
                parts[worker].append(line("item", "data", begin, begin + half, worker, step=n // workers + 1, **host))
        for owner, some in parts.items():
            for each in some:
                each["ts"] += round(1e3 * later)
            name = f"trace-{rank}-of-2" + ("" if owner == pid else f"-{owner}") if how == "name" else f"{rank}-{owner}"
            if how in ("hash", "parent"):
                some = in_version_2(some, parent=1 if owner == pid else pid)
                part = f"{rank}{owner}a-{'app' if owner == pid else 'fork'}"
                name = f"trace-{rank}-of-2-{part}" if how == "hash" else f"dft.log-{part}"
            pfw(folder / f"{name}.pfw", some)


@pytest.mark.parametrize("how", ["name", "fork", "hash", "parent"])
def test_traces_of_several_ranks_are_one_run_with_the_reads_of_each(tmp_path: Path, how: str) -> None:
    ranks_of(tmp_path, how)
    run = import_dftracer([tmp_path], tmp_path / "run")
    result, spans = run.result, run.spans()
    assert (result.world_size, result.steps) == (2, 80)
    reads = spans[spans["name"] == "read"]
    for rank in range(2):
        mine = reads[reads["rank"] == rank].sort_values("step")
        assert [*mine["step"]] == [*range(40)]
        assert [*mine["index"]] == [f"{rank}-{n % 2}" for n in range(40)]
        assert {*mine["duration_ns"]} == {160_000_000}
        assert {*mine["bytes"]} == {100_000 * (rank + 1)}
    assert result.au == pytest.approx(0.6, rel=0.02)
    assert rayio.explain(run).verdict.cause == "read"
    learned = rayio.calibrate(run, busy_run=False)
    assert learned.scenario.loader.num_workers == 2
    assert learned.scenario.cluster.ranks_per_node == 2


@pytest.mark.parametrize("ahead", [0.0, 250.0, -1000.0])
def test_clocks_of_hosts_are_set_right_by_the_ends_of_steps(tmp_path: Path, ahead: float) -> None:
    """Processes of both hosts have the same numbers, and the second clock is off: the run is the one on one clock."""
    ranks_of(tmp_path, "name", hosts=2, ahead=ahead)
    run = import_dftracer([tmp_path], tmp_path / "run")
    spans = run.spans()
    ends = [(spans[(spans["name"] == "compute") & (spans["rank"] == rank)].sort_values("step")) for rank in range(2)]
    apart = (ends[0]["start_ns"] + ends[0]["duration_ns"]).to_numpy() - (
        ends[1]["start_ns"] + ends[1]["duration_ns"]
    ).to_numpy()
    assert abs(apart).max() < 1_000_000
    assert spans["start_ns"].min() >= 0
    assert (run.result.world_size, len({*spans[spans["name"] == "life"]["node"]})) == (2, 2)
    corrected = [note for note in run.result.notes if note.startswith("the clock of host host1 is ")]
    word = "250 ms ahead of the" if ahead > 0 else "1 s behind the"
    assert len(corrected) == bool(ahead)
    assert not ahead or word in corrected[0]
    assert any("their clocks are taken as equal" in note for note in run.result.notes) is (not ahead)


def test_ranks_that_do_not_meet_keep_their_clocks(tmp_path: Path) -> None:
    """Rank 1 begins 3 s later and has other steps: nothing tells a clock from a late start."""
    pfw(tmp_path / "trace-0-of-2.pfw", [each | {"args": each["args"] | {"hhash": "a"}}
                                        for each in loop_of_dlio(30, is_old=False, pid=1)])  # fmt: skip
    late = [each | {"ts": round(each["ts"] * 1.3), "args": each["args"] | {"hhash": "b"}}
            for each in loop_of_dlio(30, is_old=False, pid=1)]  # fmt: skip
    pfw(tmp_path / "trace-1-of-2.pfw", late)
    notes = import_dftracer([tmp_path], tmp_path / "run").result.notes
    assert any("their clocks are taken as equal" in note for note in notes)


def test_workers_of_unknown_ranks_and_missing_ranks_are_lines(tmp_path: Path) -> None:
    (tmp_path / "unknown").mkdir()
    ranks_of(tmp_path / "unknown", "nothing")
    result = import_dftracer([tmp_path / "unknown"], tmp_path / "run").result
    assert result.world_size == 2
    assert any("nobody can tell whose worker process" in note for note in result.notes)
    pfw(tmp_path / "trace-3-of-4.pfw", loop_of_dlio(20, is_old=False))
    result = import_dftracer([tmp_path / "trace-3-of-4.pfw"], tmp_path / "three").result
    assert any(note.startswith("1 of 4 ranks have a trace here") for note in result.notes)
    pfw(tmp_path / "trace-3-of-4-9.pfw", loop_of_dlio(20, is_old=False, pid=9))
    message = _line(import_dftracer, [tmp_path / "trace-3-of-4.pfw", tmp_path / "trace-3-of-4-9.pfw"], tmp_path / "no")
    assert "rank 3 has several processes that wait for batches (1, 9)" in message


def test_times_that_are_too_coarse_are_one_line(tmp_path: Path) -> None:
    path = pfw(tmp_path / "a.pfw", in_version_2(loop_of_dlio(12, is_old=False), "MS"))
    message = _line(import_dftracer, [path], tmp_path / "run")
    assert "line 2: its times are in MS; trace with DFTRACER_TIME_METRIC=US" in message


def test_a_pfw_that_breaks_off_gives_what_is_whole(tmp_path: Path) -> None:
    path = pfw(tmp_path / "a.pfw", loop_of_dlio(20, is_old=False))
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"\n", len(content) // 2) - 9])
    result = import_dftracer([path], tmp_path / "run").result
    assert 9 <= (result.steps or 0) <= 11
    assert any(note.startswith("a.pfw breaks off in line 2") for note in result.notes)


def test_events_that_are_there_twice_are_one_line(tmp_path: Path) -> None:
    """Waits of a loop never overlap, but for a microsecond that a trace rounds."""
    twice, out = "it waits for two batches at once, 0 s after its first", tmp_path / "run"
    events = steps(12, wait=30, work=60)
    path = kineto(tmp_path / "a.json", [*events, *events])
    assert f"a.json: {twice}" in _line(import_torch_profiler, [path], out)
    lines = loop_of_dlio(12, is_old=False)
    path = pfw(tmp_path / "a.pfw", [*lines, *lines])
    assert f"process 1: {twice}" in _line(import_dftracer, [path], out)
    rounded = [each | {"dur": each["dur"] + 1} for each in loop_of_dlio(12, is_old=False)]
    result = import_dftracer([pfw(tmp_path / "b.pfw", rounded)], out).result
    assert result.time.data_wait is not None
    assert result.share.data_wait is not None
    assert 0 <= result.share.data_wait <= 1


#: A rank that is traced by DFTracer, and says what its loop waited and worked, in seconds.
TRACED = """
import json, sys, time
import torch
from dftracer.python import ai, dftracer
folder, rank = sys.argv[1:]
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    @ai.data.item
    def __getitem__(self, index):
        time.sleep(0.012)
        return torch.zeros(8)
def begin(worker):
    dftracer.initialize_log(f"{folder}/trace", folder, -1)
if __name__ == "__main__":
    log = dftracer.initialize_log(f"{folder}/trace", folder, -1)
    loader = torch.utils.data.DataLoader(Slow(), 4, num_workers=2, worker_init_fn=begin, multiprocessing_context="fork")
    batches = iter(loader)
    waited, worked, asked = 0.0, 0.0, time.perf_counter()
    for batch in ai.dataloader.fetch.iter(batches):
        arrived = time.perf_counter()
        with ai.compute():
            time.sleep(0.01)
        waited, worked = waited + arrived - asked, worked + time.perf_counter() - arrived
        asked = time.perf_counter()
    log.finalize()
    print(json.dumps([waited, worked]))
"""


@pytest.mark.slow
@tried_again
def test_real_traces_of_dftracer_say_what_the_loops_measured_themselves(tmp_path: Path) -> None:
    pytest.importorskip("dftracer")
    pytest.importorskip("torch")
    script, folder = tmp_path / "traced.py", tmp_path / "traces"
    script.write_text(TRACED)
    folder.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(rank)],
            stdout=subprocess.PIPE,
            env=os.environ | {"DFTRACER_ENABLE": "1", "DFTRACER_INC_METADATA": "1"},
        )
        for rank in range(2)
    ]
    own = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    run = import_dftracer([folder], tmp_path / "run", batch_size=4)
    assert (run.result.world_size, run.result.steps) == (2, 48)
    lasted = run.spans().groupby("name")["duration_ns"].sum() / 1e9
    assert lasted["data_wait"] == pytest.approx(sum(waited for waited, _ in own), rel=0.1)
    assert lasted["compute"] + lasted.get("sync", 0.0) == pytest.approx(sum(worked for _, worked in own), rel=0.1)
    assert (run.spans()["name"] == "read").sum() == 48


@pytest.mark.parametrize("thread", [{"a": 1}, [1], None, "x"])
def test_a_thread_of_any_type_is_a_thread(thread: Any, tmp_path: Path) -> None:
    events = [each | {"tid": thread} for each in loop_of_dlio(12, is_old=False)]
    assert import_dftracer([pfw(tmp_path / "a.pfw", events)], tmp_path / "run").result.steps


@pytest.mark.parametrize("pid", [-1, 1 << 31, 10**40, True, "7", None])
def test_a_process_number_that_is_none_is_one_line(pid: Any, tmp_path: Path) -> None:
    events = [each | {"pid": pid} for each in loop_of_dlio(12, is_old=False)]
    message = _line(import_dftracer, [pfw(tmp_path / "a.pfw", events)], tmp_path / "run")
    assert f"line 2: pid={pid!r} is no number of a process" in message
    path = kineto(tmp_path / "a.json", [each | {"pid": pid} for each in steps(12, wait=30, work=60)])
    assert import_torch_profiler([path], tmp_path / "run").result.steps == 12


def test_the_commands_print_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kineto(tmp_path / "trace.json", steps(20, wait=30, work=60))
    with pytest.raises(SystemExit) as ended:
        main(["import", "torch-profiler", str(tmp_path / "trace.json"), "--out", str(tmp_path / "one")])
    assert not ended.value.code
    assert "one, a training loop, imported from a trace of torch.profiler: 20 steps" in capsys.readouterr().out
    pfw(tmp_path / "a.pfw", loop_of_dlio(20, is_old=True))
    with pytest.raises(SystemExit) as ended:
        main(["import", "dftracer", str(tmp_path / "a.pfw"), "--out", str(tmp_path / "two"), "--json"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["result"]["steps"] == 20
