"""The doubts about a search: those of its runs, and whether a point that fails would hold without the emulator."""

from __future__ import annotations

from collections.abc import Iterable

from rayio.analyze import gate
from rayio.records.doubts import LIMIT, Doubt, blocking
from rayio.report.text.doubts import worded
from rayio.study.sizing.trials import Trial


def of_setting(trial: Trial | None, target: float) -> tuple[Doubt, ...]:
    """Return the worst doubt of each kind about a point that reaches a target, with sentences.

    An initial prefetch that inflates AU is none where workers sustain the target.
    """
    doubts = () if trial is None else gate.of_runs(trial.results)
    return worded(d for d in doubts if d.code != gate.SHORT_RUN or d.numbers["au"] < target)


def of_capacity(
    holds: Trial | None, fails: Trial | None, target: float, formula: str, more: Iterable[Doubt] = ()
) -> tuple[Doubt, ...]:
    """Return the doubts about a capacity, with sentences: those of the last point that holds and the first that fails.

    An initial prefetch that inflates AU is none where a point misses the target even so. Overhead and busy processors
    are none where a point holds, or would fail without them too.
    """
    doubts = {doubt.code: doubt for doubt in of_setting(holds, target) if not blocking([doubt], LIMIT)}
    if fails is not None:
        doubts = {doubt.code: doubt for doubt in _of_miss(fails, target, formula)} | doubts
        busy = max((row.busy_share for row in fails.rows if row.busy_share is not None), default=None)
        if (of_machine := gate.busy_machine(busy)) is not None:
            doubts[of_machine.code] = of_machine
    return worded([*doubts.values(), *more])


def of_miss(trial: Trial | None, target: float, formula: str) -> tuple[Doubt, ...]:
    """Return the doubts about the best point that misses a target, with sentences: it would reach it without them."""
    return () if trial is None else worded(blocking(_of_miss(trial, target, formula), LIMIT))


def _of_miss(trial: Trial, target: float, formula: str) -> list[Doubt]:
    """Return the doubts about a point that misses a target, without those that it would miss even so."""
    au = trial.mean(formula) or 0.0
    return [
        doubt
        for doubt in gate.of_runs(trial.results)
        if doubt.code != gate.SHORT_RUN and (not blocking([doubt], LIMIT) or au + _lost(doubt) >= target)
    ]


def _lost(doubt: Doubt) -> float:
    """Return the AU that a doubt's cause took."""
    return doubt.numbers.get("overhead", 0.0) + doubt.numbers.get("lost", 0.0)
