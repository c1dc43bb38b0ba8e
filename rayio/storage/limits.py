"""What limits reads of a modelled system, and what it gives: numbers in, one record out, as ``model.py`` has it.

A system gives what the narrowest of these lets through, in batches per second:

- its bandwidth, over the bytes of a batch;
- its cap on requests, or on opens, over those of a batch, or the rate above which it refuses them;
- its readers: each has one batch under way, which takes on an idle system its latencies (with ``depth`` requests in
  flight so many at a time) and its bytes at the rate of its connections.

The first two are of all readers together, and more of them change nothing; the last grows with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayio.records.explained import StorageLimit

#: What readers wait for where they themselves are the limit, and not what they share.
OF_READERS = ("latency", "open latency", "connections")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A modelled system in the mean: seconds, bytes per second, calls per second (None: any)."""

    bandwidth: float
    connection_bandwidth: float
    first_byte: float = 0.0
    open: float = 0.0
    requests_per_second: float | None = None
    opens_per_second: float | None = None
    #: Reads per second above which requests are refused, of all systems together.
    reads_per_second: float | None = None
    #: How many such systems there are; each serves an equal part of the readers.
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What others take of all systems together while these readers read, in each second."""

    nbytes: float = 0.0
    requests: float = 0.0
    #: Those of the requests that read.
    reads: float = 0.0
    opens: float = 0.0


#: Nobody else is there.
NOTHING = Taken()
#: Part of a rate that is left at least, so that it stays a rate.
LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Asked:
    """What one batch asks of storage, in the mean."""

    nbytes: float
    requests: float
    opens: float


def limit(
    system: System,
    asked: Asked,
    *,
    readers: int,
    depth: int = 1,
    needs: float | None = None,
    alone: float | None = None,
    taken: Taken = NOTHING,
) -> StorageLimit:
    """Find which resource is the limit for ``readers`` that do nothing but read, and what it gives.

    ``needs`` is what the ranks ask for, in batches per second; None is unknown. ``alone`` is how many seconds a batch
    takes on an idle system, where that is known better than from the means (with several requests in flight). What is
    ``taken`` by others is not there for these readers.

    >>> found = limit(System(bandwidth=400e6, connection_bandwidth=1e9), Asked(20e6, 1, 1), readers=4, needs=33.3)
    >>> found.resource, found.gives, found.is_short
    ('bandwidth', 20.0, True)
    """
    at_a_time = max(1.0, min(depth, asked.requests))
    waits = {
        "latency": asked.requests * system.first_byte / at_a_time,
        "open latency": asked.opens * system.open / at_a_time,
        "connections": asked.nbytes / system.connection_bandwidth / at_a_time,
    }
    alone = sum(waits.values()) if alone is None else alone
    number = system.number
    shared = {
        "bandwidth": asked.nbytes / _left(system.bandwidth, taken.nbytes / number),
        "requests": asked.requests / _left(system.requests_per_second, taken.requests / number),
        "opens": asked.opens / _left(system.opens_per_second, taken.opens / number),
        "throttling": number * asked.requests / _left(system.reads_per_second, taken.reads),
    }
    narrowest = max(shared, key=lambda name: shared[name])
    of_shared = number / shared[narrowest] if shared[narrowest] > 0 else None
    of_readers = readers / alone if alone > 0 else None
    is_shared = of_shared is not None and (of_readers is None or of_shared <= of_readers)
    gives = of_shared if is_shared else of_readers
    return StorageLimit(
        resource=narrowest if is_shared else max(waits, key=lambda name: waits[name]),
        gives=gives,
        needs=needs,
        is_short=None if needs is None else gives is not None and gives < needs,
        shared_resource=narrowest,
        shared_gives=of_shared,
        readers_give=of_readers,
        systems=number,
        readers=readers,
        depth=round(at_a_time),
        alone_seconds=alone,
        request_seconds=system.first_byte,
        open_seconds=system.open,
        connection_bandwidth=system.connection_bandwidth,
        batch_bytes=asked.nbytes,
        batch_requests=asked.requests,
        batch_opens=asked.opens,
        others_bandwidth=taken.nbytes,
        others_requests=taken.reads if narrowest == "throttling" else taken.requests,
        others_opens=taken.opens,
    )


def _left(rate: float | None, taken: float) -> float:
    """What is left of a rate where others take part of it; of none, any."""
    return math.inf if rate is None else max(rate - taken, LEAST * rate)
