"""Failures on the virtual clock: a run that was interrupted delivers what an undisturbed run does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st
from test_engines import scenarios as scenarios_of_engines

import rayio
from rayio.analyze.timeline import timeline
from rayio.engines.virtual.simulation import simulate
from rayio.errors import RunError, ScenarioError
from rayio.model.attempts import Attempts
from rayio.model.ledger import Tally
from rayio.model.marks import Mark, Saved
from rayio.model.planning import plan_of
from rayio.model.resuming import Keeper, read
from rayio.place import Taken, batch_id
from rayio.report import build
from rayio.scenario.failures import BREAKING, ENDING, Failures
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.session.conclude import in_memory
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from scenarios import Outcome, run_locally, scenario, simulated

#: No read and no write takes time: a step lasts as long as its compute.
FREE = {"first_byte": 0, "connection_bandwidth": "100 PB/s", "bandwidth": "100 PB/s"}
SAVED = {"every": {"steps": 4}, "path": "ck", "model": {"bytes": 1000}, "fsync": False}


def failing(**overrides: Any) -> Scenario:
    """Give a scenario of 24 steps of 1 s, with a checkpoint of no time after each fourth."""
    changed = {"train__compute": "1 s", "storage__model": FREE, "checkpoint": SAVED, **overrides}
    return scenario(**changed)


def lived(wanted: Scenario) -> tuple[Outcome, Attempts]:
    """Simulate a scenario with its failures."""
    plan = plan_of(wanted, modelled=True)
    recorder, tallies = Recorder(), plan.tallies()
    attempts = simulate(plan, recorder, tallies)
    table = recorder.drain()
    assert table is not None
    return Outcome(wanted, plan, tallies, table), attempts


def counted(run: Outcome, rank: int) -> list[int]:
    """Give the batches of the steps that count, in the order of their steps."""
    lives, steps = timeline(run.spans)
    batches: list[int] = steps.batch[lives.rank[steps.life] == rank].tolist()
    return batches


@st.composite
def interrupted(draw: st.DrawFn) -> Scenario:
    """Draw a scenario of the engines' law with failures: at steps, at times, and at random."""
    wanted = draw(scenarios_of_engines())
    steps = plan_of(wanted, modelled=True).steps
    ranks, nodes, total = wanted.cluster.world_size, wanted.cluster.nodes, sum(steps)
    events: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([*ENDING, *BREAKING]))
        number = draw(st.integers(0, {"rank": ranks, "node": nodes}.get(kind, 1) - 1))
        when = {"at_step": draw(st.integers(0, total - 1))} if kind in ENDING and draw(st.booleans()) else {}
        events.append({"kind": kind, "number": number, **(when or {"at": f"{draw(st.integers(0, 2000))} us"})})
    policy = draw(st.sampled_from(["from_checkpoint", "from_checkpoint", "from_start"]))
    section = {"events": events, "detect": "1 ms", "restart": "2 ms", "policy": policy}
    return wanted.model_copy(update={"failures": Failures.model_validate(section)})


@given(interrupted())
def test_the_samples_of_an_interrupted_run_are_those_of_an_undisturbed_one(wanted: Scenario) -> None:
    run, attempts = lived(wanted)
    whole = simulated(wanted.model_copy(update={"failures": None}))
    for rank in range(run.plan.world_size):
        steps = run.plan.steps_of(rank)
        planned = [batch_id(rank, epoch, step) for epoch in range(len(steps)) for step in range(steps[epoch])]
        order = sorted if not run.plan.loader.in_order else list
        assert order(counted(run, rank)) == order(whole.delivered(rank)) == planned
    assert run.ledger.even
    assert run.ledger == whole.ledger
    assert [(t.samples, t.digest) for t in run.tallies] == [(t.samples, t.digest) for t in whole.tallies]
    # Each delivered batch counts once or was thrown away.
    taken = len(run.rows("data_wait")) + len(run.rows("eval_data_wait"))
    assert taken == run.ledger.delivered_steps + sum(restart.redone_steps for restart in attempts.restarts)
    # The parts of every rank's time sum to its life, to the nanosecond.
    lives, _ = timeline(run.spans)
    assert (np.sum([*lives.split.values()], axis=0) == lives.end - lives.begin).all()
    begun = [restart.at + restart.detect_seconds + restart.restart_seconds for restart in attempts.restarts]
    assert all(before.at < after for before, after in zip(attempts.restarts, begun, strict=True))
    if wanted.failures is not None and wanted.failures.policy == "from_start":
        assert all((restart.epoch, restart.step) == (0, 0) for restart in attempts.restarts)


@pytest.mark.parametrize("is_real", [False, True])
def test_batches_that_came_early_before_a_checkpoint_are_not_read_again(is_real: bool, tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "loader__in_order": False, "loader__batch_size": 1, "seed": 3,
        "loader__decode": {"kind": "uniform", "low": 0, "high": 0.04},
        "train__compute": "5 ms", "checkpoint": SAVED | {"every": {"steps": 5}},
        "failures": {"events": [{"kind": "rank", "number": 1, "at_step": 8}], "detect": 0, "restart": 0},
    }  # fmt: skip
    if is_real:
        run = run_locally(on_disk(scenario(**keys, dataset__path="data"), tmp_path), tmp_path)
    else:
        run, _ = lived(scenario(**keys))
    early = set[int]()
    for rank in (0, 1):
        waits = run.rows("data_wait", rank=rank)
        kept = [row["link"] for row in waits if row["attempt"] == 0 and (row["epoch"], row["step"]) < (0, 5)]
        again = [row["link"] for row in waits if row["attempt"] == 1]
        planned = [batch_id(rank, epoch, step) for epoch in range(2) for step in range(24)]
        assert sorted(kept + again) == planned
        early |= {*kept} - {*planned[:5]}
    assert is_real or early
    assert run.ledger.even


@pytest.mark.parametrize(
    ("failures", "wall", "restarts"),
    [
        # dies in step 10, 2.5 s after the checkpoint: 10.5 + 3 + 7 + 16 s
        ({"events": [{"kind": "rank", "number": 1, "at": "10.5 s"}]}, 36.5, [(0, 8, 4)]),
        ({"events": [{"kind": "node", "at_step": 10}]}, 36.0, [(0, 8, 4)]),
        # before the first checkpoint, and twice
        ({"events": [{"kind": "rank", "at": "3.5 s"}]}, 37.5, [(0, 0, 8)]),
        ({"events": [{"kind": "rank", "at": "10.5 s"}, {"kind": "rank", "at": "30.5 s"}]}, 48.5,
         [(0, 8, 6), (1, 4, 4)]),
        # as the third checkpoint ends: nothing is done again
        ({"events": [{"kind": "rank", "number": 1, "at_step": 12}]}, 34.0, [(1, 0, 0)]),
        ({"events": [{"kind": "rank", "at_step": 10}], "policy": "from_start"}, 44.0, [(0, 0, 20)]),
        # without these a run breaks off, and goes on in its directory
        ({"events": [{"kind": "driver", "at": "10.5 s"}, {"kind": "collector", "at": "30.5 s"}]}, 48.5,
         [(0, 8, 6), (1, 4, 4)]),
    ],
)  # fmt: skip
def test_the_length_of_a_run_is_what_one_can_work_out_by_hand(
    failures: dict[str, Any], wall: float, restarts: Sequence[tuple[int, int, int]]
) -> None:
    wanted = failing(failures={"detect": "3 s", "restart": "7 s", **failures})
    result = in_memory(wanted)
    assert result.wall_seconds == pytest.approx(wall, abs=1e-3)
    assert result.failures is not None
    places = zip(result.failures.attempts, restarts, strict=True)
    for restart, (epoch, step, redone) in places:
        assert (restart.epoch, restart.step) == (epoch, step)
        assert abs(restart.redone_steps - redone) <= 2  # a rank may have the batch of the step in which it dies
    number, survived = len(restarts), result.failures
    assert (survived.detect_seconds, survived.restart_seconds) == (3.0 * number, 7.0 * number)
    assert survived.redo_seconds == pytest.approx(wall - 24 - 10 * number, abs=1e-3)
    assert result.goodput == pytest.approx(24 / wall, rel=1e-3)
    assert survived.lost_share == pytest.approx(1 - 24 / wall, rel=1e-3)
    assert result.exit_code == 0
    assert result.ledger is not None
    assert (result.ledger.planned_samples, result.ledger.delivered_samples, result.ledger.even) == (96, 96, True)
    assert f"{number} restart" in result.as_text()


def test_policies_that_end_the_run_say_so_in_a_line() -> None:
    death = {"events": [{"kind": "rank", "number": 1, "at": "10.5 s"}]}
    with pytest.raises(RunError, match=r"^rank 1 died after 10\.5 s, and failures\.policy=fail ends the run then$"):
        in_memory(failing(failures={**death, "policy": "fail"}))
    with pytest.raises(
        RunError, match=r"restarted 2 times before, and failures\.max_restarts=2; raise it, or save che"
    ):
        in_memory(failing(failures={"mtbf": "1 s", "max_restarts": 2}))
    with pytest.raises(RunError, match=r"restarted 0 times before, and failures\.max_restarts=0; raise it$"):
        in_memory(failing(failures={**death, "max_restarts": 0}))


def test_an_event_without_effect_gets_a_note() -> None:
    events = [{"kind": "rank", "at": "5 s"}, {"kind": "node", "at": "8 s"}, {"kind": "rank", "at": "2 h"}]
    notes = in_memory(failing(failures={"events": events})).notes
    assert [note for note in notes if note.startswith("failures")] == [
        "failures: node 0 at 8 s had no effect, because the run was being restarted",
        "failures: rank 0 at 2 h did not die, because the run ended",
    ]
    free = in_memory(failing(failures={"mtbf": "1000 h", "rejoin": "1 min"}, checkpoint=None))
    assert any(note.startswith("failures.rejoin: applies to Ray only") for note in free.notes)
    assert free.failures is None
    assert any(
        note.startswith("failures.policy=from_checkpoint: without the section checkpoint") for note in free.notes
    )


def test_failures_of_nodes_are_exponential_and_n_nodes_fail_n_times_as_often() -> None:
    nodes, hours = 4, 2.0
    plan = plan_of(failing(cluster={"nodes": nodes}, failures={"mtbf": f"{hours} h"}, loader__batch_size=1), True)
    times, which = [], []
    for attempt in range(4000):
        attempts = Attempts(replace(plan, start=plan.start._replace(attempt=attempt)), plan.tallies(), Saved(nodes), 7)
        death = attempts.next_death()
        assert death is not None
        times.append((death.at - 7) / 1e9)
        which.append(death.number)
    mean = hours * 3600 / nodes
    assert np.mean(times) == pytest.approx(mean, rel=4 / math.sqrt(4000))
    # Kolmogorov and Smirnov's distance from the exponential distribution, at 1 in 1000.
    ordered = np.sort(times)
    distance = np.abs(1 - np.exp(-ordered / mean) - np.arange(4000) / 4000).max()
    assert distance < 1.95 / math.sqrt(4000)
    assert (np.bincount(which) > 900).all()


@pytest.mark.slow
def test_the_best_interval_is_that_of_young_and_daly() -> None:
    """Young (1974), Daly (2006): with checkpoints of C seconds and M seconds between failures, sqrt(2 C M)."""
    cost, mtbf, step = 30.0, 3600.0, 60.0
    writing = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    base: dict[str, Any] = {
        "cluster": {"ranks_per_node": 1}, "loader": {"batch_size": 1, "num_workers": 0}, "train__epochs": 1,
        "dataset__num_files": 9000, "train__compute": f"{step} s", "storage__model": writing, "trace__level": "step",
        "failures": {"mtbf": f"{mtbf} s", "detect": 0, "restart": 0},
    }  # fmt: skip
    best = math.sqrt(2 * cost * mtbf)
    intervals, walls = [], []
    for factor in (0.4, 1, 2.5):
        steps = round(factor * best / step)
        saved = {"every": {"steps": steps}, "path": "ck", "model": {"bytes": int(cost * 1e9)}, "request_bytes": "1 GB"}
        result = in_memory(scenario(**base, checkpoint={**saved, "fsync": False}))
        assert result.failures is not None
        assert result.failures.restarts > 100
        intervals.append(steps * step)
        walls.append(result.wall_seconds or 0.0)
    # wall = a / interval + b interval + c has its minimum at sqrt(a / b).
    matrix = np.array([[1 / interval, interval, 1] for interval in intervals])
    a, b, _ = np.linalg.solve(matrix, walls)
    assert math.sqrt(a / b) == pytest.approx(best, rel=0.1)


def test_explain_and_report_have_the_failures_and_replay_the_steps_alone(tmp_path: Path) -> None:
    wanted = failing(failures={"events": [{"kind": "rank", "at": "10.5 s"}], "detect": "3 s", "restart": "7 s"})
    run = rayio.simulate(wanted, out=tmp_path / "run")
    explained = run.explain()
    assert explained.failures == run.result.failures
    assert "1 restart after failures took 34.2 % of the wall time" in explained.as_text()
    assert explained.simulated is not None
    assert explained.simulated.au == pytest.approx(run.au, abs=0.01)
    page = build.report(run.path).read_text()
    assert "1 restart after failures took 34.2 % of 36.5 s" in page
    assert "rank 0 died after 10.5 s: on from the checkpoint before epoch 0, step 8" in page


def test_the_local_engine_lives_on_like_the_virtual_clock(tmp_path: Path) -> None:
    events = [{"kind": "rank", "number": 1, "at_step": 10}, {"kind": "node", "at_step": 18}]
    section = {"events": events, "detect": "20 ms", "restart": "10 ms"}
    wanted = on_disk(failing(dataset__path="data", train__compute="2 ms", failures=section), tmp_path)
    run = rayio.run(wanted, engine="local", out=tmp_path / "run", root=tmp_path)
    simulation, _ = lived(wanted)
    spans = run.directory.spans()
    measured = Outcome(wanted, simulation.plan, [], spans)
    for rank in (0, 1):
        assert counted(measured, rank) == counted(simulation, rank)
    assert run.result.ledger is not None
    assert run.result.ledger.even
    survived = run.result.failures
    assert survived is not None
    assert [(one.cause, one.epoch, one.step) for one in survived.attempts] == [("rank 1", 0, 8), ("node 0", 1, 4)]
    assert survived.detect_seconds >= 0.04
    assert survived.restart_seconds >= 0.02
    assert set(spans["attempt"].to_pylist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "failures={}: has no failure; give events, mtbf or policy, or write none"),
        ("3", "failures=3: must be a mapping with"),
        ("{events: 3}", "failures.events=3: must be a list of mappings with kind, number, and at or at_step"),
        ("{events: [{kind: x, at: 3}]}", "failures.events[0].kind=x: must be rank, node, reader, queue"),
        ("{events: [{kind: rank}]}", "needs at (a time of the run) or at_step (a step of the rank), and not both"),
        ("{events: [{kind: queue, at_step: 1}]}", "at_step is for kind rank or node; give kind queue a time (at)"),
        ("{events: [{kind: rank, number: 2, at: 1}]}", "failures.events[0].number=2: no rank 2; the run has 0 to 1"),
        ("{events: [{kind: node, number: 1, at: 1}]}", "no node 1; the run has only number 0"),
        ("{events: [{kind: checkpoint_writer, at: 1}]}", "kind=checkpoint_writer: the run has none (no checkpoint)"),
        ("{events: [{kind: driver, number: 1, at: 1}]}", "no driver; the run has only number 0"),
        ("{events: [{kind: collector, at_step: 1}]}", "give kind collector a time (at)"),
        ("{events: [{kind: storage, at: 1}]}", "kind=storage: storage is no process of a run; an outage is a fault of"),
        (
            "{events: [{kind: rank, at_step: 60}]}",
            "failures.events[0].at_step=60: the run has 60 steps; use at most 59",
        ),
        ("{mtbf: 0}", "failures.mtbf=0: must be greater than 0"),
        ("{mtbf: 1 h, policy: x}", "failures.policy=x: must be from_checkpoint, from_start or fail"),
        ("{mtbf: 1 h, detect: 2 days}", "failures.detect=2 days: unknown unit"),
        ("{mtbf: 1 h, x: 1}", "failures.x=1: no such key"),
    ],
)
def test_an_impossible_failure_is_refused_in_a_line(section: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load("unet3d-small", ["checkpoint=none", f"failures={section}"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_one_process_cannot_kill_is_refused_by_name() -> None:
    wanted = failing(failures={"events": [{"kind": "barrier", "at": "1 s"}]})
    with pytest.raises(ScenarioError, match=r"failures\.events\[0\]\.kind=barrier: only an actor on Ray can be killed"):
        in_memory(wanted)


def test_the_local_engine_has_no_collector_to_kill(tmp_path: Path) -> None:
    wanted = on_disk(failing(failures={"events": [{"kind": "collector", "at": "1 s"}]}, dataset__path="data"), tmp_path)
    said = r"kind=collector: only an actor on Ray can be killed; use the Ray engine, or kind rank, node or driver"
    with pytest.raises(ScenarioError, match=said):
        rayio.run(wanted, engine="local", root=tmp_path, out="run")


def test_reading_the_checkpoint_back_is_a_part_of_the_lost_time() -> None:
    """Rank 0 restores 2 GB at 1 GB/s while rank 1 begins; the checkpoints of the whole run take 2 s each."""
    slow = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    state = {**SAVED, "model": {"bytes": 2_000_000_000}, "request_bytes": "1 GB"}
    death = {"events": [{"kind": "rank", "at_step": 10}], "detect": "3 s", "restart": "7 s"}
    result = in_memory(failing(checkpoint=state, storage__model=slow, failures=death))
    assert result.failures is not None
    assert result.failures.restore_seconds == pytest.approx(1.0, abs=1e-3)  # the mean of 2 s and none
    # 24 steps and 6 checkpoints; 2 steps again, and 2 s of restoring
    assert result.wall_seconds == pytest.approx(24 + 6 * 2 + 10 + 2 + 2, abs=0.01)


def test_throughput_has_the_time_that_failures_took() -> None:
    """A run that begins again at its start needs longer than one that goes on: it has the lower throughput."""
    deaths = {"events": [{"kind": "rank", "number": 1, "at": "10.5 s"}], "detect": "10 s", "restart": "30 s"}
    for policy, thrown in (("from_checkpoint", 2.5), ("from_start", 10.5)):
        result = in_memory(failing(failures={**deaths, "policy": policy}))
        assert result.wall_seconds == pytest.approx(24 + 40 + thrown, rel=0.02)
        assert result.samples_per_second is not None
        assert result.wall_seconds is not None
        samples = 2 * 24 * failing().loader.batch_size
        assert result.samples_per_second == pytest.approx(samples / result.wall_seconds, rel=0.02)


def test_a_failure_at_the_very_begin_takes_as_long_as_one_soon_after() -> None:
    deaths = {"detect": "10 s", "restart": "30 s"}
    for at in ("0 s", "1 ms"):
        result = in_memory(failing(failures={**deaths, "events": [{"kind": "rank", "number": 1, "at": at}]}))
        assert result.wall_seconds == pytest.approx(64, rel=0.02)
        assert result.share.restart == pytest.approx(40 / 64, rel=0.02)


def test_resume_json_has_the_batches_that_came_early(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path))
    directory.write("scenario.yaml", b"")
    tallies = (Tally(0, 3, taken=Taken(1, 2, (4,))), Tally(1, 3, taken=Taken(-1, 0)))
    keeper = Keeper(directory, 2)
    keeper.keep(Mark(0, tallies))
    keeper.write()
    ((mark,), _) = read(directory, 2)
    assert [tally.taken for tally in mark.tallies] == [tally.taken for tally in tallies]


def test_pytorch_s_early_batches_are_unknown_so_checkpoints_of_them_are_refused() -> None:
    said = "not yet: loader.in_order=false with loader.kind=torch and failures.policy=from_checkpoint, which would lose"
    with pytest.raises(ScenarioError, match=said):
        failing(dataset__path="data", loader__kind="torch", loader__in_order=False, failures={"mtbf": "1 h"})
