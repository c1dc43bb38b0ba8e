"""A run made ready to be lived again on the cores that it had: its own times, without the waits for those.

Times that a run on Ray recorded hold its waits for processors. To live it again with more readers, which wait longer,
they are taken out as ``rayio calibrate`` does: what processes say of their CPU time is work on the cores, and what is
left of reads and messages is moved until the run, simulated as it was, shows what it showed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import Attribution, attribute
from rayio.analyze.window import find_window
from rayio.engines.virtual import simulation
from rayio.model.planning import plan_of
from rayio.predict.base import Base
from rayio.predict.processors import Worked, scheduled
from rayio.predict.replay import Measured
from rayio.predict.settle import Apparent, Free, settle
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario

#: Rank-steps of a simulation by which costs are moved.
RANK_STEPS = 1_000
#: What is left of reads at least when their CPU time is taken off.
LEAST = 0.01


def on_cores(base: Base, worked: Worked, charged: Attribution) -> Base:
    """The base of a run on Ray with its cores, and its times without the waits for them; ``charged`` are its losses."""
    cluster = base.scenario.cluster.model_copy(update={"cores": worked.cores})
    base = replace(base, scenario=base.scenario.model_copy(update={"cluster": cluster}))
    measured, work, cpu = base.measured, None, worked.costs.cpu
    decode = base.scenario.loader.decode
    batch_bytes, seconds = base.batch_bytes, _mean(measured.decode)
    if isinstance(decode, Work) and batch_bytes and (busy := min(seconds, worked.costs.put)) > 0:
        work = decode.model_copy(update={"rate": batch_bytes / busy})
    costs = measured.costs.model_copy(update={"cpu": scheduled(cpu, measured.costs.step)})
    whole = _mean(measured.read)
    measured = replace(measured, costs=costs, work=work)

    def freed(free: Free) -> Measured:
        """The times as they would be on free cores: of reads, what storage takes, in proportion to what they took."""
        part = 1.0 if free.storage is None or not whole else free.storage / whole
        return replace(measured, costs=free.costs, read=measured.read * part)

    def live(free: Free) -> Apparent:
        replay = freed(free).replayed(base.scenario, modelled=base.modelled, most=RANK_STEPS)
        plan = plan_of(replay.scenario, True, base.bytes_in_flight, replay.times)
        spans = simulation.spans_of(plan)
        shown = attribute(spans)
        return _apparent(Measured.of(spans, shown, replay.scenario, costs=None), shown, replay.scenario)

    parsing = cpu.parsing(base.scenario.loader.batch_size, batch_bytes or 0.0)
    storage = None if base.modelled is not None else max(whole - parsing, LEAST * whole)
    settled, _ = settle(Free(costs, storage), _apparent(measured, charged, base.scenario), live)
    return replace(base, measured=freed(settled))


def _apparent(measured: Measured, charged: Attribution, scenario: Scenario) -> Apparent:
    """What a run showed: its costs, and how long reads and steps took once it was warm."""
    steps = charged.steps
    window, _ = find_window(charged.lives, steps, RunShape.of(scenario))
    kept = steps.start >= (window.begin if window else 0)
    return Apparent(measured.costs, _mean(measured.read), float(steps.duration[kept].mean()) / 1e9)


def _mean(times: np.ndarray[Any, Any]) -> float:
    """The mean of what was recorded."""
    known = times[~np.isnan(times)]
    return float(known.mean()) if len(known) else 0.0
