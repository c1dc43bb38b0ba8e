"""The content of a report: the run's records, its numbers, its explanation, and the figures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from rayio.analyze.arrays import arrays_of
from rayio.analyze.gate import of_result
from rayio.analyze.metrics import measure
from rayio.analyze.passes import Timelines
from rayio.analyze.run_scenario import UNEDITED, has_edited_keys, is_edited, scenario_of
from rayio.analyze.shape import RunShape
from rayio.analyze.window import Window, find_window
from rayio.errors import RayioError, ScenarioError
from rayio.predict.explain import Seen, explained, readers_of
from rayio.records.doubts import Doubt
from rayio.records.explained import Explained
from rayio.records.run_result import RunResult
from rayio.report import figures, tracks
from rayio.report.bins import Bins
from rayio.report.explain import explain, worded
from rayio.report.text.conclusion import EDITED, finding
from rayio.report.text.remarks import noted
from rayio.reporter import SILENT, Reporter
from rayio.scenario.model import Scenario
from rayio.trace.run_directory import RunDirectory

#: Completed steps of all ranks together up to which a report replays the run; beyond, ``rayio explain`` does.
SIMULATED_STEPS = 1000


@dataclass(frozen=True)
class Content:
    """The content of a page; figures are None where the run has nothing to show in them."""

    directory: RunDirectory
    info: dict[str, Any]
    #: None when the run has none, and its spans give none.
    result: RunResult | None
    #: True without a result.json: the run broke off, or is still under way.
    has_no_result: bool
    scenario: Scenario | None
    explanation: Explained | None
    trouble: list[str]
    begin: int
    end: int
    window: Window | None
    over_time: figures.OverTime | None
    queues: figures.Queues | None
    step_times: figures.Histogram | None
    heat_map: figures.HeatMap | None
    timeline: tracks.Tracks | None
    #: True if the run was replayed; False when that would have taken long.
    is_simulated: bool

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Return the doubts about the numbers: those of the explanation contain those of the result."""
        return of_result(self.result) if self.explanation is None else self.explanation.doubts

    @property
    def is_empty(self) -> bool:
        """Return True if there is not even a rank's life to show; then the last of ``trouble`` has the reason."""
        return self.begin == self.end

    @classmethod
    def of(
        cls,
        directory: RunDirectory,
        wanted: tuple[float, float] | None = None,
        simulate: bool | None = None,
        reporter: Reporter = SILENT,
    ) -> Content:
        """Return the content of a run. ``wanted`` is a stretch for the timeline in seconds since the run's begin.

        Raises:
            StorageError: the run directory cannot be read, or another version of rayio wrote its result.
            ScenarioError: the run was over before the stretch begins.
        """
        info = directory.info
        result = directory.result
        has_no_result = result is None
        trouble = [EDITED] if has_edited_keys(directory) else [UNEDITED] if is_edited(directory) else []
        trouble += _ending(result)
        scenario: Scenario | None = None
        try:
            scenario = scenario_of(directory)
        except RayioError as error:
            trouble.append(f"{error}: nothing is explained")
        reporter.live("report: reading spans", 0.0)
        spans = directory.slices()
        reporter.live(f"report: {len(spans):,} spans are charged", 0.2)
        if lost := directory.lost_files:
            trouble.append(
                f"span files that cannot be read: {', '.join(lost)}. Their spans are missing in every figure."
            )
        timed = Timelines(spans)
        lives = timed.lives
        shape = RunShape.of(scenario) if scenario else _guessed(result, len(lives.rank))
        if result is None and scenario is not None:
            result = replace(noted(measure(arrays_of(spans), shape)), scenario=scenario.name)
        imported = result.imported if result else None
        if imported and imported.au is None:
            trouble = ["Imported checkpoints without training: there are no steps to draw."]
        elif imported and imported.reduced:
            trouble = ["Imported from a summary: it says nothing of single steps, so there is nothing to draw."]
        elif not len(lives.rank):
            trouble.append("The run has no spans of ranks: there is nothing to draw.")
        elif not timed.number:
            trouble.append(_no_steps(scenario))
        begin = int(lives.begin.min(initial=0 if not len(lives.rank) else lives.begin[0]))
        end = int(lives.end.max(initial=begin))
        if wanted and wanted[0] * 1e9 >= end - begin:
            raise ScenarioError(f"--window begins at {wanted[0]:g} s; the run lasts {(end - begin) / 1e9:.3g} s")
        stretch = (begin + int(wanted[0] * 1e9), min(begin + int(wanted[1] * 1e9), end)) if wanted else None
        has_steps = timed.number > 0
        bins = figures.time_bins(lives, timed) if has_steps else Bins.over(begin, end, 1)
        seen = None
        if scenario is not None and not (imported and imported.has_no_steps):
            seen = Seen(timed, scenario, info, readers_of(directory, scenario))
        split, depths = figures.Split(lives, timed, shape, bins), figures.Depths(spans, lives, bins)
        drawn = tracks.Drawn(lives, timed, stretch)
        drawings = ((split, depths) if has_steps else ()) + ((drawn,) if has_steps or stretch else ())
        timed.go_through(*(() if seen is None else seen.sums), *drawings)
        is_simulated = timed.number <= SIMULATED_STEPS if simulate is None else simulate
        explanation: Explained | None = None
        window = (find_window(lives, timed, shape) if seen is None else seen.window)[0]
        with ThreadPoolExecutor(1, "rayio-figures") as pool:  # numpy lets both go on
            over_time = pool.submit(split.result) if has_steps else None
            heat_map = pool.submit(figures.heat_map, lives, timed, bins) if has_steps else None
            step_times = pool.submit(lambda: figures.histogram(figures.step_times(timed, window, shape)))
            if imported and imported.has_no_steps:
                explanation = explain(directory.address)
            elif scenario is not None and seen is not None:
                reporter.live("report: why", 0.5)
                record = explained(directory, scenario, seen, simulate=is_simulated, reporter=reporter)
                explanation = worded(record, finding)  # the trouble has what leads it
            reporter.live("report: figures", 0.6)
            return cls(
                directory=directory, info=info, result=result, has_no_result=has_no_result, scenario=scenario,
                explanation=explanation, trouble=trouble, begin=begin, end=end, window=window,
                queues=depths.result() if has_steps else None,
                timeline=drawn.result() if has_steps or stretch else None,
                over_time=None if over_time is None else over_time.result(),
                step_times=step_times.result(),
                heat_map=None if heat_map is None else heat_map.result(),
                is_simulated=is_simulated,
            )  # fmt: skip


def _ending(result: RunResult | None) -> list[str]:
    if result is None:
        return ["The run has no result.json: it broke off, or is still under way. Shown is what was recorded so far."]
    if result.error:
        return [f"The run ended with exit code {result.exit_code}: {result.error}"]
    return []


def _no_steps(scenario: Scenario | None) -> str:
    if scenario is not None and scenario.trace.level == "none":
        return "trace.level is none: no step was recorded, so there is nothing to draw. Run it with trace.level=batch."
    return "No rank completed a step: there is nothing to draw."


def _guessed(result: RunResult | None, ranks: int) -> RunShape:
    """Return a shape without a scenario: all ranks' steps count alike, after one of warm-up; samples are not known."""
    number, steps = (result.world_size, result.steps) if result else (0, 0)
    number = number or ranks or 1
    return RunShape(number, 1, 1, 1, (steps or 0) // number)
