"""A run made ready for replay on its own cores: its times without the waits for processors.

Times that a run on Ray recorded contain its waits for processors. For a replay with more readers, which wait longer,
they are removed as in ``rayio calibrate``: the CPU time of processes is work on the cores, and the rest of reads and
messages is adjusted until the simulated baseline shows the measured times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import Attribution, attribute
from rayio.analyze.window import find_window
from rayio.model.planning import plan_of
from rayio.predict.base import Base
from rayio.predict.processors import Processors, Worked, scheduled
from rayio.predict.replay import Measured
from rayio.predict.settle import Apparent, Free, Most, settle
from rayio.scenario.model import Scenario

#: Rank-steps of a simulation that costs are adjusted by.
RANK_STEPS = 1_000
#: A run's CPU times contain its contention.
OWN = Processors(contention=1.0)
#: The least part of a read that is left without its CPU time.
LEAST = 0.01


def on_cores(base: Base, worked: Worked, charged: Attribution) -> Base:
    """Return a run on Ray with its cores, and its times without the waits for them; ``charged`` are its losses."""
    cluster = base.scenario.cluster.model_copy(update={"cores": worked.cores})
    base = replace(base, scenario=base.scenario.model_copy(update={"cluster": cluster}))
    measured, cpu = base.measured, worked.costs.cpu
    batch_bytes = base.batch_bytes
    costs = measured.costs.model_copy(update={"cpu": scheduled(cpu, measured.costs.step, OWN)})
    whole = _mean(measured.read)
    measured = replace(measured, costs=costs, work=worked.decode)

    def freed(free: Free) -> Measured:
        """Return the times on free cores: reads take storage's time, in proportion to their measured times."""
        part = 1.0 if free.storage is None or not whole else free.storage / whole
        return replace(measured, costs=free.costs, read=measured.read * part)

    from rayio.engines.virtual import simulation  # an explanation without replays needs no engine

    def live(free: Free) -> Apparent:
        replay = freed(free).replayed(base.scenario, modelled=base.modelled, most=RANK_STEPS)
        plan = plan_of(replay.scenario, True, base.bytes_in_flight, replay.times)
        spans = simulation.spans_of(plan)
        shown = attribute(spans, meetings=plan.meetings)
        return _apparent(Measured.of(spans, shown, replay.scenario, costs=None), shown, replay.scenario)

    parsing = cpu.parsing(base.scenario.loader.batch_size, batch_bytes or 0.0)
    storage = None if base.modelled is not None else max(whole - parsing, LEAST * whole)
    seen, most = _apparent(measured, charged, base.scenario), Most({"receive": measured.costs.receive})
    settled, _ = settle(Free(costs, storage), seen, live, known=(), most=most)
    return replace(base, measured=freed(settled))


def _apparent(measured: Measured, charged: Attribution, scenario: Scenario) -> Apparent:
    steps = charged.steps
    window, _ = find_window(charged.lives, steps, RunShape.of(scenario))
    kept = steps.start >= (window.begin if window else 0)
    return Apparent(measured.costs, _mean(measured.read), float(steps.duration[kept].mean()) / 1e9)


def _mean(times: np.ndarray[Any, Any]) -> float:
    known = times[~np.isnan(times)]
    return float(known.mean()) if len(known) else 0.0
