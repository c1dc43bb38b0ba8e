"""A factor on named ranks' compute times: the same on every engine, and seen as sync by the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayio.scenario import checks
from rayio.scenario.load import build
from rayio.scenario.write import to_yaml
from scenarios import run_locally, scenario, simulated

SLOW = {"ranks": [1], "factor": 1.5}
JITTER = {"kind": "normal", "mean": "2 ms", "stdev": "300 us"}


def test_a_stragglers_every_compute_is_its_draw_times_the_factor() -> None:
    plain, slow = simulated(train__compute=JITTER), simulated(train__compute=JITTER, train__stragglers=SLOW)
    for rank, factor in ((0, 1.0), (1, 1.5)):
        before = [row["duration_ns"] for row in plain.rows("compute", rank=rank)]
        after = [row["duration_ns"] for row in slow.rows("compute", rank=rank)]
        assert after == pytest.approx([factor * ns for ns in before], abs=1)
        assert len({*before}) > 1


def test_the_others_wait_for_it_in_sync() -> None:
    run = simulated(train__compute="10 ms", train__stragglers=SLOW)
    waits = [row["duration_ns"] for row in run.rows("sync", rank=0)]
    assert waits == pytest.approx([5_000_000] * 24, rel=0.02)  # the first batch of an epoch comes when it was read
    assert run.rows("sync", rank=1) == []


def test_the_wall_clock_agrees() -> None:
    wanted = scenario(train__compute=JITTER, train__stragglers=SLOW)
    here, there = simulated(wanted), run_locally(wanted, Path(), modelled=True)
    for rank in (0, 1):
        ours = {row["batch"]: row["duration_ns"] for row in here.rows("compute", rank=rank)}
        assert ours == {row["batch"]: row["duration_ns"] for row in there.rows("compute", rank=rank)}


def test_it_is_written_back_as_it_was_and_none_is_none() -> None:
    import yaml

    slow = scenario(train__stragglers=SLOW)
    assert build(yaml.safe_load(to_yaml(slow))) == slow
    assert scenario(train__stragglers="none") == scenario()


def test_a_factor_of_one_is_said_to_do_nothing() -> None:
    assert "train.stragglers.factor=1: slows nobody down" in checks.idle(
        scenario(train__stragglers={"ranks": [0], "factor": 1})
    )
