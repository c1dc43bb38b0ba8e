"""A Ray cluster that goes away, asks for a token, or cannot start: known soon, and one line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rayio.engines.ray.cluster import token
from rayio.engines.ray.cluster.control import GONE_KNOCKS, GONE_SECONDS, Control
from rayio.errors import ClusterError
from rayio.storage.model import Device, DeviceSpec


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_control_process_that_answers_is_there_and_one_that_went_is_gone_after_a_few_knocks() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        control = Control(f"127.0.0.1:{port}", "/tmp/ray/logs", clock)
        for _ in range(5):
            clock.now += 2
            control.look()
        assert not control.is_gone
    left = clock.now
    for _ in range(GONE_KNOCKS - 1):
        clock.now += 2
        control.look()
    clock.now += 2
    with pytest.raises(ClusterError, match=rf"GCS\) at 127.0.0.1:{port} is gone \(Connection refused\).*/tmp/ray/logs"):
        control.look()
    assert GONE_SECONDS <= clock.now - left <= 10


def test_one_knock_that_is_missed_is_not_the_end() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    control = Control(f"127.0.0.1:{port}", "", clock)
    for _ in range(GONE_KNOCKS - 1):
        clock.now += 2
        control.look()
    with socket.create_server(("127.0.0.1", port)):
        clock.now += 2
        control.look()
    for _ in range(GONE_KNOCKS - 1):
        clock.now += 2
        control.look()
    assert not control.is_gone


UNAUTHENTICATED = "W gcs_client.cc:210: Unauthenticated: RPC error: InvalidAuthToken: token is missing or incorrect"


@pytest.mark.parametrize(
    ("variables", "said", "told"),
    [
        ({}, UNAUTHENTICATED, "asks for a token, and this client sends none: set RAY_AUTH_MODE=token, and RAY_AUTH_"),
        ({"RAY_AUTH_TOKEN": "s3cret"}, UNAUTHENTICATED, "this client sends none: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled"}, UNAUTHENTICATED, "this client sends none: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "s3cret"}, UNAUTHENTICATED, "(from RAY_AUTH_TOKEN)"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/t"}, UNAUTHENTICATED, "(from RAY_AUTH_TOKEN_PATH)"),
        ({"RAY_AUTH_MODE": "token"}, UNAUTHENTICATED, "(from ~/.ray/auth_token)"),
        ({}, "W gcs_client.cc: connection refused", None),
    ],
)
def test_a_client_that_is_not_let_in_is_told_what_to_set_and_never_what_it_sent(
    variables: dict[str, str], said: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (token.MODE, token.TOKEN, token.TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = token.refusal("10.0.0.1:6379", said, ConnectionError("Failed to connect"))
    assert (found is None) == (told is None)
    if found is not None and told is not None:
        assert told in found
        assert "s3cret" not in found
        assert "\n" not in found


@pytest.mark.parametrize(
    ("mode", "has_token", "wants", "accepts", "outcome"),
    [
        (None, True, False, True, "disabled"),  # a token that is left from another cluster changes nothing
        (None, False, False, True, "disabled"),
        (None, True, True, True, "token"),
        (None, True, True, False, "does not accept the token of this client (from ~/.ray/auth_token): set RAY_"),
        (None, False, True, True, "asks for a token, and this client sends none: set RAY_AUTH_MODE=token, and"),
        ("disabled", True, True, True, "asks for a token, and this client sends none: set RAY_AUTH_MODE=token, and"),
        ("disabled", True, False, True, "disabled"),
        ("token", True, False, True, "asks for no token, and RAY_AUTH_MODE=token is set here: unset it, or set RAY_"),
        ("token", True, True, True, "token"),
        ("Token", True, True, True, "Token"),
        ("token", False, True, True, "RAY_AUTH_MODE=token is set, and this client has no token; set"),
        (None, True, None, True, None),  # no answer: nothing is decided
    ],
)
def test_the_addressed_cluster_decides_on_authentication_and_a_mismatch_is_one_line(
    mode: str | None, has_token: bool, wants: bool | None, accepts: bool, outcome: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in (token.MODE, token.TOKEN, token.TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    if mode is not None:
        monkeypatch.setenv(token.MODE, mode)
    asked = {token.WITHOUT: wants, token.WITH: wants and not accepts}
    monkeypatch.setattr(token, "_is_refused", lambda gcs, mode: asked[mode])
    monkeypatch.setattr(token, "_reload", lambda: None)
    monkeypatch.setattr(token, "has_token", lambda: has_token)
    if outcome is not None and " " in outcome:
        with pytest.raises(ClusterError, match=re.escape(outcome)) as caught:
            token.use_that_of("auto", "10.0.0.1:6379")
        assert "\n" not in str(caught.value)
    else:
        token.use_that_of("auto", "10.0.0.1:6379")
        assert os.environ.get(token.MODE) == outcome
    token.forget()
    assert os.environ.get(token.MODE) == mode


class AuthenticationError(Exception):
    """As Ray's client raises it."""


@pytest.mark.parametrize(
    ("mode", "has_token", "wants", "sent"),
    [
        (None, True, False, ["disabled"]),  # nobody is sent a token who does not ask for one
        (None, True, True, ["disabled", "token"]),
        (None, False, True, ["disabled"]),
        ("token", True, False, ["token"]),
        ("disabled", True, True, ["disabled"]),
    ],
)
def test_a_dashboard_is_sent_a_token_only_if_it_asks(
    mode: str | None, has_token: bool, wants: bool, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(token.MODE, raising=False)
    if mode is not None:
        monkeypatch.setenv(token.MODE, mode)
    monkeypatch.setattr(token, "_reload", lambda: None)
    monkeypatch.setattr(token, "has_token", lambda: has_token)
    modes: list[str] = []

    def call() -> str:
        modes.append(os.environ[token.MODE])
        if wants and modes[-1] == "disabled":
            raise AuthenticationError("Authentication required: Unauthorized: Missing authentication token")
        return "hello"

    if wants and "token" not in sent:
        with pytest.raises(AuthenticationError):
            token.ask_with_or_without(call)
    else:
        assert token.ask_with_or_without(call) == "hello"
    assert modes == sent
    token.forget()
    assert os.environ.get(token.MODE) == mode


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_a_token_in_the_home_folder_does_not_keep_from_a_cluster_without(tmp_path: Path) -> None:
    """As an earlier local run leaves it there; then a run's actors waited for each other's tokens for ever."""
    import ray

    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
    own = os.environ | {"HOME": str(tmp_path)}
    own.pop("RAY_AUTH_MODE")
    address = ray.get_runtime_context().gcs_address
    for mode, code, said in (
        ({}, 0, "authentication: no token is sent (RAY_AUTH_MODE=disabled)"),
        (
            {"RAY_AUTH_MODE": "token"},
            2,
            f"rayio: the Ray cluster at {address} asks for no token, and RAY_AUTH_MODE=tok",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "rayio", "doctor", "--address", address], capture_output=True, text=True,
            cwd=tmp_path, env=own | mode, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr


def test_a_token_that_is_asked_for_and_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own refusal, in a process of its own: Ray remembers the mode it began with."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    code = "from rayio.cli import main; main()"
    own = os.environ | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "no")}
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody is asked: the token is missed before
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", code, "run", "unet3d-small", "--address", address, "--out", "r"],
            capture_output=True, text=True, cwd=tmp_path, env=own, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("rayio: RAY_AUTH_MODE=token is set, and this client has no token: RAY_AUTH_TOKEN_PATH names")
    assert not (tmp_path / "r").exists()


def test_what_ray_writes_on_standard_error_is_heard_and_kept_off_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with token.overheard(tmp_path / "log.txt") as said:
        os.write(2, b"from C++\n")
    os.write(2, b"afterwards\n")
    assert said == ["from C++\n"]
    assert capfd.readouterr().err == "afterwards\n"
    assert (tmp_path / "log.txt").read_text() == "from C++\n"


def test_a_device_that_is_started_again_knows_its_backlog_from_whoever_asks_next() -> None:
    spec = DeviceSpec(connection_bandwidth=1e9, bandwidth=1e6)
    device = Device(spec)
    for _ in range(5):
        device.reserve(0, 1, 1_000_000, 0)
    assert device.free_at == 5_000_000_000
    again = Device(spec)
    again.learn(device.free_at)
    assert again.reserve(0, 1, 1_000_000, 0) == 6_000_000_000
    again.learn(17)  # what somebody knows from before changes nothing
    assert again.free_at == 6_000_000_000
