"""Tasks and actors that a library submits from within an actor: what they record joins the run on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.runtime_env import RuntimeEnv

from rayio.engines.ray.transport.tasks import with_variables
from rayio.reporter import Reporter
from rayio.session import Run, run
from rayio.trace.clocks import boot_id
from rayio.trace.otel.children import PROVIDER
from rayio.trace.otel.hosts import RUN, name_of
from rayio.trace.otel.spool import PREFIX
from scenarios import scenario

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


class Midway(Reporter):
    """Does something, once, when the run is well under way, with a function that calls functions in its actors."""

    def __init__(self, act: Callable[[Callable[..., Any]], Any]) -> None:
        self.act = act
        self.told: Any = None

    def live(self, text: str, share: float | None = None) -> None:
        if self.told is None and int(text.split("/")[0]) >= 4:
            self.told = self.act(self._call)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        import ray

        named = ray.util.list_named_actors(all_namespaces=True)
        (one,) = (n for n in named if n["name"] == name and n["namespace"].startswith("rayio-"))
        return ray.get(ray.get_actor(**one).__ray_call__.remote(function, *arguments))


def library(function: Callable[[Any], Any]) -> Midway:
    """Be a library in a reader: call a function there."""
    return Midway(lambda call: call("reader-0-0", function))


def real(**overrides: Any) -> Any:
    small = {"dataset__path": "data", "dataset__sample_bytes": "20 kB", "train__compute": "60 ms"}
    return scenario(**{"trace__tasks": True, **small, **overrides})


#: One rank, one worker and no barrier: few processes to start.
SINGLE: dict[str, Any] = {
    "cluster__ranks_per_node": 1, "loader__num_workers": 1, "dataset__num_files": 24, "train__sync": "none",
}  # fmt: skip


def folder_of(done: Run) -> Path:
    run_id = done.directory.info["run_id"]
    return Path(tempfile.gettempdir()) / f"{PREFIX}{name_of(run_id)}-{boot_id()}"


def rows(done: Run) -> dict[str, dict[str, Any]]:
    """Give the spans of other libraries by name, with what they say."""
    found = done.spans()
    found = found[found["role"] == "process"]
    assert found["name"].is_unique
    return {row["name"]: row | json.loads(row["attributes"]) for row in found.to_dict("records")}


def watching() -> tuple[Callable[[], set[str]], Callable[[], dict[str, str | None]]]:
    """Make two functions that Ray's workers run, which cannot import this module: whose functions submit tasks and
    actors in a process (Ray wraps them too, for its own tracing), and what a process is told of a run."""

    def whose() -> set[str]:
        from pathlib import Path

        from ray.actor import ActorClass
        from ray.remote_function import RemoteFunction

        submitting = RemoteFunction._remote, ActorClass._remote
        return {"rayio" if "rayio" in Path(function.__code__.co_filename).parts else "ray" for function in submitting}

    def told() -> dict[str, str | None]:
        import os

        return {name: os.environ.get(name) for name in ("OTEL_PYTHON_TRACER_PROVIDER", "RAYIO_RUN")}

    return whose, told


@pytest.mark.usefixtures("local_ray")
def test_a_run_that_does_not_ask_for_tasks_tells_them_nothing_and_keeps_what_its_own_processes_record(
    tmp_path: Path,
) -> None:
    whose, told = watching()

    def start(actor: Any) -> tuple[dict[str, str | None], set[str], list[int], str]:
        """Submit a task; fork twice, each fork is killed after a span."""
        import os
        import signal

        import ray
        from opentelemetry import trace

        pids = []
        for number in range(2):
            if (pid := os.fork()) == 0:
                with trace.get_tracer("library").start_as_current_span("part", attributes={"number": number}):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(pid, 0)
            pids.append(pid)
        return ray.get(ray.remote(num_cpus=0)(told).remote()), whose(), pids, str(actor._others[0].folder)

    starting = library(start)
    done = run(real(**SINGLE, trace__tasks=False), root=tmp_path, reporter=starting)
    heard, submitting, pids, folder = starting.told
    assert (heard, submitting) == ({PROVIDER: None, RUN: None}, {"ray"})
    assert not real(trace__level="step").trace.captures_tasks, "a coarse run asks for none"
    spans = done.spans()
    parts = spans[spans["name"] == "part"]
    assert sorted(parts["pid"]) == sorted(pids)
    assert {*parts["role"]} == {"process"}
    assert sorted(parts["index"]) == sorted(map(str, pids))
    assert len({json.loads(text)["span"] for text in parts["attributes"]}) == 2
    assert spans["start_ns"].min() < parts["start_ns"].min() < (spans["start_ns"] + spans["duration_ns"]).max()
    assert done.result["trace"]["recorded"] == done.result["trace"]["stored"] == len(spans)
    assert not Path(folder).exists()


@pytest.mark.usefixtures("local_ray")
def test_tasks_and_actors_that_an_actor_submits_are_recorded(tmp_path: Path) -> None:
    whose, told = watching()

    def everything(_: Any) -> tuple[dict[str, int], dict[str, str | None], set[str]]:
        """Submit a task that has parts, forks, and submits another; a task with an environment of its own; an actor."""
        import os
        import threading

        import ray
        from opentelemetry import trace

        def inner() -> int:
            with trace.get_tracer("library").start_as_current_span("inner"):
                return os.getpid()

        def outer() -> tuple[int, int, int]:
            tracer = trace.get_tracer("library", "1.2")
            with tracer.start_as_current_span("outer", attributes={"n": 1}) as span:
                span.add_event("half", {"of": 2})
                with tracer.start_as_current_span("part"):
                    pass
                if (child := os.fork()) == 0:
                    tracer.start_span("fork").end()
                    os._exit(0)
                os.waitpid(child, 0)
            return os.getpid(), child, ray.get(remote(inner).remote())

        def own() -> int:
            with trace.get_tracer("library").start_as_current_span("own", attributes={"OWN": os.environ["OWN"]}):
                return os.getpid()

        class Pool:
            def go(self) -> int:
                with trace.get_tracer("library").start_as_current_span("pool"):
                    return os.getpid()

        remote: Any = ray.remote(num_cpus=0)
        with_own: Any = ray.remote(num_cpus=0, runtime_env={"env_vars": {"OWN": "kept"}})
        pids: dict[str, int] = {}
        heard: dict[str, str | None] = {}

        def submit() -> None:
            heard.update(ray.get(remote(told).remote()))
            pids["outer"], pids["fork"], pids["inner"] = ray.get(remote(outer).remote())
            pids["own"] = ray.get(with_own(own).remote())
            pids["pool"] = ray.get(remote(Pool).remote().go.remote())

        thread = threading.Thread(target=submit)
        thread.start()
        thread.join()
        return pids, heard, whose()

    submitting = library(everything)
    began = time.time_ns()
    done = run(real(**SINGLE), root=tmp_path, reporter=submitting)
    ended = time.time_ns()
    found = rows(done)
    assert {*found} == {"outer", "part", "fork", "inner", "own", "pool"}
    pids, heard, wrapped = submitting.told
    assert heard == {PROVIDER: "rayio", RUN: name_of(done.directory.info["run_id"])}
    assert wrapped == {"rayio"}
    pids["part"] = pids["outer"]
    assert {name: row["pid"] for name, row in found.items()} == pids
    assert {name: row["index"] for name, row in found.items()} == {name: str(pid) for name, pid in pids.items()}
    assert not {actor["pid"] for actor in done.directory.info["actors"]} & {*pids.values()}
    outer = found["outer"]
    assert (outer["attributes"], outer["scope"]) == ({"n": 1}, {"name": "library", "version": "1.2"})
    assert [(event["name"], event["attributes"]) for event in outer["events"]] == [("half", {"of": 2})]
    assert found["part"]["parent"] == found["fork"]["parent"] == outer["span"]
    assert found["part"]["trace"] == found["fork"]["trace"] == outer["trace"]
    assert found["own"]["attributes"] == {"OWN": "kept"}
    assert len({row["span"] for row in found.values()}) == 6
    # A task may end after the last of the ranks.
    assert all(began < row["start_ns"] <= row["start_ns"] + row["duration_ns"] < ended for row in found.values())
    assert done.result["trace"]["recorded"] == done.result["trace"]["stored"] == len(done.spans())
    assert not folder_of(done).exists()


@pytest.mark.usefixtures("local_ray")
def test_killed_tasks_keep_what_had_ended_and_another_actor_goes_on_when_the_one_that_takes_it_in_is_killed(
    tmp_path: Path,
) -> None:
    def submit(_: Any, name: str) -> None:
        import os
        import signal

        import ray
        from opentelemetry import trace

        def task() -> None:
            trace.get_tracer("library").start_span(name).end()
            trace.get_tracer("library").start_span("never ends")
            os.kill(os.getpid(), signal.SIGKILL)

        ray.wait([ray.remote(num_cpus=0, max_retries=0)(task).remote()])

    def retire(actor: Any) -> None:
        actor._others[1].leave()

    def stop_looking(actor: Any) -> int | None:
        if not actor._others[1].is_owner():
            return None
        actor._flushing.cancel()
        return os.getpid()

    def act(call: Callable[..., Any]) -> str:
        call("rank-0", retire)  # which cannot be killed
        for name in ("reader-0-0", "reader-0-1", "queue-0"):
            if pid := call(name, stop_looking):
                call(name if name.startswith("reader") else "reader-0-0", submit, "before")
                os.kill(pid, signal.SIGKILL)
                call("reader-0-0" if name == "reader-0-1" else "reader-0-1", submit, "after")
                return name
        raise AssertionError("nobody takes in what tasks record")

    killing = Midway(act)
    done = run(real(**SINGLE | {"loader__num_workers": 2, "train__epochs": 8}), root=tmp_path, reporter=killing)
    found = rows(done)
    assert {*found} == {"before", "after"}
    assert found["before"]["pid"] != found["after"]["pid"]
    assert [restart["actor"] for restart in done.directory.info["restarts"]] == [killing.told]
    assert done.result["ledger"]["even"]
    assert done.result["trace"]["recorded"] == done.result["trace"]["stored"] == len(done.spans())
    assert not folder_of(done).exists()


@pytest.mark.usefixtures("local_ray")
def test_of_a_task_that_runs_when_the_run_ends_all_that_was_taken_in_is_stored(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def submit(_: Any) -> bool:
        import time

        import ray
        from opentelemetry import trace

        def endless() -> None:
            tracer = trace.get_tracer("library")
            tracer.start_span("first").end()
            tracer.start_span("tick").end()
            begun.touch()  # by now the run may be over but for its end
            while True:
                time.sleep(0.01)
                tracer.start_span("tick").end()

        ray.remote(num_cpus=0)(endless).remote()
        while not begun.exists():
            time.sleep(0.01)
        return True

    done = run(real(**SINGLE), root=tmp_path, reporter=library(submit))
    spans = done.spans()
    assert [*spans["name"]].count("first") == 1
    assert "tick" in {*spans["name"]}
    assert done.result["trace"]["recorded"] == done.result["trace"]["stored"] == len(spans)
    assert not folder_of(done).exists()


OURS = {"A": "ours", "B": "ours"}


def environment_of(info: str) -> Any:
    return json.loads(json.loads(with_variables(info, OURS))["serializedRuntimeEnv"])


def as_ray_writes(**runtime_env: Any) -> str:
    from ray._private.utils import get_runtime_env_info

    return str(get_runtime_env_info(RuntimeEnv(**runtime_env), is_job_runtime_env=False, serialize=True))


def test_a_tasks_own_environment_wins_and_the_rest_of_it_stays() -> None:
    assert environment_of("") == {"env_vars": OURS}
    info = as_ray_writes(
        env_vars={"B": "own", "C": "own"}, working_dir="gcs://one.zip", config={"setup_timeout_seconds": 7}
    )
    expected = {"A": "ours", "B": "own", "C": "own"}
    assert environment_of(info) | {"config": None} == {
        "env_vars": expected, "working_dir": "gcs://one.zip", "config": None
    }  # fmt: skip
    before, after = json.loads(info), json.loads(with_variables(info, OURS))
    assert {key: value for key, value in after.items() if key != "serializedRuntimeEnv"} == {
        key: value for key, value in before.items() if key != "serializedRuntimeEnv"
    }
    assert after["runtimeEnvConfig"]["setupTimeoutSeconds"] == 7


@pytest.mark.parametrize("other", [{"conda": "theirs"}, {"image_uri": "theirs"}, {"py_executable": "python9"}])
def test_a_task_with_a_python_of_its_own_stays_as_it_is(other: dict[str, str]) -> None:
    info = as_ray_writes(**other)
    assert environment_of(info) == json.loads(json.loads(info)["serializedRuntimeEnv"])
    assert "env_vars" not in environment_of(info)
