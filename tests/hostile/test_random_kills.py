"""Sixty SIGKILLs at random moments: readers, queues and checkpoint writers die, the books stay even."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from stories import KEPT, KILLS

from rayio.place import batch_id
from rayio.reporter import Reporter
from rayio.session import run
from scenarios import scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.filterwarnings("default"),
]

EPOCHS, STEPS, DEATHS = 60, 12, 10
CHECKPOINT_BYTES = 8_000_000


class RandomKiller(Reporter):
    """At each look at the run, kills one of the processes that can be replaced, until it has killed enough.

    It waits for nobody: the next may die while the one before is still being started again.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.killed: list[str] = []

    def live(self, text: str, share: float | None = None) -> None:
        if len(self.killed) < DEATHS and (alive := sorted(_replaceable().items())):
            name, pid = self.random.choice(alive)
            os.kill(pid, signal.SIGKILL)
            self.killed.append(name)


def _replaceable() -> dict[str, int]:
    """Give the process ids of the actors that answer within a second, by name."""
    import ray

    named = [n for n in ray.util.list_named_actors(all_namespaces=True) if n["namespace"].startswith("rayio-")]
    mortal = [n for n in named if n["name"].startswith(("reader", "queue", "checkpoint"))]
    asked = [ray.get_actor(n["name"], namespace=n["namespace"]).ready.remote() for n in mortal]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=1.0)
    return {told["name"]: told["pid"] for told in ray.get(answered)}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"loader__prefetch_factor": 16},
        {"loader__in_order": False, "loader__prefetch_factor": 8},
        {"loader__assignment": "dynamic"},
        {"cluster__roles_per_actor": 2},
        {"loader__queue": "in_rank", "loader__assignment": "dynamic"},
    ],
    ids=["static", "several steps a call", "out of order", "dynamic", "packed", "in rank"],
)
def test_ten_random_kills_leave_the_ledger_even(
    tmp_path: Path, overrides: dict[str, object], record_property: Callable[[str, object], None]
) -> None:
    killer = RandomKiller(seed=len(str(overrides)))
    wanted = scenario(
        dataset__path="data", dataset__sample_bytes="20 kB", train__epochs=EPOCHS, train__compute="40 ms",
        checkpoint={"every": {"steps": 40}, "path": "ck", "model": {"bytes": CHECKPOINT_BYTES}}, **overrides,
    )  # fmt: skip
    done = run(wanted, root=tmp_path, reporter=killer)
    assert len(killer.killed) == DEATHS
    assert {name.split("-")[0] for name in killer.killed} >= {"reader"}
    assert done.exit_code == 0
    books = done.result["ledger"]
    assert books["even"]
    spans = done.spans()
    waits = spans[spans["name"] == "data_wait"].sort_values("start_ns")
    for rank in (0, 1):
        got = [int(link) for link in waits[waits["rank"] == rank]["link"]]
        planned = [batch_id(rank, e, s) for e in range(EPOCHS) for s in range(STEPS)]
        assert (got if wanted.loader.in_order else sorted(got)) == planned
    saved = [path.stat().st_size for path in (tmp_path / "ck").rglob("*.bin")]
    assert saved == [CHECKPOINT_BYTES] * (EPOCHS * STEPS // 40)
    record_property(KILLS, len(killer.killed))
    record_property(KEPT, 1)
