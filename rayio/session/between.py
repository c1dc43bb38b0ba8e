"""Prediction intervals: the run is simulated with its costs at their least and at their most."""

from __future__ import annotations

from rayio.predict import sizes
from rayio.predict.replay import cut
from rayio.records.run_result import Between, RunResult
from rayio.scenario import derive
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario
from rayio.session.conclude import in_memory


def between(scenario: Scenario, result: RunResult) -> Between | None:
    """Return the interval of ``result``, the prediction of ``scenario``; None if its costs have no range.

    Processor times, with those of decoding, and checkpoint times vary. With samples of another size than the
    calibrated, all times that may grow with bytes vary too (``rayio.predict.sizes``). Only the beginning of a long
    scenario is simulated, because only the ratio of the times counts. Without compute AU is always 0, and has no
    interval.

    Raises:
        RayioError: the run fails with other times.
    """
    costs = scenario.charges
    low, high = (costs.cpu.at_least, costs.cpu.at_most) if scenario.cluster.cores else (1.0, 1.0)
    size = derive.checkpoint_bytes(scenario)
    usual_save = costs.of_checkpoint(size)
    least, most = (usual_save, usual_save) if scenario.checkpoint is None else costs.checkpoint_ends(size)
    is_sized = sizes.ratio(scenario) != 1.0
    bounds = ((low, least), (high, most))
    varied = [end for end, bound in enumerate(bounds) if is_sized or bound != (1.0, usual_save)]
    if not result.wall_seconds or result.exit_code not in (0, 3) or not (varied or costs.error):
        return None
    usual = result
    if changed := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=changed)})
        usual = in_memory(scenario.model_copy(update={"expect": {}}))
    if not usual.wall_seconds:
        return None
    ends = [usual]
    for end in varied:
        extreme = sizes.ends(scenario)[end]
        loader, (factor, saved) = extreme.loader, bounds[end]
        if isinstance(loader.decode, Work):
            loader = loader.model_copy(update={"decode": loader.decode.slowed(factor)})
        there = {"costs": extreme.charges.at_end(factor, saved, size), "loader": loader, "expect": {}}
        ends.append(in_memory(extreme.model_copy(update=there)))
    times = sorted((end.wall_seconds or 0.0) / usual.wall_seconds for end in ends)
    off = 1 + costs.error
    time = {"time_low": times[0] / off, "time_high": times[-1] * off}
    if not result.au or not usual.au:
        return Between(**time, au_low=None, au_high=None)
    shares = sorted((end.au or 0.0) / usual.au for end in ends)
    low_au, high_au = result.au * shares[0] / off, min(1.0, result.au * shares[-1] * off)
    return Between(**time, au_low=low_au, au_high=high_au)
