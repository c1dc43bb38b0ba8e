"""The interval of a prediction, in words."""

from __future__ import annotations

from rayio.records.run_result import Between, RunResult
from rayio.units import format_number, format_share


def between_row(result: RunResult, bounds: Between) -> tuple[str, str]:
    """Return the row below which the interval belongs, and the interval: of AU, else of the throughput."""
    if bounds.au_low is not None or result.samples_per_second is None:
        return "AU", f"{format_share(bounds.au_low)} to {format_share(bounds.au_high)}"
    low, high = map(format_number, bounds.rates(result.samples_per_second))
    return "throughput", f"{low} to {high} samples/s"


def between_words(bounds: Between) -> str:
    """Return the bounds of a prediction, in time; empty if they are less than a percent apart.

    Such costs hardly count. It does not mean that the prediction is sure: the model of the storage has no bounds.
    """
    if round(100 * (bounds.time_low - 1)) == round(100 * (bounds.time_high - 1)) == 0:
        return ""
    low, high = (
        f"{100 * abs(by):.0f} % {'more' if by > 0 else 'less'}" for by in (bounds.time_low - 1, bounds.time_high - 1)
    )
    return f"it may take {low} to {high} time: so sure are its costs"
