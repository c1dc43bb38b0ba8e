"""Read times of a run -> parameters of modelled storage: a request's time, a connection's rate, the shared bandwidth.

The model itself is the measure: for each candidate bandwidth, the run's own reads go through the model's queue at the
times at which they were issued. The bandwidth that explains their durations best is taken, if it explains them better
than none at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.predict.observe import Reads
from rayio.scenario.model import StorageParameters
from rayio.schema.distribution import Constant, LogNormal
from rayio.storage.itemise import in_flight

Floats = NDArray[np.float64]

#: The number of reads to fit, the first in time: all that compete with each other have to be among them.
MOST = 8192
#: Reads after which a simulated queue starts again from the measured times.
ROW = 32
#: Candidate bandwidths at first, and then around the best of them.
TRIED = 48
#: A shared bandwidth has to remove this part of the error.
EXPLAINS = 0.1
#: Of reads that are explained to this share without a limit, nobody knows whether they share one.
UNEXPLAINED = 0.05
#: A read that left the queue within this share of its duration was not delayed by others.
FREE = 0.8
#: The least share of the reads, and number of them, to fit a connection alone.
FREEST = 0.05
ENOUGH = 10
#: Shares of the fastest and slowest reads that are left out of the line.
CUT = 0.01
#: Largest spread of one request's time, as standard deviation over mean.
WIDEST = 3.0
#: Batches that are drawn to know how much longer several requests in flight take than their mean.
BATCHES = 64
#: The resolution of a read's time (s).
LEAST = 1e-9
#: Rates that reads had together in all but this share of their time are no chance.
TOP = 0.9
#: Sizes that differ by less than this, as standard deviation over mean, do not separate a rate from a latency.
ALIKE = 0.02


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters; ``is_saturated`` if reads had to wait for others, ``is_free`` if enough of them had not to.

    ``left`` is the share of the reads' time that storage without a shared limit does not explain.
    """

    parameters: StorageParameters
    is_saturated: bool
    is_free: bool
    left: float = 0.0

    @property
    def shows_limit(self) -> bool:
        """True if the reads cannot be explained without a limit that they share."""
        return self.is_saturated and self.left > UNEXPLAINED


def fit(read: Reads, warm: int, io_depth: int, processors: int) -> Fit:
    """Return the parameters with which modelled storage serves a run's reads in their measured times.

    Reads that were issued before the run was ``warm`` (ns) are in the queue, but their durations do not count. Where
    the run never had storage saturated, ``processors`` connections a node, or as many as it had at a time, count as
    served at full rate.
    """
    read = read.of(np.argsort(read.start, kind="stable")[:MOST])
    read = read.of(np.lexsort((read.end, read.start, read.node)))
    is_warm = read.start >= warm
    if not is_warm.any():
        is_warm[:] = True
    taken, rounds, own, nbytes = _floats(read, io_depth)
    rate = float(nbytes.sum() / taken.sum())
    connections = _most_together(read)
    plain = _error(read, is_warm, io_depth, math.inf)
    best, least = math.inf, plain
    tried = np.geomspace(rate / 4, rate * connections * 2, TRIED)
    for _ in range(2):
        errors = [_error(read, is_warm, io_depth, float(bandwidth)) for bandwidth in tried]
        place = int(np.argmin(errors))
        if errors[place] < least:
            best, least = float(tried[place]), errors[place]
        tried = np.geomspace(tried[max(0, place - 1)], tried[min(TRIED - 1, place + 1)], TRIED)
    is_saturated = least < (1 - EXPLAINS) * plain

    turns = _turns(read, nbytes, best if is_saturated else math.inf)
    _, (request, spread, byte) = _expected(turns[is_warm], taken[is_warm], rounds[is_warm], own[is_warm])
    if not is_saturated:
        best = max(processors, connections) * float((nbytes / (rounds * request + own * byte)).mean())
    # A byte that adds no nanosecond to the longest read is a rounding error.
    connection = 1 / byte if byte * float(own.max()) > LEAST else 10 * best
    return Fit(
        StorageParameters(
            first_byte=_single(skewed(request, spread), round(float(read.requests.mean())), io_depth),
            connection_bandwidth=connection,
            bandwidth=best,
            scope="node",
        ),
        is_saturated,
        _are_enough(turns[is_warm] <= FREE * taken[is_warm]),
        plain / float(taken[is_warm].mean()),
    )


def reached(read: Reads, warm: int) -> float | None:
    """Return the bytes per second that a node's reads had together nine tenths of the time, or less; None without any.

    Reads before the run was ``warm`` (ns) are left out.
    """
    read = read.of((read.start >= warm) & (read.nbytes > 0))
    most = 0.0
    for node in np.unique(read.node):
        mine = read.of(read.node == node)
        rate = mine.nbytes / np.maximum((mine.end - mine.start) / 1e9, LEAST)
        when = np.concatenate([mine.start, mine.end])
        order = np.argsort(when, kind="stable")
        total, length = np.cumsum(np.concatenate([rate, -rate])[order])[:-1], np.diff(when[order])
        busy = total > LEAST * rate.max()
        total, length = total[busy], length[busy]
        turn = np.argsort(total)
        place = np.searchsorted(np.cumsum(length[turn]), TOP * length.sum())
        most = max(most, float(total[turn][min(place, len(turn) - 1)])) if len(turn) else most
    return most or None


def _floats(read: Reads, depth: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return seconds, the requests that follow each other, the bytes of these, and the bytes of all requests."""
    taken, requests = np.maximum((read.end - read.start) / 1e9, 1e-9), np.maximum(read.requests, 1)
    rounds, nbytes = np.ceil(requests / depth), np.maximum(read.nbytes, 1).astype(np.float64)
    return taken, rounds, nbytes * (rounds / requests), nbytes


def _single(round_: Constant | LogNormal, number: int, depth: int) -> Constant | LogNormal:
    """Return the times of requests whose rounds took these: the last of a batch's ``number`` requests is a slow one."""
    if depth == 1 or isinstance(round_, Constant):
        return round_
    each = round_.draw(seeds.key(0, "rounds"), np.arange(BATCHES * number)).reshape(BATCHES, number)
    longer = float(np.mean([in_flight(batch, depth) for batch in each])) / (math.ceil(number / depth) * round_.expected)
    return round_.times(1 / longer)


def _most_together(read: Reads) -> int:
    most = 1
    for node in np.unique(read.node):
        mine = read.node == node
        starts, ends = np.sort(read.start[mine]), np.sort(read.end[mine])
        most = max(most, int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, "right")).max()))
    return most


def _turns(read: Reads, nbytes: Floats, bandwidth: float) -> Floats:
    """Return how long each read takes through a queue that serves ``bandwidth`` bytes per second, in seconds.

    This is ``rayio.storage.model.Device.reserve`` for all reads of a node (they are sorted by node and start). Every
    ``ROW`` reads, if the last of them was delayed, it starts again from the measured end: a slightly wrong bandwidth
    would otherwise pile up, or lose, a queue over the whole run.
    """
    turns = np.zeros(len(nbytes))
    if math.isinf(bandwidth):
        return turns
    for node in np.unique(read.node):
        mine = np.flatnonzero(read.node == node)
        origin = int(read.start[mine[0]])
        issued, ended = (read.start[mine] - origin) / 1e9, (read.end[mine] - origin) / 1e9
        work = nbytes[mine] / bandwidth
        free = 0.0
        for begin in range(0, len(mine), ROW):
            row = slice(begin, begin + ROW)
            served = np.cumsum(work[row])
            done = served + np.maximum(np.maximum.accumulate(issued[row] - served + work[row]), free)
            turns[mine[row]] = done - issued[row]
            last = begin + len(done) - 1
            held = turns[mine[last]] > FREE * (ended[last] - issued[last])
            free = float(ended[last] if held else done[-1])
    return turns


def _error(read: Reads, is_warm: NDArray[np.bool_], depth: int, bandwidth: float) -> float:
    taken, rounds, own, nbytes = _floats(read, depth)
    turns = _turns(read, nbytes, bandwidth)
    taken = taken[is_warm]
    expected, _ = _expected(turns[is_warm], taken, rounds[is_warm], own[is_warm])
    return float(np.abs(expected - taken).mean())


def _expected(
    turns: Floats, taken: Floats, requests: Floats, nbytes: Floats
) -> tuple[Floats, tuple[float, float, float]]:
    """Return each read's predicted duration, and a connection's fit to undelayed (else the fastest) reads."""
    own = turns <= FREE * taken
    if _are_enough(own):
        request, spread, byte = _alone(taken[own], requests[own], nbytes[own])
    else:
        request, spread, byte = float(np.quantile(taken / requests, FREEST)), 0.0, 0.0
    return np.maximum(requests * request + nbytes * byte, turns), (request, spread, byte)


def _are_enough(own: NDArray[np.bool_]) -> bool:
    return bool(own.sum() >= max(ENOUGH, FREEST * len(own)))


def _alone(taken: Floats, requests: Floats, nbytes: Floats) -> tuple[float, float, float]:
    """Return seconds per request, their deviation, and seconds per byte: least squares; slow reads add to requests."""
    whole = (taken, requests, nbytes)
    low, high = np.quantile(taken, [CUT, 1 - CUT])
    kept = (taken >= low) & (taken <= high)
    taken, requests, nbytes = taken[kept], requests[kept], nbytes[kept]
    each = nbytes / requests
    request, byte = float(taken.sum() / requests.sum()), 0.0
    if each.std() > ALIKE * each.mean():
        solution, *_ = np.linalg.lstsq(np.column_stack([requests, nbytes]), taken, rcond=None)
        if solution[1] > 0:
            request, byte = float(solution[0]), float(solution[1])
            if request <= 0:
                request, byte = 0.0, float(taken.sum() / nbytes.sum())
    rest = taken - requests * request - nbytes * byte
    spread = math.sqrt(float((rest**2).mean()) / float(requests.mean()))
    if spread > WIDEST * request and byte > 0:  # a rate does not vary: what varies is a latency
        request = min(spread / WIDEST, float(taken.sum() / requests.sum()))
        byte = max(0.0, float((taken.sum() - request * requests.sum()) / nbytes.sum()))
    tail = max(0.0, float((whole[0] - whole[1] * request - whole[2] * byte).sum() / whole[1].sum()))
    return request + tail, spread, byte


def skewed(mean: float, deviation: float) -> Constant | LogNormal:
    """Return the lognormal of this mean and deviation; with a small deviation, the constant mean."""
    mean = round(mean, 9)
    if mean <= 0 or deviation <= 0.01 * mean:
        return Constant(value=mean)
    variance = math.log(1 + (deviation / mean) ** 2)
    return LogNormal(median=mean * math.exp(-variance / 2), sigma=round(math.sqrt(variance), 4))
