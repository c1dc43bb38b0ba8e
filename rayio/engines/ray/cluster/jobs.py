"""Ray's jobs as values: submitted, queried and stopped by HTTP at the dashboard of a cluster's head."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from rayio.engines.ray.cluster import token
from rayio.errors import ClusterError
from rayio.reporter import SILENT, Reporter
from rayio.signals import within

T = TypeVar("T")

#: Seconds that a head gets to answer; more for a submission, which uploads packages.
ANSWER_SECONDS, SUBMIT_SECONDS = 60.0, 300.0
#: Seconds to wait for the agent that starts jobs, in addition to the 10 of each request, and between two requests.
AGENT_SECONDS, AGENT_PAUSE_SECONDS = 60.0, 2.0
#: The dashboard's message without that agent, and the agent's usual port.
NO_AGENT, AGENT_PORT = "No available agent to submit job", 52365
#: The state of a job that has not begun, and final states.
PENDING = "PENDING"
OVER = ("SUCCEEDED", "FAILED", "STOPPED")

#: Ray's loggers whose messages users do not need.
_TALKATIVE = (
    "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging",
)  # fmt: skip
#: This variable overrides every address given to Ray's client.
_ADDRESS = "RAY_API_SERVER_ADDRESS"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job in its cluster."""

    id: str
    #: PENDING, RUNNING, or one of :data:`OVER`.
    status: str
    #: Ray's message.
    message: str
    #: Exit code of its command; None until it ends, or if it never began.
    exit_code: int | None
    entrypoint: str
    #: Milliseconds since the Unix epoch; None until then.
    start_ms: int | None
    end_ms: int | None
    metadata: Mapping[str, str]

    @property
    def is_over(self) -> bool:
        """True if the state is final."""
        return self.status in OVER


class SilentError(ClusterError):
    """A cluster whose head did not answer in time: it may be busy."""


class NoAgentError(ClusterError):
    """A cluster whose head has no agent to start jobs, or not yet."""


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster whose dashboard is at an address such as ``http://head:8265``.

        Raises:
            ClusterError: no answer, or this client is refused.
        """
        #: The address in messages.
        self.address = _without_password(address)
        self._given = address
        self._client: Any = self._ask(lambda: token.ask_with_or_without(self._reach))

    def _reach(self) -> Any:
        from ray.dashboard.modules.job.sdk import JobSubmissionClient

        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)
        with _meant(self._given):
            return JobSubmissionClient(self._given)

    def submit(
        self,
        entrypoint: str,
        job_id: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
        reporter: Reporter = SILENT,
    ) -> None:
        """Submit a command; local folders of its environment are uploaded.

        The agent that starts jobs may still be starting, so this waits for it.

        Raises:
            ClusterError: the cluster refuses it, or has no agent.
        """

        def call() -> None:
            self._client.submit_job(
                entrypoint=entrypoint, submission_id=job_id, runtime_env=dict(runtime_env), metadata=dict(metadata)
            )

        began, pause = time.monotonic(), threading.Event()
        while True:
            try:
                return self._ask(call, SUBMIT_SECONDS)
            except NoAgentError as error:
                waited = time.monotonic() - began
                if waited > AGENT_SECONDS:
                    reporter.done()
                    raise ClusterError(str(error)) from None
                reporter.live(f"{job_id}: waiting for the cluster's job agent, {waited:.0f} s")
                pause.wait(AGENT_PAUSE_SECONDS)

    def state(self, job_id: str) -> JobState:
        """Return the state of a job.

        Raises:
            ClusterError: there is no such job, or the cluster does not answer.
        """
        return _state(self._ask(lambda: self._client.get_job_info(job_id), job_id=job_id))

    def all(self) -> list[JobState]:
        """Return all submitted jobs by start time; jobs without a submission id are left out."""
        jobs = [_state(job) for job in self._ask(lambda: self._client.list_jobs()) if job.submission_id]
        return sorted(jobs, key=lambda job: (job.start_ms or 0, job.id))

    def stop(self, job_id: str) -> bool:
        """Ask a job to end; return True if it was running."""
        return bool(self._ask(lambda: self._client.stop_job(job_id), job_id=job_id))

    def output(self, job_id: str) -> str:
        """Return all output of a job's command."""
        return str(self._ask(lambda: self._client.get_job_logs(job_id), job_id=job_id))

    def tail(self, job_id: str, lines: int) -> str:
        """Return the last lines of a job's output; empty before it begins."""

        def call() -> str:
            wanted = {"submission_id": job_id, "lines": str(lines)}
            answer = self._client._do_request("GET", "/api/v0/logs/file", params=wanted)
            if answer.status_code == HTTPStatus.OK:
                return str(answer.text)
            whole: str = self._client.get_job_logs(job_id)  # a dashboard that cannot return only the end
            return "\n".join(whole.splitlines()[-lines:])

        return self._ask(call, job_id=job_id)

    def _ask(self, call: Callable[[], T], seconds: float = ANSWER_SECONDS, job_id: str = "") -> T:
        try:
            return within(seconds, call)
        except TimeoutError:
            raise SilentError(f"{self.address}: no answer within {seconds:.0f} s") from None
        except Exception as error:  # Ray's client raises many classes
            if NO_AGENT in str(error):
                raise NoAgentError(self._without_agent()) from None
            raise ClusterError(self._explained(error, job_id)) from None

    def _without_agent(self) -> str:
        return (
            f"{self.address}: the cluster's job agent on its head did not start within {AGENT_SECONDS:.0f} s; most "
            f"often another Ray of that machine holds its port {AGENT_PORT}: start the head with `ray start "
            "--dashboard-agent-listen-port=PORT`; dashboard_agent.log in Ray's logs has the cause"
        )

    def _explained(self, error: Exception, job_id: str) -> str:
        text = " ".join(str(error).split())
        if (refused := token.refusal(self.address, text, error)) is not None:
            return refused
        if isinstance(error, OSError):
            return (
                f"nobody answers at {self.address}: is that the dashboard of the cluster's head (port 8265; "
                "`pip install 'ray[default]'` there), and can this machine reach it?"
            )
        if job_id and ("status code 404" in text or "does not exist" in text):
            return f"{self.address} has no job {job_id}; rayio status --address {self.address} lists them"
        return f"{self.address}: {text.replace(self._given, self.address)[:500]}"


def _without_password(address: str) -> str:
    """Return an address without user and password.

    >>> _without_password("https://me:secret@head:8265"), _without_password("http://head:8265")
    ('https://…@head:8265', 'http://head:8265')
    """
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}{slashes}…@{rest.rpartition('@')[2]}" if "@" in rest else address


@contextlib.contextmanager
def _meant(address: str) -> Iterator[None]:
    """Make Ray's client use its address in place of environment variables."""
    before = os.environ.get(_ADDRESS)
    os.environ[_ADDRESS] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ADDRESS]
        else:
            os.environ[_ADDRESS] = before


def _state(job: Any) -> JobState:
    return JobState(
        id=job.submission_id or job.job_id,
        status=str(job.status.value),
        message=job.message or "",
        exit_code=job.driver_exit_code,
        entrypoint=job.entrypoint,
        start_ms=job.start_time,
        end_ms=job.end_time,
        metadata=job.metadata or {},
    )
