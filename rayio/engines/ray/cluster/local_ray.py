"""A local Ray: its start and end, and sharing by several runs of one command."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import ray

from rayio.engines.ray.cluster.control import LAST_SECONDS
from rayio.errors import ClusterError
from rayio.signals import within

#: Seconds within which a living Ray answers.
ANSWER_SECONDS = 5.0
#: Seconds for Ray to disconnect, and then for its processes to end.
SHUTDOWN_SECONDS, END_SECONDS = 30.0, 5.0
#: Ray's logs of the latest session.
LOGS = "/tmp/ray/session_latest/logs"
#: Starters of processes that a private Ray does not need: the log monitor and the API server, which without a dashboard
#: only counts users. They are a third of Ray's start.
UNHEARD = ("start_log_monitor", "start_api_server")
#: Ray's variable of the niceness of its workers.
PRIORITY = "RAY_worker_niceness"


def start_own(unheard: Iterable[str] = UNHEARD, **options: Any) -> None:
    """Start a Ray for this process alone; it listens on loopback."""
    with without(unheard), on_loopback():
        ray.init(address="local", include_dashboard=False, num_cpus=os.cpu_count(), **options)


def on_loopback() -> contextlib.AbstractContextManager[None]:
    """Make Ray use the loopback interface; its workers follow the node.

    Ray intends this for systems whose firewall asks about listeners on the network.
    """
    return _replaced(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep this process's handlers of SIGTERM.

    Ray's Python handler ends the process silently during its start. Its core treats SIGTERM as a failure and resets the
    handler as Ray ends: a signal before results are written would lose them.
    """
    handler = signal.getsignal(signal.SIGTERM)
    with (
        _replaced(ray._private.utils, "set_sigterm_handler", lambda handler: None),
        _replaced(ray._private.ray_constants, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", True),
    ):
        try:
            yield
        finally:
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # reset by a Ray that replaced it in another way


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of Ray within the block; skipped in a Ray without it."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def usual_priority() -> Iterator[None]:
    """Start Ray's workers at normal priority, unless the user chose another.

    Ray's default (niceness 15) yields to all other processes of the machine, which would be measured.
    """
    if PRIORITY in os.environ:
        yield
        return
    os.environ[PRIORITY] = "0"
    try:
        yield
    finally:
        del os.environ[PRIORITY]


@contextlib.contextmanager
def without(starts: Iterable[str]) -> Iterator[None]:
    """Start Ray without some of its processes, named by the methods that start them."""
    with contextlib.ExitStack() as stack:
        for name in starts:
            stack.enter_context(_replaced(ray._private.node.Node, name, lambda *_, **__: None))
        yield


def logs() -> str:
    """Return the folder of Ray's logs of this session."""
    node = getattr(ray._private.worker, "_global_node", None)
    return str(node.get_logs_dir_path()) if node is not None else LOGS


def shut_down(seconds: float, *, is_local: bool) -> None:
    """Disconnect; end every process of a local Ray, stopped ones too."""
    begun = _processes() if is_local else []
    try:
        within(seconds, ray.shutdown)
    except TimeoutError:
        atexit.unregister(ray.shutdown)
        _kill(begun)
        return
    except Exception as error:
        logging.getLogger("ray").error("while shutting down: %s", error)
    _, alive = psutil.wait_procs(begun, timeout=END_SECONDS)
    _kill(alive)


def _processes() -> list[psutil.Process]:
    node = getattr(ray._private.worker, "_global_node", None)
    processes: list[psutil.Process] = []
    for infos in getattr(node, "all_processes", {}).values():
        for info in infos:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(info.process.pid)
                processes += [process, *process.children(recursive=True)]
    return processes


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:  # psutil detects reused process numbers
        with contextlib.suppress(psutil.Error):
            process.kill()


class Lasting:
    """A local Ray that several runs share, once the first has started it."""

    def __init__(self) -> None:
        self.is_running = self.is_dead = False

    def check(self) -> None:
        """Check that it answers.

        Raises:
            ClusterError: no answer. No other can be started: Ray ends a process that lost its cluster within a minute,
            so the remaining work must end before.
        """
        with contextlib.suppress(Exception):
            if not self.is_dead and any(node["Alive"] for node in within(ANSWER_SECONDS, ray.nodes)):
                return
        self.is_dead = True
        raise ClusterError(
            "the local Ray that these runs share has died; the same command goes on with a new one; "
            f"Ray's logs are in {logs()}"
        )

    def end(self) -> None:
        """End it, if it was started."""
        if self.is_running:
            self.is_running = False
            shut_down(LAST_SECONDS if self.is_dead else SHUTDOWN_SECONDS, is_local=True)


_shared: Lasting | None = None


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Keep a local Ray that a run starts for further runs, until the block ends."""
    global _shared
    if _shared is not None:
        yield
        return
    _shared = Lasting()
    try:
        yield
    finally:
        ours, _shared = _shared, None
        ours.end()


def shared() -> Lasting | None:
    """Return the shared Ray of a :func:`lasting` block, or None."""
    return _shared
