"""The conclusion of an explanation: what bound the run, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.analyze.gate import NOTHING_DELIVERED
from rayio.analyze.stages import STAGES, shown
from rayio.analyze.stalls import CAUSES
from rayio.analyze.verdict import BINDS, OF_DATA, begins_slowly, bound_of, of_wall_time
from rayio.analyze.window import FEWEST_STEPS
from rayio.analyze.worth import LEAST_AU
from rayio.records.explained import (
    BrokeOff,
    Capacity,
    Change,
    Explained,
    LossRow,
    Prediction,
    Throttled,
    Verdict,
    WaitedFor,
)
from rayio.records.failures import Survived
from rayio.records.origin import CHARGED
from rayio.report.text.delivered import format_done
from rayio.report.text.doubts import all_skipped, withheld
from rayio.report.text.supplying import limit_in_words, short_storage, supply
from rayio.report.text.terms import SEEN, counted, in_words, left_out, percent
from rayio.units import format_seconds

#: Slow ranks that cost less than this part of what all ranks lose to each other are not the whole of it.
MOST = 0.9
NAMED = 3
INTERRUPTED = 130
#: The lead of an explanation by keys that may not have run.
EDITED = (
    "scenario.yaml was edited after the run, and the keys that ran are unknown: this explanation uses the edited keys."
)


def sentence(explained: Explained) -> str:
    """Return one paragraph: see :func:`leads` and :func:`finding`."""
    return " ".join([*leads(explained), finding(explained)])


def leads(explained: Explained) -> list[str]:
    """Return what a reader must know before the finding: that keys were edited, and how a run broke off."""
    broken = explained.broke_off
    return ([EDITED] if explained.has_edited_keys else []) + ([] if broken is None else [_broke_off(broken)])


def _broke_off(broken: BrokeOff) -> str:
    """Return why a run ended before it was done, how much of it was done, and what to do.

    >>> _broke_off(BrokeOff(exit_code=130, error="interrupted", done_share=0.214))
    'The run broke off with exit code 130, 21 % done: interrupted. Run it again. Until then:'
    """
    done = "" if broken.done_share is None else f", {format_done(broken.done_share)}"
    if broken.exit_code is None:
        return f"The run has no result{done}: {broken.error}. So far:"
    remedy = "Run it again" if broken.exit_code == INTERRUPTED else "Mend that and run it again"
    error = broken.error.rstrip(".")
    return f"The run broke off with exit code {broken.exit_code}{done}: {error}. {remedy}. Until then:"


def finding(explained: Explained) -> str:
    """Return what bound a run, by how much, and what would help."""
    verdict, capacity, throttled = explained.verdict, explained.capacity, explained.throttled
    if (nothing := next((doubt for doubt in explained.doubts if doubt.code == NOTHING_DELIVERED), None)) is not None:
        return f"No verdict: no sample was delivered; {all_skipped(nothing)}."
    if verdict.bound is None:
        return _no_verdict(verdict, is_done=explained.broke_off is None)
    failed, begun = _failed(explained.failures), _first_batches(verdict)
    if not verdict.is_worth_removing:
        changes = () if explained.simulated is None else explained.simulated.changes
        parts = [failed, begun, _nothing(verdict, changes, is_all=not (failed or begun))]
        if explained.prediction is not None:
            parts.append(_predicted(verdict, explained.prediction))
        return " ".join(filter(None, parts))
    is_refused = throttled is not None and throttled.binds
    lead, larger = _lead(verdict, capacity, explained.ranks, is_refused=is_refused), _larger(verdict)
    lead += _of_slow_ranks(explained)
    lost = 0.0 if explained.failures is None else explained.failures.lost_share or 0.0
    is_most = lost > of_wall_time(verdict, verdict.bound_share, lost)
    parts = [failed if is_most else "", begun, lead, _ties(verdict), larger, "" if is_most else failed]
    if verdict.bound in OF_DATA:
        parts.append(supply(verdict, capacity, is_refused=is_refused))
        if throttled is not None and is_refused:
            parts.append(_refused(throttled, verdict, is_real=capacity.storage is None))
    elif verdict.is_input_bound and not larger:
        share = verdict.bounds.get("input", 0.0)
        parts.append(f"It is input-bound too: exposed data loading takes {percent(share)} of step time{_how(verdict)}.")
    parts.append(withheld(doubt for doubt in explained.doubts if doubt.code in explained.withheld))
    if explained.prediction is not None:
        parts.append(_predicted(verdict, explained.prediction))
    elif verdict.bound == "overhead" and _other(verdict) == CHARGED and explained.simulated and not explained.withheld:
        parts.append("No key but `costs` changes that.")
    return " ".join(filter(None, parts))


def bottleneck_in_words(explained: Explained) -> str:
    """Return what bound a run, by how much, and the limit of its storage; without rates or advice."""
    verdict, capacity, throttled = explained.verdict, explained.capacity, explained.throttled
    if verdict.bound is None:
        return _no_verdict(verdict)
    is_refused = throttled is not None and throttled.binds
    lead = _lead(verdict, capacity, explained.ranks, is_refused=is_refused)
    limit = short_storage(verdict, capacity)
    return lead if limit is None else f"{lead} {limit_in_words(limit)}"


def _no_verdict(verdict: Verdict, *, is_done: bool = True) -> str:
    if not verdict.steps:
        return "No verdict: no completed step is recorded."
    steps = counted(verdict.steps_per_rank, "step")
    remedy = " Run more epochs or more samples." if is_done else ""
    return f"No verdict: {steps} per rank can be measured, {FEWEST_STEPS} are needed.{remedy}"


def _failed(failures: Survived | None) -> str:
    """Return what failures cost, where that is much, and how to choose the interval of checkpoints."""
    share = None if failures is None else failures.lost_share
    if failures is None or share is None or share <= BINDS:
        return ""
    return (
        f"Failures took {percent(share)} of the wall time ({counted(failures.restarts, 'restart')}). "
        "To choose checkpoint.every, sweep it: the changes simulated here leave failures out."
    )


def _first_batches(verdict: Verdict) -> str:
    """Return what waiting for the first batches took, where it took more than the bottleneck."""
    if not begins_slowly(verdict):
        return ""
    took = f"{percent(verdict.first_batches_share)} of the wall time"
    each = f"{format_seconds(verdict.first_batches_seconds)} a rank"
    return f"Waiting for the first batches took {took} ({each}), before the steps that AU counts."


def _nothing(verdict: Verdict, changes: Sequence[Change], *, is_all: bool) -> str:
    """Return that there is no bottleneck worth removing, why not, and the largest loss.

    Without ``is_all``, other time than that of the counted steps was lost.
    """
    au, target, why, more = verdict.au or 0.0, verdict.target_au, "", ""
    best = max(changes, key=lambda row: row.time_saved or 0.0, default=None)
    if target is not None and au >= target:
        why = f" reaches its target of {target:.2f}"
    elif best is not None and (best.time_saved or 0.0) > BINDS:
        what = f"`{shown(best.change)}` saves {percent(best.time_saved)} of the time"
        more = f" Of all steps, also those that AU does not count, {what}."
    elif verdict.bound != "compute":
        why = f", and no simulated change saves more than {percent(BINDS)} of the time"
    loss = "nothing is lost" if is_all else ""
    if (largest := largest_loss(verdict)) is not None:
        lost, of_data = largest
        name, share, most = f"`{shown(lost.cause)}`", lost.share, ""
        if of_data is not None:
            name, share, most = "exposed data loading", of_data, f", most of it in {name}"
        loss = f"the largest loss is {name}, {percent(share or 0.0)} of step time{most}"
    steps = "" if is_all else " in the counted steps"
    return f"No bottleneck worth removing{steps}: AU {au:.2f}{why}{'; ' * bool(loss)}{loss}.{more}"


def largest_loss(verdict: Verdict) -> tuple[LossRow, float | None] | None:
    """Return the cause that lost most, and the share of its bottleneck if only all causes of that together lost most.

    None if nothing is lost.
    """
    lost = [row for row in verdict.table if row.share and row.seconds]
    bound = max(verdict.bounds, key=lambda name: verdict.bounds[name], default=None)
    if not lost:
        return None
    most = max(lost, key=lambda row: row.share or 0.0)
    rows = [row for row in lost if bound_of(row.cause) == bound]
    if bound is None or not rows or most in rows:
        return most, None
    return max(rows, key=lambda row: row.share or 0.0), verdict.bounds[bound]


def _lead(verdict: Verdict, capacity: Capacity, ranks: Sequence[WaitedFor], *, is_refused: bool) -> str:
    bound = verdict.bound or ""
    if is_refused or short_storage(verdict, capacity) is not None:
        bound = "storage"
    bound = "processor" if verdict.is_processor_bound else bound
    is_known = bound != "overhead" or _other(verdict) in (CAUSES["other"], CHARGED)
    begin = f"{bound.capitalize()}-bound" if is_known else "Unexplained"
    return f"{begin}: {_what(verdict)}{_slowest(ranks) if bound == 'straggler' else ''}."


def _what(verdict: Verdict) -> str:
    share, whole, bound = percent(verdict.bound_share), verdict.bound_share or 1.0, verdict.bound or ""
    if bound in OF_DATA:
        how = _how(verdict)
        part = sum(row.share or 0.0 for row in verdict.table if row.cause == verdict.cause) / whole
        where = f"`{shown(verdict.cause or '')}`"
        if bound == "loader":
            return f"the loader's messages and copies take {share} of step time{how}, most of it for {where}"
        of_it = "all" if percent(part) == percent(1.0) else percent(part)
        return f"exposed data loading takes {share} of step time{how}, {of_it} of it in {where}"
    why = {
        "device-copy": "is spent on copies of batches to accelerators",
        "pipeline": "is pipeline bubbles: stages without a microbatch",
        "straggler": "is lost to ranks that compute longer than others",
        "all-reduce": "is the all-reduce",
        "checkpoint": "is lost to checkpoints (waiting for a rank that saves one included)",
        "evaluation": "is lost to evaluations (waiting for a rank that still evaluates included)",
        "start-up": "is waiting for ranks that began later",
        "outage": "is waiting for the barrier, which died and was restarted",
        "overhead": f"is {_other(verdict)}{_also_waiting(verdict)}",
    }
    return f"{share} of step time {why.get(bound, 'is lost to ' + bound)}"


def _how(verdict: Verdict) -> str:
    """Return that ranks waited for batches through other ranks too, where that shows."""
    waits = sum(row.by_sync_seconds for row in verdict.table if row.cause in STAGES)
    return " (waits for other ranks included)" if waits > SEEN * verdict.seconds else ""


def _also_waiting(verdict: Verdict) -> str:
    """Return that ranks lost time to the overhead of other ranks too, where that shows."""
    waits = sum(row.by_sync_seconds for row in verdict.table if row.cause == "other")
    return ", in a rank or in others that it waits for" if waits > SEEN * verdict.seconds else ""


def _other(verdict: Verdict) -> str:
    """Return what no span covers: of imported results, and on the virtual clock, it is not rayio's overhead."""
    return next(str(row.meaning) for row in verdict.table if row.cause == "other")


def _slowest(ranks: Sequence[WaitedFor]) -> str:
    """Name the ranks that are last in most steps, or their nodes; where there are none, any rank is now and then."""
    slow: dict[str, list[WaitedFor]] = {}
    for row in ranks:
        if row.is_slow:
            slow.setdefault(f"rank {row.rank}" if row.slow_node is None else f"node {row.slow_node}", []).append(row)
    named = ", ".join(
        f"{name} ({rows[0].of_typical or 0.0:.2f} × the compute of the others, last in "
        f"{100 * min(1.0, sum(row.last_share or 0.0 for row in rows)):.0f} % of steps)"
        for name, rows in [*slow.items()][:NAMED]
    )
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    return f": {named}{more}" if slow else ", a different rank each time"


def _of_slow_ranks(explained: Explained) -> str:
    """Return what the named slow ranks cost, where ranks lose much to each other by chance too."""
    changes = () if explained.simulated is None else explained.simulated.changes
    saved = {row.change: row.time_saved or 0.0 for row in changes}
    alone, all_equal = saved.get("no slow ranks"), saved.get("equal compute", 0.0)
    if explained.verdict.bound != "straggler" or alone is None or alone >= MOST * all_equal:
        return ""
    them = "it" if sum(row.is_slow for row in explained.ranks) == 1 else "them"
    return (
        f" Without {them} the run is {percent(alone)} shorter; equal compute of all ranks makes it "
        f"{percent(all_equal)} shorter."
    )


def _ties(verdict: Verdict) -> str:
    alike = " or ".join(f"`{shown(cause)}`" for cause in verdict.ties)
    return f"Removing {alike} saves as much as removing `{shown(verdict.cause or '')}`." if alike else ""


def _larger(verdict: Verdict) -> str:
    """Return where another loss is larger than the one named, but removing it alone would save less."""
    bounds, bound = verdict.bounds, verdict.bound or ""
    top = max(bounds, key=lambda name: bounds[name], default=bound)
    named = "input" if bound == "loader" else bound
    if verdict.named_by != "simulation" or top == named or bounds[top] <= bounds.get(named, 0.0):
        return ""
    what = {"straggler": "waiting for slower ranks", "input": "exposed data loading"}.get(top, top)
    saves = f"removing `{shown(verdict.cause or '')}` saves more time"
    return f"{what[:1].upper()}{what[1:]} costs more ({percent(bounds[top])}), but {saves}."


def _refused(throttled: Throttled, verdict: Verdict, *, is_real: bool) -> str:
    refused, share = throttled.refused, throttled.data_wait_share
    requests = f"{refused:,} of {refused + throttled.served:,} requests ({in_words(throttled.answers)})"
    text = f"Storage refused {requests}; retries took {percent(throttled.read_share)} of read time"
    if share is not None and verdict.cause != "retry":
        text += f" and {percent(share)} of exposed data loading"
    if not is_real:  # its rates are known: what more of them would change is simulated
        return f"{text}."
    return (
        f"{text}. More workers would be refused more: use more prefixes, or fewer and larger requests, or try fewer "
        "workers (loader.num_workers)."
    )


def _predicted(verdict: Verdict, prediction: Prediction) -> str:
    names = {"compute": "compute", "straggler": "waiting for the slowest rank of each step"}
    after = names.get(prediction.then, f"`{shown(prediction.then)}`")
    au = f"AU {100 * (verdict.au or 0.0):.0f} → {100 * (prediction.au or 0.0):.0f} %"
    saved = "" if prediction.time_saved is None else f"run {percent(prediction.time_saved)} shorter"
    is_same = abs((prediction.au or 0.0) - (verdict.au or 0.0)) < LEAST_AU
    what = ", ".join(filter(None, ["" if saved and is_same else au, saved]))
    sentence = f"{prediction.change}: predicted {what}; the next bottleneck is {after}."
    return " ".join([sentence, *left_out(prediction.left_out)])
