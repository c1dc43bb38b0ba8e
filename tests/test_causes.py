"""Causes that mix: what was planted is found with its share, wherever in the batch's way it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import Trace

from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import attribute
from rayio.records.explained import Explained
from rayio.report.explain import explain
from rayio.scenario.model import Scenario
from rayio.session import simulate
from rayio.trace.span import schema
from scenarios import Outcome, run_locally, scenario, simulated

#: Points by which a found share may miss the planted one.
POINTS = 0.03
#: Storage that takes no time but for what is planted.
QUICK = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}

#: What is planted, in ms for each batch of one sample in one request: open, read, decode, put.
MIXES: dict[str, dict[str, int]] = {
    "read before decode": {"read": 180, "decode": 100},
    "little read before much decode": {"read": 40, "decode": 240},
    "much read before little decode": {"read": 240, "decode": 40},
    "open, read and decode": {"open": 60, "read": 120, "decode": 100},
    "much open before little read": {"open": 160, "read": 20, "decode": 100},
    "read, decode and transfer": {"read": 90, "decode": 90, "put": 100},
    "transfer after little of both": {"read": 30, "decode": 30, "put": 220},
}


def planted(mix: dict[str, int], workers: int, compute: float, *, scale: float = 1, **overrides: Any) -> Any:
    """A scenario of one rank whose batches take so many ms in each stage (times ``scale``)."""
    # tfrecord: a batch of one sample is one request of one file.
    storage = {**QUICK, "first_byte": f"{mix['read'] * scale} ms"}
    if opening := mix.get("open"):
        storage["open"] = f"{opening * scale} ms"
    base: dict[str, Any] = {
        "cluster__ranks_per_node": 1, "dataset__num_files": 72, "dataset__format": "tfrecord",
        "loader__batch_size": 1, "loader__num_workers": workers, "loader__decode": f"{mix['decode'] * scale} ms",
        "train__epochs": 1, "train__compute": f"{compute * scale} ms", "storage__model": storage,
        "trace__level": "io" if opening else "batch", "costs": {"put": f"{mix.get('put', 0) * scale} ms"},
    }  # fmt: skip
    return scenario(**(base | overrides))


def found_shares(run: Outcome) -> dict[str, float]:
    """What each stage has of the waiting for batches, but for that of the first step."""
    waits = attribute(run.spans).waits[1:].sum(axis=0)
    return dict(zip(STAGES, waits / waits.sum(), strict=True))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("part", [0.9, 0.5], ids=["mostly hidden", "half hidden"])
def test_planted_shares_are_found_whatever_comes_first(mix: dict[str, int], workers: int, part: float) -> None:
    """``part`` of the time between two batches is compute."""
    whole = sum(mix.values())
    run = simulated(planted(mix, workers, part * whole / workers))
    shares = found_shares(run)
    for stage, planted_ms in mix.items():
        assert shares[stage] == pytest.approx(planted_ms / whole, abs=POINTS), shares
    assert sum(shares[stage] for stage in mix) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_read_of_180_ms_and_decode_of_100_are_64_to_36_under_50_ms_of_compute(workers: int) -> None:
    shares = found_shares(simulated(planted(MIXES["read before decode"], workers, 50)))
    assert shares["read"] == pytest.approx(0.643, abs=POINTS)
    assert shares["decode"] == pytest.approx(0.357, abs=POINTS)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ranks_that_wait_for_each_other_find_the_same_shares(workers: int) -> None:
    mix = MIXES["read before decode"]
    wanted = planted(mix, workers, 0.6 * 280 / workers, cluster__ranks_per_node=3, dataset__num_files=150)
    charged = attribute(simulated(wanted).spans)
    found = charged.losses[charged.steps.step > 0].sum(axis=0)[: len(STAGES)]
    read, decode = (found[[*STAGES].index(stage)] / found.sum() for stage in ("read", "decode"))
    assert read == pytest.approx(180 / 280, abs=POINTS)
    assert decode == pytest.approx(100 / 280, abs=POINTS)


def test_on_the_wall_clock_the_shares_are_those_of_the_time_that_the_stages_took() -> None:
    # A busy machine sleeps longer than it is asked to, now here and now there: the truth is what was slept.
    wanted = planted(MIXES["read before decode"], 2, 90, scale=0.25, dataset__num_files=24)
    for _ in range(5):
        run = run_locally(wanted, Path(), modelled=True)
        worked = [row for row in run.all_rows if row["role"] == "reader" and row["lane"] == 0]
        read = decode = 0
        for batch in {row["batch"] for row in worked}:
            mine = {row["name"]: row["start_ns"] for row in worked if row["batch"] == batch}
            ended = max(row["start_ns"] + row["duration_ns"] for row in worked if row["batch"] == batch)
            read, decode = read + mine["decode"] - mine["read"], decode + ended - mine["decode"]
        shares = found_shares(run)
        found = shares["read"] / (shares["read"] + shares["decode"])
        if found == pytest.approx(read / (read + decode), abs=POINTS):
            break
    assert found == pytest.approx(read / (read + decode), abs=POINTS)


def test_a_batch_that_lay_ready_is_delayed_by_its_delivery_alone() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 80), ("compute", 10), ("data_wait", 20), ("compute", 10)])
    for step, (start, end) in enumerate(((0, 70), (0, 60))):
        trace.add("reader", "read", start, end, rank=step, epoch=0, step=step)  # each of a worker of its own
    spans = trace.spans.to_pylist()
    for row in spans:
        row["rank"] = 0
    charged = attribute(pa.Table.from_pylist(spans, schema=schema()))
    assert charged.waits[1].tolist() == [20 * (stage == "handoff") for stage in STAGES]


def test_where_the_bound_on_bytes_keeps_workers_idle_it_has_its_part() -> None:
    # One batch at a time, though 4 workers could each have one: a worker is kept idle three times as long as it works.
    run = simulated(planted({"read": 20, "decode": 20}, 4, 10, loader__max_bytes_in_flight=1500))
    shares = found_shares(run)
    assert shares["memory_bound"] == pytest.approx(0.75, abs=POINTS)
    assert shares["read"] == pytest.approx(shares["decode"], abs=POINTS)


def test_a_window_that_was_closed_is_no_cause() -> None:
    # Uneven batches: a worker is often idle because the window is closed; what it does once that opens is the cause.
    uneven = {"kind": "uniform", "low": "0 ms", "high": "80 ms"}
    run = simulated(planted({"read": 40, "decode": 0}, 2, 50, loader__decode=uneven, loader__prefetch_factor=1))
    shares = found_shares(run)
    assert shares["read"] + shares["decode"] == pytest.approx(1, abs=0.001)
    waited = attribute(run.spans).steps.parts["data_wait"][1:]
    assert np.count_nonzero(waited) < len(waited)


# --- what is named, and what is advised -----------------------------------------------------------------------------


def explained(wanted: Scenario, root: Path) -> Explained:
    return explain(simulate(wanted, root=root).path)


def rate_of(wanted: Scenario, root: Path) -> float:
    """Samples per second of a scenario, made."""
    return simulate(wanted, root=root).result.samples_per_second or 0.0


def change(found: Explained, name: str) -> Any:
    return next(row for row in found.simulated.changes if row.change == name) if found.simulated else None


def test_what_is_named_is_what_saves_most_and_ties_are_said(tmp_path: Path) -> None:
    # 2 workers, 50 ms compute: without the read a batch in 50 ms, without the decode in 90, of 140.
    mix = MIXES["read before decode"]
    found = explained(planted(mix, 2, 50), tmp_path / "2")
    assert (found.verdict.bound, found.verdict.cause, found.verdict.ties) == ("input", "read", ())
    assert change(found, "read = 0").time_saved == pytest.approx(1 - 50 / 140, abs=POINTS)
    assert change(found, "decode = 0").time_saved == pytest.approx(1 - 90 / 140, abs=POINTS)
    # 4 workers: a batch in 70 ms; without either 50. Neither is the cause alone.
    found = explained(planted(mix, 4, 50), tmp_path / "4")
    assert {found.verdict.cause, *found.verdict.ties} == {"read", "decode"}
    assert "saves as much as removing" in found.sentence
    # Each change made is as it was predicted.
    made = rate_of(planted(mix | {"decode": 0}, 4, 50), tmp_path / "made")
    assert made == pytest.approx(change(found, "decode = 0").samples_per_second, rel=0.01)


def test_what_hides_behind_another_cause_is_named_by_the_time_that_it_costs(tmp_path: Path) -> None:
    # Decode of 80 ms beside a straggler of 75 ms: without the straggler nothing gets faster, and AU falls.
    keys: dict[str, Any] = {
        "cluster__ranks_per_node": 2, "dataset__num_files": 120,
        "train__stragglers": {"ranks": [1], "factor": 1.5},
    }  # fmt: skip
    hidden = planted({"read": 0, "decode": 80}, 1, 50, **keys)
    found = explained(hidden, tmp_path / "1")
    assert (found.verdict.bound, found.verdict.cause) == ("input", "decode")
    assert change(found, "no slow ranks").time_saved == pytest.approx(0, abs=0.006)
    assert (change(found, "no slow ranks").gain or 0) < -0.05
    assert "saves more time." in found.sentence
    # Twice the workers is advised, and comes true.
    assert found.prediction is not None
    assert found.prediction.workers == 2
    more = planted({"read": 0, "decode": 80}, 2, 50, **keys)
    saved = 1 - rate_of(hidden, tmp_path / "a") / rate_of(more, tmp_path / "b")
    assert saved == pytest.approx(found.prediction.time_saved, abs=0.002)
    assert saved == pytest.approx(5 / 80, abs=0.005)


@pytest.mark.parametrize(
    ("slow", "factor", "nodes"),
    [([3], 1.08, 1), ([1, 2, 3], 1.3, 1), ([2, 3], 1.3, 2), ([0, 2], 1.3, 2)],
    ids=["by 8 %", "3 of 4", "a node", "one of each node"],
)
def test_ranks_that_are_always_last_are_named(slow: list[int], factor: float, nodes: int, tmp_path: Path) -> None:
    wanted = planted(
        {"read": 0, "decode": 0}, 2, 50, dataset__num_files=160,
        cluster={"nodes": nodes, "ranks_per_node": 4 // nodes},
        train__stragglers={"ranks": slow, "factor": factor},
    )  # fmt: skip
    found = explained(wanted, tmp_path)
    assert {row.rank for row in found.ranks if row.is_slow} == {*slow}
    if found.verdict.bound == "straggler":
        assert "a different rank each time" not in found.sentence
        named = ["node 1"] if nodes == 2 and slow == [2, 3] else [f"rank {rank}" for rank in slow]
        assert all(f"{name} ({factor:.2f} ×" in found.sentence for name in named)
    assert change(found, "no slow ranks").time_saved == pytest.approx(1 - 1 / factor, abs=0.005)


@pytest.mark.parametrize("slow", [None, {"nodes": [1], "factor": 1.5}], ids=["none", "a node"])
def test_a_slow_node_is_named_though_its_ranks_are_last_in_turn(slow: dict[str, Any] | None, tmp_path: Path) -> None:
    # Compute varies: each of the four ranks of node 1 is last in about a quarter of the steps.
    wanted = planted(
        {"read": 0, "decode": 0}, 2, 50, dataset__num_files=400, cluster={"nodes": 2, "ranks_per_node": 4},
        train__compute={"kind": "normal", "mean": "50 ms", "stdev": "2.5 ms"}, train__stragglers=slow,
    )  # fmt: skip
    found = explained(wanted, tmp_path)
    assert found.verdict.bound == "straggler"
    assert {row.rank for row in found.ranks if row.is_slow} == ({4, 5, 6, 7} if slow else set())
    if slow:
        assert "others: node 1 (1.5" in found.sentence
        assert "last in 100 % of steps" in found.sentence
        assert change(found, "no slow ranks").time_saved == pytest.approx(1 / 3, abs=0.02)
    else:
        assert ", a different rank each time" in found.sentence


def test_fewer_workers_are_tried_and_advised_where_they_help(tmp_path: Path) -> None:
    # Storage that 2 ranks saturate, short epochs: the more readers, the later the first batch of each.
    shared = {**QUICK, "bandwidth": "100 MB/s"}
    keys: dict[str, Any] = {
        "cluster__ranks_per_node": 2, "dataset__num_files": 16, "dataset__sample_bytes": "1.6 MB",
        "train__epochs": 12, "storage__model": shared, "loader__decode": 0,
    }  # fmt: skip
    found = explained(planted({"read": 0, "decode": 0}, 4, 45, **keys), tmp_path / "4")
    fewer = rate_of(planted({"read": 0, "decode": 0}, 2, 45, **keys), tmp_path / "2")
    row = change(found, "workers ÷ 2")
    assert row.samples_per_second == pytest.approx(fewer, rel=0.01)
    assert row.time_saved > 0.02
    assert found.prediction is not None
    assert found.prediction.change == "With loader.num_workers=2"
