"""Readers that come and go in a run on a real Ray: nothing is lost or read twice, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from rayio.engines.ray.actors.staff import Team
from rayio.engines.ray.placement import ActorSpec, actors
from rayio.model.planning import plan_of
from rayio.place import batch_id
from rayio.reporter import Reporter
from rayio.session import Run, run
from scenarios import scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.filterwarnings("default"),
]

#: A batch takes a reader 60 ms at least. The rank asks for one every 20 ms at first and every 300 ms in the end: for
#: all the readers that may be there, and then for one.
STEPS = 300
SCALED: dict[str, Any] = {
    "cluster__ranks_per_node": 1,
    "dataset__path": "data",
    "dataset__num_files": STEPS,
    "dataset__sample_bytes": "150 kB",
    "train__sync": "none",
    "train__epochs": 1,
    "train__compute": {"kind": "ramp", "begin": "20 ms", "end": "300 ms", "steps": STEPS},
    "loader__batch_size": 1,
    "loader__decode": "60 ms",
    "loader__num_workers": {"min": 1, "max": 2, "every": "200 ms", "calm": "1 s"},
}  # fmt: skip


class Watcher(Reporter):
    """Kills the reader that came, once, as soon as it reads."""

    def __init__(self, kills: bool) -> None:
        self.kills = kills
        self.killed: str | None = None

    def live(self, text: str, share: float | None = None) -> None:
        import ray

        if not self.kills or self.killed is not None:
            return
        named = ray.util.list_named_actors(all_namespaces=True)
        for one in named:
            if one["namespace"].startswith("rayio-") and one["name"] == "reader-0-1":
                handle = ray.get_actor(one["name"], namespace=one["namespace"])
                os.kill(ray.get(handle.ready.remote())["pid"], signal.SIGKILL)
                self.killed = one["name"]


def scaled_run(root: Path, *, kills: bool = False, **overrides: Any) -> tuple[Run, Watcher]:
    watcher = Watcher(kills)
    return run(scenario(**SCALED | overrides), root=root, reporter=watcher), watcher


def told_of(done: Run) -> None:
    """Hold a run to its books: each batch read, taken and counted once, by readers who were there."""
    result, spans = done.result, done.spans()
    assert result.ledger is not None
    assert result.ledger.even
    waits = spans[spans["name"] == "data_wait"].sort_values("start_ns")
    assert waits["link"].tolist() == [batch_id(0, 0, step) for step in range(STEPS)]
    assert result.trace is not None
    assert result.trace.recorded == result.trace.stored == len(spans)
    scaling = result.scaling
    assert scaling is not None
    assert [change.after for change in scaling.changes][:2] == [1, 2]
    assert scaling.changes[0].before == 0
    assert scaling.most == 2
    came = scaling.changes[1]
    begun = spans[(spans["name"] == "read") & (spans["index"] == "0-1")]["start_ns"] - spans["start_ns"].min()
    assert len(begun)
    assert (begun.min() / 1e9) >= came.at_seconds
    leases = spans[spans["name"] == "lease"]
    assert sorted(leases["step"]) == list(range(STEPS))


@pytest.mark.parametrize(
    "overrides",
    [
        {"loader__queue": "in_rank"},
        {},
        {"cluster__transport": "ray"},
    ],
)
def test_a_reader_comes_and_goes_and_the_books_are_even(tmp_path: Path, overrides: dict[str, Any]) -> None:
    done, _ = scaled_run(tmp_path, **overrides)
    told_of(done)
    assert done.result.scaling is not None
    assert done.result.scaling.changes[-1].after == 1
    assert done.directory.info["restarts"] == []


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"loader__queue": "in_rank"},
        {"cluster__transport": "ray"},
    ],
)
def test_a_reader_that_is_killed_as_it_comes_does_no_harm(tmp_path: Path, overrides: dict[str, Any]) -> None:
    done, watcher = scaled_run(tmp_path, kills=True, **overrides)
    assert watcher.killed == "reader-0-1"
    told_of(done)
    assert [one["actor"] for one in done.directory.info["restarts"]] == ["reader-0-1"]


class Crew:
    """Real actors in the place of a run's, which say at once that they are ready, or never; and who was made."""

    def __init__(self, *, are_ready: bool) -> None:
        class Stand:
            def __init__(self) -> None:
                self.told: list[tuple[int, int, list[int]]] = []

            async def ready(self) -> dict[str, Any]:
                if not are_ready:
                    await asyncio.Event().wait()
                return {}

            async def employ(self, rank: int, workers: int, handles: dict[int, Any], waited: int) -> None:
                self.told.append((rank, workers, sorted(handles)))

            async def heard(self) -> list[tuple[int, int, list[int]]]:
                return self.told

        deadline = "100 s" if are_ready else "2 s"  # a busy machine starts an actor in several seconds
        plan = plan_of(
            scenario(**SCALED | {"cluster__start_deadline": deadline, "dataset__path": "model://none"}), modelled=True
        )
        stand: Any = ray.remote(Stand)
        self.made: list[str] = []
        self.handles = {"queue-0": stand.remote(), "reader-0-0": stand.remote()}

        def create(spec: ActorSpec, name: str, group: Any) -> Any:
            self.made.append(name)
            return stand.remote()

        self.team = Team(plan, actors(plan), self.handles, create, lambda _: None, lambda name, _: name)

    def look(self, wish: tuple[int, int], until: Callable[[], bool]) -> None:
        for _ in range(1200):
            self.team.look({0: wish})
            if until():
                return
            time.sleep(0.1)
        pytest.fail("waited in vain")

    def told(self) -> list[tuple[int, int, list[int]]]:
        said: list[tuple[int, int, list[int]]] = ray.get(self.handles["queue-0"].heard.remote())
        return said

    def end(self) -> None:
        for handle in self.handles.values():
            ray.kill(handle)


def test_a_reader_that_does_not_start_in_time_is_given_up_once_and_for_all() -> None:
    crew = Crew(are_ready=False)
    try:
        crew.look((1, 2), lambda: bool(crew.told()))
        assert crew.told() == [(0, 1, [])]
        crew.look((1, 2), lambda: True)
        crew.look((1, 2), lambda: True)
        assert crew.made == ["reader-0-1"]
    finally:
        crew.end()


def test_a_queue_that_wanted_less_for_a_moment_is_told_of_its_readers_again() -> None:
    crew = Crew(are_ready=True)
    try:
        crew.look((1, 2), lambda: len(crew.told()) == 1)
        crew.look((3, 2), lambda: len(crew.told()) == 2)  # the second wish was never seen
        assert crew.told() == [(0, 2, [1])] * 2
        assert crew.made == ["reader-0-1"]
    finally:
        crew.end()
