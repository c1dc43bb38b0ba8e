"""Asynchronous checkpoints: training waits for the copy alone, and for the last one when that is not durable yet."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import CAUSES, attribute
from rayio.errors import StorageError
from rayio.model.completing import Completion
from rayio.place import Where
from rayio.scenario.model import Scenario
from scenarios import Outcome, run_locally, scenario, simulated

MS = 1_000_000
#: A writer alone: 1 MB takes 1 ms, and files are opened in no time.
DEVICE = {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1000 GB/s", "scope": "cluster"}


def saving(
    size: int, period: int, *, steps: int = 12, compute: str = "10 ms", snapshot: str | None = "10 GB/s",
    writers: Any = "rank_zero", ranks: int = 1, **more: Any,
) -> Scenario:  # fmt: skip
    """Steps of ``compute`` whose data are there at once, with a checkpoint of ``size`` MB after every ``period``."""
    section: dict[str, Any] = {
        "every": {"steps": period}, "path": "ck", "model": {"bytes": size * 1_000_000}, "writers": writers,
        "request_bytes": "1 GB",
    }  # fmt: skip
    if snapshot is not None:
        section |= {"asynchronous": True, "snapshot_bandwidth": snapshot}
    return scenario(
        cluster={"ranks_per_node": ranks}, checkpoint=section, storage__model=DEVICE, dataset__num_files=steps * ranks,
        dataset__sample_bytes="16 B", loader__batch_size=1, train={"epochs": 1, "compute": compute}, **more,
    )  # fmt: skip


def length(run: Outcome, rank: int = 0) -> int:
    """How long a rank trained (ns), from its first batch to its end."""
    (life,) = run.rows("life", rank=rank)
    return int(life["start_ns"] + life["duration_ns"] - run.rows("compute", rank=rank)[0]["start_ns"])


def test_training_waits_for_the_copy_alone_and_at_the_end_for_the_file() -> None:
    # 4 checkpoints of 20 MB: 20 ms to write, 2 ms to copy, 30 ms to compute between them
    waiting = length(simulated(saving(20, 3, snapshot=None)))
    behind = simulated(saving(20, 3))
    assert waiting == 12 * 10 * MS + 4 * 20 * MS
    assert length(behind) == 12 * 10 * MS + 4 * 2 * MS + 20 * MS
    assert [row["duration_ns"] for row in behind.rows("checkpoint")] == [2 * MS] * 4 + [20 * MS]
    statistics = measure(RunArrays.of_spans(behind.spans), RunShape.of(behind.scenario)).percentiles.checkpoint
    assert statistics is not None
    assert (statistics.count, statistics.max) == (4, 0.002), "the wait at the end is no checkpoint"
    assert [row["duration_ns"] for row in behind.rows("snapshot")] == [2 * MS] * 4
    assert [row["duration_ns"] for row in behind.rows("checkpoint_wait")] == [20 * MS], "only at the end"
    assert [row["bytes"] for row in behind.rows("snapshot")] == [20_000_000] * 4
    writes = behind.rows("write")
    assert [row["start_ns"] for row in writes] == [
        row["start_ns"] + row["duration_ns"] for row in behind.rows("snapshot")
    ]


@given(
    size=st.integers(1, 90), period=st.integers(1, 6), computes=st.integers(1, 20), rate=st.integers(1, 40),
)  # fmt: skip
def test_a_rank_waits_for_the_last_checkpoint_exactly_when_that_takes_longer_than_a_period(
    size: int, period: int, computes: int, rate: int
) -> None:
    run = simulated(saving(size, period, compute=f"{computes} ms", snapshot=f"{rate} GB/s"))
    number, write, work = 12 // period, size * MS, period * computes * MS
    copy = round(size * 1e6 / (rate * 1e9) * 1e9)
    waits = run.rows("checkpoint_wait")
    between = max(0, write - work)
    assert [row["duration_ns"] for row in waits[: number - 1]] == [between] * (number - 1) if between else True
    rest = 12 % period * computes * MS
    last = max(0, write - rest)
    assert len(waits) == (number - 1) * (between > 0) + (last > 0)
    assert length(run) == 12 * computes * MS + number * copy + (number - 1) * between + last
    waited = simulated(saving(size, period, compute=f"{computes} ms", snapshot=None))
    assert length(waited) == 12 * computes * MS + number * write


@pytest.mark.parametrize("writers", ["rank_zero", "all_ranks", "sharded", {"dedicated": 3}], ids=str)
@pytest.mark.parametrize("snapshot", [None, "10 GB/s"], ids=["waiting", "behind"])
def test_lane_0_tiles_a_rank_s_life_and_every_loss_is_charged_once(writers: Any, snapshot: str | None) -> None:
    run = simulated(
        saving(50, 2, ranks=3, writers=writers, snapshot=snapshot, train__stragglers={"ranks": [1], "factor": 1.5})
    )
    for rank in range(3):
        tiles = [r for r in run.all_rows if (r["role"], r["rank"], r["lane"]) == ("rank", rank, 0)]
        tiles.sort(key=lambda row: (row["start_ns"], row["start_ns"] + row["duration_ns"]))
        for one, other in pairwise(tiles):
            assert one["start_ns"] + one["duration_ns"] == other["start_ns"]
        (life,) = run.rows("life", rank=rank)
        assert tiles[-1]["start_ns"] + tiles[-1]["duration_ns"] == life["start_ns"] + life["duration_ns"]
        inside = run.rows("snapshot", rank=rank) + run.rows("checkpoint_wait", rank=rank)
        held = sum(row["duration_ns"] for row in run.rows("checkpoint", rank=rank))
        assert sum(row["duration_ns"] for row in inside) == (held if snapshot else 0)
    charged = attribute(run.spans)
    steps = charged.steps
    assert (charged.losses.sum(axis=1) + steps.parts["compute"] == steps.duration).all()
    place = [*CAUSES].index("checkpoint")
    blocked = sum(row["duration_ns"] for row in run.rows("checkpoint"))
    assert charged.losses[:, place].sum() - charged.by_sync[:, place].sum() == blocked


def test_shards_are_written_beside_their_ranks_at_the_same_time() -> None:
    whole, cut = (simulated(saving(60, 4, ranks=3, writers=w, snapshot=None)) for w in ("rank_zero", "sharded"))
    assert {row["duration_ns"] for row in whole.rows("write")} == {60 * MS}
    assert {row["duration_ns"] for row in cut.rows("write")} == {20 * MS}
    assert len(cut.rows("write")) == 3 * len(whole.rows("write"))
    assert {(row["index"], row["rank"]) for row in cut.rows("write")} == {("0", 0), ("1", 1), ("2", 2)}


def test_a_file_that_cannot_be_written_behind_ends_the_run_by_its_name(tmp_path: Path) -> None:
    wanted = saving(1, 5, compute="1 ms", dataset__path="data")
    (tmp_path / "ck" / "epoch-0000-step-00000004").mkdir(parents=True)
    (tmp_path / "ck" / "epoch-0000-step-00000004" / "shard-00000.bin").mkdir()
    with pytest.raises(StorageError, match=r"shard-00000\.bin: a folder is in the place of this file"):
        run_locally(on_disk(wanted, tmp_path), tmp_path)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("reports", range(12))
def test_a_writer_that_came_for_a_killed_one_learns_again_which_files_are_durable(
    reports: int, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six checkpoints of two ranks are twelve reports; the writer that counts them is another one after some."""
    reported, calls = Completion.report, count()

    async def report(completion: Completion, durable: Any, at: Where, in_burst: bool) -> list[Any]:
        if next(calls) == reports:
            for known in (completion._durable, completion._begun, completion._complete):
                known.clear()
        return await reported(completion, durable, at, in_burst)

    monkeypatch.setattr(Completion, "report", report)
    saved = {"every": {"steps": 4}, "path": "ck", "model": {"bytes": "1 kB"}, "writers": "sharded"}
    run = simulated(scenario(checkpoint=saved | {"asynchronous": behind}))
    assert {(row["epoch"], row["step"]) for row in run.rows("manifest")} == {(e, s) for e in (0, 1) for s in (3, 7, 11)}


@pytest.mark.parametrize("parts", [1, 4], ids=["file", "upload"])
def test_reading_goes_on_between_the_requests_of_files_that_are_written_behind(parts: int) -> None:
    # Two files of 512 MB take the whole bandwidth for a second, and training takes as long. By hand: a batch comes
    # within 20 ms, for it waits for two pieces of 4 MB, or of an upload 8 MiB; a wait for a file takes half a second.
    device = DEVICE | {"connection_bandwidth": f"{1 / parts} GB/s", "bandwidth": "1 GB/s", "upload_parts": parts}
    saved = {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "512 MB"}, "writers": "all_ranks"}
    run = simulated(
        scenario(
            checkpoint=saved | {"asynchronous": True, "snapshot_bandwidth": "1000 GB/s", "request_bytes": "1 MB"},
            storage__model=device,
            dataset__num_files=30,
            dataset__sample_bytes="16 B",
            loader__batch_size=1,
            train={"epochs": 1, "steps": 15, "compute": "20 ms"},
            trace={"level": "batch"},
        )
    )
    assert len(run.rows("write")) == 2
    assert max(row["duration_ns"] for row in run.rows("write")) > 900 * MS
    assert max(row["duration_ns"] for row in run.rows("read")) < 20 * MS
    assert sum(row["duration_ns"] for row in run.rows("data_wait")) < 2 * MS


def by_request(steps: int, period: int, *, read_ns: int, compute_ns: int, requests: int, write_ns: int) -> list[int]:
    """Return when each of two ranks ends (ns) that read, compute and never meet; rank 0 also saves.

    A loop of events: the device serves one request at a time, in the order in which they come, and the next request of
    a rank comes when its last one is served.
    """

    def life(rank: int) -> Iterator[tuple[int, int]]:
        for step in range(1, steps + 1):
            yield 0, read_ns
            yield from [(compute_ns, write_ns), *[(0, write_ns)] * (requests - 1)] * (rank == 0 and step % period == 0)
            yield (0 if rank == 0 and step % period == 0 else compute_ns), 0

    ranks, ends, free_at = [life(0), life(1)], [0, 0], 0
    waiting = [(0, rank, 0) for rank in range(2)]  # when a request comes, of whom, and the time that it takes
    while waiting:
        now, rank, work = heappop(waiting)
        if work:
            now = free_at = max(free_at, now) + work
        ends[rank] = now
        if (following := next(ranks[rank], None)) is not None:
            heappush(waiting, (now + following[0], rank, following[1]))
    return ends


@pytest.mark.parametrize("requests", [1, 10, 100])
def test_ranks_that_never_meet_read_between_the_requests_of_a_checkpoint_for_which_another_waits(requests: int) -> None:
    # 1 GB/s: 1 s for a checkpoint of rank 0, and 1 ms for a sample
    size = 1_000_000_000
    saved = {"every": {"steps": 20}, "path": "ck", "model": {"bytes": size}, "request_bytes": size // requests}
    run = simulated(
        scenario(
            cluster={"ranks_per_node": 2},
            checkpoint=saved | {"writers": "rank_zero"},
            storage__model=DEVICE | {"bandwidth": "1 GB/s"},
            dataset__num_files=120,
            dataset__format="raw",
            dataset__sample_bytes="1 MB",
            loader={"batch_size": 1, "num_workers": 0},
            train={"epochs": 1, "compute": "7 ms", "sync": "none"},
        )
    )
    counts = {"read_ns": MS, "compute_ns": 7 * MS, "requests": requests, "write_ns": 1000 * MS // requests}
    ends = by_request(60, 20, **counts)
    for rank, end in enumerate(ends):
        rows = [*run.rows("compute", rank=rank), *run.rows("checkpoint", rank=rank)]
        last = max(row["start_ns"] + row["duration_ns"] for row in rows)
        assert last - run.rows("life", rank=rank)[0]["start_ns"] == pytest.approx(end, abs=10_000)  # manifests


@pytest.mark.parametrize("sync", ["none", "barrier"])
def test_files_are_written_at_once_where_all_ranks_wait_for_them(sync: str) -> None:
    # Two ranks save 1 GB each at 1 GB/s. With a barrier one file follows the other, without one they take turns.
    saved = {"every": {"steps": 5}, "path": "ck", "model": {"bytes": "1 GB"}, "request_bytes": "10 MB"}
    run = simulated(
        scenario(
            cluster={"ranks_per_node": 2},
            checkpoint=saved | {"writers": "all_ranks"},
            storage__model=DEVICE | {"bandwidth": "1 GB/s"},
            dataset__num_files=10,
            dataset__sample_bytes="16 B",
            loader={"batch_size": 1, "num_workers": 0},
            train={"epochs": 1, "compute": "7 ms", "sync": sync},
        )
    )
    seconds = sorted(row["duration_ns"] / 1e9 for row in run.rows("checkpoint"))
    assert seconds == pytest.approx([1, 2] if sync == "barrier" else [1.99, 2], abs=1e-3)
