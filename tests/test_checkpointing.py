"""Which step a checkpoint follows, who saves which shard of it, and that the sizes add up."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st

from rayio.kinds import SAVERS
from rayio.model.env import Shard
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.savers import Saver
from rayio.place import Where
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.scenario.schedule import EpochSteps, Schedule
from rayio.storage.real import random_bytes
from scenarios import run_locally, scenario


def saving(every: dict[str, int], writers: Any = "rank_zero", size: int = 1000, **overrides: Any) -> Scenario:
    checkpoint = {"every": every, "path": "ck", "model": {"bytes": size}, "writers": writers}
    return scenario(checkpoint=checkpoint, **overrides)


def plan(wanted: Scenario) -> Plan:
    return plan_of(wanted, modelled=True)


def saved(of: Plan) -> dict[Where, list[Shard]]:
    """Give what each rank saves, by the steps after which it does."""
    found = {}
    for rank in range(of.world_size):
        training = of.training(rank)
        for epoch in range(training.epochs):
            for step in range(training.steps(epoch)):
                at = Where(rank, epoch, step)
                if shards := training.shards(at):
                    found[at] = list(shards)
    return found


@pytest.mark.parametrize(
    ("every", "due"),
    [
        ({"steps": 5}, [(0, 4), (0, 9), (1, 2), (1, 7)]),
        ({"steps": 12}, [(0, 11), (1, 11)]),
        ({"steps": 24}, [(1, 11)]),
        ({"steps": 25}, []),
        ({"epochs": 1}, [(0, 11), (1, 11)]),
        ({"epochs": 2}, [(1, 11)]),
        ({"epochs": 3}, []),
    ],
)
def test_steps_are_counted_over_epochs(every: dict[str, int], due: list[tuple[int, int]]) -> None:
    assert [(at.epoch, at.step) for at in saved(plan(saving(every)))] == due


def test_without_a_checkpoint_nothing_is_saved() -> None:
    none = plan(scenario())
    assert none.checkpointing is None
    assert none.num_writers == 0
    assert saved(none) == {}


def test_a_shard_says_how_it_is_to_be_written() -> None:
    section = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 9}, "fsync": False, "request_bytes": 4}
    (shard,) = saved(plan(scenario(checkpoint=section, train__epochs=1)))[Where(0, 0, 11)]
    assert (shard.num_bytes, shard.request_bytes, shard.fsync) == (9, 4, False)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    every = draw(st.sampled_from(["steps", "epochs"]))
    writers = draw(st.sampled_from(["rank_zero", "all_ranks", "dedicated"]))
    return saving(
        {every: draw(st.integers(1, 12))},
        {"dedicated": draw(st.integers(1, 9))} if writers == "dedicated" else writers,
        size=draw(st.integers(9, 10_000)),
        cluster={"nodes": draw(st.integers(1, 2)), "ranks_per_node": draw(st.integers(1, 3))},
        dataset__num_files=draw(st.integers(12, 60)),
        train__epochs=draw(st.integers(1, 4)),
        train__steps=draw(st.none() | st.integers(1, 9)),
    )


@given(scenarios())
def test_at_every_due_step_the_whole_state_is_saved_and_at_no_other(wanted: Scenario) -> None:
    of = plan(wanted)
    assert wanted.checkpoint is not None
    found = saved(of)
    due = {(at.epoch, at.step) for at in found}
    assert wanted.checkpoint.every is not None
    every, steps = wanted.checkpoint.every, derive.steps_per_epoch(wanted)
    passed = [(epoch, step) for epoch in range(wanted.train.epochs) for step in range(steps)]
    period = every.steps or (every.epochs or 0) * steps
    assert due == set(passed[period - 1 :: period]) == set(derive.checkpoint_steps(wanted))
    for here in due:
        shards = [shard for at, some in found.items() if (at.epoch, at.step) == here for shard in some]
        assert sum(shard.num_bytes for shard in shards) == derive.checkpoint_bytes(wanted)
        assert sorted(shard.writer for shard in shards) == list(range(of.num_writers)), "every writer has one shard"
        assert max(s.num_bytes for s in shards) - min(s.num_bytes for s in shards) <= 1
    paths = [shard.path for some in found.values() for shard in some]
    assert len(set(paths)) == len(paths), "no checkpoint overwrites another"


@pytest.mark.parametrize("writers", ["rank_zero", "all_ranks", {"dedicated": 2}], ids=str)
@pytest.mark.parametrize("every", [{"epochs": 1}, {"steps": 1}, {"steps": 13}, {"steps": 4}], ids=str)
def test_a_rank_that_runs_out_of_steps_saves_after_its_last_what_is_due_after_that(
    every: dict[str, int], writers: Any
) -> None:
    # 25 samples: rank 0 has 12 of them and 12 steps, rank 1 has 13
    wanted = saving(every, writers, dataset__num_files=25, loader__drop_last=False, loader__batch_size=1)
    of = plan(wanted)
    assert [of.steps_of(rank) for rank in (0, 1)] == [(12, 12), (13, 13)]
    paths = [shard.path for some in saved(of).values() for shard in some]
    folders = {f"epoch-{epoch:04d}-step-{step:08d}" for epoch, step in derive.checkpoint_steps(wanted)}
    assert {path.split("/")[0] for path in paths} == folders
    assert len(paths) == len(set(paths)) == len(folders) * of.num_writers


def test_what_a_file_s_fsync_took_is_a_span_of_its_own_after_the_write(tmp_path: Path) -> None:
    for fsync in (True, False):
        section = {"every": {"steps": 5}, "path": f"ck-{fsync}", "model": {"bytes": 3_000_000}, "fsync": fsync}
        wanted = on_disk(
            scenario(checkpoint=section, dataset__path="data", train__compute="100 us", trace__level="io"), tmp_path
        )
        run = run_locally(wanted, tmp_path)
        writes, syncs, requests = run.rows("write"), run.rows("fsync"), run.rows("io.fsync")
        assert len(syncs) == (len(writes) if fsync else 0)
        for write, sync in zip(writes, syncs, strict=False):
            assert write["start_ns"] + write["duration_ns"] == sync["start_ns"]
            assert (sync["role"], sync["lane"], sync["step"]) == ("checkpoint_writer", 0, write["step"])
        assert sum(row["duration_ns"] for row in syncs) >= sum(row["duration_ns"] for row in requests) > 0 or not fsync


def test_the_next_step_that_something_follows_is_the_first_of_which_something_is_due() -> None:
    cases = itertools.product(range(1, 9), range(1, 6), range(3))
    for period, most, epoch in cases:
        schedule = Schedule(period, EpochSteps(3, most))
        for steps in range(1, most + 1):
            due = [step for step in range(steps) if schedule.due(epoch, step, steps)]
            for step in range(steps):
                found = schedule.next_step(epoch, step, steps)
                after = [one for one in due if one >= step]
                assert found == after[0] if after else found >= steps, (period, most, epoch, steps, step)


def test_a_writer_has_made_its_content_before_the_first_file() -> None:
    """That is in no ``write``: the first file of a process took 20 ms longer."""
    saver: Saver = SAVERS["raw"]
    random_bytes.cache_clear()
    saver.prepare(10_000, 4096)
    assert random_bytes.cache_info().misses == 1
    file = io.BytesIO()
    assert saver.fill(file, "a.bin", 10_000, 4096, b"stamp").nbytes == len(file.getvalue()) == 10_000
    assert random_bytes.cache_info().misses == 1
