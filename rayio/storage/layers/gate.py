"""Token buckets by prefix: the requests that a throttled service admits. Pure, without a clock; times in ns.

The rates are those of a *prefix*: it serves requests while its bucket has tokens, one a request, and refuses them while
it has none. A bucket fills at the rate up to ``burst_seconds`` of it, and is full at the beginning. Reads and writes
have separate buckets. A refused request takes no token.

The service grows with the load: after ``split_seconds`` of refusals a prefix is split in two, which doubles its rates.
Refusals that are further apart than :data:`CALM_SECONDS` belong to different loads.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from rayio.storage.layers.layer import Ask
from rayio.storage.stores.retrying import LONGEST_SECONDS

#: Seconds without a refusal after which a load is over: refused requests have been repeated by then.
CALM_SECONDS = LONGEST_SECONDS
#: The most splits of a prefix: its rate is then far above any load.
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
    """The state of a bucket; times in ns."""

    #: The time of this state, and its tokens times 1e9: whole numbers if rates are.
    at: int = -1
    credit: float = 0.0
    #: Number of splits of the prefix.
    splits: int = 0
    #: When the refused load began, and when it was refused last; -1 is never.
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
        """Restore a state from before a restart, unless it is older than the current one."""
        if state.at > self.state.at:
            self.state = state

    def admit(self, now: int) -> bool:
        """Return True if a request at ``now`` is served, False if refused; an earlier time counts as the latest one."""
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
        """Return the bucket of a prefix (any number, modulo the number of prefixes) for requests of a kind."""
        throttle = self._throttle
        number = kind, prefix % throttle.prefixes
        if (bucket := self._buckets.get(number)) is None:
            rate = throttle.rate(kind)
            bucket = self._buckets[number] = Bucket(rate, throttle.burst_seconds, throttle.split_seconds)
        return bucket

    def admit(self, now: int, kind: int, prefix: int) -> bool:
        """Return True if a request at ``now`` (ns) is served."""
        return self.bucket(kind, prefix).admit(now)

    def admit_again(self, now: int, kind: int, prefix: int, state: State) -> tuple[bool, State]:
        """Do as :meth:`admit` with the state that the caller knows; return the new state too."""
        bucket = self.bucket(kind, prefix)
        bucket.learn(State(*state))
        return bucket.admit(now), bucket.state


class Admits(Protocol):
    """A gate that may be elsewhere."""

    def admit(self, now: int, kind: int, prefix: int) -> bool | Awaitable[bool]:
        """See :meth:`Gate.admit`; a gate of this process answers at once."""


class CalledGate:
    """A gate in another process; its callers restore its state after a restart."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        #: The last known state of each bucket, by kind and prefix.
        self._buckets: dict[tuple[int, int], State] = {}

    async def admit(self, now: int, kind: int, prefix: int) -> bool:
        """See :meth:`Gate.admit`."""
        known = self._buckets.get((kind, prefix), State())
        is_admitted, reply = await self._ask("admit_again", now, kind, prefix, known)
        state = State(*reply)
        if state.at >= self._buckets.get((kind, prefix), known).at:
            self._buckets[kind, prefix] = state
        return bool(is_admitted)
