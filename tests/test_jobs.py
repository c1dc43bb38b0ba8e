"""What is packed for a cluster that is somewhere else, what jobs come to, and what cannot be: without any Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio import cli
from rayio.engines.ray.cluster import jobs as jobs_of_ray
from rayio.engines.ray.cluster.connect import Node
from rayio.engines.ray.cluster.jobs import Jobs, JobState, SilentError
from rayio.engines.ray.cluster.survey import Surveyed, why_not_reached, why_not_stored
from rayio.errors import ClusterError, ScenarioError
from rayio.records.answers import Ran
from rayio.remote.jobs import doctor
from rayio.remote.jobs.package import requirements, write_package
from rayio.remote.jobs.submit import Ended, follow, pack, ran_in, root_of
from rayio.reporter import Reporter
from rayio.scenario.load import load, packaged
from rayio.trace.clocks import Offset

PACKAGE = Path(rayio.__file__).parent


def test_the_package_is_whole_and_runs_without_any_other(tmp_path: Path) -> None:
    write_package(tmp_path / "site")
    names = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    (metadata,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    sources = {f"rayio/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")}
    assert sources <= names
    assert {f"rayio/scenarios/{name}.yaml" for name in packaged()} <= names
    assert {path.suffix for path in map(Path, names)} >= {".css", ".js"}, "what the report needs"
    assert "Requires-Dist" not in metadata.read_text(), "the cluster's are used"
    done = subprocess.run(
        [sys.executable, "-c", "import rayio, sys; from importlib.metadata import version, entry_points; "
         "print(rayio.__file__, version('rayio'), len(entry_points(group='console_scripts', name='rayio'))); "
         "sys.argv = ['rayio', 'scenarios']; from rayio.__main__ import main; main()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{tmp_path / 'site'}/rayio/__init__.py {rayio.__version__} ")
    assert "unet3d-small" in done.stdout


def test_two_jobs_that_begin_together_have_each_their_package(tmp_path: Path) -> None:
    """By the plugin of Ray that unpacks them: of one wheel that two jobs had, the second install removed the first."""
    from ray._private.runtime_env import packaging
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.runtime_env.working_dir import WorkingDirPlugin

    scenario, sent = load("unet3d-small"), {}
    for number in range(2):
        (folder := tmp_path / f"job-{number}").mkdir()
        packed = pack(folder, scenario, out="/shared/run", root=None, pip=False, is_installed=False)
        assert "py_modules" not in packed.runtime_env
        uri = packaging.get_uri_for_directory(packed.runtime_env["working_dir"], include_gitignore=True)
        target = tmp_path / f"{number}.zip"
        packaging.create_package(str(folder), target, include_gitignore=True)
        sent[uri.encode()] = target.read_bytes()
    assert len(sent) == 2

    class Gcs:
        async def async_internal_kv_get(self, key: bytes, **_: Any) -> bytes:
            return sent[key]

    plugin = WorkingDirPlugin(str(tmp_path / "node"), Gcs())
    logger = logging.getLogger("unpacking")

    async def begin() -> list[int]:
        jobs = (plugin.create(uri.decode(), {}, RuntimeEnvContext(), logger=logger) for uri in sent)
        return [*await asyncio.gather(*jobs)]

    assert all(size > 100_000 for size in asyncio.run(begin()))
    first, second = (plugin._get_directory_on_node(uri.decode()) for uri in sent)
    assert (first / "rayio" / "__main__.py").is_file()
    plugin.delete_uri(next(iter(sent)).decode(), logger)
    assert not first.exists()
    assert (second / "rayio" / "__main__.py").is_file()
    assert (second / "scenario.yaml").is_file()


def test_what_pip_shall_install_is_not_ray() -> None:
    names = {one.partition("==")[0] for one in requirements()}
    assert {"pydantic", "duckdb", "pyarrow"} <= names
    assert not {"ray", "torch", "pytest", "mkdocs"} & names


def test_what_is_packed_is_the_scenario_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "planted-token")
    scenario = load("unet3d-small", ["loader.num_workers=3"])
    packed = pack(tmp_path, scenario, out="s3://bucket/runs/a b", root=None, pip=False, is_installed=False)
    folder = Path(packed.runtime_env["working_dir"])
    own = {"rayio", f"rayio-{rayio.__version__}.dist-info"}
    assert {path.name for path in folder.iterdir()} == {"scenario.yaml", "job.txt", *own}
    assert (folder / "job.txt").read_text() == f"{packed.job_id}\n"
    assert load(folder / "scenario.yaml") == scenario
    assert packed.runtime_env.keys() == {"working_dir", "env_vars"}
    (tmp_path / "there").mkdir()
    installed = pack(tmp_path / "there", scenario, out=None, root="/shared", pip=True, is_installed=True)
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"scenario.yaml", "job.txt"}
    assert installed.runtime_env["pip"] == requirements()
    words = shlex.split(packed.entrypoint)
    assert words[:5] == ["python", "-m", "rayio", "run", "scenario.yaml"]
    assert words[words.index("--out") + 1] == "s3://bucket/runs/a b"
    assert words[words.index("--root") + 1] == "s3://bucket/runs"
    assert "planted" not in json.dumps([packed.runtime_env, packed.metadata, packed.entrypoint])


def test_a_job_that_goes_on_with_a_run_needs_no_scenario(tmp_path: Path) -> None:
    alone = pack(
        tmp_path, None, out=None, root=None, pip=False, is_installed=True, resumed="s3://bucket/runs/one"
    )  # fmt: skip
    assert shlex.split(alone.entrypoint)[3:] == ["run", "--resume", "s3://bucket/runs/one", "--json"]
    assert {path.name for path in tmp_path.iterdir()} == {"job.txt"}
    assert alone.metadata["out"] == "s3://bucket/runs/one"
    scenario, where = load("unet3d-small"), "/shared/runs/one"
    either = pack(tmp_path, scenario, out=None, root=None, pip=False, is_installed=True, resumed=where)
    words = ["run", "scenario.yaml", "--root", "/shared/runs", "--resume", where, "--json"]
    assert shlex.split(either.entrypoint)[3:] == words
    with pytest.raises(ScenarioError, match=r"^--resume runs/one is relative, but Ray removes the working directory"):
        pack(tmp_path, None, out=None, root=None, pip=False, is_installed=True, resumed="runs/one")


def test_where_relative_paths_start_must_be_said() -> None:
    scenario = load("unet3d-small")
    assert root_of(scenario, None, "/shared") == "/shared"
    assert root_of(scenario, "/shared/runs/one", None) == "/shared/runs"
    for out, root in ((None, None), ("runs/one", None), (None, "here")):
        with pytest.raises(ScenarioError, match=r"is relative.*, but Ray removes the .* of a job; give") as error:
            root_of(scenario, out, root)
        assert "\n" not in str(error.value)


def job(status: str, exit_code: int | None, message: str = "") -> JobState:
    return JobState("rayio-1", status, message, exit_code, "python -m rayio", 1000, 2000, {})


#: As Ray 2.60 says that it could not set a job up, with most of the middle left out.
SETUP = (
    "runtime_env setup failed: Failed to set up runtime environment.\nCould not create the actor because its "
    "associated runtime env failed to be created.\n[Node 192.0.2.2] Traceback (most recent call last):\n "
    "File /ray/agent.py, line 561, in _create_runtime_env_with_retry\n    runtime_env_context = await asyncio.wait(\n"
)
NO_PIP = (
    "    raise SubprocessCalledProcessError(\nray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd "
    "failed with the following details.\nCommand '['/tmp/ray/virtualenv/bin/python', '-m', 'pip', 'install', '-r', "
    "'/tmp/ray/r.txt']' returned non-zero exit status 1.\nLast 50 lines of stdout:\n    ERROR: Could not find a "
    "version that satisfies the requirement pydantic==99.0.0 (from versions: 0.0.1)\n    ERROR: No matching "
    "distribution found for pydantic==99.0.0\n"
)
NO_FOLDER = (
    '  File "/ray/working_dir.py", line 260, in create\n    raise IOError(\nOSError: Failed to download runtime_env '
    "file package gcs://_ray_pkg_01.zip from the GCS to the Ray worker node. The package may have been deleted.\n"
)


@pytest.mark.parametrize(
    ("state", "output", "exit_code", "complaint"),
    [
        (job("SUCCEEDED", 0), "", 0, ""),
        (job("FAILED", 3), "x\nrayio: au is 0.5, expected >= 0.9\n", 3, "au is 0.5, expected >= 0.9"),
        (job("FAILED", 2), "rayio: one\nrayio: no such file\n\n", 2, "no such file"),
        (job("FAILED", None, "Job supervisor actor died:\n x"), "", 2, "Job supervisor actor died: x"),
        (job("FAILED", None, f"{SETUP}{NO_PIP}"), "", 2, "Ray could not install rayio's dependencies on the cluster: "
         "No matching distribution found for pydantic==99.0.0; --pip needs a package index that its nodes reach; else"),
        (job("FAILED", None, f"{SETUP}{NO_FOLDER}"), "", 2, "the cluster could not unpack what was sent: Failed to "
         "download runtime_env file package gcs://_ray_pkg_01.zip from the GCS to the Ray worker node; submit again; "
         "if it fails again, install rayio on the cluster and use --installed"),
        (job("FAILED", None, f"{SETUP}OSError: [Errno 28] No space left on device\n"), "", 2, "the cluster could not "
         "set up the job: [Errno 28] No space left on device; install rayio on the cluster and use --installed"),
        (job("STOPPED", -15), "", 130, "the job ended with exit code -15"),
        (job("FAILED", -9), "Killed\n", 2, "Killed"),
        (job("FAILED", 1), "Trace\nModuleNotFoundError: No module named 'a'\n", 1, "the cluster's Python has no a"),
    ],
)  # fmt: skip
def test_what_a_job_came_to(state: JobState, output: str, exit_code: int, complaint: str) -> None:
    ended = Ended(state, None, output)
    assert ended.exit_code == exit_code
    assert "\n" not in ended.complaint
    if complaint:
        assert ended.complaint.startswith(complaint)


class NoAgent:
    """Ray's client of a head whose agent starts late, or never."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.submitted: list[str] = []

    def submit_job(self, *, submission_id: str, **_: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError(
                "Request failed with status code 500: No available agent to submit job, please try again later.."
            )
        self.submitted.append(submission_id)


class Shown(Reporter):
    """The progress that was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def live(self, text: str, share: float | None = None) -> None:
        self.shown.append(text)


class Busy:
    """The jobs of a head that is silent for some requests, by the hand of a clock."""

    address = "http://head:8265"

    def __init__(self, silences: int) -> None:
        self.silences = silences
        self.now = 0.0

    def _answer(self) -> None:
        if self.silences:
            self.silences -= 1
            self.now += 60.0
            raise SilentError("http://head:8265: no answer within 60 s")

    def state(self, job_id: str) -> JobState:
        self._answer()
        return job("SUCCEEDED", 0)

    def output(self, job_id: str) -> str:
        self._answer()
        return "hello"


@pytest.mark.parametrize("silences", [0, 2, 1000])
def test_a_head_that_is_too_busy_to_answer_is_asked_again_for_minutes(
    silences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: Any = Busy(silences)
    monkeypatch.setattr("rayio.remote.jobs.submit.monotonic", lambda: busy.now)
    if silences == 1000:
        with pytest.raises(SilentError):
            follow(busy, "rayio-1")
        assert 5 * 60 <= busy.now <= 7 * 60
    else:
        assert follow(busy, "rayio-1").output == "hello"


class Pending:
    """The jobs of a cluster on which one stays pending for some seconds, by the hand of a clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def state(self, job_id: str) -> JobState:
        self.now += 10.0
        return job("PENDING", None) if self.now <= self.seconds else job("SUCCEEDED", 0)

    def output(self, job_id: str) -> str:
        return "hello"


@pytest.mark.parametrize(("seconds", "lines"), [(50.0, 0), (600.0, 1)])
def test_a_job_that_does_not_begin_is_explained_once(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment may take minutes, and where the agent for environments is stopped it never begins."""
    pending: Any = Pending(seconds)
    warned: list[str] = []

    class Warned(Reporter):
        def warn(self, text: str) -> None:
            warned.append(text)

    monkeypatch.setattr("rayio.remote.jobs.submit.monotonic", lambda: pending.now)
    monkeypatch.setattr("rayio.remote.jobs.submit.Event", NoWait)
    assert follow(pending, "rayio-1", Warned()).output == "hello"
    assert len(warned) == lines
    for text in warned:
        assert text.startswith("rayio-1 has been pending for 60 s: the cluster still prepares its environment, has no")
        assert text.endswith("(runtime_env_agent.log in Ray's logs); rayio stop rayio-1 gives up")


class NoWait:
    """An event that nobody waits for."""

    def wait(self, seconds: float) -> bool:
        return False


@pytest.mark.parametrize("refusals", [0, 3, 10_000])
def test_a_head_without_an_agent_is_waited_for_and_then_its_port_is_named(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_of_ray, "AGENT_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(jobs_of_ray, "AGENT_SECONDS", 0.3 if refusals > 3 else 600.0)
    jobs: Any = Jobs.__new__(Jobs)
    jobs.address = jobs._given = "http://head:8265"
    jobs._client, shown = NoAgent(refusals), Shown()
    if refusals > 3:
        with pytest.raises(ClusterError, match=r"its port 52365: start the head with .*--dashboard-agent-listen-port"):
            jobs.submit("echo", "rayio-1", {}, {}, shown)
        assert jobs._client.submitted == []
    else:
        jobs.submit("echo", "rayio-1", {}, {}, shown)
        assert jobs._client.submitted == ["rayio-1"]
        assert len(shown.shown) == refusals
    assert {text.partition(", ")[0] for text in shown.shown} <= {"rayio-1: waiting for the cluster's job agent"}


def test_numbers_are_found_at_the_end_of_what_a_job_printed(tmp_path: Path) -> None:
    done = rayio.simulate("unet3d-small", ["train.epochs=1"], out=tmp_path / "run")
    ran = Ran(directory=done.address, report=None, result=done.result)
    text = json.dumps(ran.as_json(), indent=2)
    said = "Running entrypoint for job x: {\n}\nrayio: {\n  oops\n"
    assert ran_in(f"{said}{text}\n") == ran
    assert ran_in(text) == ran
    assert ran_in(f"{said}{text[: len(text) // 2]}") is None
    assert ran_in("") is None


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "unet3d-small"], "--address http://HEAD:8265"),
        (["submit", "unet3d-small", "--address", "ray://head:10001"], "the dashboard's address"),
        (["submit", "unet3d-small", "--address", "http://head:8265"], "give --root or --out"),
        (["submit", "unet3d-smal", "--address", "http://head:8265"], "did you mean unet3d-small?"),
        (["submit", "unet3d-small", "--address", "http://127.0.0.1:PORT", "--root", "/x"], "nobody answers at"),
        (["status"], "--address http://HEAD:8265"),
        (["status", "--address", "127.0.0.1:PORT"], "nobody answers at http://127.0.0.1:PORT"),
        (["stop", "rayio-1", "--address", "http://127.0.0.1:PORT"], "nobody answers at"),
        (["doctor", "--address", "http://127.0.0.1:PORT"], "nobody answers at"),
        (["status", "--address", "ftp://head"], "--address ftp://head: give the dashboard's address, such as http://"),
        (["doctor", "--pip"], "--pip goes with the dashboard's address, such as --address http://HEAD:8265"),
        (["doctor", "--installed", "--address", "head:6379"], "--installed goes with the dashboard's address"),
    ],
)
def test_what_cannot_be_asked_of_a_cluster_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    port = str(closed_port())
    with pytest.raises(SystemExit) as left:
        cli.main([word.replace("PORT", port) for word in arguments])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert said.replace("PORT", port) in err
    assert len(err.splitlines()) == 1


def node(number: int, **changes: Any) -> Surveyed:
    versions: dict[str, Any] = {"rayio": rayio.__version__, "ray": version("ray"), "python": platform.python_version()}
    one = Node(node_id=str(number) * 56, host=f"host-{number}", free_bytes=1, object_store_bytes=1 << 30, **versions)
    return replace(Surveyed(one, {"CPU": 2.0}, Offset(0, 1000), None, None), **changes)


def found(*nodes: Surveyed) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for one in doctor.of_nodes(nodes, "/shared"):
        told.setdefault(one.state, []).append(f"{one.what}: {one.text}")
    return told


def test_a_cluster_that_is_well_has_no_problem() -> None:
    told = found(node(1), node(2))
    assert told.keys() == {"ok"}
    assert "nodes: 2, with 4 CPU and object stores of 2 GiB in all" in told["ok"]


def test_what_is_wrong_with_a_node_is_told_by_its_name() -> None:
    other = replace(node(2).node, ray="2.1.0")
    told = found(
        node(1), node(2, node=other), node(3, clock=Offset(2_000_000_000, 1000)), node(4, storage="no space"),
        node(5, collector="nobody listens"), node(6, clock=Offset(30_000_000, 25_000_000)),
    )  # fmt: skip
    problems = " | ".join(told["problem"])
    assert "versions: host-2 (22222222) has ray 2.1.0" in problems
    assert "storage: host-4 (44444444): no space" in problems
    assert "collector: host-5 (55555555): nobody listens" in problems
    assert len(told["problem"]) == 3
    assert len(told["note"]) == 1, "30 ± 25 ms may be no difference"
    assert "host-3 (33333333) is +2000 ms" in told["note"][0]
    assert "no room for actors" in found(node(1, resources={}))["problem"][0]


def test_storage_that_is_not_the_same_everywhere_is_told(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "mark").write_text("mark")
    assert why_not_stored(str(here), "mark", "node") is None
    assert [path.name for path in here.iterdir()] == ["mark"], "nothing is left behind"
    assert "is not the same folder there" in str(why_not_stored(str(there), "mark", "node"))


def test_a_collector_that_does_not_listen_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert why_not_reached(f"http://127.0.0.1:{server.getsockname()[1]}") is None
    assert "nobody listens at 127.0.0.1" in str(why_not_reached(f"127.0.0.1:{closed_port()}"))


def test_the_doctor_of_this_machine(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "planted-token")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(SystemExit) as left:
        cli.main(["doctor", "--root", str(home), "--json"])
    out, err = capsys.readouterr()
    told = {(one["what"], one["state"]): one["text"] for one in json.loads(out)["findings"]}
    assert left.value.code == 2, "a problem"
    assert "nobody listens" in told["collector", "problem"]
    assert told["authentication", "ok"] == "a token is sent, from RAY_AUTH_TOKEN"
    assert ("storage", "ok") in told
    assert not [*home.iterdir()]
    assert "planted-token" not in out + err
