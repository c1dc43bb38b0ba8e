"""The sentences of the notes of a capacity search and of advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rayio.records import sizing_notes as records
from rayio.records.calibrated import NotFull
from rayio.report.text.terms import counted

#: Begins a note where a run does not give a model that predicts it.
UNKNOWN = "No prediction"
#: The remedy of what is undecided.
LONGER = "use longer runs (train.epochs)"
#: Notes without numbers.
PLAIN = {
    records.FailuresLeftOut: "failures are left out: AU counts no time lost to them; a rayio sweep of the scenario "
    "compares goodput, which does",
    records.StagesRun: "the stages run at every point, and take their part of the storage; stages=[] leaves them out",
    records.NoIntervals: "some points have too few steps for an interval; only their AU is compared with the target",
}
#: Rules of MLPerf Storage that no single search can meet.
UNCHECKED = (
    "not checked: five runs after a warm-up run, within 5 % of their mean; caches that are dropped between runs "
    "(storage.page_cache=drop does it for files); hosts of one kind; the checkpoint workloads"
)


def worded(notes: Iterable[records.SizingNote]) -> tuple[str, ...]:
    """Return the sentences of notes, in their order."""
    return tuple(sentence for note in notes for sentence in _sentences(note))


def _sentences(note: records.SizingNote) -> Iterator[str]:
    if isinstance(note, records.RulesChecked):
        yield from (f"--rules mlperf: {text}" for text in _rules(note))
    else:
        yield PLAIN.get(type(note)) or _sentence(note)


def _rules(note: records.RulesChecked) -> Iterator[str]:
    size = "" if note.memory is None else f", a dataset of at least {note.memory} × the memory of the hosts"
    yield (
        f"checked: AU by DLIO's formula (required: {100 * note.floor:g} %), {note.epochs} epochs, at least "
        f"{note.steps} steps per accelerator and epoch{size}"
    )
    yield UNCHECKED
    if note.memory is None:
        yield "the hosts' memory is unknown; give it with --host-memory"


def _sentence(note: records.SizingNote) -> str:
    match note:
        case records.DatasetGrows(steps, own):
            fewer = "" if own >= steps else f" (the scenario has {own}, so what comes by epochs takes more time there)"
            return f"every accelerator has {steps} steps per epoch{fewer}: the dataset grows with their number"
        case records.CacheStays(layer):
            return f"storage.{layer}: caches do not grow with the dataset; each point caches another share of it"
        case records.LargestValid(key, value, reason):
            return f"{key}={value} is invalid: {reason}"
        case records.UndecidedValues(key, values, runs):
            return (
                f"undecided: {key}={', '.join(map(str, values))}: after {runs} runs the 95 % interval of AU still "
                f"contains the target; {LONGER}"
            )
        case records.ValueFailed(key, value, error):
            return f"{key}={value} failed: {error}"
        case records.NotMonotonic(key, larger, smaller):
            more = f"{key}={larger} has more than {key}={smaller}"
            return f"AU is not monotonic: {more}; larger values than the answer may hold too"
        case records.RunRemoved(key, value):
            return f"{UNKNOWN}: the run directory of {key}={value} was removed"
        case records.NotLearned(error):
            few = "the calibrated model, or the run, has too few steps for an AU; use a longer run"
            return f"{UNKNOWN}: {error or few}"
        case records.CoresUnsure(why, at_least, at_most):
            without = f"no busy run{f' ({why.reason})' if why.reason else ''}" if not isinstance(why, NotFull) else ""
            return (
                f"{without or 'the busy run left processors free'}: where processors are full, changes may take "
                f"{100 * (1 - at_least):.0f} % less to {100 * (at_most - 1):.0f} % more time than predicted"
            )
        case records.InvalidSettings(number, refusal):
            return f"{counted(number, 'setting')} {'is' if number == 1 else 'are'} invalid, such as: {refusal}"
        case records.StepsSimulated(steps, own):
            rarer = "" if own >= steps else f"; the scenario has {own}, so what comes by epochs takes more time there"
            return f"every setting was simulated with {steps} steps per rank and epoch{rarer}"
        case records.MoreIsNotWorse(keys):
            return f"assumed: more of {', '.join(keys)} is not worse; list the values with | to try each"
        case records.MoreIsWorse(better, worse):
            return f"that assumption fails: {better} has a higher AU than {worse}"
        case records.UndecidedSettings(number):
            are, its = ("is", "its") if number == 1 else ("are", "their")
            what = f"{counted(number, 'setting')} {are} undecided and not advised"
            return f"{what}: the 95 % interval of {its} AU contains the goal; {LONGER}"
        case records.SimulationFailed(error):
            return f"a simulation failed: {error}"
    raise TypeError(f"{type(note).__name__} has no sentence")
