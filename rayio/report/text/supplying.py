"""Sentences on supply and demand: the rates of workers, storage, network and processors, and the need of ranks."""

from __future__ import annotations

from rayio.analyze.part import KINDS
from rayio.analyze.verdict import OF_STORAGE
from rayio.analyze.window import MOST
from rayio.records.explained import Capacity, Stage, StorageLimit, Verdict
from rayio.report.text.terms import PLENTY, SEEN, WORK_OF_STAGES, counted, percent, rate, while_waiting
from rayio.units import format_bytes, format_rate, format_seconds

#: Share of their time that workers are busy, from which on they are what ranks wait for.
BUSY = 0.9

#: AU by which a run must miss what its storage gives for that to be mentioned.
BEYOND = 0.1

#: Rows of capacities that are no layer of storage.
KNOWN = {*KINDS, *WORK_OF_STAGES}


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
    'Storage gives 2,000 requests/s; the ranks need 3,330.'
    """
    resource, gives, needs = limit.resource, limit.gives or 0.0, limit.needs or 0.0
    if resource in ("requests", "opens"):
        each, others = getattr(limit, f"batch_{resource}"), _others(limit, f"others_{resource}")
        return f"Storage gives {rate(gives * each)} {resource}/s{others}; the ranks need {rate(needs * each)}."
    if resource == "throttling":
        given, needed = rate(gives * limit.batch_requests), rate(needs * limit.batch_requests)
        most = f"{given} requests/s{_others(limit, 'others_requests')}"
        return f"Storage serves {most} and refuses more (503, storage.throttle); the ranks need {needed}."
    amounts = format_rate(gives * limit.batch_bytes), format_rate(needs * limit.batch_bytes)
    if resource == "bandwidth":
        parts = "" if limit.systems == 1 else f" on {limit.systems} nodes together"
        others = _others(limit, "others_bandwidth")
        return f"Storage gives {amounts[0]}{parts}{others}; the ranks need {amounts[1]}."
    number, flight, shared = limit.readers, limit.depth, limit.shared_gives
    if resource == "connections":
        flight_of_each, unit = counted(flight, "connection"), limit.batch_bytes
        each = f"{format_rate(limit.connection_bandwidth)} a connection"
    else:
        flight_of_each, unit = f"{counted(flight, 'request')} in flight", None
        what = "a request" if resource == "latency" else "to open a file"
        seconds = limit.request_seconds if resource == "latency" else limit.open_seconds
        each = f"{format_seconds(seconds)} {what}"
    got, need, most = (
        f"{rate(batches)} batches/s" if unit is None else format_rate(batches * unit)
        for batches in (gives, needs, shared or 0.0)
    )
    is_capped = shared is not None and shared < needs
    at_most = f" Storage gives at most {most} to any number of workers." if is_capped else ""
    who = f"{counted(number, 'worker')} with {flight_of_each}{' each' * (number > 1)}"
    return f"{who}, at {each}, get{'s' * (number == 1)} {got} from storage; the ranks need {need}.{at_most}"


def _others(limit: StorageLimit, key: str) -> str:
    """Return what checkpoints, evaluations and stages take of a shared resource, where that is enough to show."""
    taken, unit = float(getattr(limit, key)), "bytes" if key == "others_bandwidth" else key.removeprefix("others_")
    if taken <= SEEN * (limit.gives or 0.0) * getattr(limit, f"batch_{unit}"):
        return ""
    return f" (checkpoints, evaluations and stages take {format_rate(taken) if unit == 'bytes' else rate(taken)})"


def supply(verdict: Verdict, capacity: Capacity, *, is_refused: bool) -> str:
    """Return what limits the batches that workers give, in numbers; empty where that is not known."""
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
    if (row := _network(verdict, capacity)) is not None:
        return f"The network passes {rate(row.capacity)} batches/s at most; the ranks need {rate(capacity.demand)}."
    if verdict.cause == "pin" and (copies := _pinned(capacity)):
        return copies
    number, can, need = worker.parallelism, worker.capacity, capacity.demand
    who, are = ("The worker", "is") if number == 1 else (f"The {number} workers", "are")
    if verdict.bound == "loader" and worker.utilisation < BUSY:
        return ""  # the rank is held up, not the workers
    if can <= need:
        if capacity.storage is None and verdict.cause in OF_STORAGE:
            # Where storage refuses, it is known that it would refuse more readers more.
            return "" if is_refused else _as_served(capacity, can, need, who.replace("The", "the"))
        needs = f"the ranks need {rate(need)}{while_waiting(capacity)}"
        return _held_up(capacity, worker) or f"{who} {are} too slow: {rate(can)} batches/s at most; {needs}."
    if verdict.bound == "loader":
        return ""
    numbers = f"{rate(can)} batches/s; the ranks need {rate(need)}"
    if can > PLENTY * need:
        numbers = f"more than {PLENTY} times the {rate(need)} batches/s that the ranks need"
    enough = f"{who} {are} fast enough on average ({numbers})"
    if (verdict.first_step_share or 0) > MOST:
        first = percent(verdict.first_step_share)
        return f"{first} of the wait is at the first step of an epoch, where prefetching starts anew. {enough}."
    if worker.utilisation >= BUSY and capacity.delivered < need:
        got = f"deliver{'s' * (number == 1)} {rate(capacity.delivered)} batches/s; the ranks need {rate(need)}"
        return f"{who} {are} busy {percent(worker.utilisation)} of the time and {got}: {_queued(capacity)}."
    if capacity.delivered_late is not None:
        late = rate(capacity.delivered_late)
        return f"{enough}, but not all the time: while the ranks wait, about {late} batches/s come."
    return f"{enough}, but single batches come late."


def _queued(capacity: Capacity) -> str:
    """Return what busy workers wait for: the shared resource that is used most."""
    shared = [row for row in capacity.stages if row.stage in ("processors", "storage")]
    most = max(shared, key=lambda row: row.utilisation, default=None)
    if most is None or most.stage == "storage":
        return "their requests queue in storage"
    return "they wait for processors"


def _network(verdict: Verdict, capacity: Capacity) -> Stage | None:
    """Return the stage of the network interfaces where ranks wait for them and need more; else None."""
    row = next((row for row in capacity.stages if row.stage == "transfer"), None)
    is_short = row is not None and row.capacity < (capacity.demand or 0.0)
    return row if is_short and verdict.cause == "transfer" else None


def _pinned(capacity: Capacity) -> str:
    """Return how fast batches are copied into page-locked memory, if that is less than ranks need; else nothing."""
    row = next((row for row in capacity.stages if row.stage == "pin"), None)
    if row is None or capacity.demand is None or row.capacity > capacity.demand:
        return ""
    each, gives = format_seconds(row.service_seconds), rate(row.capacity)
    who = counted(row.parallelism, "thread")
    return (
        f"A copy into page-locked memory (loader.pin_memory) takes {each}: {who} give{'s' * (row.parallelism == 1)} "
        f"{gives} batches/s at most; the ranks need {rate(capacity.demand)}."
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
    return f"A batch takes {format_seconds(worker.service_seconds)}, {of_it}: {many}; the ranks need {need}."


def _cores(capacity: Capacity) -> str:
    row = next((row for row in capacity.stages if row.stage == "processors"), None)
    if row is None:
        return ""
    number, each, demand = row.parallelism, format_seconds(row.service_seconds), capacity.demand or 0.0
    who = counted(number, "core")
    if row.capacity > demand:
        busy = f"{who} {'are' if number != 1 else 'is'} busy for {percent(min(1.0, row.utilisation))} of the time"
        return f"A batch takes {each} of CPU time, and {busy}: work waits for a free core."
    gives, needs = rate(row.capacity), rate(demand)
    return f"A batch takes {each} of CPU time: {who} give {gives} batches/s at most; the ranks need {needs}."


def _at_beginnings(verdict: Verdict, limit: StorageLimit) -> str:
    """Return where the limit explains only part of the loss, and the rest is at the beginnings of epochs."""
    reachable = (limit.gives or 0.0) / (limit.needs or 1.0)
    if (verdict.first_step_share or 0) <= MOST or reachable - (verdict.au or 0.0) <= BEYOND:
        return ""
    first = percent(verdict.first_step_share)
    where = "at the first step of an epoch, where all workers begin at once"
    return f" These workers allow AU {reachable:.2f}: {first} of the wait is {where}."


def _as_served(capacity: Capacity, can: float, need: float, who: str) -> str:
    """Return what storage of unknown limits delivered while the workers were busy."""
    size = f" of {format_bytes(capacity.batch_bytes)}" if capacity.batch_bytes else ""
    return (
        f"While busy, {who} delivered {rate(can)} batches/s{size}; the ranks need {rate(need)}. "
        "To find the storage's limit, run with more workers."
    )
