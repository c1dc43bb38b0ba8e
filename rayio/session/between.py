"""What a prediction lies between: the run is simulated with its processor times at their least and at their most."""

from __future__ import annotations

from rayio.predict.replay import cut
from rayio.results.run_result import Between, RunResult
from rayio.scenario.model import Scenario
from rayio.session.conclude import in_memory


def between(scenario: Scenario, result: RunResult) -> Between | None:
    """Find what ``result``, the prediction of ``scenario``, lies between; None where its costs do not say.

    Of a long scenario the beginning is simulated: what counts is how many times as long it takes. Times that are not
    those of processors stay as they are, so a run whose processors are idle has a narrow interval.

    Raises:
        RayioError: with other processor times the run breaks off.
    """
    costs = scenario.charges
    low, high = (costs.cpu.at_least, costs.cpu.at_most) if scenario.cluster.cores else (1.0, 1.0)
    if result.au is None or result.exit_code not in (0, 3) or (low, high, costs.error) == (1.0, 1.0, 0.0):
        return None
    usual = result
    if changed := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=changed)})
        usual = in_memory(scenario.model_copy(update={"expect": {}}))
    if not usual.wall_seconds or not usual.au:
        return None
    ends = [usual, *(_simulated(scenario, factor) for factor in (low, high) if factor != 1)]
    times = sorted((one.wall_seconds or 0.0) / usual.wall_seconds for one in ends)
    shares = sorted((one.au or 0.0) / usual.au for one in ends)
    off = 1 + costs.error
    return Between(
        time_low=times[0] / off,
        time_high=times[-1] * off,
        au_low=result.au * shares[0] / off,
        au_high=min(1.0, result.au * shares[-1] * off),
    )


def _simulated(scenario: Scenario, factor: float) -> RunResult:
    costs = scenario.charges
    times = costs.model_copy(update={"cpu": costs.cpu.times(factor)})
    return in_memory(scenario.model_copy(update={"costs": times, "expect": {}}))
