from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.trace.clocks import (
    PINGS,
    Anchor,
    Clocks,
    Offset,
    Ping,
    agree,
    drifts,
    estimate,
    measure_drift,
)


@given(
    offset=st.integers(-(10**18), 10**18),
    ways=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=20),
)
def test_the_true_offset_is_never_further_away_than_the_error_says(offset: int, ways: list[tuple[int, int]]) -> None:
    now, pings = 0, []
    for there, back in ways:
        pings.append(Ping(now, now + there + offset, now + there + back))
        now += there + back + 1000
    found = estimate(pings)
    assert abs(found.ns - offset) <= found.error_ns <= (min(there + back for there, back in ways) + 1) // 2


def test_one_quick_ping_among_slow_ones_decides() -> None:
    pings = [Ping(0, 1_000_900, 1000), Ping(5000, 1_005_010, 5020), Ping(9000, 1_009_001, 9900)]
    assert estimate(pings) == Offset(1_000_000, 10)


def test_no_ping_is_no_offset() -> None:
    with pytest.raises(ValueError):
        estimate([])


class Collector:
    """A clock elsewhere, some ways away, which counts how often it is asked."""

    def __init__(self, ahead: int) -> None:
        self.clocks = Clocks()
        self.time = 0
        self.ahead = ahead
        self.asked = 0

    def here(self) -> int:
        self.time += 100
        return self.time

    def now(self) -> int:
        self.asked += 1
        return self.here() + self.ahead

    def met(self, boot_id: str, node: int, found: Offset | None, own_ns: int) -> int | None:
        return self.clocks.met(boot_id, node, found, own_ns)

    def wants_drift(self, boot_id: str) -> bool:
        return self.clocks.wants_drift(boot_id)

    def drifted(self, boot_id: str, found: Offset) -> None:
        self.clocks.drifted(boot_id, found)


def test_on_the_same_host_the_anchor_is_exactly_the_drivers_and_nobody_is_asked() -> None:
    collector = Collector(5)
    anchor = Anchor.new()
    assert agree(anchor, 0, collector, collector.here) == anchor.ns
    assert (collector.asked, collector.clocks.of_node) == (0, {})


def test_all_actors_of_another_host_use_what_the_first_of_them_found() -> None:
    collector = Collector(1_700_000_000_000_000_000)
    elsewhere = Anchor("another boot", 12345)
    first = agree(elsewhere, 1, collector, collector.here)
    assert abs(first - collector.ahead) <= 100
    assert collector.asked == PINGS
    collector.ahead += 10**9
    assert agree(elsewhere, 2, collector, collector.here) == first
    assert collector.asked == PINGS
    assert set(collector.clocks.of_node) == {1, 2}
    assert all(0 < int(said["error_ns"]) <= 100 for said in collector.clocks.of_node.values())
    # What run.json says is how far the host's own time of day was off.
    assert abs(int(collector.clocks.of_node[1]["offset_ns"]) - (Anchor.new().ns - first)) < 10**9


def test_at_the_end_one_actor_of_another_host_says_how_far_its_clock_has_drifted() -> None:
    collector = Collector(1_700_000_000_000_000_000)
    elsewhere = Anchor("another boot", 12345)
    for node in (1, 2):
        agree(elsewhere, node, collector, collector.here)
    assert drifts(collector.clocks.of_node) == []
    collector.ahead += 7_300_000
    for _ in range(3):
        measure_drift(collector, collector.here)
    assert collector.asked == 2 * PINGS
    for node in (1, 2):
        said = collector.clocks.of_node[node]
        assert abs(int(said["drift_ns"]) - 7_300_000) <= int(said["drift_error_ns"]) <= 200
    (told,) = drifts(collector.clocks.of_node)
    assert told.startswith("the clock of node 1, 2 drifted 7.3 ms (± 0.0) from the driver's during the run. ")


def test_a_host_that_never_agreed_is_not_asked_at_the_end() -> None:
    collector = Collector(5)
    measure_drift(collector, collector.here)
    assert (collector.asked, collector.clocks.of_node) == (0, {})


@pytest.mark.parametrize(
    ("drift", "error", "is_told"),
    [(-2_000_000, 100, True), (900_000, 100, False), (2_000_000, 3_000_000, False), (0, 0, False)],
)
def test_drift_is_told_from_a_millisecond_on_and_when_it_is_certain(drift: int, error: int, is_told: bool) -> None:
    of_node: dict[str, dict[str, Any]] = {
        "0": {"boot_id": "a"},
        "1": {"boot_id": "b", "drift_ns": drift, "drift_error_ns": error},
    }
    assert len(drifts(of_node)) == is_told
