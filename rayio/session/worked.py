"""The processes of stages in a run's result: their times from spans, and their tallies held against the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rayio.analyze.workflow import Activity, activity
from rayio.model.plan import Plan
from rayio.model.workflow import StageTally
from rayio.records.run_result import RunResult
from rayio.records.workflow import StageResult, Workflow
from rayio.scenario.model import Scenario
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: What is compared with the plan, in words.
_COMPARED = {
    "processes": "processes ended", "files_read": "files were read", "reads": "read requests were made",
    "read_bytes": "bytes were read", "files_written": "files were written", "writes": "write requests were made",
    "written_bytes": "bytes were written", "opens": "opens without a read or a write",
}  # fmt: skip


def timed(result: RunResult, scenario: Scenario, spans: pa.Table | Slices) -> RunResult:
    """Return the result with the times of stages; their numbers follow with :func:`tallied`."""
    if not scenario.stages:
        return result
    names = [stage.name for stage in scenario.stages]
    seen = None if scenario.trace.level == "none" else activity(spans, names)
    stages = tuple(_timed(name, number, seen) for number, name in enumerate(names))
    seconds = None if seen is None else seen.lives.extent
    moved = None if seen is None or scenario.trace.level == "step" else seen.moves.covered
    share = moved / seconds if moved is not None and seconds else None
    workflow = Workflow(
        processes=0, seconds=seconds, io_seconds=moved, io_share=share, even=None, stages=stages
    )  # fmt: skip
    return replace(result, workflow=workflow)


def _timed(name: str, number: int, seen: Activity | None) -> StageResult:
    lives = None if seen is None else seen.lives.of(number)
    is_known = lives is not None and len(lives.start) > 0
    return StageResult(
        stage=name, planned=0, processes=0, files_read=0, reads=0, read_bytes=0, files_written=0, writes=0,
        written_bytes=0, seconds=lives.extent if lives is not None else None,
        io_seconds=seen.moves.of(number).covered if seen is not None else None,
        process_seconds=float((lives.end - lives.start).mean()) / 1e9 if lives is not None and is_known else None,
        most_at_once=lives.most_at_once if lives is not None else None,
    )  # fmt: skip


def tallied(result: RunResult, plan: Plan, tallies: Sequence[StageTally], error: BaseException | None) -> RunResult:
    """Return the result with what the processes of each stage did, next to what was planned."""
    if result.workflow is None:
        return result
    planned = plan.workflow.planned()
    done = [*tallies, *(StageTally() for _ in range(len(planned) - len(tallies)))]
    stages = tuple(
        replace(stage, planned=wanted.processes, **{name: getattr(tally, name) for name in StageTally.__slots__})
        for stage, wanted, tally in zip(result.workflow.stages, planned, done, strict=True)
    )
    differences = () if error is not None else tuple(_differences(plan, planned, done))
    workflow = replace(
        result.workflow, processes=sum(tally.processes for tally in done), stages=stages, differences=differences,
        even=None if error is not None else not differences,
    )  # fmt: skip
    return replace(result, workflow=workflow)


def _differences(plan: Plan, planned: Sequence[StageTally], done: Sequence[StageTally]) -> Iterator[str]:
    for stage, wanted, tally in zip(plan.workflow.stages, planned, done, strict=True):
        for name, words in _COMPARED.items():
            if (there := getattr(tally, name)) != (due := getattr(wanted, name)):
                yield f"stage {stage.name}: {there:,} of {due:,} {words}"
                break
