"""Progress of a job's run, from its state on the cluster and the end of its output."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from rayio.engines.ray.cluster.jobs import Jobs, JobState
from rayio.records.record import DamagedRecordError
from rayio.records.running import LIVE_LINE, OVER, STARTING, Live
from rayio.remote.jobs.submit import Ended, ran_in
from rayio.session.progress import over
from rayio.storage.address import last_part

#: Lines at the end of a job's output that are searched for progress; there is one every 5 s.
LINES = 100


def look(jobs: Jobs, job_id: str) -> Live:
    """Return the progress of a job's run.

    Raises:
        ClusterError: there is no such job, or the cluster does not answer.
    """
    job = jobs.state(job_id)
    if not job.is_over:
        return last_line(jobs.tail(job_id, LINES)) or _known(job)
    output = jobs.output(job_id)
    if (ran := ran_in(output)) is not None:
        return over(ran.result, last_part(ran.directory))
    ended = Ended(job, None, output)
    last = last_line(output) or _known(job)
    return replace(last, state=OVER, exit_code=ended.exit_code, error=ended.complaint, recent=None, queues=None)


def last_line(output: str) -> Live | None:
    """Return the last progress that a run printed; None without one.

    >>> last_line("rayio: starting a local Ray") is None
    True
    """
    for line in reversed(output.splitlines()):
        if line.startswith(LIVE_LINE):
            with suppress(ValueError, DamagedRecordError):  # the first line may be incomplete
                return Live.of_json(json.loads(line.removeprefix(LIVE_LINE)))
    return None


def _known(job: JobState) -> Live:
    """Return the progress of a job whose run printed none yet."""
    began = datetime.fromtimestamp((job.start_ms or 0) / 1000, UTC).isoformat(timespec="seconds")
    return Live(
        state=OVER if job.is_over else STARTING, run=job.id, scenario=job.metadata.get("scenario", "-"), engine="ray",
        started=began, updated=began, pid=0, boot_id="", ranks=0, planned_steps=0, time={}, waits={},
    )  # fmt: skip
