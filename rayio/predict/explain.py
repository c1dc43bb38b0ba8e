"""An explanation of a run: losses, the capacity of each stage, changes that would help, its use of storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rayio.analyze import gate
from rayio.analyze.access import Accesses
from rayio.analyze.passes import Summed, Timelines
from rayio.analyze.retries import Throttling
from rayio.analyze.run_scenario import has_edited_keys
from rayio.analyze.service import Capacities, without_queueing
from rayio.analyze.shape import RunShape
from rayio.analyze.sharing import Beside
from rayio.analyze.stalls import Losses
from rayio.analyze.stragglers import on_slow_nodes, worst_ranks
from rayio.analyze.verdict import BINDS, OF_STORAGE, Judged, begins_slowly, judge, waits_for_storage
from rayio.analyze.window import find_window
from rayio.errors import RayioError
from rayio.kinds import STORAGE_MODELS
from rayio.predict.advice import prediction, sooner
from rayio.predict.counterfactual import (
    Counterfactuals,
    concluded,
    contradictions,
    counterfactuals,
    modelled,
    ready,
)
from rayio.predict.observe import Trained
from rayio.predict.processors import Worked
from rayio.predict.supply import network, supply
from rayio.records.doubts import CAUSE, CHANGES, PREDICTION, SMALL, STORAGE, Doubt, Remark, blocking, remark
from rayio.records.explained import BrokeOff, Capacity, Explained, Prediction, Verdict
from rayio.records.origin import CHARGED, IMPORTED, OWN_WORK, PREDICTED, WATCHED, kind_of
from rayio.records.run_result import RunResult
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.layers import layers_of
from rayio.scenario.model import Scenario
from rayio.scenario.storage import UNKNOWN
from rayio.trace.run_directory import RunDirectory

#: The meaning of data_wait in imported results, which have no readers.
WAITED = "waiting for a batch; the results say nothing of workers"


def readers_of(directory: RunDirectory, scenario: Scenario) -> int:
    """Return how many readers a run had: the mean, where they came and went."""
    result = directory.result
    return derive.num_readers(scenario) if result is None or result.scaling is None else round(result.scaling.mean)


#: Exit codes of runs that ended before they were done; others have all their steps.
UNFINISHED = (1, 2, 130)
#: The end of a run without a result.
NO_RESULT = "it was killed, or is still running"


class Seen:
    """The sums over a run's spans that an explanation needs; complete once all slices were added."""

    def __init__(self, timed: Timelines, scenario: Scenario, info: Mapping[str, Any], readers: int) -> None:
        lives, shape = timed.lives, RunShape.of(scenario)
        self.timed, self.readers = timed, readers
        self.window = find_window(lives, timed, shape)
        self.losses = Losses(timed, payload=info.get("payload") == "real", meetings=shape.meetings)
        self.capacities = Capacities(lives, timed, shape, readers, self.window, timed.slices.names)
        self.trained = Trained(scenario.train.epochs)
        self.accesses = Accesses(timed.slices, lives)
        self.beside = Beside(timed, shape, self.window, has_stages=bool(scenario.stages))
        self.throttling = Throttling(timed.slices)
        self.sums: tuple[Summed, ...] = (
            self.losses, self.capacities, self.trained, self.accesses, self.beside, self.throttling
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, with the sums over its spans."""

    directory: RunDirectory
    scenario: Scenario
    seen: Seen

    @property
    def missed(self) -> float:
        """Return the share of read bytes that no cache had."""
        result = self.directory.result
        return 1.0 if result is None or result.fetched is None else result.fetched.missed

    @property
    def worked(self) -> Worked | None:
        """Return the CPU time of its batches and its cores, where that is known."""
        is_virtual = self.directory.info.get("engine") == "virtual"
        return Worked.planned(self.scenario) if is_virtual else Worked.seen(self.scenario, self.directory.info)


def explained(
    directory: RunDirectory,
    scenario: Scenario,
    seen: Seen,
    *,
    simulate: bool = True,
    whole: bool = False,
    target_au: float | None = None,
    reporter: Reporter = SILENT,
) -> Explained:
    """Return an explanation from the sums over a run's spans: without sentences, with every rank, and not how it ended.

    ``simulate`` replays it for the counterfactuals and the prediction, ``whole`` or its first steps; ``target_au`` is
    the AU to reach, None for the one that the scenario expects. See ``rayio/report/explain.py``.
    """
    run = Subject(directory, _as_replayed(directory, scenario), seen)
    judged = _judged(run, _target(scenario) if target_au is None else target_au)
    capacity = _capacity(run, judged.verdict)
    throttled = seen.throttling.result(judged.verdict.table)
    is_refused = throttled is not None and (throttled.read_share or 0.0) > BINDS
    remarks = _remarks(run, judged, capacity, simulate=simulate)
    replays, broken = None, None
    if simulate and judged.verdict.au is not None:
        measured = judged.verdict.au
        replays, broken = _simulated(run, measured, whole=whole, is_refused=is_refused, reporter=reporter)
    advised = _advised(judged, replays, gate.of_result(run.directory.result))
    verdict = advised.verdict
    if replays is not None:
        remarks += _of_simulation(run, replays, advised.doubts)
    remarks += [remark("cannot_be_simulated", error=str(broken))] if broken is not None else []
    of_others = run.directory.info.get("imported") or kind_of(run.directory.info.get("engine")) == WATCHED
    remarks += seen.accesses.remarks if seen.timed.number and not of_others else ()
    simulated = None if replays is None else replays.record
    if simulated is not None and blocking(advised.doubts, CHANGES):
        simulated = replace(simulated, changes=())
    if throttled is not None:
        throttled = replace(throttled, binds=is_refused and waits_for_storage(verdict))
    return Explained(
        run=directory.address,
        scenario=scenario.name,
        engine=run.directory.info.get("engine"),
        verdict=verdict,
        capacity=capacity,
        ranks=on_slow_nodes(worst_ranks(seen.timed.lives, seen.timed), scenario.cluster.node_of),
        simulated=simulated,
        prediction=advised.prediction,
        access=seen.accesses.result(),
        remarks=(*remarks,),
        throttled=throttled,
        imported=None if run.directory.result is None else run.directory.result.imported,
        failures=None if run.directory.result is None else run.directory.result.failures,
        doubts=advised.doubts,
        withheld=advised.withheld,
        broke_off=_broke_off(directory.result, scenario, seen.timed.number),
        has_edited_keys=has_edited_keys(directory),
    )


def _broke_off(result: RunResult | None, scenario: Scenario, steps: int) -> BrokeOff | None:
    """Return how a run ended before it was done; None for one that was done, whatever its numbers are.

    ``steps`` are the recorded ones of all ranks: of a run without a result, nothing else is known.
    """
    planned = max(derive.total_rank_steps(scenario), 1)
    if result is None:
        return BrokeOff(exit_code=None, error=NO_RESULT, done_share=steps / planned if steps else None)
    if not result.error or result.exit_code not in UNFINISHED:
        return None
    done = result.ledger.share_done if result.ledger is not None else None
    if done is None and result.steps is not None:
        done = result.steps / planned
    return BrokeOff(exit_code=result.exit_code, error=result.error, done_share=done)


def _as_replayed(directory: RunDirectory, scenario: Scenario) -> Scenario:
    """Return the scenario without failures, and without stages where recorded reads contain their delays."""
    kept = {} if directory.info.get("modelled_storage") else {"stages": ()}
    return scenario.model_copy(update={"failures": None, **kept})


@dataclass(frozen=True, slots=True)
class Advice:
    """The verdict and the change to make, past the gate."""

    verdict: Verdict
    prediction: Prediction | None
    doubts: tuple[Doubt, ...]
    #: The codes of the doubts that withhold a prediction.
    withheld: tuple[str, ...] = ()


def _advised(judged: Judged, replays: Counterfactuals | None, doubts: tuple[Doubt, ...]) -> Advice:
    """Return the advice that no doubt makes invalid; ``doubts`` are those of the run."""
    if replays is None:
        return Advice(judged.verdict, None, doubts)
    simulated, steps = replays.record, derive.total_steps(replays.base.scenario)
    few = gate.first_steps(
        simulated.first_steps or steps, steps, sum(bool(row.is_short) for row in simulated.changes),
        len(simulated.changes), simulated.au or 0.0, judged.verdict.au or 0.0,
    )  # fmt: skip
    doubts = doubts if few is None else (few, *doubts)
    if (unlike := gate.not_reproduced(replays.baseline.au, judged.verdict.au)) is not None:
        doubts = doubts if few is not None else (*doubts, unlike)
        return Advice(judged.verdict, None, doubts, ((few or unlike).code,))
    verdict = concluded(judged, replays)
    doubts = (*doubts, *contradictions(verdict, replays.tried))
    if (foreseen := sooner(replays) if begins_slowly(verdict) else prediction(verdict, replays)) is None:
        return Advice(verdict, None, doubts)
    doubts = doubts if foreseen.doubt is None else (*doubts, foreseen.doubt)
    stops = [*blocking(doubts, PREDICTION)]
    stops += [doubt for doubt in blocking(doubts, CAUSE) if doubt.names.get("cause") == verdict.cause]
    stops += blocking(doubts, STORAGE) if verdict.cause in OF_STORAGE else ()
    saved = foreseen.prediction.time_saved or 0.0
    stops += [
        doubt
        for doubt in blocking(doubts, SMALL)
        if saved <= max(doubt.numbers.get(name, 0.0) for name in ("overhead", "error"))
    ]
    codes = tuple(dict.fromkeys(doubt.code for doubt in stops))
    return Advice(verdict, None if stops else foreseen.prediction, doubts, codes)


def _judged(run: Subject, target_au: float | None) -> Judged:
    judged = judge(run.seen.losses, RunShape.of(run.scenario), target_au, run.seen.window)
    verdict = judged.verdict
    meanings = {IMPORTED: "in no record of the results", PREDICTED: CHARGED, WATCHED: OWN_WORK}
    other = meanings.get(kind_of(run.directory.info.get("engine")))  # time without a span is not rayio's
    rows = [replace(row, meaning=other) if other and row.cause == "other" else row for row in verdict.table]
    cause = verdict.cause
    if run.directory.result is not None and run.directory.result.imported is not None:
        # "unrecorded" has another meaning in the benchmark's own split
        rows = [replace(row, cause="data_wait", meaning=WAITED) if row.cause == "unrecorded" else row for row in rows]
        cause = "data_wait" if cause == "unrecorded" else cause
    verdict = replace(verdict, table=(*rows,), cause=cause)
    if any(doubt.code == gate.NOTHING_DELIVERED for doubt in gate.of_result(run.directory.result)):
        verdict = replace(verdict, au=None, loss=None, bound=None, bound_share=None, cause=None, is_worth_removing=None)
    return replace(judged, verdict=verdict)


def _capacity(run: Subject, verdict: Verdict) -> Capacity:
    seen, scenario, worked = run.seen, run.scenario, run.worked
    batch_bytes = seen.trained.mean_bytes
    capacity = replace(seen.capacities.result(), batch_bytes=batch_bytes)
    together = sum(row.seconds for row in verdict.table if row.cause == "allreduce")
    if together:  # ranks need no batch while they reduce gradients
        ranks = len(seen.timed.lives.rank)
        demand, mean = (
            rate and ranks / (ranks / rate + together / verdict.steps)
            for rate in (capacity.demand, capacity.mean_demand)
        )
        capacity = replace(capacity, demand=demand, mean_demand=mean)
    if not seen.timed.number:  # without steps there is no time to be busy in
        return replace(capacity, stages=())
    if (model := modelled(scenario, run.directory.info)) is not None:
        parsing = worked.costs.cpu.parsing(scenario.loader.batch_size, batch_bytes or 0.0) if worked else 0.0
        limit = supply(scenario, model, capacity.demand, seen.trained, seen.beside.result(), run.missed)
        capacity = without_queueing(capacity, limit, parsing)
    is_network_real = (run.directory.info.get("placement") or {}).get("is_network_modelled") is False
    if not is_network_real and (row := network(scenario, capacity.delivered)):
        capacity = replace(capacity, stages=(*capacity.stages, row))
    if worked and (row := worked.stage(scenario, batch_bytes, capacity.delivered)):
        capacity = replace(capacity, stages=(*capacity.stages, row))
    return capacity


def _simulated(
    run: Subject, measured: float, *, whole: bool, is_refused: bool, reporter: Reporter
) -> tuple[Counterfactuals | None, RayioError | None]:
    """Return the run replayed, unchanged and with changes; else the error, or neither where no reads are recorded."""
    seen, scenario = run.seen, run.scenario
    workers = -(-seen.readers // derive.world_size(scenario))
    base = ready(
        scenario, run.directory.info, seen.losses.charged(), seen.timed.slices, workers=workers,
        batch_bytes=seen.trained.mean_bytes, worked=run.worked, is_refused=is_refused,
        has_failed=run.directory.result is not None and run.directory.result.failures is not None,
    )  # fmt: skip
    if base is None:
        return None, None
    try:
        return counterfactuals(base, reporter, whole=whole, measured=measured), None
    except RayioError as error:  # measured results stay valid without a simulation
        return None, error


def _remarks(run: Subject, judged: Judged, capacity: Capacity, *, simulate: bool) -> list[Remark]:
    scenario, timed, remarks = run.scenario, run.seen.timed, [*judged.remarks]
    if run.missed < 1 and capacity.storage is not None and capacity.storage.is_short:
        remarks.append(remark("caches_had", percent=100 * (1 - run.missed)))
    if run.directory.info.get("imported"):
        remarks.append(remark("imported_without_readers"))
        if simulate and scenario.storage.model == UNKNOWN:
            remarks.append(remark("name_its_storage", run=run.directory.address, models=", ".join(STORAGE_MODELS)))
    elif scenario.trace.level == "none":
        remarks = [remark("nothing_to_explain_untraced")]
    elif not len(timed.slices):
        remarks = [] if run.directory.lost_files else [_spanless(run.directory)]
    elif not timed.number:
        remarks.append(remark("no_step_completed"))
    elif (why := run.directory.info.get("without_reads")) is not None:
        remarks.append(remark("no_reads_known", why=str(why)))
    elif "read" not in timed.slices.names and not any(row.stage == "worker" for row in capacity.stages):
        remarks.append(remark("no_spans_of_readers"))
    result = run.directory.result
    if result is not None and result.scaling is not None:
        remarks.append(remark("workers_scaled", mean=result.scaling.mean))
    return remarks


def _of_simulation(run: Subject, replays: Counterfactuals, doubts: tuple[Doubt, ...]) -> list[Remark]:
    remarks, simulated = [*replays.broken], replays.record
    if replays.base.is_throttled:
        remarks.append(remark("throttled_workers"))
    elif replays.base.modelled is None:
        remarks.append(remark("storage_assumed_free"))
    is_cached = any(layer.keeps for layer in layers_of(run.scenario, modelled=True))
    if not simulated.is_whole_run and (is_cached or gate.FIRST_STEPS not in (doubt.code for doubt in doubts)):
        first, steps = simulated.first_steps or 0, derive.total_steps(run.scenario)
        remarks.append(remark("first_steps_cached" if is_cached else "first_steps", first=first, steps=steps))
    return remarks


def _target(scenario: Scenario) -> float | None:
    wanted = scenario.expect.get("au")
    return wanted.value if wanted is not None and wanted.operator in (">=", ">") else None


def _spanless(directory: RunDirectory) -> Remark:
    result = directory.result
    if result is None:
        return remark("broke_off_early")
    if result.trace and (recorded := result.trace.recorded):
        return remark("spans_lost", recorded=recorded, run=directory.address)
    return remark("no_spans")
