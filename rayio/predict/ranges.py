"""The ranges of a calibration's processor times: how far the steps of its runs are from their simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rayio.predict.freed import as_alone, as_full, errors_of
from rayio.predict.learnable import Learnable
from rayio.records.calibrated import CheckBack, NoBusyRun, Note, OthersWorked
from rayio.scenario.model import Scenario

#: The bounds of processor times as factors, without a busy run: idle processors wake up cold, busy ones share caches.
CPU_BETWEEN = (0.55, 1.5)
#: The same with busy runs that did not fill the cores.
UNFITTED = (0.75, 1.35)
#: The least error of a step, and that of processor times without check and lone runs, as shares.
STEP_ERROR, CPU_ERROR = 0.05, 0.18
#: The least error of the contention of one busy run, which always comes back.
ONE_FULL = 0.22
#: The share of processors above which other programs make contention of busy runs doubtful.
MOST_FOREIGN = 0.1
#: Student's t within which 85 % of the mass lies, two-sided, for 1, 2, ... degrees of freedom.
STUDENT = (4.165, 2.282, 1.924, 1.778, 1.699, 1.650, 1.617, 1.592, 1.574, 1.559)


def sure(
    scenario: Scenario,
    runs: Sequence[Learnable],
    full: Sequence[Learnable],
    alone: Sequence[Learnable],
    check: Sequence[Learnable],
    cores: int,
    notes: list[Note],
    missing: str,
    foreign: float,
) -> Scenario:
    """Return the scenario with the contention of full cores, and the bounds of its CPU times.

    They hold one more run in 85 % of cases, by the errors of ``check`` runs, to which nothing is fitted. Lone and
    calibrated ``runs`` are no part of that sample: their steps come from compute, which hides errors of CPU times. No
    run is further from its simulation than the bounds.
    """
    least, most = CPU_BETWEEN
    if full:
        measured = scenario.charges.cpu.contention
        scenario, errors = as_full(scenario, full, cores, notes)
        of_alone = as_alone(scenario, alone, notes) if errors else ()
        checked = errors_of(scenario, check) if errors else ()
        if checked:
            notes.append(CheckBack(len(check), max(map(abs, checked))))
        whole = max(map(abs, (*errors, *of_alone, *checked)), default=0.0)
        if checked or (of_alone and len(errors) > 1):
            sample = error_of_next(checked) if checked else error_of_next(errors, fitted=1)
            whole = max(whole, sample, *map(abs, errors_of(scenario, runs)))
            error = math.sqrt(max(0.0, whole**2 - STEP_ERROR**2))  # costs.error has the rest
        else:
            error = max(whole, ONE_FULL if len(errors) == 1 else CPU_ERROR)
        least, most = (1 - error, 1 + error) if errors else UNFITTED
        if alone:  # contention beyond that of CPU times may have been the work of other programs
            least *= min(1.0, measured / scenario.charges.cpu.contention)
        if foreign > MOST_FOREIGN:
            notes.append(OthersWorked(foreign))
            least = min(least, 1 - foreign)
        least, most = max(CPU_BETWEEN[0], least), min(CPU_BETWEEN[1], most)  # no run teaches less than none
    else:
        notes.append(NoBusyRun(missing))
    cpu = scenario.charges.cpu.model_copy(update={"at_least": round(least, 4), "at_most": round(most, 4)})
    return scenario.model_copy(update={"costs": scenario.charges.model_copy(update={"cpu": cpu})})


def error_of_next(errors: Sequence[float], fitted: int = 0) -> float:
    """Return the error that the step of one more run exceeds in 15 % of cases, from the ``errors`` of other runs.

    It is the interval of a prediction around 0 by Student's t. Each of ``fitted`` values, fitted to these steps, takes
    a degree of freedom, and is itself uncertain.

    >>> round(error_of_next([0.03, -0.03, 0.03, -0.03]), 3)
    0.053
    """
    number = len(errors)
    freedom = max(1, number - fitted)
    usual = math.sqrt(sum(error**2 for error in errors) / freedom)
    return STUDENT[min(freedom, len(STUDENT)) - 1] * usual * math.sqrt(1 + fitted / number)
