"""A run made ready for replay on the virtual clock, and the outcome of a replay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import RunArrays
from rayio.analyze.filled import SHOWS, of_filling, supplied
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import attribute
from rayio.analyze.verdict import Judged, judge
from rayio.analyze.window import find_window
from rayio.model.planning import plan_of
from rayio.predict.processors import Worked
from rayio.predict.replay import Measured, RecordedTimes, Replay
from rayio.records.doubts import Doubt
from rayio.scenario import derive
from rayio.scenario.model import Costs, Scenario, StorageParameters

#: Processors that are busy for this part of their time are full.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class Outcome:
    """A replayed run, judged."""

    judged: Judged
    #: From the first step's begin to the last one's end, in s; with steps that are not simulated, at their mean.
    lasted: float
    #: The largest cause of loss, or compute.
    next: str
    #: The doubt about its AU, if the initial prefetch inflates it.
    doubt: Doubt | None = None

    @property
    def au(self) -> float | None:
        """Return its AU."""
        return self.judged.verdict.au

    def saves(self, before: Outcome) -> float | None:
        """Return the part of another run's time that it saves for the same steps; negative where it takes more.

        The time is that of all steps, from the begin of the first one: in a short run a change may move a wait to
        before the window.
        """
        return 1 - self.lasted / before.lasted if before.lasted and self.lasted else None


@dataclass(frozen=True)
class Base:
    """A run made ready for replay."""

    scenario: Scenario
    measured: Measured
    #: Storage of the run where it was a model; None for real storage, whose recorded times are replayed.
    modelled: StorageParameters | None
    #: The bound that ``loader.max_bytes_in_flight: auto`` chose, in bytes.
    bytes_in_flight: int | None
    was_memory_bound: bool
    #: Ranks that are last in most steps.
    slow: NDArray[np.bool_]
    #: Readers of a rank: on average, where they came and went.
    workers: int
    #: Mean bytes of a batch; None where no span has them.
    batch_bytes: float | None
    #: True if real storage refused so many requests that other numbers of workers cannot be predicted.
    is_throttled: bool = False
    #: True if the run survived failures, which replays leave out.
    has_failed: bool = False

    @property
    def costs(self) -> Costs:
        """Return the costs of the run's loader, without reading."""
        return self.measured.costs

    @property
    def has_cores(self) -> bool:
        """Return True if the CPU time of batches and the number of cores are known."""
        return Worked.planned(self.scenario.model_copy(update={"costs": self.costs})) is not None

    def without_times(self) -> Base:
        """Return it without measured times: replays have them, and a process that simulates gets both."""
        return replace(self, measured=self.measured.without_times())

    def simulate(self, replay: Replay, change: str | None = None) -> Outcome:
        """Return the outcome of a scenario on the virtual engine, with the replay's times.

        ``change`` is the name of the one that it tries, for the doubt whether its AU is that of the initial prefetch.
        """
        from rayio.engines.virtual import simulation  # an explanation without replays needs no engine

        plan = plan_of(replay.scenario, True, self.bytes_in_flight, replay.times)
        if isinstance(plan.first_byte, RecordedTimes):
            plan = replace(plan, first_byte=plan.first_byte.of_plan(plan))
        saved = plan.checkpointing
        if saved is not None and saved.burst is not None and isinstance(saved.burst.first_byte, RecordedTimes):
            tier = replace(saved.burst, first_byte=saved.burst.first_byte.of_plan(plan))
            plan = replace(plan, checkpointing=replace(saved, burst=tier))
        plan = replace(plan, workflow=replace(plan.workflow, is_background=True))
        spans, shape = simulation.spans_of(plan), RunShape.of(replay.scenario)
        charged = attribute(spans, meetings=shape.meetings)
        judged, steps = judge(charged, shape), charged.steps
        doubt, fewest = None, judged.verdict.steps_per_rank
        if change is not None and min(shape.prefetched, shape.steps_per_epoch) > SHOWS * fewest:
            window = find_window(charged.lives, steps, shape)[0]
            doubt = of_filling(RunArrays.of_spans(spans), window, shape, fewest, judged.verdict.au, change)
        lasted = float(steps.end.max() - steps.start.min()) / 1e9 if steps.number else 0.0
        left = derive.total_steps(self.scenario) - derive.total_steps(replay.scenario)
        train, whole = replay.scenario.train, self.scenario.train
        if doubt is not None and (train.epochs, train.steps) != (whole.epochs, whole.steps):
            doubt = replace(doubt, numbers={**doubt.numbers, "left": left})
        if left and judged.verdict.steps:  # the rate of later steps is the lower one of ranks and workers
            given = supplied(RunArrays.of_spans(spans), shape)
            lasted += left * max(judged.verdict.seconds / judged.verdict.steps, 1 / given if given else 0.0)
        is_full = judged.largest in STAGES and self._fills_cores(replay, judged.samples_per_second)
        return Outcome(judged, lasted, "processors" if is_full else judged.largest, doubt)

    def _fills_cores(self, replay: Replay, samples_per_second: float | None) -> bool:
        worked = Worked.planned(replay.scenario, is_decoded=replay.times.decode is None)
        if worked is None or samples_per_second is None:
            return False
        row = worked.stage(replay.scenario, self.batch_bytes, samples_per_second / replay.scenario.loader.batch_size)
        return row is not None and row.utilisation >= FULL
