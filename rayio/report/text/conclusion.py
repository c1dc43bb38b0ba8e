"""What an explanation says in words: one conclusion, with both numbers, and what would come of mending it."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.analyze.filled import FILLING, note_of
from rayio.analyze.stages import OF_LOADER, STAGES, shown
from rayio.analyze.stalls import CAUSES
from rayio.analyze.verdict import BINDS, OF_DATA, OF_STORAGE
from rayio.analyze.window import FEWEST_STEPS, MOST
from rayio.records.explained import (
    Capacity,
    Contradiction,
    Explained,
    Prediction,
    StorageLimit,
    Throttled,
    Verdict,
    WaitedFor,
)
from rayio.records.origin import CHARGED
from rayio.report.text.terms import PLENTY, in_words, rate
from rayio.units import format_bytes, format_rate, format_seconds

#: Ranks that a sentence names.
NAMED = 3

#: Share of step time that shows in percentages without decimals.
SEEN = 0.005

#: AU by which a run must miss what its storage gives for that to be said.
BEYOND = 0.1

#: What is said beside any AU whose steps what was prefetched before them carried.
_FILLING = f"{FILLING}: more steps of such a run would have less, see the note."


def sentence(found: Explained) -> str:
    """Say in one paragraph what bound the run, by how much, and what would come of mending it."""
    verdict, capacity, ranks = found.verdict, found.capacity, found.ranks
    prediction, throttled = found.prediction, found.throttled
    is_filling = note_of(found.notes) is not None
    is_refused = throttled is not None and throttled.binds
    if verdict.bound is None:
        if not verdict.steps:
            return "No verdict: no completed step is recorded."
        number = verdict.steps_per_rank
        few = f"{number} step{'s' * (number != 1)} per rank"
        return f"No verdict: {few} can be measured, and it takes {FEWEST_STEPS}. Run more epochs, or more samples."
    if not verdict.is_worth_removing:
        return _nothing(verdict) + f" But {_FILLING}" * is_filling
    is_known = verdict.bound != "overhead" or _other(verdict) in (CAUSES["other"], CHARGED)
    bound = "storage" if is_refused or short_storage(verdict, capacity) is not None else verdict.bound
    bound = "processor" if verdict.is_processor_bound else bound
    said = f"{bound.capitalize()}-bound: " if is_known else "Unexplained: "
    said += f"{_what(verdict)}{_slowest(ranks) if verdict.bound == 'straggler' else ''}."
    if verdict.ties:
        alike = " or ".join(f"`{shown(cause)}`" for cause in verdict.ties)
        said += f" Without {alike} as much time would be saved as without `{shown(verdict.cause or '')}`: they tie."
    if hidden := _larger(verdict):
        said += f" {hidden}"
    if verdict.bound in OF_DATA:
        said += _supply(verdict, capacity, is_refused=is_refused)
        if throttled is not None and is_refused:
            said += _refused(throttled, verdict, is_real=capacity.storage is None)
    elif verdict.is_input_bound:
        said += f" It is input-bound too: {_percent(verdict.data_wait_share)} of step time is exposed data loading."
    said += f" And {_FILLING}" * is_filling
    if prediction is not None:
        time = prediction.time_saved
        saved = "" if time is None else f" in {_percent(time)} less time"
        said += f" {prediction.change}, predicted AU {prediction.au:.2f}{saved}"
        said += f"; the next bottleneck is {_next(prediction)}."
    return said


def contradiction(found: Contradiction) -> str:
    """Say that a cause takes much time, and that the simulated run is hardly shorter without it."""
    cause, saved = shown(found.cause), max(0.0, found.time_saved)
    return (
        f"`{cause}` takes {_percent(found.share)} of step time, but with {shown(found.change)} the simulated run is "
        f"{_percent(saved)} shorter: something else takes its place, or the simulation does not know what slowed it"
    )


def short_storage(verdict: Verdict, capacity: Capacity) -> StorageLimit | None:
    """Return the limit of a storage whose reads ranks wait for and that is known to give less than they need."""
    limit = capacity.storage
    is_read = bool({verdict.cause, *verdict.ties} & {*OF_STORAGE})
    return limit if is_read and capacity.has_readers and limit is not None and limit.is_short else None


def limited(limit: StorageLimit) -> str:
    """Say which resource of a storage is the limit, what it gives, and what these ranks need.

    >>> from rayio.storage.limits import Asked, System, limit
    >>> system = System(bandwidth=1e9, connection_bandwidth=1e9, requests_per_second=2000)
    >>> limited(limit(system, Asked(100e3, 100, 1), readers=8, needs=33.3))
    'Storage gives 2,000 requests/s, these ranks need 3,330.'
    """
    resource, gives, needs = limit.resource, limit.gives or 0.0, limit.needs or 0.0
    if resource in ("requests", "opens"):
        each, beside = getattr(limit, f"batch_{resource}"), _beside(limit, f"others_{resource}")
        return f"Storage gives {rate(gives * each)} {resource}/s{beside}, these ranks need {rate(needs * each)}."
    if resource == "throttling":
        given, needed = rate(gives * limit.batch_requests), rate(needs * limit.batch_requests)
        most = f"{given} requests/s{_beside(limit, 'others_requests')}"
        return f"Storage serves {most} and refuses more (503, storage.throttle), these ranks need {needed}."
    amounts = format_rate(gives * limit.batch_bytes), format_rate(needs * limit.batch_bytes)
    if resource == "bandwidth":
        parts = "" if limit.systems == 1 else f" on {limit.systems} nodes together"
        beside = _beside(limit, "others_bandwidth")
        return f"Storage gives {amounts[0]}{parts}{beside}, these ranks need {amounts[1]}."
    number, flight, shared = limit.readers, limit.depth, limit.shared_gives
    is_capped, ceiling = shared is not None and shared < needs, shared or 0.0
    who = f"{number} worker{'s' * (number != 1)}"
    if resource == "connections":
        speed = f"At {format_rate(limit.connection_bandwidth)} a connection"
        got = f"{who} get{'s' * (number == 1)} {amounts[0]} from storage"
        got += f" (any number at most {format_rate(ceiling * limit.batch_bytes)})" * is_capped
        return f"{speed} and {flight} for each, {got}, these ranks need {amounts[1]}."
    what = "a request" if resource == "latency" else "to open a file"
    seconds = format_seconds(limit.request_seconds if resource == "latency" else limit.open_seconds)
    got = f"{who} get{'s' * (number == 1)} {rate(gives)} batches/s from storage"
    got += f" (any number at most {rate(ceiling)})" * is_capped
    return f"At {seconds} {what} and {flight} in flight for each, {got}, these ranks need {rate(needs)}."


def _beside(limit: StorageLimit, key: str) -> str:
    """Say what checkpoints and evaluations take of a shared resource, where that is enough to show."""
    taken, of = float(getattr(limit, key)), "bytes" if key == "others_bandwidth" else key.removeprefix("others_")
    if taken <= SEEN * (limit.gives or 0.0) * getattr(limit, f"batch_{of}"):
        return ""
    amount = format_rate(taken) if of == "bytes" else f"{rate(taken)}"
    return f" beside checkpoints and evaluations ({amount})"


def _nothing(verdict: Verdict) -> str:
    """Say that there is no bottleneck worth removing, why not, and the largest loss."""
    au, target = verdict.au or 0.0, verdict.target_au
    said = f"No bottleneck worth removing: AU {au:.2f}"
    if target is not None and au >= target:
        said += f" reaches its target of {target:.2f}"
    elif verdict.bound != "compute":
        said += f", and no single change that was simulated saves more than {_percent(BINDS)} of the time"
    lost = max(verdict.table, key=lambda row: row.share or 0.0, default=None)
    if lost is None or not lost.share:
        return f"{said}; nothing is lost."
    return f"{said}; the largest loss is `{shown(lost.cause)}`, {_percent(lost.share)} of step time."


def _larger(verdict: Verdict) -> str:
    """Say so where another loss is larger than the one named: removing it alone would save less."""
    bounds, bound = verdict.bounds, verdict.bound or ""
    top = max(bounds, key=lambda name: bounds[name], default=bound)
    named = "input" if bound == "loader" else bound
    if verdict.named_by != "simulation" or top == named or bounds[top] <= bounds.get(named, 0.0):
        return ""
    what = {"straggler": "waiting for slower ranks", "input": "exposed data loading"}.get(top, top)
    return f"More of step time is {what} ({_percent(bounds[top])}), but without that alone less time would be saved."


def _refused(throttled: Throttled, verdict: Verdict, *, is_real: bool) -> str:
    """Say how many requests storage refused, what waiting to make them again took, and of real storage what helps."""
    refused, share = throttled.refused, throttled.data_wait_share
    asked = f"{refused:,} of {refused + throttled.served:,} requests ({in_words(throttled.answers)})"
    waited = _percent(throttled.read_share)
    said = f" Storage refused {asked}: waiting to make them again took {waited} of the time in reads"
    if share is not None and verdict.cause != "retry":
        said += f", and is {_percent(share)} of exposed data loading"
    if not is_real:  # whose rates are known: what more of them brings is simulated
        return f"{said}."
    return (
        f"{said}. More workers would be refused more: names below more prefixes, or fewer and larger requests, get "
        "more through; a run tells whether fewer workers (loader.num_workers) read as much."
    )


def _supply(verdict: Verdict, capacity: Capacity, *, is_refused: bool) -> str:
    """Hold what storage and workers can deliver against what the ranks need."""
    worker = next((row for row in capacity.stages if row.stage == "worker"), None)
    if worker is None or capacity.demand is None:
        limit = capacity.storage  # without spans of readers it is known of the plan
        return f" {limited(limit)}" if limit is not None and limit.is_short else ""
    if verdict.is_processor_bound:
        return _cores(capacity)
    if not capacity.has_readers:
        each = format_seconds(worker.service_seconds)
        return f" Ranks read for themselves (loader.num_workers=0): {each} per batch, in which they do not compute."
    if (limit := short_storage(verdict, capacity)) is not None:
        return f" {limited(limit)}{_filled(verdict, limit)}"
    number, can, need = worker.parallelism, worker.capacity, capacity.demand
    who, is_slow, are_fast = f"The {number} workers", "are too slow", "are fast enough"
    if number == 1:
        who, is_slow, are_fast = "The worker", "is too slow", "is fast enough"
    if can <= need:
        if capacity.storage is None and verdict.cause in OF_STORAGE:
            if is_refused:  # what it would give more readers is known: refusals
                return ""
            return _as_served(capacity, can, need, who.replace("The", "the"))
        return f" {who} {is_slow}: {rate(can)} batches/s at most, where ranks need {rate(need)}."
    if verdict.bound == "loader":
        return ""
    numbers = f"{rate(can)} batches/s, ranks need {rate(need)}"
    if can > PLENTY * need:
        numbers = f"more than {PLENTY} times the {rate(need)} batches/s that ranks need"
    enough = f" {who} {are_fast} on average ({numbers})"
    if (verdict.first_step_share or 0) > MOST:
        first = _percent(verdict.first_step_share)
        return f" {first} of the wait is at the first step of an epoch, where prefetching starts anew.{enough}."
    return f"{enough}: single batches come late."


def _cores(capacity: Capacity) -> str:
    """Say what the cores give, beside what the ranks need."""
    row = next((row for row in capacity.stages if row.stage == "processors"), None)
    if row is None:
        return ""
    number, each = row.parallelism, format_seconds(row.service_seconds)
    who = f"{number} core{'s' * (number != 1)}"
    demand = capacity.demand or 0.0
    if row.capacity > demand:
        busy = f"{who} {'are' if number != 1 else 'is'} busy for {_percent(min(1.0, row.utilisation))} of the time"
        return f" A batch takes {each} of a processor, and {busy}: work waits for a free one."
    gives, needs = rate(row.capacity), rate(demand)
    return f" A batch takes {each} of a processor: {who} give {gives} batches/s at most, these ranks need {needs}."


def _filled(verdict: Verdict, limit: StorageLimit) -> str:
    """Say so where the limit explains only part of the loss, and the rest is at the beginnings of epochs."""
    reachable = (limit.gives or 0.0) / (limit.needs or 1.0)
    if (verdict.first_step_share or 0) <= MOST or reachable - (verdict.au or 0.0) <= BEYOND:
        return ""
    first = _percent(verdict.first_step_share)
    return (
        f" That is enough for AU {reachable:.2f}: {first} of the wait is at the first step of an epoch, where all "
        "workers begin at once."
    )


def _as_served(capacity: Capacity, can: float, need: float, who: str) -> str:
    """Say what storage delivered whose limits nobody knows, while the workers were busy."""
    nbytes = capacity.batch_bytes
    of = "" if not nbytes else f" of {format_bytes(nbytes)}"
    return (
        f" While {who} were busy they delivered {rate(can)} batches/s{of}, where ranks need {rate(need)}: whether "
        "storage would give more readers more, only a run with more of them tells."
    )


def _what(verdict: Verdict) -> str:
    share, whole, bound = _percent(verdict.bound_share), verdict.bound_share or 1.0, verdict.bound or ""
    if bound in OF_DATA:
        waits = sum(row.by_sync_seconds for row in verdict.table if row.cause in STAGES)
        how = ", directly or through waiting for other ranks" if waits > SEEN * verdict.seconds else ""
        causes = OF_LOADER if bound == "loader" else (verdict.cause,)
        part = sum(row.share or 0.0 for row in verdict.table if row.cause in causes) / whole
        where = f"in `{shown(verdict.cause or '')}`"
        if bound == "loader":
            where = f"the loader's own cost, most of that {where}"
        return f"{share} of step time is exposed data loading{how}, {_percent(part)} of it {where}"
    why = {
        "straggler": "is lost to ranks that compute longer than others",
        "all-reduce": "is the all-reduce",
        "checkpoint": "is lost to checkpoints, waiting for a rank that saves one included",
        "evaluation": "is lost to evaluations, waiting for a rank that still evaluates included",
        "start-up": "is waiting for ranks that began later",
        "outage": "is waiting for the barrier, which had died and was being started again",
        "overhead": f"is {_other(verdict)}",
    }
    return f"{share} of step time {why.get(bound, 'is lost to ' + bound)}"


def _other(verdict: Verdict) -> str:
    """Say what no name covers: of imported results, and on the virtual clock, it is not rayio's own."""
    return next(str(row.meaning) for row in verdict.table if row.cause == "other")


def _next(prediction: Prediction) -> str:
    others = {"compute": "compute", "straggler": "waiting for the slowest rank of each step"}
    return others.get(prediction.then, f"`{shown(prediction.then)}`")


def _percent(share: float | None) -> str:
    share = share or 0.0
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _slowest(ranks: Sequence[WaitedFor]) -> str:
    """Name the ranks that are last in most steps; where there are none, each is now and then."""
    slow = [row for row in ranks if row.is_slow]
    named = ", ".join(
        f"rank {row.rank} ({row.of_typical or 0.0:.2f} × the compute of the others, last in "
        f"{100 * (row.last_share or 0.0):.0f} % of steps)"
        for row in slow[:NAMED]
    )
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    return f": {named}{more}" if slow else ", now one and now another"
