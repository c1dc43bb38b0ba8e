"""Every nanosecond of every wait has a cause: by hand, against a plain walk through time, and as a law on engines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Trace
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engines import COSTS, FAST, scenarios

from rayio.analyze.part import WORK
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import CAUSES, Attribution, attribute
from rayio.analyze.verdict import judge
from rayio.place import batch_id
from rayio.scenario.model import Costs
from rayio.trace.span import RETRY_LANE
from scenarios import run_locally, simulated

Row = dict[str, Any]


def of_wait(charged: Attribution, at: int = 0) -> dict[str, int]:
    """Give the stages of one wait that are not empty."""
    return {name: int(ns) for name, ns in zip(STAGES, charged.waits[at], strict=True) if ns}


def of_step(charged: Attribution, at: int) -> dict[str, int]:
    """Give the causes of one step's loss that are not empty."""
    return {name: int(ns) for name, ns in zip(CAUSES, charged.losses[at], strict=True) if ns}


def story(*, until: int = 100, step: int = 0) -> Trace:
    """One rank that asks at 0 and has its batch at ``until``; then it computes for 10."""
    trace = Trace()
    trace.rank(0, [("data_wait", until), ("compute", 10)], step=step)
    return trace


def work(trace: Trace, step: int, *spans: tuple[str, int, int]) -> None:
    """What worker 0 of rank 0 did for a step."""
    for name, start, end in spans:
        trace.add("reader", name, start, end, rank=0, epoch=0, step=step)


def lease(trace: Trace, step: int, start: int, end: int) -> None:
    trace.add("queue", "lease", start, end, 1, rank=0, epoch=0, step=step)


def test_where_a_rank_has_no_step_in_the_window_shares_are_of_all_time_and_still_sum_to_one() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 5), ("compute", 5), ("data_wait", 10), ("compute", 1980)])
    trace.rank(1, [("data_wait", 10), ("compute", 990), ("data_wait", 10), ("compute", 490)])
    # The one rank is warm at 1000, amid the only step that the other has after its warm-up.
    judged = judge(attribute(trace.spans), RunShape(2, 1, 1, 1, 2))
    found = judged.verdict
    assert found.steps == 1
    assert found.au == pytest.approx(490 / 500)
    assert 490 / 500 + sum(row.share or 0 for row in found.table) == pytest.approx(1)
    assert any(remark.code == "rank_without_steps" for remark in judged.remarks)


def test_a_wait_is_cut_at_its_batchs_stage_boundaries() -> None:
    trace = story()
    work(trace, 0, ("open", 5, 12), ("read", 12, 40), ("retry", 40, 44), ("decode", 44, 73))
    lease(trace, 0, 0, 90)
    expected = {
        "unleased": 5, "open": 7, "read": 28, "retry": 4, "decode": 29, "put": 17, "handoff": 10,
    }  # fmt: skip
    assert of_wait(attribute(trace.spans)) == expected


def test_what_a_read_spends_on_requests_that_were_refused_is_no_read() -> None:
    trace = story(step=1)
    for step, start in ((0, 10), (1, 50)):
        work(trace, step, ("read", start, start + 40))
        lease(trace, step, start, start + 40)
        for lane, begin, end in ((RETRY_LANE, 10, 25), (RETRY_LANE + 1, 20, 30), (RETRY_LANE, 35, 39)):
            trace.add("reader", "retry", start + begin, start + end, lane, rank=0, epoch=0, step=step)
    # 20 and 4 of each read's 40, whatever was refused at the same time; the rank waits from 0 on.
    assert of_wait(attribute(trace.spans)) == {"unleased": 10, "read": 32, "retry": 48, "handoff": 10}


def test_what_compute_hid_of_a_batchs_life_counts_as_much_as_what_it_did_not() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 40), ("compute", 10)], begin=40)
    work(trace, 0, ("read", 10, 50), ("decode", 50, 70))
    lease(trace, 0, 0, 70)
    # Asked for at 40, there at 80: half of its life. What came before the question is no smaller cause.
    assert of_wait(attribute(trace.spans)) == {"unleased": 5, "read": 20, "decode": 10, "handoff": 5}


def test_the_time_before_a_worker_takes_a_batch_is_charged_to_what_it_did_before_and_so_on_back() -> None:
    trace = story(step=2)
    work(trace, 0, ("read", -50, 10), ("decode", 10, 15))
    work(trace, 1, ("read", 20, 30), ("decode", 30, 60))
    work(trace, 2, ("read", 60, 95))
    for step, ready in enumerate((18, 60, 95)):
        lease(trace, step, -50, ready)
    # 15-18: batch 0 goes into the store; 18-20: the worker has a lease and has not begun. Its life is 150 long, from
    # -50 on, when the worker had nothing to do: the wait is two thirds of it.
    expected = {"read": 70 + 1, "decode": 23, "put": 2, "unleased": 1, "handoff": 3}  # of 105, 35, 3, 2 and 5
    assert of_wait(attribute(trace.spans)) == expected


def test_the_bound_on_bytes_counts_only_while_the_worker_is_idle() -> None:
    trace = story(step=1)
    work(trace, 0, ("read", 10, 30))
    work(trace, 1, ("read", 70, 90))
    lease(trace, 0, 10, 30)
    lease(trace, 1, 65, 90)
    for start, end in ((5, 10), (12, 28), (30, 65), (80, 200)):
        trace.add("queue", "memory_bound", start, end, rank=0, epoch=0)
    # Idle 0-10 and 30-70; bound meanwhile 5-10 and 30-65; 65-70 the worker has a lease and has not begun.
    assert of_wait(attribute(trace.spans)) == {"memory_bound": 40, "unleased": 10, "read": 40, "handoff": 10}


def test_put_and_transfer_spans_say_where_these_end() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 20), ("put", 20, 30))
    trace.add("reader", "transfer", 30, 55, 1, rank=0, epoch=0, step=0)
    lease(trace, 0, 0, 60)
    assert of_wait(attribute(trace.spans)) == {"read": 20, "put": 10, "transfer": 25, "handoff": 45}


def test_a_ready_batch_that_waits_for_an_earlier_one_is_being_reordered() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 10), ("data_wait", 50), ("compute", 10)])
    for step, (begin, end) in enumerate(((0, 45), (0, 30))):
        work(trace, step, ("read", begin, 5 + step))
        lease(trace, step, begin, end)
    # The second wait is 20-70; its batch was read in 0-6 and ready at 30, the one before it at 45: 70 in all.
    assert of_wait(attribute(trace.spans), 1) == {"read": 4, "put": 17, "reorder": 10, "handoff": 19}


def test_a_batch_without_spans_of_work_is_unrecorded_until_it_is_ready() -> None:
    trace = story()
    assert of_wait(attribute(trace.spans)) == {"unrecorded": 100}
    trace = story()
    lease(trace, 0, 0, 80)
    assert of_wait(attribute(trace.spans)) == {"unrecorded": 80, "handoff": 20}


def test_what_a_killed_reader_took_along_is_unrecorded() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 30))
    trace.recorder.add(trace.recorder.register("reader", "0", 0), "lost", 30, 60, 1, status="lost")
    work(trace, 0, ("read", 60, 90))
    lease(trace, 0, 0, 90)
    assert of_wait(attribute(trace.spans)) == {"read": 60, "unrecorded": 30, "handoff": 10}


def test_what_a_step_waits_for_a_barrier_that_has_died_is_an_outage_and_no_overhead() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 10), ("overshoot", 50), ("data_wait", 5), ("compute", 10)])
    trace.recorder.add(trace.recorder.register("barrier", "", 0), "lost", 15, 55, 1, status="lost")
    charged = attribute(trace.spans)
    assert {name: ns for name, ns in of_step(charged, 0).items() if name not in STAGES} == {"outage": 35, "other": 15}
    assert "outage" not in of_step(charged, 1)


def test_a_late_wake_up_belongs_to_what_was_slept_and_a_gap_to_what_was_before_it() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 20), ("decode", 25, 50), ("overshoot", 50, 53))
    lease(trace, 0, 0, 60)
    assert of_wait(attribute(trace.spans)) == {"read": 25, "decode": 28, "put": 7, "handoff": 40}


def test_a_rank_that_reads_itself_is_its_own_worker() -> None:
    trace = story()
    for name, start, end in (("read", 0, 60), ("decode", 60, 100)):
        trace.add("rank", name, start, end, 1, rank=0, epoch=0, step=0)
    assert of_wait(attribute(trace.spans)) == {"read": 60, "decode": 40}


def test_at_level_io_the_time_in_which_files_were_only_opened_is_taken_out_of_the_read() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 60), ("decode", 60, 100))
    writer = trace.recorder.register("reader", "0", 0)
    # Opening alone: 0-10 and 30-35; from 35 to 40 a request is in flight beside it.
    for name, start, end in (("io.open", 0, 10), ("io.read", 10, 30), ("io.open", 30, 40), ("io.read", 35, 60)):
        trace.recorder.add(writer, name, start, end, 2, 0, 0, 0)
    assert of_wait(attribute(trace.spans)) == {"open": 15, "read": 45, "decode": 40}


def test_a_wait_out_of_order_is_that_of_the_batch_it_got() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 10), ("data_wait", 20), ("compute", 10)])
    work(trace, 0, ("read", 20, 40))
    work(trace, 1, ("decode", 0, 10))
    spans = trace.spans.to_pylist()
    waits = [row for row in spans if row["name"] == "data_wait"]
    waits[0]["link"], waits[1]["link"] = batch_id(0, 0, 1), batch_id(0, 0, 0)
    import pyarrow as pa

    from rayio.trace.span import schema

    charged = attribute(pa.Table.from_pylist(spans, schema=schema()))
    assert [of_wait(charged, 0), of_wait(charged, 1)] == [{"decode": 10}, {"read": 20}]


def test_a_batch_sent_to_another_node_was_put_nowhere_before() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 20))
    lease(trace, 0, 0, 90)
    trace.add("reader", "transfer", 20, 85, 1, rank=0, epoch=0, step=0)
    assert of_wait(attribute(trace.spans)) == {"read": 20, "transfer": 65, "put": 5, "handoff": 10}


def test_what_a_rank_measured_as_it_fetched_a_batch_is_transfer_and_the_rest_of_its_way_is_not() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 40))
    lease(trace, 0, 0, 50)
    trace.add("rank", "transfer", 62, 95, 2, rank=0, epoch=0, step=0)
    expected = {"read": 40, "put": 10, "transfer": 33, "handoff": 17}
    assert of_wait(attribute(trace.spans, payload=True)) == expected


def test_what_a_rank_fetched_into_its_own_queue_is_transfer_too() -> None:
    trace = story()
    work(trace, 0, ("read", 0, 40))
    trace.add("rank", "transfer", 45, 80, 2, rank=0, epoch=0, step=0)
    lease(trace, 0, 0, 80)
    assert of_wait(attribute(trace.spans)) == {"read": 40, "put": 5, "transfer": 35, "handoff": 20}


def test_on_another_node_the_way_of_real_bytes_to_the_rank_is_transfer() -> None:
    trace = story()
    trace.recorder.add(trace.recorder.register("reader", "0-0", 1), "read", 0, 40, 0, 0, 0, 0)
    trace.recorder.add(trace.recorder.register("queue", "0", 0), "lease", 0, 50, 1, 0, 0, 0)
    spans = trace.spans
    assert of_wait(attribute(spans)) == {"read": 40, "put": 10, "handoff": 50}
    assert of_wait(attribute(spans, payload=True)) == {"read": 40, "put": 10, "transfer": 50}


def two_ranks(slow: list[tuple[str, int]], fast: list[tuple[str, int]]) -> Attribution:
    trace = Trace()
    trace.rank(0, slow)
    trace.rank(1, fast)
    return attribute(trace.spans)


def test_waiting_for_a_rank_that_computes_longer_is_charged_to_the_straggler() -> None:
    charged = two_ranks(
        [("data_wait", 5), ("compute", 50), ("sync", 3)], [("data_wait", 5), ("compute", 30), ("sync", 23)]
    )
    assert of_step(charged, 0) == {"unrecorded": 5, "allreduce": 3}
    assert of_step(charged, 1) == {"unrecorded": 5, "straggler": 20, "allreduce": 3}


def test_waiting_for_a_rank_that_waits_for_data_is_charged_to_the_stages_of_its_batch() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 60), ("compute", 30)])
    work(trace, 0, ("read", 0, 20), ("decode", 20, 60))
    trace.rank(1, [("data_wait", 10), ("compute", 30), ("sync", 50)])
    charged = attribute(trace.spans)
    assert of_step(charged, 1) == {"unrecorded": 10, "read": 16, "decode": 34}  # a third and two thirds of 50
    assert charged.by_sync[1].sum() == 50


def test_waiting_for_a_rank_that_saved_a_checkpoint_is_charged_to_the_checkpoint() -> None:
    charged = two_ranks(
        [("data_wait", 0), ("compute", 30), ("checkpoint", 40), ("data_wait", 0), ("compute", 30)],
        [("data_wait", 0), ("compute", 30), ("data_wait", 0), ("compute", 30), ("sync", 40)],
    )
    assert [of_step(charged, at) for at in range(4)] == [{"checkpoint": 40}, {}, {}, {"checkpoint": 40}]


def test_waiting_for_a_rank_that_began_later_is_start_up() -> None:
    trace = Trace()
    trace.rank(0, [("startup", 70), ("data_wait", 0), ("compute", 30)])
    trace.rank(1, [("startup", 10), ("data_wait", 0), ("compute", 30), ("sync", 60)])
    assert of_step(attribute(trace.spans), 1) == {"startup": 60}


def test_what_a_faster_rank_has_less_of_does_not_hide_what_the_slowest_has_more_of() -> None:
    # The slowest computes 50 longer and waits 20 less: all of the 30 are its compute.
    charged = two_ranks([("data_wait", 0), ("compute", 80)], [("data_wait", 20), ("compute", 30), ("sync", 30)])
    assert of_step(charged, 1) == {"unrecorded": 20, "straggler": 30}


def test_a_run_without_spans_has_nothing_to_charge() -> None:
    charged = attribute(Trace().spans)
    assert charged.losses.shape == (0, len(CAUSES))


# --- laws -----------------------------------------------------------------------------------------------------------


def sums_are_exact(charged: Attribution) -> None:
    steps = charged.steps
    assert charged.waits.min(initial=0) >= 0
    assert charged.waits.sum(axis=1).tolist() == steps.parts["data_wait"].tolist()
    assert charged.by_sync.min(initial=0) >= 0
    assert charged.by_sync.sum(axis=1).tolist() == steps.parts["sync"].tolist()
    assert (charged.losses.sum(axis=1) + steps.parts["compute"]).tolist() == steps.duration.tolist()


def walked(rows: list[Row], wait: Row) -> dict[str, float]:
    """Walk back through the life of what was waited for, from one boundary to the next, and ask at each what went on.

    It begins where the worker had nothing to do; the wait is split in proportion.
    """
    begin, end = wait["start_ns"], wait["start_ns"] + wait["duration_ns"]
    mine = [r for r in rows if r["rank"] == wait["rank"] and r["attempt"] == wait["attempt"]]
    stretches = [(r["start_ns"], r["start_ns"] + r["duration_ns"], r) for r in mine]
    ours = [s for s in stretches if (s[2]["role"] == "reader") == (not s[2]["lane"])]
    working = sorted((s for s in ours if s[2]["name"] in (*WORK, "overshoot")), key=lambda s: s[:2])
    of_batch = [s for s in working if s[2]["batch"] == wait["link"]]
    worker = of_batch[0][2]["index"]
    timeline = [s for s in working if s[2]["index"] == worker]
    leases = {s[2]["batch"]: s[:2] for s in stretches if s[2]["name"] == "lease"}
    has_put = {s[2]["batch"] for s in working if s[2]["name"] == "put"}
    moves = [s for s in stretches if s[2]["name"] == "transfer" and s[2]["batch"] == wait["link"]]
    bounds = [s for s in stretches if s[2]["name"] == "memory_bound"]
    queued = [(leases[s[2]["batch"]][0], s[0]) for s in timeline if s[2]["batch"] in leases]
    done = max(s[1] for s in of_batch)

    def stage(now: int) -> str | None:
        if now >= done:
            if any(a <= now < b for a, b, _ in moves):
                return "transfer"
            is_ready = now >= leases.get(wait["link"], (0, done))[1]
            return "handoff" if is_ready or wait["link"] in has_put else "put"
        before = [s for s in timeline if s[0] <= now]
        after = [s for s in timeline if s[0] > now]
        if before:
            last = before[-1]
            is_on = now < last[1] or (after and after[0][2]["batch"] == last[2]["batch"])
            if is_on:
                return next(str(s[2]["name"]) for s in reversed(before) if s[2]["name"] != "overshoot")
            batch = last[2]["batch"]
            if batch not in has_put and now < leases.get(batch, (0, 0))[1]:
                return "put"
        if any(a <= now < b for a, b, _ in bounds):
            return "memory_bound"
        return "unleased" if any(a <= now < b for a, b in queued) else None

    edges = {e for s in (*working, *moves, *bounds, *leases.values()) for e in s[:2]} | {begin, end}
    spent: dict[str, int] = {}
    for there, here in pairwise(sorted((e for e in edges if e <= end), reverse=True)):
        now = stage(here)
        if now is None and here < begin:
            break
        spent[now or "unleased"] = spent.get(now or "unleased", 0) + there - here
    whole = sum(spent.values())
    return {name: (end - begin) * ns / whole for name, ns in spent.items()} if whole else {}


def waits(rows: list[Row], charged: Attribution) -> Iterator[tuple[int, Row]]:
    rank = charged.lives.rank[charged.steps.life]
    found = {(r["rank"], r["epoch"], r["step"]): r for r in rows if r["name"] == "data_wait"}
    for at in range(charged.steps.number):
        yield at, found[int(rank[at]), int(charged.steps.epoch[at]), int(charged.steps.step[at])]


@settings(max_examples=settings().max_examples // 3)
@given(
    wanted=scenarios(),
    costs=st.sampled_from([{}, COSTS, {"lease": "5 us", "put": "20 us", "take": "9 us"}]),
    seed=st.integers(0, 99),
)
def test_on_the_virtual_clock_every_wait_is_what_a_walk_through_it_finds(
    wanted: Any, costs: dict[str, str], seed: int
) -> None:
    run = simulated(wanted.model_copy(update={"costs": Costs.model_validate(costs)}))
    shuffled = run.spans.take(np.random.default_rng(seed).permutation(run.spans.num_rows))
    charged = attribute(shuffled)
    sums_are_exact(charged)
    rows = run.spans.to_pylist()
    for at, wait in waits(rows, charged):
        found = walked(rows, wait)
        assert dict(zip(STAGES, charged.waits[at], strict=True)) == pytest.approx(
            dict.fromkeys(STAGES, 0) | found, abs=len(STAGES)
        )


@settings(max_examples=10, deadline=None)
@given(wanted=scenarios())
def test_on_the_wall_clock_sums_are_exact_too(wanted: Any) -> None:
    charged = attribute(run_locally(wanted, Path(), modelled=True).spans)
    sums_are_exact(charged)
    assert not charged.waits[:, list(STAGES).index("unrecorded")].any()


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_slowest_rank_of_a_step_is_charged_nothing_but_the_all_reduce(ranks: int) -> None:
    run = simulated(
        cluster__ranks_per_node=ranks, storage__model=FAST,
        train__compute={"kind": "uniform", "low": "5 ms", "high": "15 ms"},
        train__sync={"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s"},
    )  # fmt: skip
    charged = attribute(run.spans)
    sums_are_exact(charged)
    steps = charged.steps
    allreduce = run.plan.meetings.seconds * 1e9
    assert charged.by_sync[:, [*CAUSES].index("allreduce")] == pytest.approx(np.full(steps.number, allreduce), abs=1)
    for place in {*zip(steps.epoch.tolist(), steps.step.tolist(), strict=True)}:
        mine = (steps.epoch == place[0]) & (steps.step == place[1])
        assert (charged.by_sync[mine].sum(axis=1) == round(allreduce)).sum() == 1
