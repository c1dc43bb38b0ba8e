"""The processes of stages, in words."""

from __future__ import annotations

from rayio.records.run_result import RunResult
from rayio.records.workflow import StageResult, Workflow
from rayio.report.text.terms import seconds
from rayio.units import format_bytes, format_share


def headline(workflow: Workflow) -> str:
    """Return how many processes there were, and how much of the time anything read or wrote."""
    planned = sum(stage.planned for stage in workflow.stages)
    several = f"{len(workflow.stages)} stages" if len(workflow.stages) != 1 else "1 stage"
    number = f"{workflow.processes:,}" if workflow.processes == planned else f"{workflow.processes:,} of {planned:,}"
    text = f"{several}, {number} processes"
    if workflow.seconds is not None:
        text += f" in {seconds(workflow.seconds)}"
    if workflow.io_seconds is not None:
        text += f"; reads or writes in {seconds(workflow.io_seconds)} of it ({format_share(workflow.io_share, 2)})"
    return text


def row(stage: StageResult) -> tuple[str, str, str, str, str]:
    """Return a stage's name, processes, time, reads and writes."""
    time = "" if stage.seconds is None else seconds(stage.seconds)
    read = f"{stage.reads:,} of {format_bytes(stage.read_bytes)}" if stage.reads else ""
    written = f"{stage.writes:,} of {format_bytes(stage.written_bytes)}" if stage.writes else ""
    return stage.stage, f"{stage.processes:,}", time, read, written


COLUMNS = ("stage", "processes", "time", "reads", "writes")


def lines(result: RunResult) -> list[str]:
    """Return the stages of a run, a line each; empty without any."""
    if (workflow := result.workflow) is None:
        return []
    rows = [COLUMNS, *map(row, workflow.stages)]
    shown = [f"  {name:<12}{number:>11}{time:>12}{read:>22}{write:>22}" for name, number, time, read, write in rows]
    return [f"  {headline(workflow)}", *(line.rstrip() for line in shown)]
