"""Silence: who waits for whom, since when and in which file; what is told of it, and when it ends a run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import rayio
from rayio.errors import RunError, ScenarioError
from rayio.model.env_checkpoints import CheckpointEnv
from rayio.model.kernel import WallKernel
from rayio.model.standing import Silence, Standing, Vigil, silence
from rayio.place import Where
from rayio.reporter import Reporter
from rayio.signals import is_anything_left, within
from scenarios import scenario

S = 1_000_000_000


def rank(number: int, doing: str, step: int, since: float, until: float | None = None) -> Standing:
    at = Where(number, 0, step)
    ends = None if until is None else int(until * S)
    return Standing("rank", f"rank-{number}", doing, at, int(since * S), int(since * S), ends)


def reader(number: int, step: int, since: float, heard: float, file: str) -> Standing:
    at = Where(number, 0, step)
    return Standing("reader", f"reader-{number}-0", "read", at, int(since * S), int(heard * S), None, file)


def lease(number: int, step: int, since: float) -> Standing:
    at = Where(number, 0, step)
    return Standing("queue", f"queue-{number}", "lease", at, int(since * S), int(since * S), by=f"reader-{number}-0")


def told(standings: list[Standing], now: float, **more: object) -> tuple[float, str]:
    found = silence(standings, int(now * S), **more)  # type: ignore[arg-type]
    assert found is not None
    return found.seconds, found.story


def test_a_reader_that_is_held_up_is_named_with_its_file() -> None:
    seconds, story = told([rank(0, "data_wait", 11, 60), lease(0, 11, 58), reader(0, 11, 59, 59.5, "a/40.npz")], 100)
    assert seconds == 40
    assert story == (
        "rank-0 has waited 40 s for its batch of epoch 0, step 11; "
        "reader-0-0 has had it for 42 s and is reading a/40.npz"
    )


def test_a_reader_that_opens_files_is_no_silence() -> None:
    seconds, _ = told([rank(0, "data_wait", 11, 60), lease(0, 11, 58), reader(0, 11, 59, 98, "a/40.npz")], 100)
    assert seconds == 2


def writer(number: int, doing: str, since: float, heard: float, file: str) -> Standing:
    at = Where(number, 0, 7)
    return Standing(
        "checkpoint_writer", f"checkpoint_writer-{number}", doing, at, int(since * S), int(heard * S), None, file
    )


def test_a_restore_whose_writer_reads_is_no_silence() -> None:
    seconds, _ = told([rank(0, "restore", 7, 10), writer(0, "load", 10, 998, "ck/a.bin")], 1000)
    assert seconds == 2
    seconds, story = told([rank(0, "restore", 7, 10), writer(0, "load", 10, 100, "ck/a.bin")], 1000)
    assert (seconds, story) == (
        900,
        "rank-0 has waited 990 s for the restore of its checkpoint of epoch 0, step 7; "
        "checkpoint_writer-0 has been reading ck/a.bin for 990 s",
    )


def test_whoever_meets_without_compute_waits_for_what_holds_the_others() -> None:
    waiting = rank(1, "sync", 0, 10)
    seconds, _ = told([rank(0, "restore", 7, 10), waiting, writer(0, "load", 10, 998, "ck/a.bin")], 1000)
    assert seconds == 2


def test_every_request_to_a_checkpoint_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a checkpoint may take longer than the deadline: its writer is heard of after each request."""
    heard: dict[str, list[int]] = {}
    moved = CheckpointEnv.moved

    def noted(env: CheckpointEnv) -> None:
        moved(env)
        (now,) = env.standing()  # type: ignore[attr-defined]
        heard.setdefault(now.doing, []).append(now.heard)

    monkeypatch.setattr(CheckpointEnv, "moved", noted)
    saving = {"path": "ck", "model": {"bytes": 10_000}, "request_bytes": 2500, "phases": {"writes": 1, "reads": 1}}
    rayio.run(scenario(dataset__path="data", checkpoint=saving), engine="local", root=tmp_path, out="r")
    assert {doing: len(set(times)) for doing, times in heard.items()} == {"write": 4, "load": 4}
    assert all(times == sorted(times) for times in heard.values())


def test_a_rank_that_computes_for_an_hour_is_no_silence() -> None:
    computing = rank(1, "compute", 3, 0, until=3600)
    seconds, _ = told([computing, rank(0, "compute", 3, 0, until=1)], 1800)
    assert seconds == 0


def test_whoever_waits_at_the_barrier_waits_for_what_holds_the_others() -> None:
    standings = [
        rank(0, "compute", 11, 60, until=61),
        rank(1, "data_wait", 11, 60),
        rank(2, "compute", 11, 60, until=61),
        lease(1, 11, 50),
        reader(1, 11, 60, 60, "a/7.npz"),
    ]
    seconds, story = told(standings, 100)
    assert seconds == 40
    assert story == (
        "rank-1 has waited 40 s for its batch of epoch 0, step 11; "
        "reader-1-0 has had it for 50 s and is reading a/7.npz; "
        "rank-0 and 1 other rank have waited 39 s for it at epoch 0, step 11"
    )


def test_all_at_the_barrier_wait_for_the_barrier() -> None:
    standings = [rank(0, "compute", 4, 10, until=12), rank(1, "compute", 4, 10, until=11)]
    seconds, story = told(standings, 62, unanswered={"barrier": " (pid 77)"})
    assert seconds == 51
    assert story == (
        "rank-1 and 1 other rank have waited 51 s for the barrier at epoch 0, step 4; barrier does not answer (pid 77)"
    )


def test_one_that_does_not_answer_is_named_with_the_files_that_it_has_to_read() -> None:
    _, story = told(
        [rank(0, "data_wait", 2, 10), lease(0, 2, 9)], 50,
        unanswered={"reader-0-0": " (pid 5)"}, files=lambda at: [f"data/{at.step}-{n}.npz" for n in range(5)],
    )  # fmt: skip
    assert story == (
        "rank-0 has waited 40 s for its batch of epoch 0, step 2; reader-0-0 has had it for 41 s and does not answer "
        "(pid 5); its files are data/2-0.npz, data/2-1.npz, data/2-2.npz, 2 more"
    )


def test_nobody_waits_before_the_first_rank_lives() -> None:
    assert silence([reader(0, 0, 0, 0, "x")], 100 * S) is None


def test_a_silence_is_told_after_half_a_minute_and_each_time_it_has_doubled_and_when_it_is_over() -> None:
    said: list[str] = []
    vigil = Vigil(600.0, said.append)
    for seconds in (5, 29, 31, 45, 59, 61, 100, 121, 2, 1, 35):
        vigil.hear(Silence(seconds, "who"))
    assert said == [
        "no progress for 31 s: who",
        "no progress for 61 s: who",
        "no progress for 121 s: who",
        "progress again, after 121 s without",
        "no progress for 35 s: who",
    ]
    assert vigil.notes == said
    with pytest.raises(RunError, match=r"^no progress for 601 s \(cluster.stall_deadline=10 min\): who$"):
        vigil.hear(Silence(601, "who"))


def test_a_stall_that_the_scenario_asks_for_is_named(home: Path) -> None:
    stall = {"at": "0 s", "seconds": "1 h"}
    often = {"rate": 0.5, "seconds": "200 ms"}
    wanted = scenario(storage={"faults": {"stalls": [stall, often]}}, cluster__stall_deadline="1 s")
    with pytest.raises(RunError, match=r"^no progress for .*has waited") as error:
        rayio.run(wanted, engine="local", out="r")
    assert str(error.value).endswith(
        "; the scenario stalls storage on purpose (storage.faults): 1 h for all of storage, 0 s after the first read, "
        "200 ms for 50 % of samples"
    )


@pytest.mark.parametrize("written", ["0 s", "900 ms", "1e300 s", "721 h"])
def test_a_deadline_has_bounds(written: str) -> None:
    with pytest.raises(ScenarioError, match=r"cluster.stall_deadline=.*: must be (at (least|most)|greater than 0)"):
        scenario(cluster__stall_deadline=written)


def test_a_run_whose_storage_does_not_answer_ends_with_the_story(home: Path) -> None:
    said: list[str] = []

    class Heard(Reporter):
        def failed(self, text: str) -> None:
            said.append(text)

    model = {"first_byte": "60 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    wanted = scenario(storage={"model": model}, cluster__stall_deadline="1 s")
    with pytest.raises(RunError) as error:
        rayio.run(wanted, engine="local", out="r", reporter=Heard())
    seconds, rank = (
        r"[1-9]\d* s",
        r"rank-[01] has waited {0} for its batch of epoch 0, step 0; "
        r"reader-[01]-0 has had it for {0} and is reading it",
    )
    pattern = rf"no progress for {{0}} \(cluster.stall_deadline=1 s\): {rank}; {rank}".format(seconds)
    assert re.fullmatch(pattern, str(error.value))
    assert said[-1] == f"run failed; its records until then are in {home / 'r'}"
    left = rayio.Run.open("r").result
    assert (left.exit_code, left.error) == (2, str(error.value))


def test_a_call_that_does_not_return_is_left_behind() -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.05, gate.wait)
    assert is_anything_left()
    gate.set()
    assert within(30, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 // 0)

    def gone() -> None:
        raise ScenarioError("gone")

    slow = threading.Event()
    with pytest.raises(ScenarioError):
        within(30, slow.wait, look=gone, every=0.01)
    slow.set()


def test_a_process_ends_beside_a_thread_that_waits_for_ever(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = f"""
import asyncio
from rayio.model.kernel import WallKernel
async def main():
    kernel = WallKernel(threads=2)
    assert await kernel.threaded(lambda: 42) == 42
    try:
        await asyncio.wait_for(kernel.threaded(lambda: open({str(pipe)!r}).read()), 0.1)
    except TimeoutError:
        print("waited")
    await kernel.cancel()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waited\n", "")


def test_threads_make_calls_side_by_side_and_pass_on_what_they_raise() -> None:
    async def main() -> None:
        kernel = WallKernel(threads=2)
        both = threading.Barrier(2, timeout=30)
        await asyncio.gather(*(kernel.threaded(both.wait) for _ in range(2)))
        with pytest.raises(ZeroDivisionError):
            await kernel.threaded(lambda: 1 // 0)
        assert await asyncio.gather(*(kernel.threaded(partial(int, n)) for n in range(100))) == list(range(100))
        await kernel.cancel()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await kernel.threaded(lambda: 1)

    asyncio.run(main())
