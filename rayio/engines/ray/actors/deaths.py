"""Causes of an actor's death or failed start, as far as Ray and the kernel know them."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError, RuntimeEnvSetupError

from rayio.engines.ray.cluster.control import GCS, Control, is_of
from rayio.engines.ray.transport.remote import plain
from rayio.errors import RayioError
from rayio.machine.oom import oom_kills, why_killed
from rayio.model.workflow import CONDUCTOR
from rayio.signals import within

#: Seconds for Ray to explain an actor's death.
WHY_SECONDS = 5.0
#: The kernel's message on its limit of open files, and the end of each log that is searched for it.
OPEN_FILES, LOG_BYTES = b"Too many open files", 64 << 10
#: Seconds in which Ray's processes show that they end: they end a node's actors first.
EVIDENCE_SECONDS = 2.0
_AGENT = re.compile(rb"(\w+) failed and raylet fate-shares with it")


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
        if (lost := self._of_ray(home)) is not None:
            return lost
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

    def over(self, name: str, error: RayError) -> str:
        """Return a line on the death of a rank, or of the actor that starts processes of stages, which ends the run."""
        text = (
            f"{name} died ({self.why(name, error)}); a rank is not restarted: the run is over; its spans are in the "
            "run directory"
        )
        return text.replace("a rank is", "they are") if name == CONDUCTOR else text

    def why_collector(self, error: RayError) -> str:
        """Return the cause of the collector's death; it is on the driver's host."""
        if isinstance(error, OutOfMemoryError):
            return "killed by Ray: its node is out of memory"
        return self._of_ray(None) or self._here()

    def state_of(self, name: str) -> str:
        """Return the unusual state of an actor's process on this host; empty if it has none, or is elsewhere."""
        about = next((actor for actor in self.actors if actor["name"] == name), {})
        if name != "collector" and about.get("ray_node") != ray.get_runtime_context().get_node_id():
            return ""
        with suppress(psutil.Error, KeyError):
            state = psutil.Process(about["pid"]).status()
            return {"stopped": "stopped", "disk-sleep": "waiting for its storage"}.get(state, "")
        return ""

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

    def _of_ray(self, node: str | None) -> str | None:
        """Return the cause of a death if it is one of Ray's processes: the control process, or a node's raylet.

        ``node`` is the Ray node of the actor; None is that of the driver.
        """
        pulse, own = self.control.pulse, self.control.own
        name = next((name for name in pulse.addresses if node is not None and is_of(name, node)), own)
        ends = time.monotonic() + EVIDENCE_SECONDS
        while True:
            pulse.look()
            for silent in (GCS, name):
                if seconds := pulse.silence(silent):
                    return f"{silent} has not answered for {seconds:.0f} s"
            if name == own and (agent := failed_agent(Path(self.control.logs))):
                return f"{name} ended with its {agent}, which had died"
            if pulse.is_closed(name):
                return f"{name} has ended"
            if time.monotonic() > ends:
                return None
            time.sleep(0.2)

    def _killed(self, hosts: set[str]) -> str:
        return self._here() if hosts == {platform.node()} else why_killed(None, None)

    def _here(self) -> str:
        return why_killed(self._kills, oom_kills())


def failed_agent(folder: Path) -> str:
    """Return the name of the agent whose end ends a raylet, from the raylet's log; empty for any other end."""
    with suppress(OSError):
        for path in (folder / "raylet.out", folder / "raylet.err"):
            if names := _AGENT.findall(path.read_bytes()[-LOG_BYTES:] if path.exists() else b""):
                return str(names[-1].decode())
    return ""


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


def late(names: Sequence[str], number: int, seconds: float) -> str:
    """Return a line on actors that have not started in time, of ``number`` ones."""
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{len(names)} of {number} actors have not started within {seconds:g} s (cluster.start_deadline): {shown}"


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's text, or its class.

    >>> first_line(ValueError("one\ntwo")), first_line(ValueError())
    ('one', 'ValueError')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
