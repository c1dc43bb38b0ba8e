"""The local Ray that is ours: how it is started and ended, and that several runs of one command may share it."""

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

#: Seconds within which one that lives answers.
ANSWER_SECONDS = 5.0
#: Seconds that Ray gets to disconnect, and its processes then to end.
SHUTDOWN_SECONDS, END_SECONDS = 30.0, 5.0
#: Where Ray keeps the logs of the session that started last.
LOGS = "/tmp/ray/session_latest/logs"
#: What starts processes of a Ray that is ours alone in which nobody asks anything: the one that sends logs to drivers
#: that print them, and the API server, which without a dashboard only counts Ray's users. A third of Ray's start.
UNHEARD = ("start_log_monitor", "start_api_server")
#: What tells Ray the niceness of its workers.
PRIORITY = "RAY_worker_niceness"


def start_own(unheard: Iterable[str] = UNHEARD, **options: Any) -> None:
    """Start a Ray that is this process's alone: nobody else is to talk to it, so that it listens on loopback."""
    with without(unheard), on_loopback():
        ray.init(address="local", include_dashboard=False, num_cpus=os.cpu_count(), **options)


def on_loopback() -> contextlib.AbstractContextManager[None]:
    """Have Ray take this machine's loopback interface for its address.

    Ray means by it systems whose firewall asks about whoever listens on the network; its workers follow the node.
    """
    return _replaced(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep whoever handles SIGTERM.

    Ray's handler in Python ends the process in the middle of its start, without a word. The one of its core takes
    SIGTERM for a failure, and gives it back to the system as Ray ends: a signal between that and the writing of results
    would lose them.
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
                signal.signal(signal.SIGTERM, handler)  # of a Ray that has another way


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value in Ray's place meanwhile; a Ray without that name goes on as it does."""
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
    """Have a Ray that is started give its workers the usual priority, unless the user said otherwise.

    Ray's own default (a niceness of 15) lets whatever else runs on the machine come first, and that would be measured.
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
    """Have a Ray that is started go without some of its processes, by the methods of its node that start them."""
    with contextlib.ExitStack() as stack:
        for name in starts:
            stack.enter_context(_replaced(ray._private.node.Node, name, lambda *_, **__: None))
        yield


def logs() -> str:
    """Where Ray keeps the logs of the session that this process is connected to, or is starting."""
    node = getattr(ray._private.worker, "_global_node", None)
    return str(node.get_logs_dir_path()) if node is not None else LOGS


def shut_down(seconds: float, *, is_local: bool) -> None:
    """Disconnect; of a local Ray, which is ours alone, leave no process behind, not even one that is stopped."""
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
    """Find the processes of the local Ray that this one started."""
    node = getattr(ray._private.worker, "_global_node", None)
    found: list[psutil.Process] = []
    for infos in getattr(node, "all_processes", {}).values():
        for info in infos:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(info.process.pid)
                found += [process, *process.children(recursive=True)]
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:  # psutil knows when another one has got a number
        with contextlib.suppress(psutil.Error):
            process.kill()


class Lasting:
    """A local Ray that runs share, once one of them has started it."""

    def __init__(self) -> None:
        self.is_running = self.is_dead = False

    def check(self) -> None:
        """Make sure that it answers.

        Raises:
            ClusterError: it does not. No other can be started: Ray ends a process that has lost its cluster within a
                minute, so that what is left to do has to be over by then.
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
    """Have a local Ray that a run starts stay for those that follow, until this block is left."""
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
    """The one that runs share, in a block of :func:`lasting`."""
    return _shared
