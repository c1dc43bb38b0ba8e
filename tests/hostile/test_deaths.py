"""Processes of a run on Ray that are killed: every kind of actor, the raylet, the control process."""

from __future__ import annotations

import contextlib
import time

import psutil
import pytest
from commands import ON_RAY, Command
from stories import KILLS

pytestmark = pytest.mark.slow

#: What a role needs to be there.
NEEDS = {
    "storage": ("dataset.path=model://x", "storage.model=nvme"),
    "network": (
        "cluster={nodes: 3, ranks_per_node: 1, placement: dedicated_readers, reader_nodes: 1, nic_bandwidth: 1 GB/s}",
    ),
}


@pytest.mark.parametrize("role", ["reader", "queue", "checkpoint_writer", "barrier", "storage", "network"])
def test_who_can_be_replaced_is_and_is_named(command: Command, role: str) -> None:
    command.begin(*ON_RAY, *NEEDS.get(role, ()))
    command.until("actors are running")
    time.sleep(2)
    command.kill(role)
    assert command.code() == 0, command.errors()
    run = command.run(is_whole=True)
    (restart,) = run.directory.info["restarts"]
    assert restart["actor"].startswith(role)
    assert 0 < restart["silent_seconds"] < 60
    assert any(note.startswith(f"{restart['actor']} died and was started again") for note in run.result.notes)
    spans = run.spans()
    lost = spans[spans["name"] == "lost"]
    assert lost["role"].tolist() == [role]
    command.nothing_lives()


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("rank", "a rank is not restarted"),
        ("collector", "the collector died"),
        ("raylet", "raylet on "),
        ("dashboard_agent", "ended with its dashboard_agent, which had died"),
        ("gcs", "control process (GCS)"),
    ],
)
def test_who_cannot_be_replaced_ends_the_run_in_one_line(command: Command, role: str, said: str) -> None:
    # Actors need no raylet to talk to each other: a run that ends before Ray knows that its node is lost is whole.
    command.begin(*ON_RAY, *(("train.epochs=200",) if role in ("raylet", "dashboard_agent") else ()))
    command.until("actors are running")
    time.sleep(3)
    command.kill(role)
    assert command.code() == 2, command.errors()
    assert said in command.last_line()
    run = command.run()
    assert run.exit_code == 2
    command.nothing_lives()


def test_a_control_process_that_is_killed_costs_no_span_that_was_recorded(command: Command) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    time.sleep(3)
    command.kill("gcs")
    assert command.code() == 2
    result = command.run().result
    assert result["trace"]["stored"] == result["trace"]["recorded"] > 0
    assert result["ledger"]["delivered_steps"] > 0


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_control_process_that_is_killed_after_the_last_step_costs_nothing(command: Command, late: float) -> None:
    command.begin(*ON_RAY, "train.epochs=2")
    gcs = command.find("gcs")
    command.until("actors are running")
    command.until_there("r/spans/spans-*")  # made at the end
    time.sleep(late)
    with contextlib.suppress(psutil.NoSuchProcess):  # over already
        gcs.kill()
        command.did[KILLS] += 1
    assert command.code() == 0, command.errors()
    command.run(is_whole=True)
    command.nothing_lives()


@pytest.mark.parametrize("role", ["gcs", "raylet"])
def test_a_ray_that_dies_as_it_starts_is_one_line(command: Command, role: str) -> None:
    command.begin(*ON_RAY)
    command.kill(role)
    assert command.code() == 2, command.errors()
    assert "logs" in command.last_line()
    assert not (command.home / "r").exists(), "nothing stays of a run that never began"
    command.nothing_lives()


def test_the_driver_that_is_killed_takes_its_processes_along(command: Command) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    command.look()
    command.process.kill()
    command.did[KILLS] += 1
    assert command.code() == -9
    command.nothing_lives()
