"""The cause of an actor's death is named where it is known, and only what is possible where it is not."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RuntimeEnvSetupError,
)

from rayio.engines.ray.actors import deaths
from rayio.engines.ray.actors.deaths import Deaths
from rayio.engines.ray.actors.group import ActorGroup
from rayio.engines.ray.actors.survival import Survival
from rayio.engines.ray.cluster.control import Control
from rayio.errors import RunError
from rayio.machine.oom import oom_kills
from rayio.model.standing import Vigil

OTHER = "elsewhere"


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The number of processes that the kernel has killed for memory, to be set."""
    number: list[int | None] = [3]
    monkeypatch.setattr(deaths, "oom_kills", lambda: number[0])
    monkeypatch.setattr(deaths, "EVIDENCE_SECONDS", 0.0)
    return number


@pytest.fixture
def known(kills: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deaths:
    """What is known of two ranks: one lives on this host, one on another."""
    nodes = [
        {"NodeID": "a", "Alive": True, "NodeManagerHostname": platform.node()},
        {"NodeID": "b", "Alive": True, "NodeManagerHostname": OTHER},
        {"NodeID": "c", "Alive": False, "NodeManagerHostname": OTHER},
    ]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    actors = [{"name": f"rank-{number}", "ray_node": node} for number, node in enumerate("abc")]
    return Deaths(Control("127.0.0.1:0", str(tmp_path)), actors)


def test_the_kernels_counter_is_read(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 7\noom_kill 12\n")
    assert oom_kills(counters) == 12
    counters.write_text("pgfault 7\n")
    assert oom_kills(counters) is None
    assert oom_kills(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("name", "error", "killed", "why"),
    [
        ("rank-0", ActorDiedError(), 3, "killed"),
        ("rank-0", ActorDiedError(), 4, "killed by the kernel: out of memory"),
        ("rank-0", ActorDiedError(), None, "killed, or out of memory"),
        ("rank-0", OutOfMemoryError("x"), 3, "killed by Ray: its node is out of memory"),
        ("rank-1", ActorDiedError(), 3, "killed, or out of memory"),  # another host's kernel was not asked
        ("rank-1", ActorUnavailableError("x", None), 3, f"killed, or its Ray node on {OTHER} was lost"),
        ("rank-2", ActorDiedError(), 3, f"its Ray node on {OTHER} was lost"),
    ],
)
def test_a_death_has_the_cause_that_is_known(
    known: Deaths, kills: list[int | None], name: str, error: RayError, killed: int | None, why: str
) -> None:
    kills[0] = killed
    assert known.why(name, error) == why


def test_an_actor_that_did_not_start_has_the_cause_that_is_known(known: Deaths, tmp_path: Path) -> None:
    failed = RuntimeEnvSetupError("Failed to set up runtime environment.\nTraceback")
    assert known.not_started("rank-0", failed).startswith("rank-0 did not start: Failed to set up runtime")
    assert known.not_started("rank-0", ActorDiedError()) == (
        "rank-0 did not start: killed (The actor died unexpectedly before finishing this task.); "
        f"Ray's logs are in {tmp_path}"
    )
    (tmp_path / "raylet.err").write_text("x" * 200_000 + "\nfork: Too many open files\n")
    assert "its machine has too many open files; raise `ulimit -n`" in known.not_started("rank-0", ActorDiedError())


def test_a_collector_that_died_is_one_line_with_its_cause(
    kills: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = ActorGroup.__new__(ActorGroup)
    group.handles = {"collector": MagicMock()}
    group.control = Control("127.0.0.1:0", "")
    group.deaths, group.silent, group.vigil = Deaths(group.control, []), set(), Vigil(600.0, print)
    group.plan, group.survival = MagicMock(failures=None), Survival.__new__(Survival)
    group.survival.group = group
    monkeypatch.setattr("ray.wait", MagicMock(return_value=([None], [])))
    for kind, killed, told in (
        (OutOfMemoryError, 3, r"^the collector died \(killed by Ray: its node is out of memory\): spans can no longer"),
        (
            GetTimeoutError,
            3,
            r"^the collector has not answered for 30 s \(stopped, or waiting for its storage\): spans",
        ),
        (RayActorError, 3, r"^the collector died \(killed\): spans can no longer"),
        (RayActorError, 4, r"^the collector died \(killed by the kernel: out of memory\): spans can no longer"),
    ):
        kills[0] = killed
        monkeypatch.setattr("ray.get", MagicMock(side_effect=kind("Task was killed\ndue to the node")))
        with pytest.raises(RunError, match=told):
            group._progress()
