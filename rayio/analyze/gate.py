"""The gate that every command and page passes before it advises: the doubts about a run's numbers.

Each function returns one doubt, or None. ``of_result`` has those of a finished run; ``of_runs`` those of many runs, one
for each kind. What a doubt makes invalid is in ``Doubt.invalidates``; ``blocking`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rayio.analyze.worth import LEAST_AU
from rayio.records.doubts import (
    ADVICE,
    CAPACITY,
    CAUSE,
    CHANGES,
    COMPARISON,
    INTERVAL,
    LIMIT,
    PREDICTION,
    SETTING,
    SMALL,
    STORAGE,
    Doubt,
    blocking,
)
from rayio.records.hosts import MODEL, Fetched
from rayio.records.origin import MEASURED, kind_of
from rayio.records.run_result import Books, RunResult

SHORT_RUN, OVERHEAD, NOT_REPRODUCED = "short_run", "overhead", "not_reproduced"
MACHINE_SPEED, PAGE_CACHE, CONTRADICTION = "machine_speed", "page_cache", "contradiction"
BUSY_MACHINE, RESTORED_FROM_MEMORY, OTHER_SIZE = "busy_machine", "restored_from_memory", "other_size"
SHORT_EPOCHS, FEW_FAILURES = "short_epochs", "few_failures"
FIRST_STEPS, NOTHING_DELIVERED = "first_steps", "nothing_delivered"

#: Share of step time above which the emulator's overhead is a doubt.
MOST_OVERHEAD = 0.02
#: Share of bytes from the page cache above which a run does not measure its storage.
MOST_CACHED = 0.05
#: Busy share of a machine's processors above which they may be the bottleneck, and not the storage.
MOST_BUSY = 0.9
#: A replay reproduces a run if its AU is within this of the measured one, and differs by no more than this factor:
#: AU is compute by time, so that is the factor on the time.
REPRODUCED, REPRODUCED_FACTOR = 0.05, 1.25
#: Calibrated costs reproduce a run if its steps take this share more or less time with them.
REPRODUCED_STEP = 0.1
#: Samples have another size than those that costs were calibrated with if it differs by more than this factor.
OTHER_SAMPLES = 1.2
#: Machines whose times of fixed work differ by more than this factor have another speed. On one machine the time
#: differs by a tenth.
OTHER_SPEED = 1.25
#: Random failures below which results are chance; and the number of a run that is long enough.
FEWEST_FAILURES, ENOUGH_FAILURES = 10, 20
#: A cause of at least this share of step time contradicts its removal if that saves less than this part of the share.
LARGE, MUCH_LESS = 0.1, 0.25


def short_run(
    *, given: float, took: float, au: float, epochs: int, steps: int, prefetched: int, change: str | None = None
) -> Doubt:
    """Return the doubt about a run that consumed its initial prefetch; ``change`` is that of a replay.

    Workers sustain ``given`` batches/s of the ``took`` that ranks had. A run of ``epochs``, or with epochs of
    ``steps``, is long enough.
    """
    return Doubt(
        code=SHORT_RUN,
        numbers={"given": given, "took": took, "au": au, "epochs": epochs, "steps": steps, "prefetched": prefetched},
        names={} if change is None else {"change": change},
        invalidates=(PREDICTION,) if change is not None else (PREDICTION, CAPACITY, SETTING, COMPARISON),
    )


def short_epochs(*, steps: int, au: float, without: float, enough: int) -> Doubt:
    """Return the doubt about a run of epochs so short that their first batches decide its AU.

    ``without`` is AU without the waits for them. With ``enough`` steps an epoch they take a twentieth of the time.
    """
    return Doubt(
        code=SHORT_EPOCHS,
        numbers={"steps": steps, "au": au, "without": without, "lost": without - au, "enough": enough},
        names={},
        invalidates=(LIMIT,),
    )


def nothing_delivered(books: Books) -> Doubt | None:
    """Return the doubt about a run of which errors made every sample be skipped."""
    if books.delivered_samples or not books.skipped_samples:
        return None
    return Doubt(code=NOTHING_DELIVERED, numbers={"skipped": books.skipped_samples}, names={}, invalidates=ADVICE)


def few_failures(result: RunResult, planned: int, mtbf: float | None, epochs: int) -> Doubt | None:
    """Return the doubt about a run with random failures that are too few for an average.

    ``mtbf`` is that of all nodes together (s), ``planned`` the number of failures at given times or steps.
    """
    if mtbf is None or not result.wall_seconds:
        return None
    survived = result.failures
    number = 0 if survived is None else max(survived.restarts - planned, 0)
    if number >= FEWEST_FAILURES:
        return None
    useful = result.wall_seconds * (1 - ((survived.lost_share if survived is not None else None) or 0.0))
    factor = ENOUGH_FAILURES * mtbf / useful
    return Doubt(
        code=FEW_FAILURES,
        numbers={"failures": number, "seconds": ENOUGH_FAILURES * mtbf, "epochs": _rounded_up(factor * epochs)},
        names={},
        invalidates=(SETTING, COMPARISON),
    )


def _rounded_up(number: float) -> int:
    """Return a number with two digits that is not smaller.

    >>> _rounded_up(2913.2), _rounded_up(7.2)
    (3000, 8)
    """
    unit: int = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit) * unit


def overhead(result: RunResult) -> Doubt | None:
    """Return the doubt about a measured run in which the emulator itself took too much of the step time."""
    kind = result.origin.kind if result.origin is not None else kind_of(result.engine)
    share, steps = result.other_share, result.percentiles.step_time
    if kind != MEASURED or share is None or share <= MOST_OVERHEAD:
        return None
    numbers = {"overhead": share, "step": steps.mean if steps is not None else None, "au": result.au}
    return Doubt(
        code=OVERHEAD,
        numbers={name: number for name, number in numbers.items() if number is not None},
        names={},
        invalidates=(LIMIT, COMPARISON, SMALL),
    )


def page_cache(fetched: Fetched | None, code: str = PAGE_CACHE) -> Doubt | None:
    """Return the doubt about a run that read real files from memory: of the dataset, or of a restored checkpoint."""
    if fetched is None or fetched.source == MODEL:
        return None
    share = 1.0 if fetched.source == "memory" else fetched.page_cache_share
    if share is None or share <= MOST_CACHED:
        return None
    return Doubt(
        code=code,
        numbers={"share": share},
        names={"source": fetched.source, "page_cache": fetched.page_cache},
        invalidates=(CAPACITY, STORAGE),
    )


def restored(result: RunResult) -> Doubt | None:
    """Return the doubt about a run that read a checkpoint back from memory."""
    return None if result.restored is None else page_cache(result.restored.fetched, RESTORED_FROM_MEMORY)


def busy_machine(share: float | None) -> Doubt | None:
    """Return the doubt about a run whose machine was busy; ``share`` is that of its processors' time."""
    if share is None or share <= MOST_BUSY:
        return None
    return Doubt(code=BUSY_MACHINE, numbers={"busy": share}, names={}, invalidates=(LIMIT,))


def first_steps(first: int, steps: int, short: int, changes: int, simulated: float, measured: float) -> Doubt | None:
    """Return the doubt about replays of the ``first`` steps of a run that are too few: for AU, or for some changes.

    ``short`` of the ``changes`` are those that the initial prefetch decides; ``simulated`` and ``measured`` are AU. If
    they are as far apart as those of a model that is wrong, the first steps predict nothing.
    """
    if first >= steps or not (short or abs(simulated - measured) >= LEAST_AU):
        return None
    numbers: dict[str, float] = {"first": first, "steps": steps, "short": short, "changes": changes}
    numbers |= {"simulated": simulated, "measured": measured, "error": abs(simulated - measured)}
    is_alike = not_reproduced(simulated, measured) is None
    return Doubt(
        code=FIRST_STEPS, numbers=numbers, names={}, invalidates=(SMALL,) if is_alike else (PREDICTION, CHANGES)
    )


def not_reproduced(simulated: float | None, measured: float | None) -> Doubt | None:
    """Return the doubt about a model whose AU is not that of the run which it was made from."""
    if simulated is None or measured is None:
        return None
    least, most = sorted((simulated, measured))
    if most - least <= REPRODUCED and most <= REPRODUCED_FACTOR * least:
        return None
    return Doubt(
        code=NOT_REPRODUCED,
        numbers={"simulated": simulated, "measured": measured},
        names={},
        invalidates=(PREDICTION, CHANGES),
    )


def other_steps(simulated: float, measured: float) -> Doubt | None:
    """Return the doubt about calibrated costs with which steps do not take as long as in the run (s)."""
    if abs(simulated - measured) <= REPRODUCED_STEP * measured:
        return None
    numbers = {"simulated_step": simulated, "measured_step": measured}
    return Doubt(code=NOT_REPRODUCED, numbers=numbers, names={}, invalidates=(PREDICTION, CHANGES, INTERVAL))


def other_size(calibrated: float | None, now: float) -> Doubt | None:
    """Return the doubt about costs of samples of one size that are charged to samples of another (bytes)."""
    if not calibrated or not now or (factor := max(calibrated, now) / min(calibrated, now)) <= OTHER_SAMPLES:
        return None
    numbers = {"calibrated": calibrated, "now": now, "factor": factor}
    return Doubt(code=OTHER_SIZE, numbers=numbers, names={}, invalidates=(CAPACITY, SETTING))


def contradiction(cause: str, share: float, change: str, time_saved: float) -> Doubt | None:
    """Return the doubt about a large cause whose removal by ``change`` saves much less than its share of step time."""
    if share < LARGE or time_saved >= MUCH_LESS * share:
        return None
    return Doubt(
        code=CONTRADICTION,
        numbers={"share": share, "time_saved": time_saved},
        names={"cause": cause, "change": change},
        invalidates=(CAUSE,),
    )


def as_fast(time: float) -> float:
    """Return the most that fixed work takes on a machine as fast as one where it takes ``time`` (s)."""
    return OTHER_SPEED * time


def speed_of_run(info: Mapping[str, Any]) -> Doubt | None:
    """Return the doubt about a run during which its machine changed its speed; ``info`` is its run.json."""
    times = fixed_work_of(info)
    return None if len(times) < 2 else _speeds("run", times[0], times[-1], (COMPARISON,))


def speed_of_calibration(calibrated: float, now: float) -> Doubt | None:
    """Return the doubt about costs from a machine, or a moment, of another speed than this one (s of fixed work)."""
    return _speeds("calibration", calibrated, now, (INTERVAL,))


def speed_of_runs(infos: Sequence[Mapping[str, Any]]) -> Doubt | None:
    """Return the doubt about runs that are set against each other, but were made at different speeds."""
    times = [_mean(times) for info in infos if (times := fixed_work_of(info))]
    return _speeds("runs", min(times), max(times), (COMPARISON,)) if len(times) > 1 else None


def fixed_work_of(info: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the times of fixed work in run.json, at the run's begin and at its end (s); empty without them.

    >>> fixed_work_of({"fixed_work_seconds": [0.04, 0.05]}), fixed_work_of({"fixed_work_seconds": "x"})
    ((0.04, 0.05), ())
    """
    times = info.get("fixed_work_seconds")
    if not isinstance(times, list | tuple):
        return ()
    known = [time for time in times if isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < 1e6]
    return tuple(map(float, known)) if len(known) == len(times) else ()


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


def _speeds(what: str, before: float, after: float, invalidates: tuple[str, ...]) -> Doubt | None:
    if max(before, after) <= as_fast(min(before, after)):
        return None
    return Doubt(
        code=MACHINE_SPEED, numbers={"before": before, "after": after}, names={"of": what}, invalidates=invalidates
    )


def of_result(result: RunResult | None) -> tuple[Doubt, ...]:
    """Return the doubts about a finished run; those of a result without a list of them are judged from its numbers."""
    if result is None:
        return ()
    if result.doubts is not None:
        return result.doubts
    return tuple(doubt for doubt in (overhead(result), page_cache(result.fetched)) if doubt is not None)


def completed(result: RunResult, *more: Doubt | None) -> tuple[Doubt, ...]:
    """Return the doubts of a run that is over: those that its spans showed, its numbers', and ``more``."""
    doubts = (*(result.doubts or ()), overhead(result), page_cache(result.fetched), restored(result), *more)
    return tuple(doubt for doubt in doubts if doubt is not None)


def of_runs(results: Iterable[RunResult]) -> tuple[Doubt, ...]:
    """Return the doubts about some of these runs: the worst one of each kind."""
    worst: dict[str, Doubt] = {}
    results = [*results]
    for result in results:
        for doubt in of_result(result):
            if doubt.code not in worst or badness(doubt) > badness(worst[doubt.code]):
                worst[doubt.code] = doubt
    if len(results) > 1 and (of_overhead := worst.get(OVERHEAD)) is not None:  # its AU is not the mean of the runs
        worst[OVERHEAD] = replace(of_overhead, numbers={**of_overhead.numbers, "runs": len(results)})
    return tuple(worst.values())


def of_repeats(results: Sequence[RunResult]) -> tuple[Doubt, ...]:
    """Return the doubts about repeats: the worst one of each kind. Failures of all repeats count together."""
    failures = [[d.numbers["failures"] for d in of_result(result) if d.code == FEW_FAILURES] for result in results]
    are_enough = not all(failures) or sum(map(sum, failures)) >= FEWEST_FAILURES
    return tuple(doubt for doubt in of_runs(results) if doubt.code != FEW_FAILURES or not are_enough)


def of_comparison(
    a: Sequence[RunResult], b: Sequence[RunResult], percent: float, noise: float | None
) -> tuple[Doubt, ...]:
    """Return the doubts about a difference of ``percent`` between two groups, which chance exceeds by ``noise``.

    Overhead and an initial prefetch are doubts if the difference without them would be another one: by more than half
    of it, and by more than the noise. Failures are if a group has too few of them.
    """
    by_chance = {d.code: d for side in (a, b) for d in of_repeats(side) if d.code == FEW_FAILURES}
    before, after = (sum(map(_freed, side)) / len(side) for side in (a, b))
    without = 100 * ((1 + percent / 100) * after / before - 1)
    if abs(without - percent) <= max(abs(percent) / 2, noise or 0.0):
        return tuple(by_chance.values())
    others = (doubt for doubt in of_runs([*a, *b]) if doubt.code != FEW_FAILURES)
    return (*by_chance.values(), *blocking(others, COMPARISON))


def _freed(result: RunResult) -> float:
    """Return the factor on a run's throughput without the doubts about it."""
    factor = 1.0
    for doubt in of_result(result):
        if doubt.code == SHORT_RUN and result.au:
            factor *= doubt.numbers["au"] / result.au
        elif doubt.code == OVERHEAD:
            factor /= 1 - min(doubt.numbers["overhead"], 0.99)
    return factor


def badness(doubt: Doubt) -> float:
    """Return a number that is larger for the worse of two doubts of a kind."""
    numbers = doubt.numbers
    return max(
        numbers.get("factor", 0.0),
        numbers.get("overhead", 0.0),
        numbers.get("share", 0.0),
        numbers.get("lost", 0.0),
        numbers.get("steps", 0.0),
        numbers.get("epochs", 0.0),
        numbers.get("after", 0.0) / numbers.get("before", 1.0),
    )
