"""Alive but silent: processes that are stopped, pipes in a file's place. Every run ends and says who waits for whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ON_RAY, Command
from stories import KEPT, PIPES, STOPS

import rayio

pytestmark = pytest.mark.slow

MODELLED = ("dataset.path=model://x", "storage.model=nvme")
SOON = "cluster.stall_deadline=6 s"


@pytest.mark.parametrize("role", ["reader", "queue", "rank", "checkpoint_writer", "barrier", "storage"])
def test_an_actor_that_is_stopped_ends_the_run_and_is_named(command: Command, role: str) -> None:
    command.begin(*ON_RAY, SOON, *(MODELLED if role == "storage" else ()))
    command.until("actors are running")
    time.sleep(2)
    command.stop(role)
    assert command.code() == 2, command.errors()
    last = command.last_line()
    assert "no progress for" in last
    assert role in last
    assert "does not answer (" in last
    run = command.run()
    assert run.exit_code == 2
    command.nothing_lives()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("collector", "the collector has not answered for 6 s (stopped)"),
        ("gcs", "Ray's control process (GCS) has not answered for "),
        ("raylet", "Ray's raylet on "),
    ],
)
def test_what_serves_all_actors_and_is_stopped_ends_the_run_and_is_named(
    command: Command, what: str, said: str
) -> None:
    command.begin(*ON_RAY, SOON, "train.epochs=4000")
    command.until("actors are running")
    time.sleep(2)
    command.stop(what)
    assert command.code() == 2, command.errors()
    assert command.last_line().removeprefix("rayio: ").startswith(said)
    assert command.run().exit_code == 2
    command.nothing_lives()


def test_a_raylet_that_is_stopped_as_actors_start_is_named(command: Command) -> None:
    command.begin(*ON_RAY, SOON)
    command.find("raylet")
    command.until("starting a local Ray")
    command.find("collector")
    command.stop("raylet")
    assert command.code() == 2, command.errors()
    assert "raylet on " in command.last_line()
    command.nothing_lives()


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("runtime_env_agent", "starting a local Ray"), ("runtime_env_agent", "actors are running"),
        ("dashboard_agent", "actors are running"),
    ],
)  # fmt: skip
def test_an_agent_that_is_stopped_disturbs_no_run(command: Command, agent: str, text: str) -> None:
    """They serve jobs and their environments, which a run on a local Ray does not have."""
    command.begin(*ON_RAY, SOON)
    command.until(text)
    command.stop(agent)
    assert command.code() == 0, command.errors()
    command.run(is_whole=True)
    command.nothing_lives()


def test_one_that_is_stopped_for_a_while_goes_on(command: Command) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    time.sleep(2)
    reader = command.stop("reader")
    time.sleep(8)
    reader.resume()
    assert command.code() == 0, command.errors()
    command.run(is_whole=True)
    command.nothing_lives()


def test_a_silence_is_told_before_it_ends_the_run(command: Command) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    time.sleep(2)
    reader = command.stop("reader")
    command.until("no progress for 3")
    assert "reader-" in command.errors()
    reader.resume()
    command.until("progress again, after")
    assert command.code() == 0, command.errors()
    assert any("no progress" in note for note in command.run(is_whole=True).result.notes)


def test_a_stopped_control_process_does_not_keep_the_command(command: Command) -> None:
    command.begin(*ON_RAY)
    command.until("actors are running")
    time.sleep(2)
    command.stop("gcs")
    command.send(signal.SIGTERM)
    assert command.code() == 130
    run = command.run()
    assert run.result["ledger"]["delivered_steps"] > 0
    command.nothing_lives()


@pytest.mark.parametrize("form", ["npz", "hdf5", "tfrecord", "parquet"])
@pytest.mark.parametrize("more", [["--engine", "local"], ["--engine", "local", "loader.kind=torch"], []])
def test_a_pipe_in_a_files_place_is_one_line(command: Command, form: str, more: list[str]) -> None:
    if "loader.kind=torch" in more:
        pytest.importorskip("torch")
    soon = SOON if "loader.kind=torch" not in more else "cluster.stall_deadline=60 s"  # its workers start slowly
    command.begin(*ON_RAY, f"dataset.format={form}", "train.epochs=200", soon, *more)
    command.until("actors are running" if not more else "generated")
    command.until_there("data/**/000*")
    time.sleep(2)
    for file in (command.home / "data").rglob("0000000*.*"):
        file.unlink()
        os.mkfifo(file)
        command.did[PIPES] += 1
    assert command.code() == 2, command.errors()
    assert "0000" in command.last_line()
    command.run()
    command.nothing_lives()


def test_a_loader_whose_worker_is_stopped_ends_the_run_with_the_story(
    home: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("torch")
    code = """
import os, signal, threading, time
import psutil, rayio
from rayio.errors import RunError
from rayio.reporter import Reporter

class Stops(Reporter):
    def live(self, text, share=None):
        if not text.startswith("0/"):
            for server in psutil.Process().children():
                for worker in server.children():
                    worker.suspend()

try:
    rayio.run("unet3d-small", {"dataset.num_files": 16, "dataset.sample_bytes": "10 kB", "train.epochs": 400,
        "train.compute": "20 ms", "checkpoint": "none", "loader.kind": "torch", "cluster.stall_deadline": "60 s",
        "loader.persistent_workers": True}, engine="local", out="r", reporter=Stops())
except RunError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "no progress for" in done.stdout
    assert "(cluster.stall_deadline=60 s): rank-" in done.stdout
    assert " for its batch of epoch " in done.stdout
    assert ", stopped) has had it for" in done.stdout
    assert "; its files are 0" in done.stdout
    left = rayio.Run.open("r")
    assert left.exit_code == 2
    assert left.result["ledger"]["delivered_steps"] > 0
    record_property(STOPS, 1)
    record_property(KEPT, 1)
