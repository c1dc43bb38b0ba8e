"""Advice: which of the simulated changes to make first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayio.analyze.stages import STAGES, shown
from rayio.analyze.verdict import BINDS, OF_DATA
from rayio.analyze.worth import LEAST_TIME, is_worth_proposing
from rayio.errors import StorageError
from rayio.predict.changes import applied
from rayio.predict.counterfactual import ALIKE, WORTH, Counterfactuals, Tried, left_out
from rayio.records.doubts import Doubt
from rayio.records.explained import Change, Prediction, Verdict
from rayio.scenario.section_changes import most_workers, with_workers
from rayio.scenario.workers import Autoscaled

#: Workers are doubled at most this often in search of enough of them.
DOUBLINGS = 4
#: Settings that save this part of what the best one does, or more, are as good, and the easiest of them is proposed.
NEAR = 0.98
#: Bottlenecks whose removal is no advice if a key helps.
OF_EVENTS = ("checkpoint", "evaluation")
#: What a change acts on that is not for the named cause.
OTHER_LOSSES = {
    "all-reduce": "the all-reduce", "checkpoint": "checkpoints", "evaluation": "evaluations", "decode": "decoding",
    "device-copy": "copies to accelerators", "pipeline": "pipeline bubbles", "straggler": "waits for slower ranks",
    "input": "data loading", "loader": "data loading",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The change that is worth making first, and the doubt about its AU."""

    prediction: Prediction
    doubt: Doubt | None
    #: True if the change frees resources: it is worth making however little it saves.
    is_free: bool = False


def prediction(verdict: Verdict, replays: Counterfactuals) -> Foreseen | None:
    """Return the change to make, simulated: enough workers for a run that waits for data, else the first that helps.

    A change helps if it saves time: AU counts a slow rank's extra compute as useful. A change that saves less than half
    of the best one is left out. None when no simulated change helps, or nothing is worth removing: the refusals of real
    storage cannot be simulated. None also if it hardly helps (see ``rayio/analyze/worth.py``).
    """
    foreseen = _best(verdict, replays)
    if foreseen is None or foreseen.is_free:
        return foreseen
    return foreseen if _is_large(foreseen.prediction, verdict, replays) else None


def _is_large(row: Prediction | Change, verdict: Verdict, replays: Counterfactuals) -> bool:
    """Return True if a change has an effect that is worth proposing."""
    shows_in_au = verdict.bound in OF_DATA or verdict.bound == "overhead"
    is_seen = not shows_in_au or is_worth_proposing(replays.baseline.au, row.au)
    return (row.time_saved or 0.0) >= LEAST_TIME and is_seen


def sooner(replays: Counterfactuals) -> Foreseen | None:
    """Return the change with which a run that waits for its first batches is over soonest: of a key, or else a limit.

    AU does not count that wait, so the time of all steps decides.
    """
    known = [trial for trial in replays.tried if trial.saved >= LEAST_TIME and not trial.drops_barrier]
    keys = [trial for trial in known if trial.change.key is not None]
    most = max((trial.saved for trial in known), default=0.0)
    near = [trial for trial in keys if trial.saved >= most / 2] or [
        trial for trial in known if trial.change.kind == "limit" or not {*trial.change.removes} & {*STAGES}
    ]
    best = min(near, key=lambda trial: (-trial.saved, trial.change.effort), default=None)
    return None if best is None else _with(best)


def _best(verdict: Verdict, replays: Counterfactuals) -> Foreseen | None:
    best = _of_cause(verdict, replays)
    return _better(verdict, replays, best) or best


def _of_cause(verdict: Verdict, replays: Counterfactuals) -> Foreseen | None:
    base, is_read = replays.base, verdict.cause in ("read", "open", "retry")
    if not verdict.is_worth_removing or (base.is_throttled and is_read):
        return None
    if verdict.is_processor_bound:
        return _with(next(trial for trial in replays.tried if "processors" in trial.change.helps))
    known = [trial for trial in replays.tried if trial.row.time_saved is not None and not trial.is_worse]
    # "read = 0" measures a loss: what to change about reading is a limit of the storage.
    limits = is_read and base.modelled is not None and verdict.bound == "input"
    wanted = {verdict.bound, verdict.cause}
    chosen = [trial for trial in known if wanted & {*trial.change.helps} or (limits and trial.change.kind == "limit")]
    chosen.sort(key=lambda trial: (-trial.saved, trial.change.effort))
    settings = _easy_first([trial for trial in chosen if trial.change.key is not None])
    most = max((trial.saved for trial in chosen), default=0.0)
    more = _enough_workers(replays) if verdict.bound in OF_DATA and not base.is_throttled else None
    if more and (more.prediction.time_saved or 0.0) >= max((trial.saved for trial in settings), default=0.0):
        return more
    # Changes of a key come before those of storage or code, unless they save little in comparison; a change that frees
    # resources costs nothing.
    for trial in settings + chosen:
        is_easy = trial.change.effort < 0 or (trial.change.key and (limits or verdict.bound in OF_EVENTS))
        if trial.saved >= max(WORTH, 0 if is_easy else most / 2) and _is_large(trial.row, verdict, replays):
            return _with(trial)
    frees = (trial for trial in settings if trial.change.effort < 0 and trial.saved >= WORTH)
    return more or next((_with(trial) for trial in frees), None)


def _easy_first(settings: Sequence[Tried]) -> list[Tried]:
    """Return settings, the best first, in place of a best one that costs more effort and saves hardly more."""
    if not settings or settings[0].change.effort <= 1:
        return [*settings]
    near = [trial for trial in settings if trial.saved >= NEAR * settings[0].saved]
    first = min(near, key=lambda trial: (trial.change.effort, -trial.saved))
    return [first, *(trial for trial in settings if trial is not first)]


def _better(verdict: Verdict, replays: Counterfactuals, best: Foreseen | None) -> Foreseen | None:
    """Return the change of a key that saves clearly more than the best one of the named cause; None without one.

    Two causes may share a resource: then a change for the other cause can save more than any for the named one.
    """
    if not verdict.is_worth_removing or verdict.is_processor_bound or replays.base.is_throttled:
        return None
    saved = 0.0 if best is None else best.prediction.time_saved or 0.0
    others = [trial for trial in replays.tried if trial.change.key and trial.doubt is None and not trial.is_worse]
    most = max(others, key=lambda trial: (trial.saved, -trial.change.effort), default=None)
    if most is None or most.saved * ALIKE <= saved or most.saved - saved < LEAST_TIME:
        return None
    return _enough_workers(replays) if most.change.kind == "workers" else _with(most, _what_it_acts_on(most))


def _what_it_acts_on(trial: Tried) -> str:
    """Return that a change is for another loss than the one named, if that has a name."""
    names = (OTHER_LOSSES[bound] for bound in trial.change.helps if bound in OTHER_LOSSES)
    return next((f", which acts on {name}" for name in names), "")


def _with(trial: Tried, why: str = "") -> Foreseen:
    advice, row = trial.change.advice if trial.change.key else shown(trial.change.advice), trial.row
    return Foreseen(
        Prediction(
            change=f"With {advice}{why}", au=row.au, time_saved=row.time_saved, then=row.then, left_out=row.left_out
        ),
        trial.doubt,
        is_free=trial.change.effort < 0,
    )


def _enough_workers(replays: Counterfactuals) -> Foreseen | None:
    """Return enough workers: doubled until exposed data loading is no bottleneck, or more of them do not help."""
    base, before, best = replays.base, replays.baseline, None
    for doubling in range(1, DOUBLINGS + 1):
        number = max(1, base.workers * 2**doubling) if base.workers else 2 ** (doubling - 1)
        if number > most_workers(base):
            break
        try:
            changed = applied(with_workers("", number), replays.replayed, base)
            outcome = base.simulate(changed, f"{number} worker{'s' * (number != 1)} per rank")
        except StorageError:  # so many ask for more than storage ever serves
            break
        if (outcome.saves(before) or 0.0) < LEAST_TIME:
            break
        before = outcome
        is_scaled = isinstance(base.scenario.loader.num_workers, Autoscaled)
        now = f"throughout (now {base.workers} on average)" if is_scaled else f"(now {base.workers})"
        best = Foreseen(
            Prediction(
                change=f"With {number} worker{'s' * (number != 1)} per rank {now}",
                workers=number,
                au=outcome.au,
                time_saved=outcome.saves(replays.baseline),
                then=outcome.next,
                left_out=left_out(changed.scenario, replays.replayed.scenario),
            ),
            outcome.doubt,
        )
        if (outcome.judged.verdict.data_wait_share or 0.0) <= BINDS:
            break
    return best
