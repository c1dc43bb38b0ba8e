"""Runs as jobs of a Ray cluster with a dashboard, which asks for a token and whose Python has no rayio of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

import rayio
from rayio.session import Run

pytest.importorskip("aiohttp", reason="needs ray[default]")

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TOKEN = "f" * 64
#: What clients and the cluster have in their environment, and nothing may show.
PLANTED = {"AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED01", "AWS_SECRET_ACCESS_KEY": "planted/secret+of/a-bucket",
           "OTEL_EXPORTER_OTLP_HEADERS": "api-key=planted-header"}  # fmt: skip
SECRETS = (TOKEN, "AKIAPLANTEDPLANTED01", "planted/secret+of/a-bucket", "planted-header")
SMALL = ("dataset.num_files=14", "dataset.sample_bytes=20 kB", "train.epochs=1", "train.compute=10 ms",
         "cluster.ranks_per_node=1", "loader.num_workers=1", "checkpoint=none")  # fmt: skip


@dataclass
class Head:
    """A cluster, and what a client of it has."""

    address: str
    #: Ray's own folder.
    folder: str
    home: Path
    environment: dict[str, str]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in {**self.environment, **variables}.items() if value}
        return subprocess.Popen(
            [sys.executable, "-m", "rayio", *arguments], env=environment, cwd=self.home / "empty",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def rayio(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=240)
        assert not [secret for secret in SECRETS if secret in out + err]
        return process.returncode, out, err


@contextlib.contextmanager
def started(home: Path, *, has_rayio: bool) -> Iterator[Head]:
    """Start a cluster that asks for a token, with or without this rayio, and stop it."""
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)
    (home / "empty").mkdir()
    poisoned = home / "poisoned" / "rayio"
    poisoned.mkdir(parents=True)
    (poisoned / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'rayio'\")\n")
    environment = {**os.environ, **PLANTED, "HOME": str(home), "RAY_AUTH_MODE": "token"}
    environment["RAY_metrics_report_interval_ms"] = "1000"  # its own is 10 s
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        environment.pop(name, None)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    source = str(Path(rayio.__file__).parent.parent) if has_rayio else str(home / "poisoned")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("head.py"))],
        env={**environment, "PYTHONPATH": source, "PATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    address, _, folder = process.stdout.readline().strip().partition(" ")
    try:
        assert address.startswith("http://127.0.0.1:"), "the head did not start"
        yield Head(address, folder, home, environment)
    finally:
        begun = psutil.Process(process.pid).children(recursive=True)
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        _, alive = psutil.wait_procs(begun, timeout=20)
        for one in alive:
            one.kill()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with started(tmp_path_factory.mktemp("head"), has_rayio=False) as begun:
        yield begun


def test_a_scenario_runs_where_there_is_ray_and_no_rayio(head: Head, tmp_path: Path) -> None:
    where = ("--address", head.address)
    (head.home / "empty" / "mine.yaml").write_text("extends: unet3d-small\nname: mine\nexpect: {au: '>= 0'}\n")
    code, out, err = head.rayio("submit", "mine.yaml", *SMALL, *where, "--out", str(tmp_path / "runs" / "one"))
    assert code == 0, err
    assert "mine, measured on the ray engine: 2 steps" in out
    done = Run.open(tmp_path / "runs" / "one")
    assert done.result.ledger is not None
    assert done.result.ledger.even
    assert (tmp_path / "runs" / "data" / "unet3d-small").is_dir(), "relative paths start beside the run directory"
    written = b"".join(path.read_bytes() for path in done.path.rglob("*") if path.is_file())
    logged = b"".join(path.read_bytes() for path in Path(head.folder).glob("session_*/logs/job-driver-rayio-*"))
    assert b"rayio-live: " in logged
    assert not [secret for secret in SECRETS if secret.encode() in written + logged]
    code, out, err = head.rayio("status", *where, "--json")
    (listed,) = json.loads(out)["jobs"]
    assert (code, listed["status"], listed["scenario"], listed["exit_code"]) == (0, "SUCCEEDED", "mine", 0)
    for variables, said in (
        ({"RAY_AUTH_TOKEN": "0" * 64}, "does not accept the token of this client (from RAY_AUTH_TOKEN)"),
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token, and this client sends none"),
    ):
        code, out, err = head.rayio("status", *where, **variables)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert said in err


@pytest.mark.parametrize("name", ["imagenet-small", "l2hmc-small", "unet3d-h100-small"])
def test_a_published_workload_runs_small_as_a_job(head: Head, tmp_path: Path, name: str) -> None:
    code, out, err = head.rayio("submit", name, "--address", head.address, "--out", str(tmp_path / "runs" / "one"))
    assert code == 0, err
    assert f"{name}, measured on the ray engine" in out
    done = Run.open(tmp_path / "runs" / "one")
    assert done.result.ledger is not None
    assert done.result.ledger.even


def test_each_way_in_which_a_token_is_wrong_is_one_line(head: Head, tmp_path: Path) -> None:
    """Of the cluster's control process, which a run on the cluster addresses itself."""
    address = Path(head.folder, "ray_current_cluster").read_text()
    (tmp_path / "nobody").mkdir()
    nobody = {"HOME": str(tmp_path / "nobody"), "RAY_AUTH_MODE": ""}
    for variables, code, said in (
        ({}, 2, "No module named 'rayio'"),  # it is let in, and there is no rayio
        ({"RAY_AUTH_MODE": ""}, 2, "No module named 'rayio'"),
        (nobody, 2, "asks for a token, and this client sends none: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH"),
        (nobody | {"RAY_AUTH_TOKEN": "0" * 64}, 2, "does not accept the token of this client (from RAY_AUTH_TOKEN)"),
        (nobody | {"RAY_AUTH_MODE": "token"}, 2, "RAY_AUTH_MODE=token is set, and this client has no token"),
        ({"RAY_AUTH_MODE": "disabled"}, 2, "asks for a token, and this client sends none"),
    ):
        got, out, err = head.rayio("doctor", "--address", address, **variables)
        assert got == code, out + err
        assert said in err.splitlines()[-1]
    code, _, err = head.rayio("status", "--address", head.address, RAY_AUTH_MODE="")
    assert (code, err) == (0, "")
    code, _, err = head.rayio("status", "--address", head.address, **nobody)
    assert code == 2
    assert "asks for a token, and this client sends none" in err


def test_many_at_once_do_not_disturb_each_other(head: Head, tmp_path: Path) -> None:
    where = ("--address", head.address, "--root", str(tmp_path))
    begun = [
        head.start(*command, *where)
        for number in range(3)
        for command in (("submit", "unet3d-small", *SMALL, "--out", str(tmp_path / f"run-{number}")), ("doctor",))
    ]
    for process in begun:
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
    assert all(Run.open(tmp_path / f"run-{number}").exit_code == 0 for number in range(3))


def test_five_submits_five_doctors_and_five_runs_at_once_all_succeed(tmp_path: Path) -> None:
    """Against one young head: packages, environments and actors of fifteen commands at the same time."""
    (tmp_path / "home").mkdir()
    with started(tmp_path / "home", has_rayio=True) as head:
        control = Path(head.folder, "ray_current_cluster").read_text()
        begun = []
        for number in range(5):
            (tmp_path / f"of-{number}").mkdir()
            submitted, own = (str(tmp_path / f"{kind}-{number}") for kind in ("submitted", "run"))
            begun += [
                head.start("submit", "unet3d-small", *SMALL, "--out", submitted, "--address", head.address,
                           "--root", str(tmp_path)),
                head.start("doctor", "--address", control, "--root", str(tmp_path)),
                head.start("run", "unet3d-small", *SMALL, "--out", own, "--address", control,
                           "--root", str(tmp_path / f"of-{number}")),
            ]  # fmt: skip
        ends = [(process.args, *process.communicate(timeout=600), process.returncode) for process in begun]
        assert not [end for end in ends if end[-1] != 0]
        assert all(Run.open(path).exit_code == 0 for path in tmp_path.glob("submitted-*"))
        assert len([path for path in tmp_path.glob("*-[0-9]") if path.joinpath("result.json").exists()]) == 10


def served(head: Head) -> dict[str, float]:
    """Every metric that the cluster serves, summed over its labels."""
    (found,) = json.loads(Path(head.folder, "prom_metrics_service_discovery.json").read_text())
    sums: dict[str, float] = {}
    for target in found["targets"]:
        try:
            text = requests.get(f"http://{target}/metrics", timeout=60).text
        except requests.ConnectionError:  # it is listed before it listens
            continue
        assert not [secret for secret in SECRETS if secret in text]
        for name, number in re.findall(r"(?m)^(ray_\w+)(?:\{.*\})? (\S+)$", text):
            sums[name] = sums.get(name, 0.0) + float(number)
    return sums


def test_a_run_is_watched_from_outside_by_prometheus_and_by_top(head: Head, tmp_path: Path) -> None:
    where, run = ("--address", head.address), tmp_path / "runs" / "watched"
    endless = ("train.epochs=4000", "train.compute=20 ms", "loader.decode=30 ms")
    code, job, err = head.rayio("submit", "unet3d-small", *SMALL, *endless, *where, "--out", str(run), "--detach")
    assert code == 0, err
    job = job.strip()
    overlay = Path(__file__).parents[1] / "k8s" / "overlays" / "monitoring" / "dashboard.json"
    panels = json.loads(overlay.read_text())["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"ray_\w+(?={)", one["expr"])}
    asked -= {"ray_rayio_restarts_total"}  # nobody died
    assert len(asked) >= 20
    ends, names = time.monotonic() + 900, set[str]()  # on a busy machine a job takes minutes to begin
    while not asked <= names and time.monotonic() < ends:  # they come one after the other
        names |= {*(now := served(head))}
    assert asked <= names, asked - names
    scraped = now["ray_rayio_samples_total"]
    while ((told := json.loads(head.rayio("top", job, *where, "--once", "--json")[1]))["samples"] or 0) < scraped:
        assert time.monotonic() < ends + 60
    assert told["waits"]["decode"] > 0.5 * sum(told["waits"].values())
    assert told["queues"]["readers"] == 1
    code, out, err = head.rayio("stop", job, *where)
    assert code == 0, out + err
    code, out, err = head.rayio("top", job, *where)
    assert (code, err) == (0, "")
    assert "exit code 130" in out.splitlines()[-1 if "running" in out.splitlines()[0] else 0]
    books = Run.open(run).result.ledger
    assert books is not None
    assert 0 < scraped <= told["samples"] <= books.delivered_samples
    assert served(head)["ray_rayio_samples_total"] <= books.delivered_samples


def test_the_exit_code_is_that_of_the_run(head: Head, tmp_path: Path) -> None:
    where = ("--address", head.address, "--root", str(tmp_path))
    code, out, err = head.rayio("submit", "unet3d-small", *SMALL, "expect.au=>= 0.9999", *where, "--json")
    assert code == 3
    assert "is not >= 0.9999" in err.splitlines()[-1]
    assert json.loads(out)["result"]["exit_code"] == 3
    code, _, err = head.rayio("submit", "unet3d-small", *SMALL, "loader.kind=torch", "dataset.path=model://x", *where)
    assert code == 2
    code, _, err = head.rayio("submit", "unet3d-small", *SMALL, *where, "--installed")
    assert code == 1
    assert "the cluster's Python has no rayio" in err


def test_ctrl_c_stops_the_job_and_leaves_a_run(head: Head, tmp_path: Path) -> None:
    where, run = ("--address", head.address), tmp_path / "runs" / "cut"
    endless = ("train.epochs=4000", "train.compute=50 ms")
    process = head.start("submit", "unet3d-small", *SMALL, *endless, *where, "--out", str(run))
    ends = time.monotonic() + 120
    while not [*run.glob("spans/*")] and time.monotonic() < ends and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    assert Run.open(run).exit_code == 130
    _, out, _ = head.rayio("status", *where, "--json")
    assert json.loads(out)["jobs"][-1]["status"] == "STOPPED"


def test_a_job_whose_driver_was_killed_goes_on_in_the_same_run_directory(head: Head, tmp_path: Path) -> None:
    where, run = ("--address", head.address), tmp_path / "runs" / "cut"
    saved = "checkpoint={every: {steps: 5}, path: ck, model: {bytes: 5 KB}}"
    long = [word for word in SMALL if word != "checkpoint=none"] + ["train.epochs=60", "train.compute=40 ms", saved]
    same = ("submit", "unet3d-small", *long, *where, "--resume", str(run), "--json")
    process = head.start(*same)
    ends = time.monotonic() + 120
    while not (run / "resume.json").exists() and time.monotonic() < ends and process.poll() is None:
        time.sleep(0.2)
    os.kill(json.loads((run / "run.json").read_text())["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0, out + err
    assert not (run / "result.json").exists()
    code, out, err = head.rayio("submit", *where, "--resume", str(run), "--json")
    assert code == 0, err
    result = json.loads(out)["result"]
    assert (result["ledger"]["even"], result["ledger"]["delivered_steps"]) == (True, 60 * 2)
    assert [one["is_from_checkpoint"] for one in result["failures"]["attempts"]] == [True]
    code, _, err = head.rayio(*same)
    assert code == 2
    assert "is complete (exit code 0): nothing is left to resume" in err


def test_a_job_that_is_left_alone_is_stopped_by_its_name_and_the_doctor_looks_from_inside(
    head: Head, tmp_path: Path
) -> None:
    where = ("--address", head.address)
    endless = ("train.epochs=4000", "train.compute=50 ms")
    code, job, err = head.rayio("submit", "unet3d-small", *SMALL, *endless, *where, "--root", str(tmp_path), "--detach")
    assert code == 0, err
    job = job.strip()
    assert head.rayio("stop", job, *where)[1] == f"{job} is stopping\n"
    ends = time.monotonic() + 120
    while (state := head.rayio("status", job, *where)[1].split()[1]) != "STOPPED" and time.monotonic() < ends:
        pass
    assert state == "STOPPED"
    assert head.rayio("stop", job, *where)[1] == f"{job} is over: STOPPED\n"
    code, _, err = head.rayio("stop", "rayio-nobody", *where)
    assert code == 2
    assert "has no job rayio-nobody" in err
    code, out, err = head.rayio("doctor", *where, "--root", str(tmp_path), "--json")
    assert code == 0, out + err
    told = json.loads(out)
    assert [node["resources"]["CPU"] for node in told["nodes"]] == [4.0]
    assert f"every node reads and writes {tmp_path}, and sees the driver's files" in [
        f["text"] for f in told["findings"]
    ]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("rayio-doctor")]
