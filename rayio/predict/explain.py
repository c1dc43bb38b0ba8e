"""A run explained: why the accelerators waited, what each stage can do, what would change it, how it read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rayio.analyze.access import Accesses
from rayio.analyze.conclusion import contradiction, sentence, waits_for_storage
from rayio.analyze.filled import note_of
from rayio.analyze.passes import Summed, Timelines
from rayio.analyze.retries import Throttling
from rayio.analyze.service import Capacities, without_queueing
from rayio.analyze.shape import RunShape
from rayio.analyze.sharing import Beside
from rayio.analyze.stalls import Attribution, Losses
from rayio.analyze.stragglers import worst_ranks
from rayio.analyze.verdict import BINDS, Judged, judge
from rayio.analyze.window import find_window
from rayio.errors import RayioError, ScenarioError
from rayio.imports.dlio_losses import in_words
from rayio.kinds import STORAGE_MODELS
from rayio.predict.counterfactual import (
    Counterfactuals,
    concluded,
    contradictions,
    counterfactuals,
    modelled,
    prediction,
    ready,
)
from rayio.predict.observe import Trained
from rayio.predict.processors import Worked
from rayio.predict.supply import supply
from rayio.records.explained import Access, Capacity, Explained, Verdict
from rayio.records.origin import CHARGED, MEASURED, PREDICTED, Origin, kind_of
from rayio.records.run_result import RunResult
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.layers import layers_of
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.scenario.source import UNREADABLE, plain
from rayio.scenario.storage import UNKNOWN
from rayio.schema.fields import show
from rayio.trace.run_directory import RunDirectory

#: Ranks that are told one by one, those that others waited for most.
WORST = 8
#: What waiting for a batch is in imported results, which have no readers.
WAITED = "waiting for a batch; the results say nothing of readers"
#: Actors that died and are named.
MOST_DEATHS = 8


def explain(
    path: str | Path, *, simulate: bool = True, target_au: float | None = None, reporter: Reporter = SILENT
) -> Explained:
    """Explain a run from its directory; times in seconds, shares as fractions of step time.

    ``simulate`` lets the virtual engine live the run again, for the counterfactuals and the prediction. ``target_au``
    is the AU that is to be reached; None is what the scenario expects, if it does.

    Raises:
        StorageError: no run is there, or it cannot be read.
        ScenarioError: the run has no scenario, or one that this version cannot read.
    """
    directory = RunDirectory.open(path)
    if (result := directory.result) and result.imported and result.imported.reduced:
        return _as_published(directory, result)
    scenario = scenario_of(directory)
    reporter.live("explain: reading spans", 0.0)
    spans = directory.slices()
    reporter.live(f"explain: {len(spans):,} spans are charged", 0.3)
    seen = Seen(Timelines(spans), scenario, directory.info, readers_of(directory, scenario))
    seen.timed.go_through(*seen.sums)
    found = explained(directory, scenario, seen, simulate=simulate, target_au=target_au, reporter=reporter)
    reporter.done()
    result = directory.result
    return replace(
        found,
        fetched=result.fetched if result else None,
        imported=result.imported if result else None,
        origin=result.origin if result else _origin(scenario, directory.info),
        notes=(*_trouble(directory, result), *found.notes),
    )


def readers_of(directory: RunDirectory, scenario: Scenario) -> int:
    """How many readers a run had: on average, where they came and went."""
    result = directory.result
    return derive.num_readers(scenario) if result is None or result.scaling is None else round(result.scaling.mean)


class Seen:
    """What of a run's spans an explanation is made of; it is there once all slices were gone through for ``sums``."""

    def __init__(self, timed: Timelines, scenario: Scenario, info: Mapping[str, Any], readers: int) -> None:
        lives, shape = timed.lives, RunShape.of(scenario)
        self.timed, self.readers = timed, readers
        #: The measured part of the run.
        self.window = find_window(lives, timed, shape)
        self.losses = Losses(timed, payload=info.get("payload") == "real")
        self.capacities = Capacities(lives, timed, shape, readers, self.window)
        self.trained = Trained(scenario.train.epochs)
        self.accesses = Accesses(timed.slices, lives)
        self.beside = Beside(timed, shape, self.window)
        self.throttling = Throttling(timed.slices)
        self.sums: tuple[Summed, ...] = (
            self.losses, self.capacities, self.trained, self.accesses, self.beside, self.throttling
        )  # fmt: skip

    def charged(self) -> Attribution:
        """The losses of every step, held together."""
        return self.losses.charged()


@dataclass(frozen=True, slots=True)
class Subject:
    """A run whose spans were gone through, and what else is known of it."""

    directory: RunDirectory
    scenario: Scenario
    seen: Seen

    @property
    def info(self) -> Mapping[str, Any]:
        """Its ``run.json``."""
        return self.directory.info

    @property
    def result(self) -> RunResult | None:
        """Its ``result.json``."""
        return self.directory.result

    @property
    def missed(self) -> float:
        """The share of what was read that no cache had."""
        return 1.0 if self.result is None or self.result.fetched is None else self.result.fetched.missed

    @property
    def worked(self) -> Worked | None:
        """What its batches took of its cores, where that is known."""
        is_virtual = self.info.get("engine") == "virtual"
        return Worked.planned(self.scenario) if is_virtual else Worked.seen(self.scenario, self.info)


def explained(
    directory: RunDirectory,
    scenario: Scenario,
    seen: Seen,
    *,
    simulate: bool = True,
    target_au: float | None = None,
    reporter: Reporter = SILENT,
) -> Explained:
    """Explain a run whose spans were gone through; how it ended is not in the notes.

    See :func:`explain`.
    """
    run = Subject(directory, scenario, seen)
    judged = _judged(run, _target(scenario) if target_au is None else target_au)
    capacity = _capacity(run)
    throttled = seen.throttling.found(judged.verdict.table)
    is_refused = throttled is not None and (throttled.read_share or 0.0) > BINDS
    notes = _notes(run, judged, capacity, simulate=simulate)
    found, broken = None, None
    if simulate and (au := judged.verdict.au) is not None:
        found, broken = _simulated(run, is_refused=is_refused, reporter=reporter)
    verdict = judged.verdict if found is None else concluded(judged, found)
    predicted = None
    if found is not None and au is not None:
        predicted = prediction(verdict, found) if found.comes_back(au) else None
        notes += _notes_of_simulation(run, found, verdict, au)
    notes += [f"The run cannot be simulated: {broken}"] if broken is not None else []
    notes += seen.accesses.notes if seen.timed.number and not run.info.get("imported") else ()
    filled = note_of(run.result.notes) if run.result is not None else None
    if throttled is not None:
        throttled = replace(throttled, binds=is_refused and waits_for_storage(verdict))
    ranks = worst_ranks(seen.timed.lives, seen.timed)
    told = run.result.imported if run.result is not None else None
    said = (verdict, capacity, ranks, predicted, throttled)
    return Explained(
        run=directory.address,
        scenario=scenario.name,
        engine=run.info.get("engine"),
        sentence=in_words(told) if told else sentence(*said, is_filling=filled is not None),
        verdict=verdict,
        capacity=capacity,
        ranks=(*ranks[:WORST],),
        simulated=None if found is None else found.record,
        prediction=predicted,
        access=seen.accesses.found(),
        notes=(*notes, *([] if filled is None else [filled])),
        throttled=throttled,
        contradictions=(None if found is None else contradictions(verdict, found.tried)) or None,
    )


def _judged(run: Subject, target_au: float | None) -> Judged:
    """Charge the losses, and name them by what is known of the engine that made the run."""
    judged = judge(run.seen.losses, RunShape.of(run.scenario), target_au, run.seen.window)
    verdict = judged.verdict
    meanings = {"dlio": "in no record of the results", "virtual": CHARGED}  # what no span covers is not rayio's
    other = meanings.get(str(run.info.get("engine")))
    rows = [replace(row, meaning=other) if other and row.cause == "other" else row for row in verdict.table]
    cause = verdict.cause
    if run.result is not None and run.result.imported is not None:
        # "unrecorded" is a word of the benchmark's own split, for something else
        rows = [replace(row, cause="data_wait", meaning=WAITED) if row.cause == "unrecorded" else row for row in rows]
        cause = "data_wait" if cause == "unrecorded" else cause
    return replace(judged, verdict=replace(verdict, table=(*rows,), cause=cause))


def _capacity(run: Subject) -> Capacity:
    """Return what the stages, modelled storage and the cores can do beside what the ranks need."""
    seen, scenario, worked = run.seen, run.scenario, run.worked
    batch_bytes = seen.trained.mean_bytes
    capacity = replace(seen.capacities.found(), batch_bytes=batch_bytes)
    if seen.timed.number and (model := modelled(scenario, run.info)) is not None:
        parsing = worked.cpu.parsing(scenario.loader.batch_size, batch_bytes or 0.0) if worked else 0.0
        limit = supply(scenario, model, capacity.demand, seen.trained, seen.beside.found(), run.missed)
        capacity = without_queueing(capacity, limit, parsing)
    if worked and (row := worked.stage(scenario, batch_bytes, capacity.delivered)):
        capacity = replace(capacity, stages=(*capacity.stages, row))
    return capacity


def _simulated(
    run: Subject, *, is_refused: bool, reporter: Reporter
) -> tuple[Counterfactuals | None, RayioError | None]:
    """Replay the run as it was and with changes; else why it cannot be, and neither where no reads are recorded."""
    seen, scenario = run.seen, run.scenario
    workers = -(-seen.readers // derive.world_size(scenario))
    base = ready(
        scenario, run.info, seen.charged(), seen.timed.slices, workers=workers, batch_bytes=seen.trained.mean_bytes,
        worked=run.worked, is_refused=is_refused,
    )  # fmt: skip
    if base is None:
        return None, None
    try:
        return counterfactuals(base, reporter), None
    except RayioError as error:  # what was measured stands, whatever a simulation of it may say
        return None, error


def _notes(run: Subject, judged: Judged, capacity: Capacity, *, simulate: bool) -> list[str]:
    """Say what a reader of what was measured should know."""
    scenario, timed, notes = run.scenario, run.seen.timed, [*judged.notes]
    if run.missed < 1 and capacity.storage is not None and capacity.storage.is_short:
        part = f"{100 * (1 - run.missed):.0f} % of what was read in the whole run"
        notes.append(f"modelled caches (storage.cache) had {part}: what ranks need of storage is the rest")
    if run.info.get("imported"):
        notes.append("imported results have no readers: waits cannot be taken apart, nor the run simulated")
        if simulate and scenario.storage.model == UNKNOWN:
            notes.append(
                "to predict from it, name its storage: rayio simulate "
                f"{run.directory.address}/scenario.yaml storage.model=NAME ({', '.join(STORAGE_MODELS)}, or parameters)"
            )
    elif scenario.trace.level == "none":
        notes = ["trace.level is none: no step was recorded, so nothing can be explained; run with trace.level=batch"]
    elif not len(timed.slices):
        notes = [] if run.directory.lost_files else [_spanless(run.directory)]
    elif not timed.number:
        notes.append("no rank completed a step: nothing can be explained")
    elif not any(row.stage == "worker" for row in capacity.stages):
        notes.append(
            "no spans of readers: waits cannot be taken apart, nor the run simulated; run with trace.level=batch"
        )
    if run.result is not None and run.result.scaling is not None:
        notes.append(
            f"readers came and went: what stages can do is counted with those that there were on average "
            f"({run.result.scaling.mean:.1f}), and changes of workers begin from those; as it was, they come and go "
            "again"
        )
    return notes


def _notes_of_simulation(run: Subject, found: Counterfactuals, verdict: Verdict, au: float) -> list[str]:
    """Say what a reader of the simulations should know."""
    notes, simulated = [*found.broken], found.record
    if found.base.is_throttled:
        notes.append(
            "storage refused requests as too many: nobody knows what it would give other numbers of workers, so "
            "none are simulated"
        )
    elif found.base.modelled is None:
        notes.append("predictions take it that storage serves more readers as quickly as it served these")
    if not found.comes_back(au):
        notes.append(
            f"simulated again from its own times the run comes to AU {simulated.au:.2f}, not to the "
            f"{au:.2f} that was measured: what a change would move is counted from there, and is as far "
            "off; a longer run, or one on a quiet machine, tells more"
        )
    if not simulated.is_whole_run:
        is_cached = any(layer.keeps for layer in layers_of(run.scenario, modelled=True))
        filling = ", in which the modelled caches are still filling" if is_cached else ""
        notes.append(f"simulated are the first steps of the run{filling}: {simulated.steps} rank-steps count")
    return [*notes, *map(contradiction, contradictions(verdict, found.tried))]


def _as_published(directory: RunDirectory, result: RunResult) -> Explained:
    """Say of a reduced import what was published: no step is in it that could be explained."""
    told = result.imported
    assert told is not None
    return Explained(
        run=directory.address,
        scenario=result.scenario,
        engine=result.engine,
        sentence=in_words(told),
        verdict=Verdict(
            steps=0, seconds=0.0, compute_seconds=0.0, au=None, loss=None, data_wait_share=None, first_step_share=None,
            is_input_bound=None, bound=None, bound_share=None, cause=None, bounds={}, table=(),
        ),
        capacity=Capacity(demand=None, delivered=0.0, has_readers=False, stages=()),
        ranks=(),
        simulated=None,
        prediction=None,
        access=Access(
            level="none", operations={}, read_amplification=None, time_share=None, exposed_share=None, ranks=(),
            sizes={},
        ),
        notes=result.notes,
        imported=told,
        origin=result.origin,
    )  # fmt: skip


def _target(scenario: Scenario) -> float | None:
    """The AU that a scenario expects at least; None where it expects none."""
    wanted = scenario.expect.get("au")
    return wanted.value if wanted is not None and wanted.operator in (">=", ">") else None


def _origin(scenario: Scenario, info: Mapping[str, Any]) -> Origin | None:
    """Say what the numbers of a run without a result are; None of what no engine of rayio ran."""
    if kind_of(info.get("engine")) not in (MEASURED, PREDICTED):
        return None
    is_virtual = kind_of(info.get("engine")) == PREDICTED
    return origin_of(scenario, is_virtual=is_virtual, modelled=bool(info.get("modelled_storage", is_virtual)))


def _spanless(directory: RunDirectory) -> str:
    """Say that nothing is there to be explained, and whether it once was."""
    result = directory.result
    if result and result.trace and (recorded := result.trace.recorded):
        return f"{recorded} spans were recorded and {directory.address}/spans holds none: nothing can be explained"
    return "the run has no spans: nothing can be explained; run with trace.level=batch"


def scenario_of(directory: RunDirectory) -> Scenario:
    """The scenario of a run.

    Raises:
        ScenarioError: the run has none, or one that this version cannot read.
    """
    text = directory.scenario
    if text is None:
        broke_off = directory.result is None and directory.info.get("engine") != "opentelemetry"
        why = "the run broke off before it began" if broke_off else "there is no run to explain by it"
        raise ScenarioError(f"{directory.address} has no scenario.yaml: {why}")
    try:
        said = plain(text)
    except (yaml.YAMLError, *UNREADABLE):
        raise ScenarioError(f"{directory.address}/scenario.yaml is not YAML: the file is damaged") from None
    if not isinstance(said, dict):
        raise ScenarioError(f"{directory.address}/scenario.yaml is not a scenario: the file is damaged")
    try:
        return build(said, f"{directory.address}/scenario.yaml")
    except RayioError as error:
        raise ScenarioError(f"{error}; another version of rayio wrote it, or it is damaged") from None


def _trouble(directory: RunDirectory, result: RunResult | None) -> list[str]:
    """Say how the run ended, who died meanwhile, and what of its spans is missing."""
    said = []
    if result is None:
        said.append("the run has no result: it broke off, or is still under way; explained is what was recorded")
    elif result.version == 1 and result.au is not None:
        said.append(
            f"result.json is of version 1, whose window ended when the first rank was done: it has AU {result.au:.3f}"
        )
    if result is not None and result.error:
        said.append(f"the run ended with exit code {result.exit_code}: {result.error}")
    told = directory.info.get("restarts")
    restarts = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    said += [
        f"{show(one.get('actor'))} died and was started again: whoever needed it waited meanwhile"
        for one in restarts[:MOST_DEATHS]
    ]
    if len(restarts) > MOST_DEATHS:
        said.append(f"{len(restarts) - MOST_DEATHS} more were started again: see run.json")
    if lost := directory.lost_files:
        said.append(f"span files that cannot be read: {', '.join(lost)}; their spans are missing here")
    return said
