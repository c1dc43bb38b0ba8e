"""The sentences of remarks: what is unknown about a run's numbers, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayio.records.doubts import Remark
from rayio.records.run_result import RunResult

#: A sentence for each code; braces hold the names of numbers and names.
SENTENCES = {
    "ranks_missing": "{missing} of {ranks} ranks recorded nothing",
    "ranks_unfinished": "{short} of {ranks} ranks did not finish their {steps} steps: the run broke off",
    "ranks_ended_early": "{missing} of {ranks} ranks did not live to their end: the run broke off",
    "no_warm_step": "no window: a rank has no step after its {warmup} warm-up steps",
    "done_before_warm": "no window: a rank was done before another was warm",
    "no_shared_step": "no window: no step that all ranks share begins after every rank is warm",
    "waits_at_first_steps": "{percent:.0f} % of the exposed data loading is at the first step of an epoch: prefetching "
    "starts anew there",
    "ranks_listed": "{listed} of {ranks} ranks are listed one by one in result.json",
    "spans_overlap": "spans of rank {rank} overlap on lane 0: its split is wrong, which is a defect of rayio",
    "ranks_without_au": "{missing} of {ranks} ranks have no whole step in the window, so no AU",
    "few_steps": "only {steps} whole steps per rank in the window: the numbers are rough, a verdict takes {enough}",
    "no_au_dlio": "no au_dlio: it needs a whole epoch of at least 3 steps",
    "no_samples_as_dlio": "0 samples/s as DLIO: its formula leaves out 2 steps of each block between checkpoints or "
    "evaluations, and no block has more",
    "no_steps_recorded": "trace.level is none: no step was recorded, so AU, shares and percentiles are unknown; "
    "samples/s counts the whole run, start-up included",
    "all_steps_count": "all {steps} completed steps are counted, warm-up too",
    "rank_without_steps": "a rank has no step that counts: shares are those of all ranks together, not means over "
    "ranks",
    "needs_io_level": "opens, files, offsets and the sizes of single requests need trace.level=io",
    "no_files_in_spans": "spans have no {missing}: nothing is known of files",
    "caches_had": "modelled caches (storage.cache) had {percent:.0f} % of what was read in the whole run: what ranks "
    "need of storage is the rest",
    "imported_without_readers": "imported results have no workers: waits cannot be taken apart, nor the run simulated",
    "name_its_storage": "to predict from it, name its storage: rayio simulate {run}/scenario.yaml storage.model=NAME "
    "({models}, or parameters)",
    "nothing_to_explain_untraced": "trace.level is none: no step was recorded, so nothing can be explained; run with "
    "trace.level=batch",
    "no_step_completed": "no rank completed a step: nothing can be explained",
    "no_spans_of_readers": "no spans of workers: waits cannot be taken apart, nor the run simulated; run with "
    "trace.level=batch",
    "no_reads_known": "no reads are known, so waits cannot be taken apart, nor the run simulated: {why}",
    "workers_scaled": "workers came and went: capacities count their average number ({mean:.1f}), and changes of "
    "workers begin from those; in the baseline they come and go",
    "throttled_workers": "storage refused requests as too many: nobody knows what it would give other numbers of "
    "workers, so none are simulated",
    "storage_assumed_free": "predictions assume that storage serves more workers as quickly as these",
    "first_steps": "the first {first:,} of {steps:,} steps of each rank are simulated; --whole simulates all",
    "first_steps_cached": "the first {first:,} of {steps:,} steps of each rank are simulated, before the modelled "
    "caches are full; --whole simulates all",
    "change_breaks_off": "{change}: simulated, the run breaks off ({error})",
    "cannot_be_simulated": "The run cannot be simulated: {error}",
    "spans_lost": "{recorded} spans were recorded and {run}/spans holds none: nothing can be explained",
    "broke_off_early": "the run broke off before any span was stored: nothing can be explained",
    "no_spans": "the run has no spans: nothing can be explained; run with trace.level=batch",
}


def sentence(remark: Remark) -> str:
    """Return the sentence of a remark; the code of one that this version does not know.

    >>> from rayio.records.doubts import remark
    >>> sentence(remark("ranks_missing", missing=1, ranks=2))
    '1 of 2 ranks recorded nothing'
    """
    text = SENTENCES.get(remark.code)
    return remark.code if text is None else text.format(**remark.numbers, **remark.names)


def sentences(remarks: Iterable[Remark]) -> tuple[str, ...]:
    """Return the sentences of remarks."""
    return tuple(map(sentence, remarks))


def noted(result: RunResult) -> RunResult:
    """Return a result whose notes begin with the sentences of its remarks."""
    return replace(result, notes=(*sentences(result.remarks or ()), *result.notes))
