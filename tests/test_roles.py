"""Stories of whole runs, on the virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayio.place import batch_id
from scenarios import run_locally, scenario, simulated

STORAGE = {
    "first_byte": "1 ms",
    "connection_bandwidth": "1 MB/s",
    "bandwidth": "1 GB/s",
}


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def test_a_reader_reads_and_then_decodes_each_of_its_batches() -> None:
    run = simulated(loader__decode="1 ms", train__steps=4, train__epochs=1)
    spans = [r for r in run.spans.sort_by("start_ns").to_pylist() if (r["role"], r["index"]) == ("reader", "0-0")]
    assert names(spans) == ["read", "decode"] * 2
    assert [s["step"] for s in spans] == [0, 0, 2, 2]


def test_a_rank_takes_computes_and_meets_the_others_in_every_step() -> None:
    run = simulated(train__compute={"kind": "normal", "mean": "10 ms", "stdev": "1 ms"}, train__epochs=1)
    slow = {r["step"]: r["duration_ns"] for r in run.rows("compute", rank=0)}
    fast = {r["step"]: r["duration_ns"] for r in run.rows("compute", rank=1)}
    assert slow != fast, "ranks draw for themselves"
    for step in range(12):
        waits = [r for rank in (0, 1) for r in run.rows("sync", rank=rank, step=step)]
        assert len(waits) == 1, "the slowest rank of a step does not wait"
        ends = {r["start_ns"] + r["duration_ns"] for r in waits}
        slowest = max(r["start_ns"] + r["duration_ns"] for r in run.rows("compute", step=step))
        assert ends == {slowest}


def test_without_sync_no_rank_waits_for_another() -> None:
    run = simulated(train__compute={"kind": "normal", "mean": "10 ms", "stdev": "3 ms"}, train__sync="none")
    assert run.rows("sync") == []


def test_an_all_reduce_takes_its_time_on_every_rank() -> None:
    sync = {"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s", "latency": "1 ms"}
    run = simulated(train__sync=sync, train__epochs=1)
    later = [r for r in run.rows("sync") if r["step"] > 0]
    assert {r["duration_ns"] for r in later} == {3_000_000}  # 2·(1/2)·1 MB / 1 GB/s + 2·1 ms


def test_prefetch_never_starts_a_step_before_the_one_a_window_earlier_is_in_the_ranks_hands() -> None:
    run = simulated(loader__num_workers=2, loader__prefetch_factor=2, train__compute="100 ms", train__epochs=1)
    started = {r["step"]: r["start_ns"] for r in run.rows("read", rank=0)}
    in_hand = {r["step"]: r["start_ns"] + r["duration_ns"] for r in run.rows("data_wait", rank=0)}
    assert all(started[n] >= in_hand[n - 4] for n in range(4, 12))
    assert all(started[n] == in_hand[n - 4] for n in range(6, 12)), "and no later, for the readers are idle"


def test_more_prefetch_hides_one_slow_batch() -> None:
    def waited(prefetch: int) -> int:
        slow = {"kind": "lognormal", "median": "8 ms", "sigma": 1.0}
        run = simulated(loader__prefetch_factor=prefetch, storage__model={**STORAGE, "first_byte": slow})
        return sum(r["duration_ns"] for r in run.rows("data_wait"))

    assert waited(8) < waited(1)


def test_with_no_workers_the_rank_reads_inside_its_own_wait() -> None:
    run = simulated(loader__num_workers=0, loader__decode="1 ms", train__epochs=1, storage__model=STORAGE)
    for wait in run.rows("data_wait"):
        inside = [
            r
            for r in [*run.rows("read"), *run.rows("decode")]
            if (r["rank"], r["step"]) == (wait["rank"], wait["step"])
        ]
        assert {(r["role"], r["lane"]) for r in inside} == {("rank", 1)}
        assert sum(r["duration_ns"] for r in inside) == wait["duration_ns"] > 0
    assert run.ledger.even


@pytest.mark.parametrize("assignment", ["static", "dynamic"])
def test_in_order_batches_arrive_in_step_order(assignment: str) -> None:
    run = simulated(loader__assignment=assignment, storage__model="nvme", loader__num_workers=3)
    for rank in (0, 1):
        assert run.delivered(rank) == [batch_id(rank, e, s) for e in (0, 1) for s in range(12)]


def test_out_of_order_a_slow_batch_holds_up_nobody() -> None:
    slow = {**STORAGE, "first_byte": {"kind": "lognormal", "median": "5 ms", "sigma": 1.5}}
    ordered = simulated(storage__model=slow, loader__num_workers=4)
    free = simulated(storage__model=slow, loader__num_workers=4, loader__in_order=False)
    assert free.delivered(0) != ordered.delivered(0)
    assert sorted(free.delivered(0)) == ordered.delivered(0)
    waits = [sum(r["duration_ns"] for r in run.rows("data_wait")) for run in (ordered, free)]
    assert waits[1] < waits[0]
    assert free.ledger.even


def test_dynamic_assignment_evens_out_slow_workers() -> None:
    slow = {**STORAGE, "first_byte": {"kind": "lognormal", "median": "5 ms", "sigma": 1.5}}
    spans = [
        max(r["start_ns"] + r["duration_ns"] for r in simulated(
            storage__model=slow, loader__num_workers=4, loader__assignment=assignment, train__compute="1 us",
        ).rows("compute"))
        for assignment in ("static", "dynamic")
    ]  # fmt: skip
    assert spans[1] < spans[0]


def test_a_checkpoint_blocks_rank_zero_and_the_others_wait_for_it() -> None:
    saved = {"every": {"steps": 5}, "path": "ck", "model": {"bytes": "5 MB"}, "request_bytes": "1 MB"}
    run = simulated(checkpoint=saved, storage__model=STORAGE)
    blocked = run.rows("checkpoint")
    assert [(r["rank"], r["epoch"] * 12 + r["step"]) for r in blocked] == [(0, 4), (0, 9), (0, 14), (0, 19)]
    assert {(r["bytes"], r["requests"]) for r in blocked} == {(5_000_000, 5)}
    assert [r["bytes"] for r in run.rows("write")] == [5_000_000] * 4
    waited = {r["step"]: r["duration_ns"] for r in run.rows("sync", rank=1, epoch=0)}
    assert waited[5] >= blocked[0]["duration_ns"] - 1_000_000


def test_dedicated_writers_save_at_the_same_time() -> None:
    saved = {"every": {"epochs": 2}, "path": "ck", "model": {"bytes": "4 MB"}}
    one = simulated(checkpoint=saved, storage__model=STORAGE)
    four = simulated(checkpoint=saved | {"writers": {"dedicated": 4}}, storage__model=STORAGE)
    assert four.rows("checkpoint")[0]["duration_ns"] < 0.3 * one.rows("checkpoint")[0]["duration_ns"]


def test_the_bound_on_bytes_in_flight_keeps_readers_waiting_and_is_on_record() -> None:
    free = simulated(loader__prefetch_factor=4, train__epochs=1)
    plan_bytes = 2 * 2 * 2000  # two batches a rank
    bound = simulated(loader__prefetch_factor=4, train__epochs=1, loader__max_bytes_in_flight=plan_bytes)
    assert free.rows("memory_bound") == []
    assert bound.rows("memory_bound")
    assert bound.ledger.even


def test_readers_can_be_spread_over_the_nodes() -> None:
    beside = simulated(cluster__nodes=2)
    spread = simulated(cluster__nodes=2, cluster__placement="spread")
    where = [{(r["index"], r["node"]) for r in run.rows("read", rank=0)} for run in (beside, spread)]
    assert where == [{("0-0", 0), ("0-1", 0)}, {("0-0", 0), ("0-1", 1)}]


def test_decoding_takes_the_sum_of_its_samples_times() -> None:
    run = simulated(loader__decode="3 ms", train__epochs=1)
    assert {r["duration_ns"] for r in run.rows("decode")} == {6_000_000}


def test_io_depth_overlaps_the_requests_of_one_reader() -> None:
    def reading(depth: int) -> int:
        run = simulated(storage__model=STORAGE, loader__io_depth=depth, loader__batch_size=4)
        return sum(r["duration_ns"] for r in run.rows("read"))

    assert reading(4) < 0.3 * reading(1)


def test_the_costs_of_a_real_engine_pass_on_the_virtual_clock() -> None:
    costs = {"lease": "5 ms", "take": "5 ms", "put": "5 ms", "barrier": "20 ms"}
    plain, costly = simulated(train__epochs=1), simulated(train__epochs=1, costs=costs)
    assert costly.rows("data_wait")[0]["duration_ns"] >= plain.rows("data_wait")[0]["duration_ns"] + 15_000_000
    lives = [max(r["duration_ns"] for r in run.rows("life")) for run in (plain, costly)]
    assert lives[1] - lives[0] >= 12 * 10_000_000, "an answer of the barrier takes 20 ms, the compute hides 10 of them"


def test_moving_bytes_takes_time_when_the_payload_travels() -> None:
    costs = {"transfer_bandwidth": "1 MB/s"}
    still = simulated(train__epochs=1, costs=costs)
    assert still.rows("data_wait")[0]["duration_ns"] < 1_000_000, "modelled batches carry no bytes"


def test_simulating_twice_gives_equal_spans() -> None:
    wild = {"kind": "normal", "mean": "10 ms", "stdev": "5 ms"}
    assert simulated(train__compute=wild).spans.equals(simulated(train__compute=wild).spans)


def test_another_seed_gives_other_times_and_another_order() -> None:
    wild = {"kind": "normal", "mean": "10 ms", "stdev": "5 ms"}
    assert not simulated(train__compute=wild, seed=1).spans.equals(simulated(train__compute=wild, seed=2).spans)


def test_costs_are_the_virtual_clocks_a_wall_clock_has_its_own(tmp_path: Path) -> None:
    wanted = scenario(train__epochs=1, train__compute="1 ms", costs={"lease": "1 h", "step": "1 h"})
    assert simulated(wanted).rows("data_wait")[0]["duration_ns"] >= 3600e9
    here = run_locally(wanted, tmp_path, modelled=True)
    assert max(row["duration_ns"] for row in here.rows("data_wait")) < 3600e9


def test_a_step_that_ends_late_is_not_compute() -> None:
    late, plain = simulated(train__epochs=1, costs={"step": "3 ms"}), simulated(train__epochs=1)
    assert {row["duration_ns"] for row in late.rows("overshoot")} == {3_000_000}
    assert len(late.rows("overshoot")) == len(plain.rows("compute"))
    assert [row["duration_ns"] for row in late.rows("compute")] == [row["duration_ns"] for row in plain.rows("compute")]


def test_a_lease_is_on_its_way_while_its_reader_is_busy() -> None:
    def took(**costs: str) -> int:
        run = simulated(
            train__epochs=1, train__compute=0, loader__decode="20 ms", loader__num_workers=1, loader__prefetch_factor=4,
            costs=costs,
        )  # fmt: skip
        return max(int(row["duration_ns"]) for row in run.rows("life"))

    assert took(lease="5 ms") == took() + 5_000_000, "the first lease of the epoch alone is waited for"
    assert took(put="5 ms") == took() + 12 * 5_000_000
