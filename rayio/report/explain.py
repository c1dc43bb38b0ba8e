"""A run explained from its directory: what analysis and simulations found, with the sentences that say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayio.analyze.passes import Timelines
from rayio.imports.dlio_losses import in_words
from rayio.predict.explain import Seen, explained, readers_of, scenario_of
from rayio.records.explained import Access, Capacity, Explained, Verdict
from rayio.records.origin import MEASURED, PREDICTED, Origin, kind_of
from rayio.records.run_result import RunResult
from rayio.report.text.conclusion import contradiction, sentence
from rayio.reporter import SILENT, Reporter
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.schema.fields import show
from rayio.trace.run_directory import RunDirectory

#: Ranks that are told one by one, those that others waited for most.
WORST = 8
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
    found = worded(explained(directory, scenario, seen, simulate=simulate, target_au=target_au, reporter=reporter))
    reporter.done()
    result = directory.result
    return replace(
        found,
        fetched=result.fetched if result else None,
        origin=result.origin if result else _origin(scenario, directory.info),
        notes=(*_trouble(directory, result), *found.notes),
    )


def worded(found: Explained) -> Explained:
    """Return what was found with the sentences that say it, and with the ranks that others waited for most."""
    told = found.imported
    contradicting = tuple(map(contradiction, found.contradictions or ()))
    said = in_words(told) if told is not None else sentence(found)
    return replace(found, sentence=said, ranks=found.ranks[:WORST], notes=(*found.notes, *contradicting))


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


def _origin(scenario: Scenario, info: Mapping[str, Any]) -> Origin | None:
    """Say what the numbers of a run without a result are; None of what no engine of rayio ran."""
    if kind_of(info.get("engine")) not in (MEASURED, PREDICTED):
        return None
    is_virtual = kind_of(info.get("engine")) == PREDICTED
    return origin_of(scenario, is_virtual=is_virtual, modelled=bool(info.get("modelled_storage", is_virtual)))


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
