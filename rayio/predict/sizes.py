"""A scenario that was calibrated from one sample size, on samples of another: what a byte takes is between two ends.

Times of samples of one size are sums of a part that every sample takes, and a part of its bytes; how they share is not
known. So at most all of a time grows with the size, and at least nothing of it.
"""

from __future__ import annotations

from typing import Any

from rayio.scenario import derive
from rayio.scenario.costs import Costs
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario, StorageParameters
from rayio.schema.distribution import Constant, Distribution, LogNormal

#: Sizes that differ by a smaller share are the same.
SAME = 0.01
#: Costs of a batch that copies may be part of.
OF_BATCH = ("put", "take", "receive")
CPU_OF_BATCH = ("sample", "queue", "rank", "step", "put")
#: Rates of bytes.
RATES = ("put_bandwidth", "receive_bandwidth", "transfer_bandwidth")
CPU_RATES, STORAGE_RATES = ("bandwidth",), ("bandwidth", "connection_bandwidth")


def ratio(scenario: Scenario) -> float:
    """Return the size of samples as a multiple of the calibrated; 1 where it is the same, or no size is stated."""
    calibrated = scenario.charges.sample_bytes
    times = derive.sample_bytes(scenario) / calibrated if calibrated else 1.0
    return 1.0 if abs(times - 1) <= SAME or times <= 0 else times


def ends(scenario: Scenario) -> tuple[Scenario, Scenario]:
    """Return the scenario at its quickest and at its slowest: without and with all times in proportion to bytes."""
    times = ratio(scenario)
    if times == 1.0:
        return scenario, scenario
    both = _fixed(scenario, times), _in_proportion(scenario, times)
    return both if times > 1 else (both[1], both[0])


def _fixed(scenario: Scenario, times: float) -> Scenario:
    """Return the scenario in which bytes are so many times quicker, so that a sample takes no longer."""
    costs, model, decode = scenario.charges, scenario.storage.model, scenario.loader.decode
    cpu = costs.cpu.model_copy(update=_scaled(costs.cpu, CPU_RATES, times))
    quick = costs.model_copy(update={"cpu": cpu, **_scaled(costs, RATES, times)})
    if isinstance(model, StorageParameters):
        model = model.model_copy(update=_scaled(model, STORAGE_RATES, times))
    if isinstance(decode, Work):
        decode = decode.model_copy(update=_scaled(decode, ("rate",), times))
    return _with(scenario, quick, model, decode)


def _in_proportion(scenario: Scenario, times: float) -> Scenario:
    """Return the scenario in which all that a sample takes is so many times as long."""
    costs, model, decode = scenario.charges, scenario.storage.model, scenario.loader.decode
    cpu = costs.cpu.model_copy(update=_scaled(costs.cpu, CPU_OF_BATCH, times))
    slow = costs.model_copy(update={"cpu": cpu, **_scaled(costs, OF_BATCH, times)})
    if isinstance(model, StorageParameters):
        first_byte = of_mean(model.first_byte, model.first_byte.expected * times)
        model = model.model_copy(update={"first_byte": first_byte})
    if isinstance(decode, Work):
        decode = decode.model_copy(update=_scaled(decode, ("per_sample",), times))
    else:
        decode = of_mean(decode, decode.expected * times)
    return _with(scenario, slow, model, decode)


def _scaled(section: Any, names: tuple[str, ...], times: float) -> dict[str, float]:
    return {name: getattr(section, name) * times for name in names if getattr(section, name)}


def _with(scenario: Scenario, costs: Costs, model: Any, decode: Distribution | Work) -> Scenario:
    parts = {
        "costs": costs,
        "storage": scenario.storage.model_copy(update={"model": model}),
        "loader": scenario.loader.model_copy(update={"decode": decode}),
    }
    return scenario.model_copy(update=parts)


def of_mean(times: Distribution, mean: float) -> Distribution:
    """Return times of the same relative spread around another mean."""
    if isinstance(times, LogNormal) and times.expected > 0 and mean > 0:
        centred = {"median": times.centre * mean / times.expected, "sigma": times.spread, "mean": None, "stdev": None}
        return times.model_copy(update=centred)
    return Constant(value=round(mean, 9))
