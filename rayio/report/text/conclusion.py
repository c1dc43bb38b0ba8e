"""The conclusion of an explanation: what bound the run, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.analyze.part import KINDS
from rayio.analyze.stages import OF_LOADER, STAGES, shown
from rayio.analyze.stalls import CAUSES
from rayio.analyze.verdict import BINDS, OF_DATA, OF_STORAGE
from rayio.analyze.window import FEWEST_STEPS, MOST
from rayio.records.explained import (
    Capacity,
    Explained,
    Prediction,
    Stage,
    StorageLimit,
    Throttled,
    Verdict,
    WaitedFor,
)
from rayio.records.origin import CHARGED
from rayio.report.text.doubts import withheld
from rayio.report.text.terms import PLENTY, WORK_OF_STAGES, counted, in_words, rate
from rayio.units import format_bytes, format_rate, format_seconds

NAMED = 3

#: Share of step time that shows in percentages without decimals.
SEEN = 0.005

#: AU by which a run must miss what its storage gives for that to be mentioned.
BEYOND = 0.1

#: Rows of capacities that are no layer of storage.
KNOWN = {*KINDS, *WORK_OF_STAGES}


def sentence(explained: Explained) -> str:
    """Return one paragraph: what bound the run, by how much, and what would help."""
    verdict, capacity, throttled = explained.verdict, explained.capacity, explained.throttled
    if verdict.bound is None:
        return _no_verdict(verdict)
    if not verdict.is_worth_removing:
        return _nothing(verdict)
    is_refused = throttled is not None and throttled.binds
    parts = [_lead(verdict, capacity, explained.ranks, is_refused=is_refused), _ties(verdict), _larger(verdict)]
    if verdict.bound in OF_DATA:
        parts.append(_supply(verdict, capacity, is_refused=is_refused))
        if throttled is not None and is_refused:
            parts.append(_refused(throttled, verdict, is_real=capacity.storage is None))
    elif verdict.is_input_bound:
        parts.append(
            f"It is input-bound too: {_percent(verdict.data_wait_share)} of step time is exposed data loading."
        )
    parts.append(withheld(doubt for doubt in explained.doubts if doubt.code in explained.withheld))
    if explained.prediction is not None:
        parts.append(_predicted(verdict, explained.prediction))
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


def limit_in_words(limit: StorageLimit) -> str:
    """Return the limiting resource of a storage, without what it gives and what the ranks need.

    >>> from rayio.storage.limits import Asked, System, limit
    >>> limit_in_words(limit(System(bandwidth=1e9, connection_bandwidth=1e9), Asked(100e3, 1, 1), readers=8, needs=1e5))
    'The limit is the bandwidth of the storage.'
    """
    in_flight = f"{counted(limit.readers, 'worker')} with {counted(limit.depth, 'request')} in flight each"
    what = {
        "bandwidth": "the bandwidth of the storage",
        "requests": "the requests per second of the storage",
        "opens": "the files that the storage opens per second",
        "throttling": "the requests per second that the storage serves before it refuses more (storage.throttle)",
        "connections": f"the connections: {in_flight}, {format_rate(limit.connection_bandwidth)} a connection",
        "latency": f"the latency: {in_flight}, {format_seconds(limit.request_seconds)} a request",
        "open latency": f"the time to open a file: {in_flight}, {format_seconds(limit.open_seconds)} a file",
    }
    return f"The limit is {what.get(limit.resource, limit.resource)}."


def short_storage(verdict: Verdict, capacity: Capacity) -> StorageLimit | None:
    """Return the limit of a storage whose reads ranks wait for and that is known to give less than they need."""
    limit = capacity.storage
    is_read = bool({verdict.cause, *verdict.ties} & {*OF_STORAGE})
    return limit if is_read and capacity.has_readers and limit is not None and limit.is_short else None


def limited(limit: StorageLimit) -> str:
    """Return which resource of a storage is the limit, what it gives, and what these ranks need.

    >>> from rayio.storage.limits import Asked, System, limit
    >>> system = System(bandwidth=1e9, connection_bandwidth=1e9, requests_per_second=2000)
    >>> limited(limit(system, Asked(100e3, 100, 1), readers=8, needs=33.3))
    'Storage gives 2,000 requests/s, these ranks need 3,330.'
    """
    resource, gives, needs = limit.resource, limit.gives or 0.0, limit.needs or 0.0
    if resource in ("requests", "opens"):
        each, others = getattr(limit, f"batch_{resource}"), _others(limit, f"others_{resource}")
        return f"Storage gives {rate(gives * each)} {resource}/s{others}, these ranks need {rate(needs * each)}."
    if resource == "throttling":
        given, needed = rate(gives * limit.batch_requests), rate(needs * limit.batch_requests)
        most = f"{given} requests/s{_others(limit, 'others_requests')}"
        return f"Storage serves {most} and refuses more (503, storage.throttle), these ranks need {needed}."
    amounts = format_rate(gives * limit.batch_bytes), format_rate(needs * limit.batch_bytes)
    if resource == "bandwidth":
        parts = "" if limit.systems == 1 else f" on {limit.systems} nodes together"
        others = _others(limit, "others_bandwidth")
        return f"Storage gives {amounts[0]}{parts}{others}, these ranks need {amounts[1]}."
    number, flight, shared = limit.readers, limit.depth, limit.shared_gives
    is_capped, ceiling = shared is not None and shared < needs, shared or 0.0
    who = counted(number, "worker")
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


def _others(limit: StorageLimit, key: str) -> str:
    """Return what checkpoints, evaluations and stages take of a shared resource, where that is enough to show."""
    taken, unit = float(getattr(limit, key)), "bytes" if key == "others_bandwidth" else key.removeprefix("others_")
    if taken <= SEEN * (limit.gives or 0.0) * getattr(limit, f"batch_{unit}"):
        return ""
    return f" (checkpoints, evaluations and stages take {format_rate(taken) if unit == 'bytes' else rate(taken)})"


def _no_verdict(verdict: Verdict) -> str:
    if not verdict.steps:
        return "No verdict: no completed step is recorded."
    steps = counted(verdict.steps_per_rank, "step")
    return f"No verdict: {steps} per rank can be measured, {FEWEST_STEPS} are needed. Run more epochs or more samples."


def _nothing(verdict: Verdict) -> str:
    """Return that there is no bottleneck worth removing, why not, and the largest loss."""
    au, target, why = verdict.au or 0.0, verdict.target_au, ""
    if target is not None and au >= target:
        why = f" reaches its target of {target:.2f}"
    elif verdict.bound != "compute":
        why = f", and no simulated change saves more than {_percent(BINDS)} of the time"
    lost = max(verdict.table, key=lambda row: row.share or 0.0, default=None)
    loss = "nothing is lost"
    if lost is not None and lost.share:
        loss = f"the largest loss is `{shown(lost.cause)}`, {_percent(lost.share)} of step time"
    return f"No bottleneck worth removing: AU {au:.2f}{why}; {loss}."


def _lead(verdict: Verdict, capacity: Capacity, ranks: Sequence[WaitedFor], *, is_refused: bool) -> str:
    bound = verdict.bound or ""
    if is_refused or short_storage(verdict, capacity) is not None:
        bound = "storage"
    bound = "processor" if verdict.is_processor_bound else bound
    is_known = bound != "overhead" or _other(verdict) in (CAUSES["other"], CHARGED)
    begin = f"{bound.capitalize()}-bound" if is_known else "Unexplained"
    return f"{begin}: {_what(verdict)}{_slowest(ranks) if bound == 'straggler' else ''}."


def _what(verdict: Verdict) -> str:
    share, whole, bound = _percent(verdict.bound_share), verdict.bound_share or 1.0, verdict.bound or ""
    if bound in OF_DATA:
        waits = sum(row.by_sync_seconds for row in verdict.table if row.cause in STAGES)
        how = ", directly or through waiting for other ranks" if waits > SEEN * verdict.seconds else ""
        causes = OF_LOADER if bound == "loader" else (verdict.cause,)
        part = sum(row.share or 0.0 for row in verdict.table if row.cause in causes) / whole
        where = f"in `{shown(verdict.cause or '')}`"
        if bound == "loader":
            where = f"loader overhead, most of that {where}"
        return f"{share} of step time is exposed data loading{how}, {_percent(part)} of it {where}"
    why = {
        "device-copy": "is spent on copies of batches to accelerators",
        "pipeline": "is pipeline bubbles: stages without a microbatch",
        "straggler": "is lost to ranks that compute longer than others",
        "all-reduce": "is the all-reduce",
        "checkpoint": "is lost to checkpoints (waiting for a rank that saves one included)",
        "evaluation": "is lost to evaluations (waiting for a rank that still evaluates included)",
        "start-up": "is waiting for ranks that began later",
        "outage": "is waiting for the barrier, which died and was restarted",
        "overhead": f"is {_other(verdict)}",
    }
    return f"{share} of step time {why.get(bound, 'is lost to ' + bound)}"


def _other(verdict: Verdict) -> str:
    """Return what no span covers: of imported results, and on the virtual clock, it is not rayio's overhead."""
    return next(str(row.meaning) for row in verdict.table if row.cause == "other")


def _slowest(ranks: Sequence[WaitedFor]) -> str:
    """Name the ranks that are last in most steps; where there are none, any rank is now and then."""
    slow = [row for row in ranks if row.is_slow]
    named = ", ".join(
        f"rank {row.rank} ({row.of_typical or 0.0:.2f} × the compute of the others, last in "
        f"{100 * (row.last_share or 0.0):.0f} % of steps)"
        for row in slow[:NAMED]
    )
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    return f": {named}{more}" if slow else ", a different rank each time"


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
    return f"{what[:1].upper()}{what[1:]} costs more ({_percent(bounds[top])}), but {saves}."


def _supply(verdict: Verdict, capacity: Capacity, *, is_refused: bool) -> str:
    worker = next((row for row in capacity.stages if row.stage == "worker"), None)
    if worker is None or capacity.demand is None:
        limit = capacity.storage  # without spans of readers it is known of the plan
        return limited(limit) if limit is not None and limit.is_short else ""
    if verdict.is_processor_bound:
        return _cores(capacity)
    if not capacity.has_readers:
        each = format_seconds(worker.service_seconds)
        return f"Ranks read for themselves (loader.num_workers=0): {each} per batch, in which they do not compute."
    if (limit := short_storage(verdict, capacity)) is not None:
        return f"{limited(limit)}{_at_beginnings(verdict, limit)}"
    if verdict.cause == "pin" and (copies := _pinned(capacity)):
        return copies
    number, can, need = worker.parallelism, worker.capacity, capacity.demand
    who, are = ("The worker", "is") if number == 1 else (f"The {number} workers", "are")
    if can <= need:
        if capacity.storage is None and verdict.cause in OF_STORAGE:
            # Where storage refuses, it is known that it would refuse more readers more.
            return "" if is_refused else _as_served(capacity, can, need, who.replace("The", "the"))
        return _held_up(capacity, worker) or (
            f"{who} {are} too slow: {rate(can)} batches/s at most, ranks need {rate(need)}."
        )
    if verdict.bound == "loader":
        return ""
    numbers = f"{rate(can)} batches/s, ranks need {rate(need)}"
    if can > PLENTY * need:
        numbers = f"more than {PLENTY} times the {rate(need)} batches/s that ranks need"
    enough = f"{who} {are} fast enough on average ({numbers})"
    if (verdict.first_step_share or 0) > MOST:
        first = _percent(verdict.first_step_share)
        return f"{first} of the wait is at the first step of an epoch, where prefetching starts anew. {enough}."
    return f"{enough}, but single batches come late."


def _pinned(capacity: Capacity) -> str:
    """Return how fast batches are copied into page-locked memory, if that is less than ranks need; else nothing."""
    row = next((row for row in capacity.stages if row.stage == "pin"), None)
    if row is None or capacity.demand is None or row.capacity > capacity.demand:
        return ""
    each, gives = format_seconds(row.service_seconds), rate(row.capacity)
    who = counted(row.parallelism, "thread")
    return (
        f"A copy into page-locked memory (loader.pin_memory) takes {each}: {who} give{'s' * (row.parallelism == 1)} "
        f"{gives} batches/s at most, ranks need {rate(capacity.demand)}."
    )


def _held_up(capacity: Capacity, worker: Stage) -> str:
    """Return what a layer of storage does to a batch, if that is most of a worker's time; else nothing."""
    held = max(
        (row for row in capacity.stages if row.stage not in KNOWN), key=lambda row: row.service_seconds, default=worker
    )
    if held is worker or held.service_seconds < worker.service_seconds / 2:
        return ""
    of_it = f"{format_seconds(held.service_seconds)} of it `{held.stage}`"
    many = f"{counted(worker.parallelism, 'worker')} do {rate(worker.capacity)} batches/s at most"
    need = rate(capacity.demand or 0.0)
    return f"A batch takes {format_seconds(worker.service_seconds)}, {of_it}: {many}, ranks need {need}."


def _cores(capacity: Capacity) -> str:
    row = next((row for row in capacity.stages if row.stage == "processors"), None)
    if row is None:
        return ""
    number, each, demand = row.parallelism, format_seconds(row.service_seconds), capacity.demand or 0.0
    who = counted(number, "core")
    if row.capacity > demand:
        busy = f"{who} {'are' if number != 1 else 'is'} busy for {_percent(min(1.0, row.utilisation))} of the time"
        return f"A batch takes {each} of CPU time, and {busy}: work waits for a free core."
    gives, needs = rate(row.capacity), rate(demand)
    return f"A batch takes {each} of CPU time: {who} give {gives} batches/s at most, these ranks need {needs}."


def _at_beginnings(verdict: Verdict, limit: StorageLimit) -> str:
    """Return where the limit explains only part of the loss, and the rest is at the beginnings of epochs."""
    reachable = (limit.gives or 0.0) / (limit.needs or 1.0)
    if (verdict.first_step_share or 0) <= MOST or reachable - (verdict.au or 0.0) <= BEYOND:
        return ""
    first = _percent(verdict.first_step_share)
    where = "at the first step of an epoch, where all workers begin at once"
    return f" That is enough for AU {reachable:.2f}: {first} of the wait is {where}."


def _as_served(capacity: Capacity, can: float, need: float, who: str) -> str:
    """Return what storage of unknown limits delivered while the workers were busy."""
    size = f" of {format_bytes(capacity.batch_bytes)}" if capacity.batch_bytes else ""
    return (
        f"While busy, {who} delivered {rate(can)} batches/s{size}; ranks need {rate(need)}. "
        "To find the storage's limit, run with more workers."
    )


def _refused(throttled: Throttled, verdict: Verdict, *, is_real: bool) -> str:
    refused, share = throttled.refused, throttled.data_wait_share
    requests = f"{refused:,} of {refused + throttled.served:,} requests ({in_words(throttled.answers)})"
    text = f"Storage refused {requests}; retries took {_percent(throttled.read_share)} of read time"
    if share is not None and verdict.cause != "retry":
        text += f" and {_percent(share)} of exposed data loading"
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
    saved = "" if prediction.time_saved is None else f", run {_percent(prediction.time_saved)} shorter"
    return f"{prediction.change}: predicted {au}{saved}; the next bottleneck is {after}."


def _percent(share: float | None) -> str:
    share = share or 0.0
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
