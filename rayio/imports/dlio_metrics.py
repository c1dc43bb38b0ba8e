"""The published numbers of a result of DLIO: each is possible, and means and deviations are those of the epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.imports.dlio_files import SUMMARY, number
from rayio.scenario.source import UNREADABLE, plain

#: Allowed difference between the published mean AU and the mean of the epochs, in percentage points.
APART_POINTS = 0.05
#: Allowed difference of a rate from that of the epochs, as a share; rates are published with a few digits.
APART_RATE = 0.005

#: By how much versions of DLIO differ in their throughput, at most: steps of a block less 2, over 3 or more.
MOST_TIMES = 3.0

#: The names of a mean, of a deviation and of the epochs, and the largest value (percent), if there is one.
_METRICS = (
    ("train_au_mean_percentage", "train_au_stdev_percentage", "train_au_percentage", 101.0),
    (
        "train_throughput_mean_samples_per_second", "train_throughput_stdev_samples_per_second",
        "train_throughput_samples_per_second", None,
    ),
)  # fmt: skip


def lenient(value: object) -> float | None:
    """Return a finite number, also from text; None for any other value."""
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)
        except ValueError:
            return None
    return number(value)


def numbers(metric: Mapping[str, Any], key: str) -> tuple[float | None, ...] | None:
    """Return the numbers of a list, also from text; None for those that are none, and for another value."""
    values = metric.get(key)
    if isinstance(values, str):
        try:
            values = plain(f"[{values.strip().strip('[]')}]") if "," in values else values.strip().strip("[]").split()
        except (yaml.YAMLError, *UNREADABLE):
            return None
    if isinstance(values, (int, float)):
        values = [values]
    return tuple(lenient(value) for value in values) if isinstance(values, list) and values else None


def check_metric(metric: Mapping[str, Any], num_epochs: int) -> None:
    """Check the published means and deviations of training.

    Numbers of at least 0 deviate by at most their mean × √(number - 1).

    Raises:
        DataError: one cannot be, or is not that of the epochs.
    """
    for mean_key, stdev_key, epochs_key, most in _METRICS:
        epochs = numbers(metric, epochs_key) or ()
        single = [(key, lenient(metric.get(key))) for key in (mean_key, stdev_key)]
        for key, value in (*((epochs_key, value) for value in epochs), *single):
            if value is not None and (value < 0 or (most is not None and value > most)):
                expected = "a number of at least 0" if most is None else "percent, 0 to 100"
                raise DataError(f"{SUMMARY}: {key} is {value:g}; expected {expected}")
        (_, mean), (_, stdev) = single
        if mean is not None and stdev is not None and stdev > 1.001 * mean * math.sqrt(max(num_epochs - 1, 0)) + 1e-9:
            raise DataError(f"{SUMMARY}: {stdev_key} is {stdev:g}, and {num_epochs} epochs of mean {mean:g} have less")
        known = [value for value in epochs if value is not None]
        if not known or len(known) < len(epochs):
            continue
        of_epochs = statistics.fmean(known)
        apart = APART_POINTS if most is not None else APART_RATE * of_epochs
        for key, own in ((mean_key, of_epochs), (stdev_key, statistics.pstdev(known))):
            value = lenient(metric.get(key))
            if value is not None and abs(value - own) > apart:
                raise DataError(
                    f"{SUMMARY}: {key} is {value:g}, but that of {epochs_key} is {own:g}: values of different runs?"
                )


def check_rate(metric: Mapping[str, Any], of_ranks: float) -> None:
    """Check the published throughput against the sum of the ranks' (samples/s; NaN if unknown): its formula varies.

    Raises:
        DataError: they differ.
    """
    key = _METRICS[1][0]
    published = lenient(metric.get(key))
    if published is not None and not of_ranks / MOST_TIMES <= published <= of_ranks * MOST_TIMES and of_ranks >= 0:
        raise DataError(
            f"{SUMMARY}: {key} is {published:g}, but the throughput of the files of ranks is {of_ranks:g}: files of "
            "different runs?"
        )


def check_evaluations(metric: Mapping[str, Any], au: Sequence[NDArray[np.float64]]) -> None:
    """Check the published AU of evaluations against the ranks' (percent, one array an evaluation).

    DLIO divides their mean by the ranks once more in most of its versions.

    Raises:
        DataError: it is neither the mean nor that.
    """
    key = "eval_au_mean_percentage"
    published = lenient(metric.get(key))
    if published is None or not au or not all(np.isfinite(each).all() for each in au):
        return
    own = float(np.mean([each.mean() for each in au]))
    if min(abs(published - own), abs(published - own / len(au[0]))) > APART_POINTS:
        raise DataError(
            f"{SUMMARY}: {key} is {published:g}, but the mean of the ranks' is {own:g}: files of different runs?"
        )
