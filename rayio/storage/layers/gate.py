"""Token buckets by prefix: which requests a throttled service admits. Pure, no clock of its own; times in ns.

The rates are those of a *prefix*: requests below it are served while its bucket has tokens, one a request, and refused
while it has none. A bucket fills at the rate, and holds what ``burst_seconds`` of it come to; it is full at the
beginning. Reads and writes have buckets of their own. A refused request takes no token.

The service grows with the load: when requests to a prefix have been refused for ``split_seconds`` the prefix is split
in two, which doubles its rates. Refusals that are further apart than :data:`CALM_SECONDS` are not of one load.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from rayio.storage.layers.layer import Ask
from rayio.storage.stores.retrying import LONGEST_SECONDS

#: Seconds without a refusal after which a load is over: whoever was refused has asked again by then.
CALM_SECONDS = LONGEST_SECONDS
#: A prefix is split no more often: its rate is then far above any that requests come at.
MOST_SPLITS = 60


class Rates(Protocol):
    """The rates of a service; see ``rayio.storage.layers.throttle.Throttle``."""

    @property
    def prefixes(self) -> int:
        """Prefixes over which requests are spread evenly."""

    @property
    def burst_seconds(self) -> float:
        """Seconds' worth of requests that a prefix serves at once after it was idle."""

    @property
    def split_seconds(self) -> float | None:
        """Seconds of refusals after which a prefix is split in two; None is never."""

    def rate(self, kind: int) -> float:
        """Requests of a kind per second that one prefix serves before it has been split."""


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

    def __init__(self, throttle: Rates) -> None:
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

    def admit_again(self, now: int, kind: int, prefix: int, state: State) -> tuple[bool, State]:
        """Do as :meth:`admit`, after learning what the caller heard of the bucket; answer with what it then knows."""
        bucket = self.bucket(kind, prefix)
        bucket.learn(State(*state))
        return bucket.admit(now), bucket.state


class Admits(Protocol):
    """A gate that may be elsewhere."""

    def admit(self, now: int, kind: int, prefix: int) -> bool | Awaitable[bool]:
        """See :meth:`Gate.admit`; a gate of this process answers at once."""


class CalledGate:
    """A gate in another process, which learns from its callers what it knew before it was started again."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        #: What was last heard of each bucket, by kind and prefix.
        self._buckets: dict[tuple[int, int], State] = {}

    async def admit(self, now: int, kind: int, prefix: int) -> bool:
        """See :meth:`Gate.admit`."""
        told = self._buckets.get((kind, prefix), State())
        is_admitted, state = await self._ask("admit_again", now, kind, prefix, told)
        heard = State(*state)
        if heard.at >= self._buckets.get((kind, prefix), told).at:
            self._buckets[kind, prefix] = heard
        return bool(is_admitted)
