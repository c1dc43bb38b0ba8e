"""A scenario that was calibrated from one sample size, on samples of another: what a byte takes is between two ends.

Times of samples of one size are sums of a part that every sample takes, and a part of its bytes; how they share is not
known. So at most all of a time grows with the size, and at least nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.place import batch_parts
from rayio.predict.freed import of_mean
from rayio.predict.observe import Reads
from rayio.predict.processors import ALIKE
from rayio.scenario import derive
from rayio.scenario.costs import Costs
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario, StorageParameters
from rayio.schema.distribution import Distribution

#: Sizes that differ by a smaller share are the same.
SAME = 0.01
#: Batches of a run whose bytes per sample vary by this share (standard deviation) tell samples and bytes apart.
VARIES = 0.1
#: Costs of a batch that copies may be part of.
OF_BATCH = ("put", "take", "receive")
CPU_OF_BATCH = ("sample", "queue", "rank", "step", "put")
#: Rates of bytes.
RATES = ("put_bandwidth", "receive_bandwidth", "transfer_bandwidth")
CPU_RATES, STORAGE_RATES = ("bandwidth",), ("bandwidth", "connection_bandwidth")


def sample_bytes(scenario: Scenario) -> float:
    """Return the mean bytes of a sample of the dataset."""
    return derive.batch_bytes(scenario) / scenario.loader.batch_size


def one_size(runs: Sequence[tuple[Scenario, Reads]]) -> float | None:
    """Return the mean bytes of samples that have the same size in all these runs; None where sizes tell bytes apart."""
    means = [sample_bytes(scenario) for scenario, _ in runs]
    if max(means) >= ALIKE * min(means) or any(_varies(*run) for run in runs):
        return None
    return means[0] or None


def _varies(scenario: Scenario, read: Reads) -> bool:
    rank, _, step = batch_parts(read.batch)
    each = read.nbytes / np.maximum(1, RunShape.of(scenario).samples(rank, step))
    return bool(len(each)) and float(each.std()) > VARIES * float(each.mean())


def ratio(scenario: Scenario) -> float:
    """Return the size of samples as a multiple of the calibrated; 1 where it is the same, or no size is stated."""
    calibrated = scenario.charges.sample_bytes
    times = sample_bytes(scenario) / calibrated if calibrated else 1.0
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
