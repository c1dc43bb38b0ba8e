"""Reads whose end is known as they begin: without tasks, a run has the spans that it has with them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayio.engines.in_process import InProcess
from rayio.engines.virtual import simulation
from rayio.engines.virtual.foreseen import AHEAD, ForeseenQueue, Reading
from rayio.errors import RunError
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.model.queue import Delivery
from rayio.scenario.model import Scenario
from rayio.trace.recorder import Recorder
from scenarios import scenario

#: A modelled system that its readers wait for, one of which every request takes as long, and one that is hardly there.
SLOW = {
    "first_byte": {"kind": "lognormal", "median": "2 ms", "sigma": 1.0},
    "connection_bandwidth": "1 MB/s",
    "bandwidth": "2 MB/s",
}
EVEN = {"first_byte": "1 ms", "connection_bandwidth": "1 MB/s", "bandwidth": "1 MB/s", "requests_per_second": 5000}
OPENS = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s", "open": "1 ms"}
STRIPED = EVEN | {
    "servers": {
        "number": 3, "bandwidth": "2 MB/s", "stripe_count": 2, "stripe_size": 1000, "random": "1 ms", "seek": "100 us",
        "lock": "1 ms",
    }
}  # fmt: skip
NOTHING = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}
SEEKING = NOTHING | {"servers": {"number": 2, "bandwidth": "1 PB/s", "random": {"kind": "exponential", "mean": "1 ms"}}}

COPY: dict[str, Any] = {"bandwidth": "2 MB/s"}
TIMES: list[Any] = [0, "1 ms", {"kind": "uniform", "low": "100 us", "high": "9 ms"}]


@st.composite
def foreseen_scenarios(draw: st.DrawFn) -> Scenario:
    """Draw a scenario whose reads are foreseen; many things happen in it at one time."""
    overrides: dict[str, Any] = {}
    if draw(st.booleans()):
        overrides["checkpoint"] = {
            "every": {"steps": draw(st.integers(1, 3))}, "path": "ck", "model": {"bytes": 5000}, "writers": "all_ranks",
            "asynchronous": draw(st.booleans()), "snapshot_bandwidth": draw(st.sampled_from(["1 PB/s", "5 MB/s"])),
        }  # fmt: skip
    held_out = {"num_files": 0}
    if draw(st.booleans()):
        overrides["train__evaluate"] = {
            "every": {"steps": draw(st.integers(1, 3))},
            "compute": draw(st.sampled_from(TIMES)),
        }
        held_out = {"num_files": draw(st.integers(3, 9))}
    return scenario(
        cluster={"nodes": draw(st.integers(1, 3)), "ranks_per_node": 1},
        dataset={
            "path": "model://data",
            "format": draw(st.sampled_from(["npz", "hdf5", "tfrecord"])),
            "num_files": draw(st.integers(9, 60)),
            "samples_per_file": draw(st.integers(1, 3)),
            "sample_bytes": draw(st.sampled_from([16, 4000, {"kind": "uniform", "low": 16, "high": 9000}])),
            "eval": held_out,
        },
        loader={
            "batch_size": draw(st.integers(1, 3)),
            "num_workers": draw(st.integers(1, 4)),
            "prefetch_factor": draw(st.integers(1, 3)),
            "drop_last": draw(st.booleans()),
            "io_depth": draw(st.integers(1, 2)),
            "keep_open": draw(st.integers(0, 2)),
            "decode": draw(st.sampled_from([*TIMES, {"kind": "checksum", "passes": 2, "rate": "1 MB/s"}])),
        },
        train={
            "epochs": draw(st.integers(1, 2)),
            "compute": draw(st.sampled_from(TIMES)),
            "sync": draw(st.sampled_from(["none", "barrier", {"kind": "barrier", "every": 3}])),
            "accumulate": draw(st.integers(1, 2)),
            "device_copy": draw(st.sampled_from(["none", COPY, COPY | {"overlap": True}])),
            "stragglers": draw(st.sampled_from(["none", {"probability": 0.3, "factor": 3}])),
        },
        storage__model=draw(st.sampled_from([SLOW, EVEN, OPENS, NOTHING, STRIPED, STRIPED, SEEKING])),
        trace__level=draw(st.sampled_from(["batch", "step", "none"])),
        **overrides,
    )  # fmt: skip


def rows(wanted: Scenario, *, foreseen: bool, error: str = "") -> tuple[Counter[Any], list[Tally]]:
    """Simulate, with reads foreseen or as tasks; give how often there is each span, and what each rank got."""
    plan, recorder = plan_of(wanted, modelled=True), Recorder()
    tallies = [Tally(rank) for rank in range(plan.world_size)]
    with pytest.MonkeyPatch.context() as patch:
        if not foreseen:
            patch.setattr(InProcess, "_is_foreseen", lambda self, spec: False)
        if error:
            with pytest.raises(RunError, match=error):
                simulation.simulate(plan, recorder, tallies)
        else:
            simulation.simulate(plan, recorder, tallies)
    spans = recorder.drain()
    assert spans is not None
    return Counter(tuple(row.values()) for row in spans.to_pylist()), tallies


@settings(max_examples=60, deadline=None)
@example(scenario(dataset__num_files=2 * 2 * (AHEAD + 3), train__epochs=1))
@given(foreseen_scenarios())
def test_reads_that_are_foreseen_have_the_spans_of_reads_by_tasks(wanted: Scenario) -> None:
    assert rows(wanted, foreseen=True) == rows(wanted, foreseen=False)


@pytest.mark.parametrize("at", [1, 7, 20])
def test_a_run_that_breaks_off_has_the_spans_of_what_was_read_till_then(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Tally.add

    def breaks(self: Tally, delivery: Delivery, *, evaluating: bool = False) -> None:
        add(self, delivery, evaluating=evaluating)
        if self.rank == 1 and self.steps == at:
            raise RunError("enough")

    monkeypatch.setattr(Tally, "add", breaks)
    for decode in (0, "2 ms"):
        wanted = scenario(train__epochs=2, dataset__sample_bytes="1 MB", loader__num_workers=3, loader__decode=decode)
        here, there = (rows(wanted, foreseen=foreseen, error="enough") for foreseen in (True, False))
        assert here == there


@pytest.mark.parametrize(
    ("changes", "are_foreseen"),
    [
        ({}, True),
        ({"loader__decode": "1 ms"}, True),
        ({"loader__io_depth": 2}, True),
        ({"storage__model": "s3"}, True),
        ({"storage__model": "lustre-cori", "loader__keep_open": 2}, True),
        ({"loader__assignment": "dynamic"}, False),
        ({"loader__in_order": False}, False),
        ({"loader__max_bytes_in_flight": 10_000}, False),
        ({"loader__num_workers": {"min": 1, "max": 2}}, False),
        ({"trace__level": "io"}, False),
        ({"trace__level": "sample"}, False),
        ({"costs": "ray"}, False),
        ({"costs": {"receive": "1 ms"}}, False),
        ({"storage__cache": [{"tier": "ram", "bytes": "1 MB"}]}, False),
        ({"cluster": {"nodes": 2, "cores": 2}, "costs": {"cpu": {"sample": "1 ms"}}}, False),
    ],
)
def test_reads_are_foreseen_where_nothing_comes_between(
    changes: dict[str, Any], are_foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = Counter[str]()
    get = ForeseenQueue.get

    async def counted(self: ForeseenQueue, at: Any) -> Delivery:
        got["foreseen"] += 1
        return await get(self, at)

    monkeypatch.setattr(ForeseenQueue, "get", counted)
    plan = plan_of(scenario(train__epochs=1, **changes), modelled=True)
    tallies = [Tally(rank) for rank in range(plan.world_size)]
    simulation.simulate(plan, Recorder(), tallies)
    assert got["foreseen"] == (sum(tally.steps for tally in tallies) if are_foreseen else 0)


@pytest.mark.parametrize("samples", [1, 9, 50])
def test_steps_planned_together_are_fewer_with_large_batches_and_nothing_else_changes(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = scenario(dataset__num_files=160, loader__batch_size=4)
    before = rows(wanted, foreseen=True)
    planned, look_ahead = [], ForeseenQueue._look_ahead

    def noted(self: ForeseenQueue, at: Any) -> list[Reading]:
        planned.append(len(ahead := look_ahead(self, at)))
        return ahead

    monkeypatch.setattr("rayio.engines.virtual.foreseen.AHEAD_SAMPLES", samples)
    monkeypatch.setattr(ForeseenQueue, "_look_ahead", noted)
    assert rows(wanted, foreseen=True) == before
    assert max(planned) == max(1, samples // 4)


def test_a_rank_that_waits_for_a_batch_that_never_comes_says_which() -> None:
    wanted = scenario(train__epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reading, "send", lambda self, _: None)
        plan = plan_of(wanted, modelled=True)
        with pytest.raises(RunError, match=r"deadlock at .*: waiting are .* for a batch of epoch 0 after 0 steps"):
            simulation.simulate(plan, Recorder(), [Tally(rank) for rank in range(plan.world_size)])
