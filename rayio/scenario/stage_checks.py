"""Checks of ``stages`` against each other and the rest of a scenario, and their folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rayio.scenario.address import MODELLED
from rayio.scenario.stages import MAX_FILE_BYTES, MAX_FILES, MAX_PROCESSES, Stage, StageReads
from rayio.schema.fields import show
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


def path_of(scenario: Scenario, stage: Stage) -> str:
    """Return the folder of a stage's files."""
    return stage.path or f"stages/{scenario.name}/{stage.name}"


def placed(scenario: Scenario) -> tuple[Stage, ...]:
    """Return the stages of a scenario, each with its folder."""
    return tuple(stage.model_copy(update={"path": path_of(scenario, stage)}) for stage in scenario.stages)


def refusals(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each stage that contradicts another one, or another section."""
    stages = {stage.name: stage for stage in scenario.stages}
    seen = set[str]()
    for number, stage in enumerate(scenario.stages):
        key = f"stages[{number}]"
        if stage.name in seen:
            yield f"{key}.name={stage.name}: another stage has this name; choose another one"
        seen.add(stage.name)
        before = [each.name for each in scenario.stages[:number]]
        for name in stage.begins_after:
            if name not in before:
                setting = f"{key}.{'follows' if name == stage.follows else 'after'}={name}"
                known = f"there are {', '.join(before)}" if before else "there is none before the first"
                why = "is listed later" if name in stages else "is unknown"
                yield f"{setting}: this stage {why}; name stages that are listed before, {known}"
        if stage.opens and stage.reads is None and stage.writes is None:
            yield f"{key}.opens={stage.opens}: a process without files has none to open; give it reads or writes"
        yield from _file_refusals(stage, key, stages)
        if path_of(scenario, stage).startswith(MODELLED) and not scenario.dataset.is_modelled:
            yield (
                f"{key}.path={stage.path}: has no bytes, and dataset.path={scenario.dataset.path} has; give a folder"
            )
    if (total := sum(stage.count for stage in scenario.stages)) > MAX_PROCESSES:
        yield f"stages: {total} processes in all; at most {MAX_PROCESSES} are possible"


def _file_refusals(stage: Stage, key: str, stages: Mapping[str, Stage]) -> Iterator[str]:
    for name in ("reads", "writes"):
        section = getattr(stage, name)
        files = section.inputs if isinstance(section, StageReads) else section
        if files is None:
            continue
        if (number := stage.count * files.files) > MAX_FILES:
            setting = f"{key}.{name}.files={files.files} × {key}.count={stage.count}"
            yield f"{setting}: {number} files; at most {MAX_FILES} are possible"
        if not files.size.expected <= MAX_FILE_BYTES:
            size = format_bytes(files.size.expected)
            yield f"{key}.{name}.size={size}: at most {format_bytes(MAX_FILE_BYTES)} are possible"
    if stage.reads is None or stage.reads.of is None:
        return
    of, setting = stage.reads.of, f"{key}.reads.of={stage.reads.of}"
    if of not in stage.begins_after:
        known = show([*stage.begins_after])
        yield f"{setting}: must be in after or follows ({known}), so that the files are there"
    elif of in stages and stages[of].writes is None:
        yield f"{setting}: this stage writes no files; give it writes, or give size here"
