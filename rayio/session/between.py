"""Prediction intervals: the run is simulated with its costs at their least and at their most."""

from __future__ import annotations

import math
from typing import Any

from rayio.predict import sizes
from rayio.records.run_result import Between, RunResult
from rayio.scenario import derive
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario, StorageParameters
from rayio.session.conclude import in_memory


def between(scenario: Scenario, result: RunResult) -> Between | None:
    """Return the interval of ``result``, the prediction of ``scenario``; None if its costs have no range.

    Processor times, with those of decoding, and checkpoint times vary. With samples of another size than the
    calibrated, all times that may grow with bytes vary too (``rayio.predict.sizes``). A bandwidth of storage that is a
    guess goes from that which was reached to none. Other errors are independent of these, so they add in squares.

    Only the beginning of a long scenario is simulated, because only the ratio of the times counts. Without compute AU
    is always 0, and has no interval.

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
    is_guess = _reached(scenario) is not None
    varied = [end for end, bound in enumerate(bounds) if is_sized or is_guess or bound != (1.0, usual_save)]
    if not result.wall_seconds or result.exit_code not in (0, 3) or not (varied or costs.error):
        return None
    from rayio.predict.replay import cut  # it loads most of its room, which few simulations need

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
        storage = extreme.storage.model_copy(update={"model": _storage_ends(extreme)[end]})
        varying = extreme.charges.at_end(factor, saved, size)
        there = {"costs": varying, "loader": loader, "storage": storage, "expect": {}}
        ends.append(in_memory(extreme.model_copy(update=there)))
    times = sorted((end.wall_seconds or 0.0) / usual.wall_seconds for end in ends)
    time_low, time_high = _widened(times, costs.error)
    if not result.au or not usual.au:
        return Between(time_low=time_low, time_high=time_high, au_low=None, au_high=None)
    low_au, high_au = _widened(sorted((end.au or 0.0) / usual.au for end in ends), costs.error)
    au_low, au_high = result.au * low_au, min(1.0, result.au * high_au)
    return Between(time_low=time_low, time_high=time_high, au_low=au_low, au_high=au_high)


def _widened(shares: list[float], error: float) -> tuple[float, float]:
    """Return the least and the most of some sorted shares of the prediction, with a further independent error."""
    least, most = shares[0], shares[-1]
    low = max(least / (1 + error), 1 - math.hypot(1 - least, 1 - 1 / (1 + error)))
    return low, 1 + math.hypot(most - 1, error)


def _reached(scenario: Scenario) -> float | None:
    """Return the bandwidth that a calibrated run reached of modelled storage, whose limit is a guess; else None."""
    model = scenario.storage.model
    return model.reached if isinstance(model, StorageParameters) else None


def _storage_ends(scenario: Scenario) -> tuple[Any, Any]:
    """Return the modelled storage at its quickest and at its slowest, where its bandwidth is a guess."""
    from rayio.predict.replay import UNLIMITED

    model, reached = scenario.storage.model, _reached(scenario)
    if not isinstance(model, StorageParameters) or reached is None:
        return model, model
    slow = model.model_copy(update={"bandwidth": min(model.bandwidth, reached)})
    return model.model_copy(update={"bandwidth": UNLIMITED}), slow
