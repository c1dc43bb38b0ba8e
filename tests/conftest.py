"""One local Ray for the tests of a process; who runs beside whom; and that no test leaves anything behind."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import beside
import pytest
import stories
from hypothesis import Phase, settings
from left import Before
from objects import objects, place, s3_server  # noqa: F401 (fixtures)
from packages import TOY, installed, toy_installed

#: How long an example takes says more about the machine than about the code; and the same are drawn whoever runs the
#: suite, so that none fails for the first time where it cannot be looked at. The slow tier draws more, and new ones.
settings.register_profile("rayio", deadline=None, derandomize=True, max_examples=30)
settings.register_profile(
    "brief", deadline=None, derandomize=True, max_examples=10, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("deep", deadline=None, max_examples=300)
settings.load_profile("rayio")


#: Where the processes that share a suite leave its groups (tests/beside.py).
GROUPS = Path(tempfile.gettempdir()) / f"rayio-groups-{os.getpid()}.json"


def pytest_configure(config: pytest.Config) -> None:
    """Have Ctrl-C heard, which what a shell starts in the background ignores, and no width of a terminal told."""
    os.environ.pop("COLUMNS", None)  # pytest-xdist's processes have one
    # Hundreds of processes load rayio: each would compile it, for a third of a second.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have the collections of tests look through what tests make: all else takes a third of a second."""
    gc.disable()  # what is loaded to find the tests stays
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure_node(node: Any) -> None:
    """Tell a process that shares the suite where the groups go."""
    node.workerinput["groups"] = str(GROUPS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> beside.InGroups:
    """Share the suite out by groups."""
    return beside.InGroups(config, log, GROUPS)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the groups when all is over."""
    if not beside.is_shared(config):
        GROUPS.unlink(missing_ok=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order and group the tests of a suite that several processes share."""
    if beside.is_shared(config):
        said: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
        Path(said["groups"]).write_text(json.dumps(beside.arrange(items)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test when it is its turn, if others run beside it."""
    if not beside.is_shared(item.config):
        return (yield)
    if item.get_closest_marker("ray") is None:
        _end_ray()  # idle, it costs as much as a test; those that need it came before
    beside.yield_to_ray(item)
    return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the stories in tests/hostile did and came to, if some were run."""
    if told := stories.lines(terminalreporter.stats):
        terminalreporter.section("hostile")
        for line in told:
            terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give tests that ask for no HOME an empty one, so that nothing reaches the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("nobody")
        patch.setenv("HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _nothing_is_left(_nobodys_home: Path) -> Iterator[None]:
    """Fail a test that leaves something behind."""
    before = Before.look()
    yield
    left = before.left(_nobodys_home)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture(scope="module")
def toy_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the package with kinds of its own installed (tests/laws)."""
    with toy_installed(tmp_path_factory.mktemp("toy")):
        yield


#: What ends the Ray of this process, while it runs.
RUNNING: list[Callable[[], None]] = []


def _end_ray() -> None:
    while RUNNING:
        RUNNING.pop()()


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Start Ray once; only what was started here is stopped."""
    import ray
    from ray._private.authentication_test_utils import reset_auth_token_state

    from rayio.engines.ray.cluster.local_ray import UNHEARD, start_own

    with tempfile.TemporaryDirectory(prefix="rayio-home-") as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", home)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        reset_auth_token_state()  # Ray keeps the first mode of a process, and an earlier test may have set one
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # as rayio's own: by default all else on the machine comes first
        path = os.environ.get("PYTHONPATH")
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as workers:
            warnings.simplefilter("ignore")  # Ray's own
            # What else is installed on the workers: the package with kinds that tests/test_kinds.py uses there.
            others = [installed(Path(home, "toy"), TOY / "pyproject.toml"), str(TOY)]
            workers.setenv("PYTHONPATH", os.pathsep.join(filter(None, [*others, path])))
            start_own(  # nor one that adds nodes
                [*UNHEARD, "start_monitor"],
                log_to_driver=False, logging_level=logging.ERROR, object_store_memory=400 << 20,
            )  # fmt: skip
        RUNNING.append(ray.shutdown)
        yield
        _end_ray()


@pytest.fixture
def command(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A command to begin, with a HOME of its own; nothing of it is left when the story is over (tests/hostile)."""
    from commands import Command

    begun = Command(tmp_path)
    yield begun
    begun.end()
    request.node.user_properties.extend(begun.did.items())


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation's site, built once."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra: docs)")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and HOME that a command has for itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path
