"""The bottleneck of reads from a modelled system, and its throughput; numbers in, a record out.

The smallest of these limits applies, in batches per second:

- bandwidth, by the bytes of a batch;
- the cap on requests or opens, or the rate above which the system refuses them, by the requests or opens of a batch;
- the readers: each has one batch in flight, which takes on an idle system its latencies (with ``depth`` requests in
  flight, ``depth`` at a time) and its bytes at the rate of its connections.

All readers share the first two, so more readers do not help; the last grows with their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayio.records.explained import StorageLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A modelled system's mean values: seconds, bytes per second, calls per second (None: no cap)."""

    bandwidth: float
    connection_bandwidth: float
    first_byte: float = 0.0
    open: float = 0.0
    requests_per_second: float | None = None
    opens_per_second: float | None = None
    #: Reads per second above which requests are refused, over all systems.
    reads_per_second: float | None = None
    #: Number of such systems; each serves an equal part of the readers.
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The load of others on all systems, per second."""

    nbytes: float = 0.0
    requests: float = 0.0
    #: Requests that are reads.
    reads: float = 0.0
    opens: float = 0.0


#: No load of others.
NOTHING = Taken()
#: The least remaining part of a rate, so that it stays positive.
LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Asked:
    """The mean requests of one batch."""

    nbytes: float
    requests: float
    opens: float


def limit(
    system: System,
    batch: Asked,
    *,
    readers: int,
    depth: int = 1,
    needs: float | None = None,
    alone: float | None = None,
    taken: Taken = NOTHING,
) -> StorageLimit:
    """Return the bottleneck of ``readers`` that only read, and its throughput.

    ``needs`` is the ranks' demand in batches per second, or None. ``alone`` is a batch's seconds on an idle system, if
    known better than from the means (with several requests in flight). ``taken`` by others is not available to these
    readers.

    >>> verdict = limit(System(bandwidth=400e6, connection_bandwidth=1e9), Asked(20e6, 1, 1), readers=4, needs=33.3)
    >>> verdict.resource, verdict.gives, verdict.is_short
    ('bandwidth', 20.0, True)
    """
    at_a_time = max(1.0, min(depth, batch.requests))
    waits = {
        "latency": batch.requests * system.first_byte / at_a_time,
        "open latency": batch.opens * system.open / at_a_time,
        "connections": batch.nbytes / system.connection_bandwidth / at_a_time,
    }
    alone = sum(waits.values()) if alone is None else alone
    number = system.number
    shared = {
        "bandwidth": batch.nbytes / _left(system.bandwidth, taken.nbytes / number),
        "requests": batch.requests / _left(system.requests_per_second, taken.requests / number),
        "opens": batch.opens / _left(system.opens_per_second, taken.opens / number),
        "throttling": number * batch.requests / _left(system.reads_per_second, taken.reads),
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
        batch_bytes=batch.nbytes,
        batch_requests=batch.requests,
        batch_opens=batch.opens,
        others_bandwidth=taken.nbytes,
        others_requests=taken.reads if narrowest == "throttling" else taken.requests,
        others_opens=taken.opens,
    )


def _left(rate: float | None, taken: float) -> float:
    return math.inf if rate is None else max(rate - taken, LEAST * rate)
