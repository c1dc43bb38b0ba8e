"""Causes of an actor's death or failed start, as far as Ray and the kernel know them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError, RuntimeEnvSetupError

from rayio.engines.ray.cluster.control import Control
from rayio.engines.ray.transport.remote import plain
from rayio.errors import RayioError
from rayio.machine.oom import oom_kills, why_killed
from rayio.signals import within

#: Seconds for Ray to explain an actor's death.
WHY_SECONDS = 5.0
#: The kernel's message on its limit of open files, and the end of each log that is searched for it.
OPEN_FILES, LOG_BYTES = b"Too many open files", 64 << 10


class Deaths:
    """The causes of the deaths of a run's actors; ``actors`` are their entries of run.json."""

    def __init__(self, control: Control, actors: Sequence[Mapping[str, Any]]) -> None:
        self.control = control
        self.actors = actors
        #: Processes that this host's kernel had killed for memory before the run.
        self._kills = oom_kills()

    def why(self, name: str, error: RayError) -> str:
        """Return the cause of an actor's death: Ray takes 15 s to notice a lost node."""
        if isinstance(error, OutOfMemoryError):
            return "killed by Ray: its node is out of memory"
        home = next((actor.get("ray_node") for actor in self.actors if actor["name"] == name), None)
        try:
            nodes = within(WHY_SECONDS, ray.nodes, look=self.control.look)
        except TimeoutError:
            return "killed, or Ray's control process was"
        node = next((node for node in nodes if node["NodeID"] == home), None)
        if node is not None and not node["Alive"]:
            return f"its Ray node on {node['NodeManagerHostname']} was lost"
        if node is not None and isinstance(error, ActorUnavailableError):
            return f"killed, or its Ray node on {node['NodeManagerHostname']} was lost"
        hosts = {node["NodeManagerHostname"]} if node is not None else {n["NodeManagerHostname"] for n in nodes}
        return self._killed(hosts)

    def why_collector(self, error: RayError) -> str:
        """Return the cause of the collector's death; it is on the driver's host."""
        return "killed by Ray: its node is out of memory" if isinstance(error, OutOfMemoryError) else self._here()

    def not_started(self, name: str, error: RayError) -> str:
        """Return a line on an actor that did not start."""
        cause = plain(error)
        if isinstance(cause, RayioError):
            return f"{name} did not start: {cause}"
        logs = f"Ray's logs are in {self.control.logs}"
        if isinstance(cause, RuntimeEnvSetupError):
            return f"{name} did not start: {first_line(cause)}; {logs}"
        if logged(Path(self.control.logs), OPEN_FILES):
            return f"{name} did not start: its machine has too many open files; raise `ulimit -n`; {logs}"
        why = self.why(name, error) if isinstance(error, RayError) else "killed"
        return f"{name} did not start: {why} ({first_line(cause)}); {logs}"

    def _killed(self, hosts: set[str]) -> str:
        return self._here() if hosts == {platform.node()} else why_killed(None, None)

    def _here(self) -> str:
        return why_killed(self._kills, oom_kills())


def logged(folder: Path, text: bytes) -> bool:
    """Return True if the end of a log of Ray's processes has a text."""
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in (".out", ".err", ".log") and path.is_file():
                with path.open("rb") as log:
                    log.seek(max(0, path.stat().st_size - LOG_BYTES))
                    if text in log.read(LOG_BYTES):
                        return True
    except OSError:
        return False
    return False


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, or its class.

    >>> first_line(ValueError("one\ntwo")), first_line(ValueError())
    ('one', 'ValueError')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
