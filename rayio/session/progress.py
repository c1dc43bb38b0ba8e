"""A run's progress for other processes: from ``live.json`` during the run, from its result afterwards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import psutil

from rayio.errors import StorageError
from rayio.records.record import Record
from rayio.records.run_result import RunResult
from rayio.records.running import GONE, OVER, Live, LiveRecent
from rayio.trace.clocks import boot_id
from rayio.trace.live_file import read_live
from rayio.trace.run_directory import RunDirectory


def look(path: str) -> Live:
    """Return the progress of the run in a directory.

    Raises:
        StorageError: there is no run, or it has neither progress nor result.
    """
    directory = RunDirectory.open(path)
    live = read_live(directory)  # before the result, which replaces it
    if (result := directory.result) is not None:
        return over(result, directory.name, str(directory.info.get("started", "")))
    if live is None:
        raise StorageError(
            f"{directory.address} has neither live.json nor result.json: the run was killed, has trace.live=false, or "
            "is not on this machine; for a job use rayio top JOB, for a live run its Prometheus metrics"
        )
    if live.boot_id == boot_id() and not _is_alive(live.pid):
        with suppress(StorageError):  # the run may just have ended
            if (result := directory.result) is not None:
                return over(result, directory.name, live.started)
        return replace(live, state=GONE, error=f"process {live.pid} was killed: it ended without a result")
    return live


def _is_alive(pid: int) -> bool:
    try:
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def over(result: RunResult, name: str, started: str = "") -> Live:
    """Return the final progress of a run, made of its result."""
    books = result.ledger
    return Live(
        state=OVER, run=name, scenario=result.scenario, engine=result.engine, started=started, updated=started, pid=0,
        boot_id="", ranks=result.world_size, exit_code=result.exit_code, error=result.error,
        planned_steps=result.steps or 0 if books is None else books.planned_steps,
        seconds=result.wall_seconds or 0.0, steps=result.steps or 0,
        samples=None if books is None else books.delivered_samples // (result.ranks_of_sample or 1),
        ranks_of_sample=result.ranks_of_sample or 1,
        nbytes=0 if books is None else books.delivered_bytes,
        spans=0 if result.trace is None else result.trace.stored,
        time=_known(result.time), waits={},
        recent=LiveRecent(
            seconds=result.window_seconds or 0.0, au=result.au, samples_per_second=result.samples_per_second,
            bytes_per_second=None if result.mib_per_second is None else result.mib_per_second * 2**20,
            shares=_known(result.share),
        ),
    )  # fmt: skip


def _known(record: Record) -> dict[str, float]:
    """Return the numbers of a record that are known and not 0."""
    numbers = {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]
    return {name: number for name, number in numbers.items() if number}
