"""Counterfactuals: a run replayed with one thing changed, from its measured times, never guessed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from rayio.analyze import gate
from rayio.analyze.stages import OF_LOADER
from rayio.analyze.stalls import Attribution
from rayio.analyze.stragglers import slow_ranks
from rayio.analyze.verdict import BINDS, OF_DATA, Judged, bound_of
from rayio.analyze.worth import LEAST_AU
from rayio.errors import RayioError, StorageError
from rayio.machine.calls import in_order
from rayio.model.planning import storage_of
from rayio.predict.base import Base, Outcome
from rayio.predict.changes import applied, offered
from rayio.predict.on_cores import on_cores
from rayio.predict.processors import Worked
from rayio.predict.replay import MOST_RANK_STEPS, Measured, Replay
from rayio.records.doubts import Doubt, Remark, remark
from rayio.records.explained import Change as ChangeRow
from rayio.records.explained import Simulated, Verdict
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.change import Change
from rayio.scenario.model import Scenario, StorageParameters
from rayio.scenario.storage import UNKNOWN
from rayio.trace.slices import Slices

#: Part of the time that a change must save to be worth naming.
WORTH = 0.01
#: Most rank-steps of a run that is replayed whole where its first steps do not reproduce it.
MOST_WHOLE = 5 * MOST_RANK_STEPS
#: Causes whose removal saves this part of what the best one does, or more, count as alike.
ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Tried:
    """A change and the run simulated with it."""

    change: Change
    row: ChangeRow
    #: True if ranks wait for each other in the run, and do not with the change.
    drops_barrier: bool
    #: The doubt about its AU.
    doubt: Doubt | None = None
    #: True if AU and throughput fall: time that a run saves at its begin then costs a longer one more.
    is_worse: bool = False

    @property
    def saved(self) -> float:
        """Return the part of the time that it saves; 0 where that is not known."""
        return self.row.time_saved or 0.0


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """A run replayed unchanged, and with one thing changed at a time."""

    base: Base
    replayed: Replay
    baseline: Outcome
    tried: tuple[Tried, ...]
    #: Changes with which the simulated run breaks off.
    broken: tuple[Remark, ...]

    @property
    def record(self) -> Simulated:
        """Return the record of it in results."""
        verdict, scenario = self.baseline.judged.verdict, self.replayed.scenario
        return Simulated(
            au=verdict.au,
            samples_per_second=_once(self.baseline.judged.samples_per_second, scenario),
            steps=verdict.steps,
            is_whole_run=derive.total_steps(scenario) == derive.total_steps(self.base.scenario),
            changes=tuple(trial.row for trial in self.tried),
            first_steps=derive.total_steps(scenario),
        )


def counterfactuals(
    base: Base, reporter: Reporter = SILENT, *, whole: bool = False, measured: float | None = None
) -> Counterfactuals:
    """Return the run replayed unchanged, and with each change that is offered; of long runs the begin, or ``whole``.

    If the begin does not reproduce the ``measured`` AU, a run of at most :data:`MOST_WHOLE` rank-steps is replayed
    whole. No change is simulated where no replay reproduces it.

    ``causal_share`` is the part of the simulated loss (1 − AU) that the change removes. The shares need not sum to 1:
    two causes may hide each other.

    Raises:
        StorageError: storage refuses the unchanged replay more often than it may retry.
    """
    reporter.live("what would help: the run is replayed unchanged")
    replayed, baseline, seconds = _unchanged(base, whole=whole)
    is_cut = derive.total_steps(replayed.scenario) < derive.total_steps(base.scenario)
    if gate.not_reproduced(baseline.au, measured) is not None:
        if is_cut and derive.total_rank_steps(base.scenario) <= MOST_WHOLE:
            return counterfactuals(base, reporter, whole=True, measured=measured)
        return Counterfactuals(base, replayed, baseline, (), ())
    tried: list[Tried] = []
    broken: list[Remark] = []

    def simulate(changes: Sequence[Change]) -> None:
        made, alone = [applied(change, replayed, base) for change in changes], base.without_times()
        calls = [partial(alone.simulate, each, change.name) for change, each in zip(changes, made, strict=True)]

        def watch(done: int) -> None:
            reporter.live(f"what would help: {done} of {len(calls)} simulated", done / max(1, len(calls)))

        for change, each, after in zip(changes, made, in_order(calls, seconds, watch), strict=True):
            if isinstance(after, StorageError):
                broken.append(remark("change_breaks_off", change=change.name, error=str(after)))
            elif isinstance(after, RayioError):
                raise after
            else:
                tried.append(_tried(change, each, after, replayed, baseline))

    simulate([change for change in offered(base, "explain", ()) if not change.after])
    helps = {trial.change.name for trial in tried if trial.saved >= WORTH}
    later = [change for change in offered(base, "explain", helps) if helps.intersection(change.after)]
    simulate([change for change in later if change.is_of_use(base.scenario)])
    if base.has_failed:
        tried = [trial for trial in tried if not trial.change.risks_work]
    return Counterfactuals(base, replayed, baseline, (*tried,), (*broken,))


def _unchanged(base: Base, *, whole: bool) -> tuple[Replay, Outcome, float]:
    """Return a replay without changes, its outcome, and how long the simulation took (s)."""
    replayed = base.measured.replayed(base.scenario, modelled=base.modelled, most=sys.maxsize if whole else None)
    began = perf_counter()
    outcome = base.simulate(replayed)
    return replayed, outcome, perf_counter() - began


def _tried(change: Change, changed: Replay, after: Outcome, replayed: Replay, before: Outcome) -> Tried:
    drops_barrier = replayed.scenario.train.sync.meets and not changed.scenario.train.sync.meets
    rate = after.judged.samples_per_second
    if drops_barrier and before.lasted and after.lasted:
        # Ranks that do not wait for each other are at different steps when the window begins: fewer of their batches
        # are in it.
        rate = (before.judged.samples_per_second or 0.0) * before.lasted / after.lasted or None
    gain, loss = None if after.au is None or before.au is None else after.au - before.au, before.judged.verdict.loss
    row = ChangeRow(
        change=change.name,
        au=after.au,
        gain=gain,
        causal_share=gain / loss if gain is not None and loss else None,
        samples_per_second=_once(rate, changed.scenario),
        time_saved=after.saves(before),
        then=after.next,
        left_out=left_out(changed.scenario, replayed.scenario),
        is_short=True if after.doubt is not None else None,
    )
    is_worse = (gain or 0.0) <= -LEAST_AU and (rate or 0.0) < (before.judged.samples_per_second or 0.0)
    return Tried(change, row, drops_barrier, after.doubt, is_worse)


def left_out(changed: Scenario, before: Scenario) -> float | None:
    """Return the share of samples that a change leaves out of an epoch; None if it is hardly more than before."""
    share, known = (derive.dropped_samples(each) / derive.samples_per_epoch(each) for each in (changed, before))
    return share if share - known >= WORTH else None


def _once(rate: float | None, scenario: Scenario) -> float | None:
    """Return a rate that counts a sample once, however many ranks of a replica read it."""
    return None if rate is None else rate / derive.ranks_of_sample(scenario)


def concluded(judged: Judged, replays: Counterfactuals) -> Verdict:
    """Return the verdict after the simulations: which cause to remove, and whether that is worth it."""
    verdict = named(judged, replays.tried)
    return replace(
        verdict,
        is_worth_removing=_is_worth(verdict, judged.tolerated, replays.tried),
        is_processor_bound=_is_processor_bound(verdict, replays.tried),
    )


def named(judged: Judged, tried: Sequence[Tried]) -> Verdict:
    """Return the verdict with the cause whose removal saves most time, and those that would save as much.

    Of those the one with the largest share of step time comes first.

    It is unchanged where there is none, where no simulation removes the bottleneck, and where no removal saves more
    than is tolerated.
    """
    verdict = judged.verdict
    if verdict.bound in (None, "overhead", "start-up", "outage"):
        return verdict
    share = {row.cause: row.share or 0.0 for row in verdict.table}
    saves: dict[str, float] = {}
    for trial in tried:
        causes = [cause for cause in trial.change.removes if share.get(cause)]
        if trial.row.time_saved is not None and causes:
            cause = max(causes, key=lambda cause: share[cause])
            saves[cause] = max(saves.get(cause, trial.saved), trial.saved)
    most = max(saves.values(), default=0.0)
    if most <= judged.tolerated:
        return verdict
    near = [cause for cause in saves if saves[cause] >= ALIKE * most]
    best = max(near, key=lambda cause: share[cause])
    alike = tuple(cause for cause in near if cause != best)
    bound = "loader" if best in OF_LOADER else bound_of(best)
    part = (
        sum(share[c] for c in OF_LOADER)
        if bound == "loader"
        else sum(s for c, s in share.items() if bound_of(c) == bound)
    )
    return replace(verdict, bound=bound, cause=best, bound_share=part, named_by="simulation", ties=alike)


def contradictions(verdict: Verdict, tried: Sequence[Tried]) -> tuple[Doubt, ...]:
    """Return the doubts about large causes whose removal, simulated, saves much less than their share of step time."""
    cases = []
    for row in verdict.table:
        removals = [trial for trial in tried if row.cause in trial.change.removes and trial.row.time_saved is not None]
        best = max(removals, key=lambda trial: trial.saved, default=None)
        if best is not None:
            cases.append(gate.contradiction(row.cause, row.share or 0.0, best.change.name, best.saved))
    return tuple(case for case in cases if case is not None)


def _is_processor_bound(verdict: Verdict, tried: Sequence[Tried]) -> bool | None:
    """Return True if readers and ranks that wait for batches wait for cores; None where cores are not known."""
    cores = next((trial for trial in tried if "processors" in trial.change.helps), None)
    if cores is None or verdict.bound is None:
        return None
    settings = [
        trial.saved
        for trial in tried
        if trial.change.kind == "workers" or (trial.change.kind == "setting" and "input" in trial.change.helps)
    ]
    return verdict.bound in OF_DATA and cores.saved > max(BINDS, 2 * max(settings, default=0.0))


def _is_worth(verdict: Verdict, tolerated: float, tried: Sequence[Tried]) -> bool | None:
    """Return True if the bottleneck is worth removing: not if nothing simulated saves more than is tolerated."""
    most = max((trial.saved for trial in tried if trial.row.time_saved is not None), default=None)
    is_removable = any(verdict.cause in trial.change.removes for trial in tried)
    if not verdict.is_worth_removing or most is None or not is_removable:
        return verdict.is_worth_removing if verdict.bound is not None else None
    return most > tolerated


def modelled(scenario: Scenario, info: Mapping[str, Any]) -> StorageParameters | None:
    """Return the storage of a run where it was a model; None for real storage, and for imported results."""
    is_modelled = info.get("modelled_storage", info.get("engine") == "virtual") and not info.get("imported")
    return storage_of(scenario) if is_modelled and scenario.storage.model != UNKNOWN else None


def _as_it_ran(scenario: Scenario, info: Mapping[str, Any]) -> Scenario:
    """Return the scenario without a model of the network where batches crossed a real one."""
    placement = info.get("placement")
    if not isinstance(placement, Mapping) or placement.get("is_network_modelled", True):
        return scenario
    real = scenario.cluster.model_copy(update={"nic_bandwidth": None, "nic_latency": 0.0})
    return scenario.model_copy(update={"cluster": real})


def ready(
    scenario: Scenario,
    info: Mapping[str, Any],
    charged: Attribution,
    spans: Slices,
    *,
    workers: int | None = None,
    batch_bytes: float | None = None,
    worked: Worked | None = None,
    is_refused: bool = False,
    has_failed: bool = False,
) -> Base | None:
    """Return a run ready for replay, from its scenario, ``run.json`` and spans; None without spans of readers.

    ``workers`` is how many readers each rank had, ``batch_bytes`` the mean of a batch; ``worked`` is the CPU time of a
    run on Ray, for its cores; ``is_refused``: storage refused many of its reads; ``has_failed``: it survived failures.
    """
    is_virtual = info.get("engine") == "virtual"
    scenario = _as_it_ran(scenario, info)
    measured = Measured.of(spans, charged, scenario, costs=scenario.charges if is_virtual else None)
    if not measured.has_work:
        return None
    bound = info.get("max_bytes_in_flight")
    base = Base(
        scenario,
        measured,
        modelled(scenario, info),
        bound if isinstance(bound, int) else None,
        "memory_bound" in spans.names,
        slow_ranks(charged.steps, len(charged.lives.rank)),
        scenario.loader.max_workers if workers is None else workers,
        batch_bytes,
        is_throttled=is_refused and modelled(scenario, info) is None,
        has_failed=has_failed,
    )
    return base if worked is None or is_virtual else on_cores(base, worked, charged)
