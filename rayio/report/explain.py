"""The explanation of a run, from its directory: records of analysis and simulations, with their sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayio.analyze.passes import Timelines
from rayio.analyze.run_scenario import UNEDITED, has_edited_keys, is_edited, scenario_of
from rayio.predict.explain import UNFINISHED, Seen, explained, readers_of
from rayio.records.explained import Access, Capacity, Explained, Verdict
from rayio.records.origin import MEASURED, PREDICTED, Origin, kind_of
from rayio.records.run_result import RunResult
from rayio.report.text.conclusion import sentence
from rayio.report.text.doubts import worded as doubts_worded
from rayio.report.text.remarks import sentences
from rayio.reporter import SILENT, Reporter
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.schema.fields import show
from rayio.trace.run_directory import RunDirectory

WORST = 8
MOST_DEATHS = 8


def explain(
    path: str | Path,
    *,
    simulate: bool = True,
    whole: bool = False,
    target_au: float | None = None,
    reporter: Reporter = SILENT,
) -> Explained:
    """Return the explanation of a run from its directory; times in seconds, shares as fractions of step time.

    ``simulate`` replays the run on the virtual clock, for the counterfactuals and the prediction: ``whole``, or the
    first steps of a long one. ``target_au`` is the
    AU to reach; None for the one that the scenario expects, if it does.

    Raises:
        StorageError: no run is there, or it cannot be read.
        ScenarioError: the run has no scenario, or one that this version cannot read.
    """
    directory = RunDirectory.open(path)
    if (result := directory.result) and result.imported and result.imported.has_no_steps:
        return _as_published(directory, result)
    scenario = scenario_of(directory)
    reporter.live("explain: reading spans", 0.0)
    spans = directory.slices()
    reporter.live(f"explain: {len(spans):,} spans are charged", 0.3)
    seen = Seen(Timelines(spans), scenario, directory.info, readers_of(directory, scenario))
    seen.timed.go_through(*seen.sums)
    explained_run = worded(
        explained(directory, scenario, seen, simulate=simulate, whole=whole, target_au=target_au, reporter=reporter)
    )
    reporter.done()
    result = directory.result
    return replace(
        explained_run,
        fetched=result.fetched if result else None,
        origin=result.origin if result else _origin(scenario, directory.info),
        notes=(*_trouble(directory, result), *explained_run.notes),
    )


def worded(explained_run: Explained, worded_by: Callable[[Explained], str] = sentence) -> Explained:
    """Return an explanation with its sentences, and with the ranks that others waited for most."""
    imported = explained_run.imported
    text = worded_by(explained_run)
    if imported is not None:
        from rayio.imports.dlio_losses import in_words  # few results are imported

        text = in_words(imported)
    return replace(
        explained_run,
        sentence=text,
        ranks=explained_run.ranks[:WORST],
        doubts=doubts_worded(explained_run.doubts),
        notes=(*sentences(explained_run.remarks), *explained_run.notes),
    )


def _as_published(directory: RunDirectory, result: RunResult) -> Explained:
    from rayio.imports.dlio_losses import in_words

    imported = result.imported
    assert imported is not None
    return Explained(
        run=directory.address,
        scenario=result.scenario,
        engine=result.engine,
        sentence=in_words(imported),
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
        imported=imported,
        origin=result.origin,
    )  # fmt: skip


def _origin(scenario: Scenario, info: Mapping[str, Any]) -> Origin | None:
    """Return the origin of the numbers of a run without a result; None if no engine of rayio ran it."""
    if kind_of(info.get("engine")) not in (MEASURED, PREDICTED):
        return None
    is_virtual = kind_of(info.get("engine")) == PREDICTED
    return origin_of(scenario, is_virtual=is_virtual, modelled=bool(info.get("modelled_storage", is_virtual)))


def _trouble(directory: RunDirectory, result: RunResult | None) -> list[str]:
    notes = []
    if result is not None and result.version == 1 and result.au is not None:
        notes.append(
            f"result.json has version 1, whose window ended when the first rank was done: it has AU {result.au:.3f}"
        )
    if is_edited(directory) and not has_edited_keys(directory):
        notes.append(UNEDITED)
    if result is not None and result.error and result.exit_code not in UNFINISHED:  # those lead the sentence
        notes.append(f"the run ended with exit code {result.exit_code}: {result.error}")
    entries = directory.info.get("restarts")
    restarts = [restart for restart in entries if isinstance(restart, dict)] if isinstance(entries, list) else []
    notes += [
        f"{show(restart.get('actor'))} died and was started again: roles that needed it waited"
        for restart in restarts[:MOST_DEATHS]
    ]
    if len(restarts) > MOST_DEATHS:
        notes.append(f"{len(restarts) - MOST_DEATHS} more were started again: see run.json")
    if lost := directory.lost_files:
        notes.append(f"span files that cannot be read: {', '.join(lost)}; their spans are missing here")
    return notes
