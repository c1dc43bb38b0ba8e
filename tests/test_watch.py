"""``rayio.watch``: what a loop's ranks and workers write, and the run that it becomes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched import MS, Loop, in_turn

import rayio
from rayio.cli import main
from rayio.engines.loaders import watching
from rayio.errors import RayioError, RunError, StorageError
from rayio.scenario.derive import compute_times
from rayio.trace.loop_files import read_steps, steps_path

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no watch behind, whatever a test does; and no ranks of the machine's own."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    if watching._current is not None:
        watching._current.close()


# ---- what a loop becomes: times planted in its files


def test_a_planted_loop_has_its_own_times_and_shares(tmp_path: Path) -> None:
    in_turn(tmp_path / "run", read=40, compute=30, prefetch=1)
    result = rayio.Run.open(tmp_path / "run").result
    assert result.engine == "watch"
    assert result.au == pytest.approx(0.75)
    assert result.data_wait_share == pytest.approx(0.25)
    assert result.samples_per_second == pytest.approx(100)
    assert (result.steps, result.world_size, result.exit_code) == (60, 1, 0)
    assert result.percentiles.read is not None
    assert result.percentiles.read.p50 == pytest.approx(0.04)
    assert result.mib_per_second is None, "nobody knows its bytes"


def test_the_scenario_has_what_the_loader_tells(tmp_path: Path) -> None:
    from rayio.analyze.run_scenario import scenario_of

    in_turn(tmp_path / "run", read=40, compute=30, workers=2, prefetch=3)
    scenario = scenario_of(rayio.Run.open(tmp_path / "run").directory)
    loader, train = scenario.loader, scenario.train
    assert (loader.kind, loader.batch_size, loader.num_workers, loader.prefetch_factor) == ("torch", 4, 2, 3)
    assert (scenario.dataset.num_files, train.epochs) == (240, 1)
    assert compute_times(scenario).expected == pytest.approx(0.03)


@pytest.mark.parametrize(("reading", "cause"), [(38, "read"), (2, "decode")])
def test_explain_names_the_planted_cause(tmp_path: Path, reading: int, cause: str) -> None:
    in_turn(tmp_path / "run", read=reading, decode=40 - reading, compute=10)
    explained = rayio.explain(tmp_path / "run")
    assert explained.verdict.bound == "input"
    assert explained.verdict.cause == cause
    assert explained.prediction is not None
    assert explained.prediction.workers == 4, "4 workers make a batch every 10 ms, which the loop takes in 10"
    assert explained.prediction.au == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("ahead", "together"), [(1, 1), (0, 3), (1, 2)])
def test_batches_that_a_framework_takes_ahead_are_what_a_rank_waits_for(
    tmp_path: Path, ahead: int, together: int, workers: int
) -> None:
    """Accelerate takes a batch ahead of the one it gives; Transformers takes all that it accumulates."""
    in_turn(tmp_path / "run", read=40, compute=10, workers=workers, ahead=ahead, together=together)
    run = rayio.Run.open(tmp_path / "run")
    assert run.result.steps == 60
    assert run.result.samples_per_second == pytest.approx(100 * workers, rel=0.08)
    explained = run.explain(simulate=False)
    assert explained.verdict.cause == "read"
    lost = {row.cause: row.seconds for row in explained.verdict.table}
    waited = sum(lost.values())
    assert waited == pytest.approx((explained.verdict.data_wait_share or 0) * explained.verdict.seconds)
    assert lost["read"] == pytest.approx(waited, rel=0.02), lost


@pytest.mark.parametrize("nbytes", [0, 400_000])
@pytest.mark.parametrize("calibrated", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_calibrated_loop_is_predicted_by_theory(tmp_path: Path, workers: int, calibrated: int, nbytes: int) -> None:
    """A batch takes a worker 40 ms and the loop 10: AU is the workers over 4, at most 1."""
    in_turn(tmp_path / "run", read=36, decode=4, compute=10, workers=calibrated, steps=120, nbytes=nbytes)
    learned = rayio.calibrate(tmp_path / "run", busy_run=False, out=tmp_path / "learned.yaml")
    changed = {"loader.num_workers": workers}
    predicted = rayio.simulate(tmp_path / "learned.yaml", changed, out=tmp_path / "predicted").au
    assert predicted == pytest.approx(min(1, workers / 4), abs=0.03)
    assert ("its bytes are not known" in str(learned.scenario.storage.model)) == (not nbytes)
    assert any("are served as quickly as these" in note for note in learned.notes)


def test_runs_with_other_workers_show_the_limit_that_they_share(tmp_path: Path) -> None:
    """Storage serves one batch at a time, in 20 ms: four workers get no more than one, for a loop that takes 10."""
    for name, workers in (("one", 1), ("two", 2)):
        in_turn(tmp_path / name, read=20, compute=10, workers=workers, steps=120, nbytes=400_000, is_shared=True)
    rayio.calibrate(tmp_path / "two", tmp_path / "one", busy_run=False, out=tmp_path / "learned.yaml")
    predicted = rayio.simulate(tmp_path / "learned.yaml", {"loader.num_workers": 4}, out=tmp_path / "predicted").au
    assert predicted == pytest.approx(0.5, abs=0.03)


def test_workers_that_read_bytes_teach_a_bandwidth_and_a_size(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", num_workers=1, prefetch_factor=2, batches=40, samples=160)
    loop.rank(0, [(0, n, 20 * n, 20 * n + 10, 20 * n + 20) for n in range(40)])
    loop.worker(0, 0, [(0, n, 20 * n - 5, 20 * n + 10, 12) for n in range(40)], nbytes=400_000)
    run = rayio.Run.open(tmp_path / "run")
    assert run.result.mib_per_second == pytest.approx(400_000 / 0.02 / 2**20, rel=0.01)
    assert rayio.calibrate(run, busy_run=False).scenario.dataset.sample_bytes.expected == 100_000


def test_ranks_that_meet_charge_each_other_for_late_batches(tmp_path: Path) -> None:
    """Rank 1 waits 30 ms for each batch; rank 0 waits for rank 1, in the all-reduce at the end of its work."""
    loop = Loop(tmp_path / "run", world_size=2, batches=30)
    loop.rank(0, [(0, n, 50 * n, 50 * n, 50 * n + 50) for n in range(30)])
    loop.rank(1, [(0, n, 50 * n, 50 * n + 30, 50 * n + 50) for n in range(30)])
    result = rayio.Run.open(tmp_path / "run").result
    assert result.au == pytest.approx(0.4), "both work for 20 of 50 ms"
    assert result.sync_share == pytest.approx(0.3)
    assert result.data_wait_share == pytest.approx(0.3)


def test_ranks_that_do_not_meet_are_left_alone(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", world_size=2, batches=30)
    loop.rank(0, [(0, n, 50 * n, 50 * n, 50 * n + 50) for n in range(30)])
    loop.rank(1, [(0, n, 70 * n, 70 * n + 35, 70 * n + 70) for n in range(30)])
    result = rayio.Run.open(tmp_path / "run").result
    assert result.sync_share == 0
    assert result.au_max == pytest.approx(1)


def test_ranks_of_different_lengths_count_and_are_named(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", world_size=3, batches=30)
    loop.rank(0, [(0, n, 50 * n, 50 * n + 25, 50 * n + 50) for n in range(30)])
    loop.rank(1, [(0, n, 50 * n, 50 * n + 25, 50 * n + 50) for n in range(12)], end=None)
    run = rayio.Run.open(tmp_path / "run")
    assert run.result.notes[0] == "1 of 3 ranks recorded nothing"
    assert run.result.notes[1] == "rank 1: no end recorded: killed, or still training; its 12 steps count"
    assert run.result.steps == 42


def test_a_row_that_a_killed_rank_wrote_in_part_is_left_out(tmp_path: Path) -> None:
    loop = in_turn(tmp_path / "run", read=40, compute=30)
    path = steps_path(loop.folder, 0)
    path.write_bytes(path.read_bytes()[: 40 * 20 + 13])
    result = rayio.Run.open(tmp_path / "run").result
    assert result.steps == 20
    assert "rank 0: no end recorded" in result.notes[0]


def test_a_loop_that_goes_on_is_read_again(tmp_path: Path) -> None:
    loop = in_turn(tmp_path / "run", read=40, compute=30)
    path = steps_path(loop.folder, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: 40 * 20])
    assert rayio.Run.open(tmp_path / "run").result.steps == 20
    path.write_bytes(whole)
    assert rayio.Run.open(tmp_path / "run").result.steps == 60
    assert rayio.Run.open(tmp_path / "run").directory.spans().num_rows == rayio.Run.open(tmp_path / "run").result[
        "trace"
    ]["stored"]  # fmt: skip


def test_every_command_that_reads_runs_reads_a_watched_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_turn(tmp_path / "a", read=40, compute=30)
    in_turn(tmp_path / "b", read=40, compute=30, workers=2)
    _command("report", tmp_path / "a")
    head = capsys.readouterr().out
    assert head.startswith("a, a training loop, recorded by rayio.watch: 60 steps of 1 rank")
    assert "the loop's own, between steps" in head
    _command("compare", tmp_path / "a", tmp_path / "b")
    _command("query", tmp_path / "a", "select count(*) from spans where name = 'read'")
    assert "60" in capsys.readouterr().out


def _command(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert not ended.value.code


def test_a_loop_without_reads_says_what_it_lacks(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", is_dataloader=False, kind="list", batches=30)
    loop.rank(0, [(0, n, 50 * n, 50 * n + 25, 50 * n + 50) for n in range(30)])
    why = "the loader is no DataLoader of PyTorch (list), whose workers could be timed"
    assert f"no reads are known: {why}" in rayio.Run.open(tmp_path / "run").result.notes
    assert rayio.explain(tmp_path / "run").verdict.data_wait_share == pytest.approx(0.5)
    with pytest.raises(RunError) as raised:
        rayio.calibrate(tmp_path / "run")
    assert str(raised.value) == f"{tmp_path}/run cannot be calibrated, because no reads are known: {why}"


# ---- what a loop records: real loaders


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Sixteen samples; reading one takes a moment."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        with rayio.reading():
            time.sleep(0.002)
        return torch.tensor([index])


class Uneven(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    """Worker 0 has three samples, worker 1 five."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        yield from range(3 + 2 * worker.id)


def _mark(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.offset = worker


def _loader(workers: int, **options: Any) -> Any:
    if workers:
        options = {"persistent_workers": True, "prefetch_factor": 2} | options
    return torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_watching_leaves_batches_as_they_are_and_records_each(tmp_path: Path, workers: int) -> None:
    plain = [batch.tolist() for batch in _loader(0)]
    with rayio.watch(_loader(workers, worker_init_fn=_mark), out=tmp_path / "run") as loader:
        assert len(loader) == 4
        assert loader.batch_size == 4
        for _ in range(3):
            found = []
            for batch in loader:
                found.append(batch.tolist())
                rayio.step()
            assert found == plain
    spans = rayio.Run.open(tmp_path / "run").spans()
    assert (spans["name"] == "compute").sum() == 12
    reads = spans[spans["name"] == "read"].sort_values(["epoch", "step"])
    assert [*zip(reads["epoch"], reads["step"], strict=True)] == [(e, s) for e in range(3) for s in range(4)]
    assert (reads["duration_ns"] >= 8 * MS).all(), "four samples of 2 ms each"
    waits = spans[spans["name"] == "data_wait"].sort_values(["epoch", "step"])
    arrived = (waits["start_ns"] + waits["duration_ns"]).to_numpy()
    assert (reads["start_ns"].to_numpy() + reads["duration_ns"].to_numpy() <= arrived).all()
    if workers:
        assert [*reads["index"]] == ["0-0", "0-1"] * 6
        assert set(reads["pid"]).isdisjoint({os.getpid()})
    else:
        assert {*reads["role"]} == {"rank"}


class Wrapped:
    """A loader as Accelerate makes it: it says that it is a DataLoader, has another one, and takes a batch ahead."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError
        return getattr(self.base_dataloader, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.base_dataloader)

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.base_dataloader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_a_framework_wrapped_is_watched_to_its_workers(tmp_path: Path, workers: int) -> None:
    inner = _loader(workers, worker_init_fn=_mark)
    with rayio.watch(Wrapped(inner), out=tmp_path / "run", accumulate=2) as loader:
        for _batch in loader:
            rayio.step()
    assert inner.worker_init_fn is _mark
    run = rayio.Run.open(tmp_path / "run")
    assert (run.spans()["name"] == "read").sum() == 4
    header = json.loads((tmp_path / "run" / "watch" / "rank-00000.json").read_text())
    assert (header["loader"]["ahead"], header["loader"]["together"]) == (1, 2)


def test_workers_that_end_with_an_epoch_are_recorded_in_the_next(tmp_path: Path) -> None:
    with rayio.watch(_loader(1, persistent_workers=False), out=tmp_path / "run") as loader:
        for _ in range(2):
            for number, _batch in enumerate(loader):
                rayio.step()
                if number == 1:
                    break  # the worker has read further
    spans = rayio.Run.open(tmp_path / "run").spans()
    reads = spans[spans["name"] == "read"]
    assert {(0, 0), (0, 1), (1, 0), (1, 1)} <= {*zip(reads["epoch"], reads["step"], strict=True)}
    assert reads["pid"].nunique() == 2
    assert rayio.Run.open(tmp_path / "run").result.steps == 4


def test_a_worker_without_samples_left_is_passed_over(tmp_path: Path) -> None:
    options = {"batch_size": 1, "num_workers": 2, "collate_fn": _first}
    with rayio.watch(torch.utils.data.DataLoader(Uneven(), **options), out=tmp_path / "run") as loader:
        found = []
        for batch in loader:
            found.append(batch)
            rayio.step()
    assert found == [0, 0, 1, 1, 2, 2, 3, 4], "the last two are of worker 1"
    spans = rayio.Run.open(tmp_path / "run").spans()
    reads = spans[spans["name"] == "read"].sort_values("step")
    assert [*reads["step"]] == [*range(8)]
    assert [*reads["index"]] == ["0-0", "0-1"] * 3 + ["0-1"] * 2


def _first(samples: list[int]) -> int:
    return samples[0]


def test_any_iterable_is_watched_also_without_a_call_of_step(tmp_path: Path) -> None:
    with rayio.watch(iter(range(5)), out=tmp_path / "run", batch_size=3) as loader:
        assert [*loader] == [*range(5)]
    run = rayio.Run.open(tmp_path / "run")
    assert run.result.steps == 5
    assert "is no DataLoader" in " ".join(run.result.notes)


def test_pauses_of_a_loop_have_their_names(tmp_path: Path) -> None:
    with rayio.watch(range(4), out=tmp_path / "run", batch_size=1) as loader:
        for number in loader:
            rayio.step()
            if number % 2:
                with rayio.pause("checkpoint"):
                    pass
        with rayio.pause("evaluate"):
            pass
    spans = rayio.Run.open(tmp_path / "run").spans()
    assert [*spans[spans["name"] == "checkpoint"]["step"]] == [1, 3]
    assert (spans["name"] == "evaluate").sum() == 1
    evaluation = rayio.Run.open(tmp_path / "run").result.evaluation
    assert evaluation is not None
    assert (evaluation.rounds, evaluation.au, evaluation.data_wait_share) == (1, None, None), "nobody saw its steps"


def test_rows_are_on_disk_before_the_loop_ends(tmp_path: Path) -> None:
    loader = rayio.watch(range(2000), out=tmp_path / "run")
    for number in loader:
        rayio.step()
        if number == 1500:
            break
    assert len(read_steps(steps_path(tmp_path / "run" / "watch", 0))) >= 1000
    loader.close()
    assert len(read_steps(steps_path(tmp_path / "run" / "watch", 0))) == 1502, "and its end"


KILLED = """
import os, signal, sys, rayio
for number in rayio.watch(range(1000), out=sys.argv[1]):
    rayio.step()
    if number == 900:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_run_of_a_killed_rank_is_readable(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], check=False)
    assert done.returncode == -signal.SIGKILL
    result = rayio.Run.open(tmp_path / "run").result
    assert 400 < (result.steps or 0) <= 901
    assert "rank 0: no end recorded: killed, or still training" in result.notes[0]


def test_a_loop_that_breaks_off_says_so(tmp_path: Path) -> None:
    program = "import rayio, sys\nfor n in rayio.watch(range(9), out=sys.argv[1]):\n    rayio.step()\n    1 / (n - 5)\n"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, check=False)
    assert b"ZeroDivisionError" in done.stderr
    assert rayio.Run.open(tmp_path / "run").result.notes[0] == "rank 0: its loop ended with an error; its 6 steps count"


def test_each_rank_writes_its_own_files_into_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    for rank in ("1", "0"):  # whichever is first
        monkeypatch.setenv("RANK", rank)
        with rayio.watch(range(20), out=tmp_path / "run", batch_size=2) as loader:
            for _ in loader:
                rayio.step()
    result = rayio.Run.open(tmp_path / "run").result
    assert (result.world_size, result.steps) == (2, 40)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(StorageError, match="already holds a run; give out= another folder"):
        rayio.watch(range(2), out=tmp_path / "run")


# ---- bad input: one line each


def _lines(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(RayioError) as raised:
        call(*arguments, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_mistakes_in_a_loop_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _lines(rayio.step) == (
        "rayio.step(): no loop is watched; call rayio.watch(loader, out=...) first, and iterate over what it returns"
    )
    for out in (None, "", 5):
        assert f"rayio.watch: out={out!r} is no folder; give" in _lines(rayio.watch, [1], out=out)
    assert _lines(rayio.watch, 5, out=tmp_path / "run") == (
        "rayio.watch: loader=5 is nothing to iterate over; give a DataLoader, or another iterable of batches"
    )
    for size in (0, -1, 1.5, True, "4"):
        assert f"batch_size={size!r} is no whole number from 1" in _lines(
            rayio.watch, [1], out=tmp_path / "run", batch_size=size
        )
    assert not (tmp_path / "run").exists()
    loader = rayio.watch([1, 2], out=tmp_path / "run")
    assert "this process watches a loop already, into" in _lines(rayio.watch, [1], tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert "came twice for one batch, or before the first" in _lines(rayio.step)
    next(iter(loader))
    rayio.step()
    assert "came twice for one batch" in _lines(rayio.step)
    with pytest.raises(RunError, match="there are checkpoint and evaluate"), rayio.pause("lunch"):
        pass
    loader.close()
    assert "already holds a run" in _lines(rayio.watch, [1], tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert "is not empty and holds no run" in _lines(rayio.watch, [1], tmp_path / "full")
    assert "is no folder of this machine" in _lines(rayio.watch, [1], "s3://bucket/run")
    assert "cannot write" in _lines(rayio.watch, [1], tmp_path / "full" / "thesis.tex")
    for rank, size, problem in (("two", "4", "RANK='two'"), ("4", "4", "RANK=4"), ("0", "-1", "WORLD_SIZE='-1'")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        assert problem in _lines(rayio.watch, [1], tmp_path / "never")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    loop = in_turn(tmp_path / "run", read=40, compute=30)
    path = steps_path(loop.folder, 0)
    whole = path.read_bytes()
    path.write_bytes(b"\xff" * len(whole))
    assert _lines(rayio.Run.open, tmp_path / "run").endswith(
        "row 0 is no row of a step: the file is damaged; remove it"
    )
    path.write_bytes(whole)
    header = loop.folder / "rank-00000.json"
    header.write_text("{")
    assert "rank-00000.json is not JSON" in _lines(rayio.Run.open, tmp_path / "run")
    header.write_text('{"rank": 0}')
    assert "rank-00000.json: world_size=None: the file is damaged" in _lines(rayio.Run.open, tmp_path / "run")
    header.unlink()
    assert "no rank of this job has begun" in _lines(rayio.Run.open, tmp_path / "run")


def test_a_loop_that_ended_no_step_says_so(tmp_path: Path) -> None:
    Loop(tmp_path / "run").rank(0, [])
    assert "no rank has ended a step yet" in _lines(rayio.Run.open, tmp_path / "run")


def test_numbers_of_a_batch_are_spread_by_no_clock(tmp_path: Path) -> None:
    """Anchors of processes of one boot differ by a few microseconds: one of them counts for all."""
    loop = Loop(tmp_path / "run", world_size=2, batches=20)
    for rank in range(2):
        rows = [(0, n, 50.0 * n, 50.0 * n + 25, 50.0 * n + 50) for n in range(20)]
        loop.rank(rank, rows, anchor_ns=(10 + rank) * MS)
    spans = rayio.Run.open(tmp_path / "run").spans()
    starts = spans[spans["name"] == "data_wait"].groupby("rank")["start_ns"].min()
    assert np.ptp(starts.to_numpy()) == 0


def test_files_changed_anywhere_end_in_one_line_or_in_a_run(tmp_path: Path) -> None:
    loop = in_turn(tmp_path / "run", read=40, compute=30, workers=2, steps=12, nbytes=1000)
    files = [*loop.folder.iterdir(), tmp_path / "run" / "run.json"]
    whole = {path: path.read_bytes() for path in files}
    draw = random.Random(3)
    for number in range(80):
        shutil.rmtree(tmp_path / "run")
        loop.folder.mkdir(parents=True)
        changed = draw.choice(files)
        for path, content in whole.items():
            altered = bytearray(content)
            if path == changed:
                altered = altered[: draw.randrange(len(content))] if number % 4 == 0 else altered
                for _ in range(1 + number % 3):
                    if altered:
                        altered[draw.randrange(len(altered))] = draw.choice(b'9-"{}\x00\x7f\xff,')
            path.write_bytes(altered)
        with contextlib.suppress(RayioError):
            rayio.explain(tmp_path / "run", simulate=False)
