"""The sentences of doubts: what is doubted, the numbers, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from rayio.analyze import gate
from rayio.analyze.stages import shown
from rayio.place import MAX_EPOCHS
from rayio.records.doubts import Doubt
from rayio.report.text.terms import counted
from rayio.units import format_bytes, format_seconds, format_share

#: Each doubt in a few words: the badge of a report, and the reason why there is no prediction.
TITLES = {
    gate.SHORT_RUN: "Run too short",
    gate.OVERHEAD: "Overhead of rayio",
    gate.NOT_REPRODUCED: "The model does not give the run",
    gate.MACHINE_SPEED: "Machine of another speed",
    gate.PAGE_CACHE: "Page cache, not storage",
    gate.RESTORED_FROM_MEMORY: "Checkpoint read from memory",
    gate.BUSY_MACHINE: "Busy machine",
    gate.OTHER_SIZE: "Samples of another size",
    gate.SHORT_EPOCHS: "Short epochs",
    gate.FEW_FAILURES: "Too few failures",
    gate.NOTHING_DELIVERED: "No sample was delivered",
    gate.CONTRADICTION: "Contradiction",
    gate.FIRST_STEPS: "Only first steps are simulated",
}


#: How to simulate all steps of a long run.
WHOLE = "use rayio explain --whole"


def title(doubt: Doubt) -> str:
    """Return a doubt in a few words; the code of one that this version does not know."""
    return TITLES.get(gate.FIRST_STEPS if "left" in doubt.numbers else doubt.code, doubt.code)


def worded(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Return doubts with their sentences; one of another version keeps its own."""
    return tuple(
        replace(doubt, sentence=_SENTENCES[doubt.code](doubt)) if doubt.code in _SENTENCES else doubt
        for doubt in doubts
    )


def warnings(doubts: Iterable[Doubt]) -> list[str]:
    """Return a line for each doubt, for a terminal."""
    return [f"  warning: {doubt.sentence}" for doubt in worded(doubts)]


def withheld(doubts: Iterable[Doubt]) -> str:
    """Return why there is no prediction; empty without doubts.

    >>> withheld([gate.not_reproduced(0.9, 0.6)])
    'No prediction: the model does not give the run.'
    """
    why = reasons(doubts)
    return f"No prediction: {why}." if why else ""


def reasons(doubts: Iterable[Doubt]) -> str:
    """Return doubts in a few words, as part of a sentence."""
    titles = dict.fromkeys(title(doubt) for doubt in doubts)
    return " and ".join(text[:1].lower() + text[1:] for text in titles)


def _short_run(doubt: Doubt) -> str:
    numbers = doubt.numbers
    rates = f"{numbers['given']:.3g} of {numbers['took']:.3g} batches/s, AU {numbers['au']:.2f}"
    longer = f"train.epochs={numbers['epochs']:.0f}, or epochs of {numbers['steps']:.0f} steps"
    keys = "(dataset.num_files, train.steps)"
    if change := doubt.names.get("change"):
        what, remedy = "Run too short", f"run and explain with {longer} {keys}"
        if "left" in numbers:
            what, remedy = "Too few steps are simulated", WHOLE
        return (
            f"{what} to predict {shown(change)}: the initial prefetch ({numbers['prefetched']:.0f} batches) "
            f"would inflate AU. Readers would sustain {rates}; {remedy}"
        )
    return f"Run too short: the initial prefetch inflates AU. Readers sustain {rates}; use {longer} {keys}"


def _overhead(doubt: Doubt) -> str:
    share, au, step = doubt.numbers["overhead"], doubt.numbers.get("au"), doubt.numbers.get("step")
    without = ""
    if au is not None:
        without = f": AU {format_share(au)} would be up to {format_share(min(1.0, au + share))} without it"
    runs = doubt.numbers.get("runs", 1)
    of_several = f"In the worst of {runs:.0f} runs, " if runs > 1 else ""
    longer = "longer steps"
    if step:
        longer = f"steps of at least {format_seconds(step * share / gate.MOST_OVERHEAD)} (train.compute)"
    return (
        f"{of_several}rayio's own overhead is {format_share(share)} of step time and counts as lost{without}. "
        f"Use {longer}, fewer ranks on the machine, or a quiet machine"
    )


def _not_reproduced(doubt: Doubt) -> str:
    if "simulated_step" in doubt.numbers:
        times = [format_seconds(doubt.numbers[name]) for name in ("simulated_step", "measured_step")]
        return (
            f"The calibrated model does not give the run: a step takes {times[0]} with it, and took {times[1]}. "
            "Calibrate a longer run, or one on a quiet machine"
        )
    simulated, measured = doubt.numbers["simulated"], doubt.numbers["measured"]
    return (
        f"No prediction: the model gives AU {format_share(simulated)}, the run had {format_share(measured)}. "
        "Use a longer run, or one on a quiet machine"
    )


def _machine_speed(doubt: Doubt) -> str:
    before, after = format_seconds(doubt.numbers["before"]), format_seconds(doubt.numbers["after"])
    texts = {
        "run": f"The machine changed its speed during the run: fixed work took {before} at first and {after} at the "
        "end. Run again on a quiet machine",
        "calibration": f"This machine has another speed than that of the costs: fixed work took {before} there and "
        f"takes {after} here. Predictions hold for the other one; calibrate a run of this machine",
        "runs": f"The runs were made at different speeds of their machines: fixed work took {before} to {after}. Run "
        "them again, in turn",
    }
    return texts.get(doubt.names.get("of", ""), texts["runs"])


def _other_size(doubt: Doubt) -> str:
    calibrated, now = format_bytes(doubt.numbers["calibrated"]), format_bytes(doubt.numbers["now"])
    return (
        f"Its costs are from samples of {calibrated}, and these have {now}: what grows with bytes is not known, so the "
        "interval is wide. Calibrate with a second short run, of samples of this size"
    )


def _page_cache(doubt: Doubt) -> str:
    share, source = doubt.numbers["share"], doubt.names.get("source")
    if source == "memory":
        return "The files are in memory, so this measures no storage. Use a dataset.path on the storage to measure"
    more = "use a larger dataset" if doubt.names.get("page_cache") == "drop" else "use storage.page_cache=drop"
    return f"{format_share(share)} of the bytes came from the page cache, so this measures memory, not storage; {more}"


def _restored_from_memory(doubt: Doubt) -> str:
    share, source = doubt.numbers["share"], doubt.names.get("source")
    if source == "memory":
        return "The checkpoint's files are in memory, so restoring measures no storage. Use another checkpoint.path"
    more = "restore on another host" if doubt.names.get("page_cache") == "drop" else "use storage.page_cache=drop"
    return (
        f"{format_share(share)} of the restored bytes came from the page cache, so restoring measures memory, not "
        f"storage; {more}"
    )


def _busy_machine(doubt: Doubt) -> str:
    return (
        f"The processors of this machine were {100 * doubt.numbers['busy']:.0f} % busy, so they may be the bottleneck, "
        "not the storage. Use more cores: a larger machine, or more Ray nodes (--engine ray)"
    )


def _short_epochs(doubt: Doubt) -> str:
    numbers = doubt.numbers
    return (
        f"Epochs of {counted(round(numbers['steps']), 'step')} are short: waits for their first batches lower AU to "
        f"{format_share(numbers['au'])}, from at most {format_share(numbers['without'])}. If your epochs are "
        f"longer, use {numbers['enough']:.0f} steps or more (dataset.num_files, train.steps)"
    )


def all_skipped(doubt: Doubt) -> str:
    """Return why no sample was delivered, as part of a sentence."""
    return f"all {doubt.numbers['skipped']:,.0f} were skipped after errors"


def _nothing_delivered(doubt: Doubt) -> str:
    return f"No sample was delivered: {all_skipped(doubt)}. AU and throughput are unknown; use smaller rates of errors"


def _few_failures(doubt: Doubt) -> str:
    number, epochs = round(doubt.numbers["failures"]), round(doubt.numbers["epochs"])
    longer = f"train.epochs={epochs}" if epochs <= MAX_EPOCHS else "train.epochs, dataset.num_files"
    return (
        f"{counted(number, 'random failure').capitalize()} in a run: goodput and throughput are chance. Use a run of "
        f"{format_seconds(doubt.numbers['seconds'])} ({longer}) for {gate.ENOUGH_FAILURES} failures"
    )


def _contradiction(doubt: Doubt) -> str:
    cause, saved = shown(doubt.names["cause"]), max(0.0, doubt.numbers["time_saved"])
    return (
        f"`{cause}` takes {_percent(doubt.numbers['share'])} of step time, but with {shown(doubt.names['change'])} the "
        f"simulated run is only {_percent(saved)} shorter: another cause takes its place, or the simulation lacks what "
        f"slowed `{cause}`. Decide by time saved, not by this share"
    )


def _first_steps(doubt: Doubt) -> str:
    numbers = doubt.numbers
    first, steps, short = (round(numbers[name]) for name in ("first", "steps", "short"))
    few = f", too few for {short} of {numbers['changes']:.0f} changes" if short else ""
    au = f"Their AU is {format_share(numbers['simulated'])}, that of the run {format_share(numbers['measured'])}"
    longer = f"{WHOLE} (about {steps / first:.0f} times as long)"
    return (
        f"Only the first {first:,} of {steps:,} steps of each rank are simulated{few}. {au}. To simulate all, {longer}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


_SENTENCES: dict[str, Callable[[Doubt], str]] = {
    gate.SHORT_RUN: _short_run,
    gate.OVERHEAD: _overhead,
    gate.NOT_REPRODUCED: _not_reproduced,
    gate.MACHINE_SPEED: _machine_speed,
    gate.PAGE_CACHE: _page_cache,
    gate.RESTORED_FROM_MEMORY: _restored_from_memory,
    gate.BUSY_MACHINE: _busy_machine,
    gate.OTHER_SIZE: _other_size,
    gate.CONTRADICTION: _contradiction,
    gate.FIRST_STEPS: _first_steps,
    gate.SHORT_EPOCHS: _short_epochs,
    gate.FEW_FAILURES: _few_failures,
    gate.NOTHING_DELIVERED: _nothing_delivered,
}
