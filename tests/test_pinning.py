"""``loader.pin_memory``: a thread that copies batches in order, as PyTorch's does, on every engine."""

from __future__ import annotations

import itertools
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk

from rayio.analyze.stalls import attribute
from rayio.errors import ScenarioError
from rayio.report.explain import explain
from rayio.scenario import checks
from rayio.session import simulate
from scenarios import Outcome, run_locally, scenario, simulated

MS = 1_000_000
#: One rank; a batch of 2 kB is read in 4 ms and pinned in 2 ms at 1 MB/s.
ONE: dict[str, Any] = {
    "cluster__ranks_per_node": 1, "dataset__num_files": 120, "dataset__format": "raw", "train__epochs": 1,
    "loader__num_workers": 2,
    "storage__model": {"first_byte": "2 ms", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"},
    "loader__pin_memory": True, "loader__pin_bandwidth": "1 MB/s", "train__compute": "1 ms",
}  # fmt: skip


def taken(run: Outcome) -> list[int]:
    """Give the times at which rank 0 had its batches."""
    return [row["start_ns"] + row["duration_ns"] for row in run.rows("data_wait", rank=0)]


def pytorch(steps: int, workers: int, factor: int, read: list[int], pin: int, compute: int) -> list[int]:
    """Give the times at which a loop has its batches: PyTorch's DataLoader as its source describes it.

    ``_try_put_index`` deals indices to workers in turn, up to ``prefetch_factor * num_workers`` outstanding; each
    worker reads one after the other; ``_pin_memory_loop`` takes what comes from ``worker_result_queue``, one by one;
    ``_next_data`` waits for the next index in order, and puts another index when it has it.
    """
    free, events, ready, had = [0] * workers, list[tuple[int, int]](), dict[int, int](), list[int]()
    sent, pinned, now = 0, 0, 0

    def send() -> None:
        nonlocal sent
        if sent < steps:
            free[sent % workers] = max(free[sent % workers], now) + read[sent]
            heappush(events, (free[sent % workers], sent))
            sent += 1

    for _ in range(workers * factor):
        send()
    for step in range(steps):
        while step not in ready:
            came, index = heappop(events)
            pinned = max(pinned, came) + pin
            ready[index] = pinned
        now = max(now, ready[step])
        had.append(now)
        send()
        now += compute
    return had


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (2, 2), (3, 1), (4, 4)])
@pytest.mark.parametrize(("rate", "compute"), [("1 MB/s", 1), ("1 MB/s", 5), ("100 MB/s", 1), ("200 kB/s", 3)])
def test_batches_come_when_pytorch_s_pin_thread_has_them(workers: int, factor: int, rate: str, compute: int) -> None:
    first_byte = {"kind": "lognormal", "median": "2 ms", "sigma": 0.8}
    keys = ONE | {"loader__num_workers": workers, "loader__prefetch_factor": factor, "loader__pin_bandwidth": rate}
    keys |= {"train__compute": f"{compute} ms", "storage__model": ONE["storage__model"] | {"first_byte": first_byte}}
    run = simulated(scenario(**keys))
    read = [row["duration_ns"] for row in sorted(run.rows("read"), key=lambda row: row["step"])]
    pin = round(2000 / {"1 MB/s": 1e6, "100 MB/s": 1e8, "200 kB/s": 2e5}[rate] * 1e9)
    begun = run.rows("data_wait", rank=0)[0]["start_ns"]
    theirs = pytorch(60, workers, factor, read, pin, compute * MS)
    assert [had - begun for had in taken(run)] == theirs
    assert run.ledger.even


@pytest.mark.parametrize(
    ("read", "pin", "copy", "compute", "overlap"),
    [(20, 2, 2, 3, False), (4, 9, 2, 3, False), (4, 2, 2, 7, False), (4, 2, 9, 3, True), (4, 9, 8, 8, True)],
)
def test_a_pipeline_is_as_fast_as_its_slowest_stage(
    read: int, pin: int, copy: int, compute: int, overlap: bool
) -> None:
    """Read by two workers → pin → copy to the accelerator → step; in line the last two are one stage."""
    keys = ONE | {
        "storage__model": ONE["storage__model"] | {"first_byte": f"{read / 2} ms"}, "train__compute": f"{compute} ms",
        "loader__pin_bandwidth": 2000 / pin * 1e3,
        "train__device_copy": {"bandwidth": 2000 / copy * 1e3, "overlap": overlap}, "loader__prefetch_factor": 4,
    }  # fmt: skip
    computes = [row["start_ns"] for row in simulated(scenario(**keys)).rows("compute")]
    mean = (computes[-1] - computes[20]) / (len(computes) - 21)
    last = max(copy, compute) if overlap else copy + compute
    assert mean / MS == pytest.approx(max(read / 2, pin, last), rel=0.02)


def test_a_rank_that_reads_by_itself_pins_by_itself() -> None:
    run = simulated(scenario(**ONE | {"loader__num_workers": 0}))
    assert {row["duration_ns"] for row in run.rows("pin")} == {2 * MS}
    waits = [row["duration_ns"] for row in run.rows("data_wait")]
    assert max(abs(wait - 6 * MS) for wait in waits) < 10
    charged = attribute(run.spans)
    assert charged.lost["pin"].tolist() == [2 * MS] * 60


@pytest.mark.parametrize("queue", [{}, {"loader__assignment": "dynamic"}, {"loader__in_order": False}])
def test_every_wait_is_charged_once_and_most_of_it_to_the_slowest_stage(queue: dict[str, Any]) -> None:
    run = simulated(scenario(**ONE | queue | {"loader__pin_bandwidth": "200 kB/s"}))
    charged = attribute(run.spans)
    steps = charged.steps
    assert (sum(charged.lost.values()) + steps.parts["compute"] == steps.duration).all()
    assert charged.lost["pin"].sum() > 0.75 * steps.parts["data_wait"].sum()
    assert run.ledger.even


def test_a_free_worker_reads_while_its_batch_is_pinned() -> None:
    run = simulated(scenario(**ONE | {"loader__assignment": "dynamic", "loader__pin_bandwidth": "500 kB/s"}))
    first = [row for row in run.rows("read") if row["index"] == "0-0"]
    gaps = [after["start_ns"] - row["start_ns"] - row["duration_ns"] for row, after in itertools.pairwise(first)]
    assert gaps[0] == 0, "the window has room for another batch"


@pytest.mark.parametrize("keys", [{}, {"loader__num_workers": 0}, {"loader__queue": "in_rank"}])
def test_real_files_are_pinned_as_in_the_model(keys: dict[str, Any], tmp_path: Path) -> None:
    wanted = scenario(**{key: value for key, value in (ONE | keys).items() if not key.startswith("storage")},
                      dataset__path="data")  # fmt: skip
    real, model = run_locally(on_disk(wanted, tmp_path), tmp_path), simulated(wanted)
    assert real.ledger.even
    assert real.delivered(0) == model.delivered(0)
    ours, theirs = ([(row["role"], row["batch"], row["bytes"]) for row in run.rows("pin")] for run in (real, model))
    assert sorted(ours) == sorted(theirs)
    assert min(row["duration_ns"] for row in real.rows("pin")) >= 2 * MS
    ends = sorted(row["start_ns"] + row["duration_ns"] for row in real.rows("pin"))
    assert min(after - before for before, after in itertools.pairwise(ends)) >= 2 * MS, "one batch after the other"


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pytorch_s_loader_takes_the_time_of_its_pin_thread_where_there_is_no_gpu(
    num_workers: int, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("PyTorch pins by itself")
    keys = ONE | {"loader__kind": "torch", "loader__num_workers": num_workers, "dataset__num_files": 40}
    keys |= {"loader__multiprocessing_context": "fork"} if num_workers else {}
    wanted = scenario(**{key: value for key, value in keys.items() if not key.startswith("storage")},
                      dataset__path="data")  # fmt: skip
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    ends = sorted(row["start_ns"] + row["duration_ns"] for row in real.rows("pin"))
    assert len(ends) == 20
    assert min(after - before for before, after in itertools.pairwise(ends)) >= 2 * MS, "one batch after the other"
    assert all(had >= end for had, end in zip(taken(real), ends, strict=True))


def test_modelled_cores_are_busy_with_copies() -> None:
    """With one core for two ranks, what they pin takes turns."""
    keys = ONE | {"cluster__ranks_per_node": 2, "dataset__num_files": 240, "train__compute": "100 us"}
    keys |= {"loader__pin_bandwidth": "500 kB/s"}
    alone, both = (simulated(scenario(**keys, cluster__cores=cores)) for cores in (2, 1))
    assert not any("cluster.cores" in note for note in checks.idle(both.scenario))
    lasted = [max(taken(run)) - min(taken(run)) for run in (alone, both)]
    assert lasted[1] > 1.5 * lasted[0]


def test_explain_names_the_copy_and_what_helps(tmp_path: Path) -> None:
    keys = ONE | {"dataset__num_files": 480, "loader__pin_bandwidth": "200 kB/s", "train__compute": "5 ms"}
    found = explain(simulate(scenario(**keys), root=tmp_path).path)
    assert (found.verdict.bound, found.verdict.cause) == ("input", "pin")
    assert (
        "A copy into page-locked memory (loader.pin_memory) takes 9.98 ms: 1 thread gives 100 batches/s at most"
        in found.sentence
    )
    assert "loader.pin_memory=false" in found.sentence
    row = next(row for row in found.capacity.stages if row.stage == "pin")
    assert row.capacity == pytest.approx(100, rel=0.02)
    assert found.simulated is not None
    change = next(row for row in found.simulated.changes if row.change == "no pinned memory")
    really = simulate(
        scenario(**keys | {"loader__pin_memory": False, "loader__pin_bandwidth": "7 GB/s"}), root=tmp_path
    )
    assert really.result.au == pytest.approx(change.au, abs=0.01)


def test_pinned_memory_pays_where_copies_to_the_accelerator_are_slow(tmp_path: Path) -> None:
    """1 ms to pin next to compute, against 4 ms instead of 2 for the copy, in line."""
    copy = {"bandwidth": "1 MB/s", "pageable_bandwidth": "500 kB/s"}
    keys = ONE | {"train__device_copy": copy, "train__compute": "5 ms", "loader__pin_bandwidth": "2 MB/s"}
    pageable = scenario(
        **keys | {"loader__pin_memory": False, "dataset__num_files": 480, "loader__pin_bandwidth": "7 GB/s"}
    )
    run = simulate(pageable, root=tmp_path)
    assert {row["duration_ns"] for row in simulated(pageable).rows("device_copy")} == {4 * MS}
    assert {row["duration_ns"] for row in simulated(scenario(**keys)).rows("device_copy")} == {2 * MS}
    found = explain(run.path)
    assert found.simulated is not None
    change = next(row for row in found.simulated.changes if row.change == "pinned memory")
    assert change.time_saved == pytest.approx(2 / 9, abs=0.02)
    assert "loader.pin_memory=true" in found.sentence


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"loader__pin_bandwidth": 0}, "loader.pin_bandwidth=0: must be greater than 0"),
        ({"train__device_copy": {"bandwidth": "1 GB/s", "pageable_bandwidth": "2 GB/s"}},
         "train.device_copy.pageable_bandwidth=2 GB/s: copies from pinned memory are at least as fast, and bandwidth="),
        ({"loader__pin_memory": False, "train__device_copy": {
            "bandwidth": "2 GB/s", "pageable_bandwidth": "1 GB/s", "overlap": True}},
         "train.device_copy.overlap=true: copies overlap with compute from pinned memory alone; use loader.pin_memory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**ONE | keys)
    assert line in str(refused.value)


def test_a_bandwidth_without_copies_is_named() -> None:
    notes = checks.idle(scenario(**ONE | {"loader__pin_memory": False}))
    assert "loader.pin_bandwidth=1 MB/s: nothing is copied with loader.pin_memory=false" in notes
