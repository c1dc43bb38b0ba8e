"""Rates of requests above which a modelled service refuses, as S3 does (503 Slow Down): pure, no clock of its own.

The rates are those of a *prefix*: requests below it are served while its bucket has tokens, one a request, and refused
while it has none. A bucket fills at the rate, and holds what ``burst_seconds`` of it come to; it is full at the
beginning. Reads and writes have buckets of their own. A refused request takes no token.

The service grows with the load: when requests to a prefix have been refused for ``split_seconds`` the prefix is split
in two, which doubles its rates. Refusals that are further apart than :data:`CALM_SECONDS` are not of one load.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rayio.storage.base import WRITE
from rayio.storage.stores.retrying import LONGEST_SECONDS

#: Seconds without a refusal after which a load is over: whoever was refused has asked again by then.
CALM_SECONDS = LONGEST_SECONDS
#: A prefix is split no more often: its rate is then far above any that requests come at.
MOST_SPLITS = 60


@dataclass(frozen=True, slots=True)
class Throttle:
    """Requests per second that each of a service's prefixes serves, and what it does as they stay more than that."""

    reads_per_second: float
    writes_per_second: float
    #: Prefixes over which requests are spread evenly.
    prefixes: int = 1
    #: Seconds' worth of requests that a prefix serves at once after it was idle.
    burst_seconds: float = 1.0
    #: Seconds of refusals after which a prefix is split in two; None is never.
    split_seconds: float | None = None
    #: Attempts that one request may take in all, and the seed of the pauses between them.
    attempts: int = 8
    seed: int = 0

    def rate(self, kind: int) -> float:
        """Requests of a kind (``READ``, ``WRITE``) per second that one prefix serves before it has been split."""
        return self.writes_per_second if kind == WRITE else self.reads_per_second


class State(NamedTuple):
    """All that a bucket knows; times in ns."""

    #: When this was so, and the tokens that there were, times 1e9: whole numbers as long as rates are.
    at: int = -1
    credit: float = 0.0
    #: How often the prefix was split.
    splits: int = 0
    #: When the load began that is being refused, and when it was refused last; -1 is never.
    since: int = -1
    refused: int = -1


#: A token, in credit.
TOKEN = 1e9


class Bucket:
    """The tokens of one prefix for requests of one kind."""

    __slots__ = ("_burst", "_rate", "_split_ns", "state")

    def __init__(self, rate: float, burst_seconds: float, split_seconds: float | None) -> None:
        self._rate = rate
        self._burst = burst_seconds
        self._split_ns = None if split_seconds is None else round(split_seconds * 1e9)
        self.state = State()

    def learn(self, state: State) -> None:
        """Take over what this bucket told of itself before it was started again; older news change nothing."""
        if state.at > self.state.at:
            self.state = state

    def admit(self, now: int) -> bool:
        """Serve a request that comes at ``now``, or refuse it. Times that run back are taken for the latest one."""
        at, credit, splits, since, refused = self.state
        rate = self._rate * 2.0**splits
        most = max(rate * self._burst, 1.0) * TOKEN
        now = max(now, at)
        credit = most if at < 0 else min(most, credit + (now - at) * rate)
        if credit >= TOKEN:
            self.state = State(now, credit - TOKEN, splits, since, refused)
            return True
        if refused < 0 or now - refused > CALM_SECONDS * 1e9:
            since = now
        if self._split_ns is not None and now - since >= self._split_ns and splits < MOST_SPLITS:
            splits, since = splits + 1, now
        self.state = State(now, credit, splits, since, now)
        return False


class Gate:
    """The buckets of all prefixes of one service: the single place where requests are admitted or refused."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._buckets: dict[tuple[int, int], Bucket] = {}

    def bucket(self, kind: int, prefix: int) -> Bucket:
        """The bucket of a prefix (any number: they go round) for requests of a kind."""
        throttle = self._throttle
        number = kind, prefix % throttle.prefixes
        if (found := self._buckets.get(number)) is None:
            rate = throttle.rate(kind)
            found = self._buckets[number] = Bucket(rate, throttle.burst_seconds, throttle.split_seconds)
        return found

    def admit(self, now: int, kind: int, prefix: int) -> bool:
        """Serve or refuse a request that comes at ``now`` (ns)."""
        return self.bucket(kind, prefix).admit(now)


class Admits(Protocol):
    """A gate that may be elsewhere."""

    def admit(self, now: int, kind: int, prefix: int) -> bool | Awaitable[bool]:
        """See :meth:`Gate.admit`; a gate of this process answers at once."""
