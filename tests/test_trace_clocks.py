from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.trace.clocks import (
    FIRST_WAIT_NS,
    LONGEST_WAIT_NS,
    PINGS,
    Anchor,
    Clocks,
    Offset,
    Ping,
    agree,
    drifts,
    estimate,
    stray,
)
from rayio.trace.drift import Course, Stray
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema


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

    def wants_drift(self, boot_id: str, at: int | None) -> bool:
        return self.clocks.wants_drift(boot_id, at)

    def drifted(self, boot_id: str, found: Offset, at: int) -> None:
        self.clocks.drifted(boot_id, found, at)

    def strayed(self, boot_id: str) -> Stray | None:
        return self.clocks.strayed(boot_id)


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
    found = [stray(elsewhere, 0, collector, collector.here, is_last=True) for _ in range(3)]
    assert collector.asked == 2 * PINGS
    assert [abs(one.ns - 7_300_000) <= 200 for one in found if one is not None] == [True] * 3
    for node in (1, 2):
        said = collector.clocks.of_node[node]
        assert abs(int(said["drift_ns"]) - 7_300_000) <= int(said["drift_error_ns"]) <= 200
    (told,) = drifts(collector.clocks.of_node)
    assert told.startswith("the clock of node 1, 2 drifted 7.3 ms (± 0.0) from the driver's during the run. ")


def test_the_drivers_host_is_not_asked_at_the_end_nor_one_that_never_agreed() -> None:
    collector = Collector(5)
    for is_last in (False, True):
        assert stray(Anchor.new(), 0, collector, collector.here, is_last=is_last) is None
        assert stray(Anchor("another boot", 12345), 0, collector, collector.here, is_last=is_last) is None
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


def test_one_actor_of_a_host_asks_whenever_it_is_time_twice_as_late_each_time() -> None:
    clocks = Clocks()
    clocks.met("elsewhere", 1, Offset(0, 1), 0)
    asks = [at for at in range(0, 120 * 10**9, 10**8) if clocks.wants_drift("elsewhere", at)]
    waits = [later - at for at, later in pairwise(asks)]
    assert (asks[0], waits[0], waits[-1]) == (0, FIRST_WAIT_NS, LONGEST_WAIT_NS)
    assert all(later == min(2 * wait, LONGEST_WAIT_NS) for wait, later in pairwise(waits))


class Fast:
    """A host whose clock goes so much faster than the driver's; what it measures is right to within ``error``."""

    def __init__(self, rate: float, error: int) -> None:
        self.rate, self.error, self.course = rate, error, Course(0)

    def true(self, own: int) -> float:
        """The driver's time when this clock shows ``own``."""
        return own / (1 + self.rate)

    def measure(self, now: int, wait: int) -> None:
        self.error = -self.error
        self.course.learn(now, Stray(now, round(self.true(now) - now) + self.error), now + wait)


@given(st.floats(-0.02, 0.02), st.integers(0, 100_000))
def test_a_clock_that_goes_wrong_evenly_is_followed_as_well_as_it_is_measured(rate: float, error: int) -> None:
    host, now, wait = Fast(rate, error), 0, FIRST_WAIT_NS
    for number in range(8):
        now += wait
        host.measure(now, wait)
        if number:  # the first is caught up with until the second
            for time in (now, now + wait // 3, now + wait):
                found = time + host.course.at(time)
                assert abs(found - host.true(time)) <= 6 * error + 10


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(-(10**9), 10**9)), max_size=8), st.data())
def test_what_was_said_of_a_time_is_said_of_it_ever_after_and_no_time_overtakes_another(
    found: list[tuple[int, int]], data: st.DataObject
) -> None:
    course, now, said = Course(0), 0, dict[int, float]()
    for later, ns in found:
        now += later
        for time in data.draw(st.lists(st.integers(0, now), max_size=5)):
            said[time] = course.at(time)
        course.learn(now, Stray(now, ns), now + 10**9)
        assert {time: course.at(time) for time in said} == said
    times = sorted(data.draw(st.lists(st.integers(0, 2 * now + 1), min_size=2, max_size=20)))
    corrected = np.array(times) + course.of(np.array(times))
    assert (np.diff(corrected) >= 0).all()
    assert corrected.tolist() == [time + round(course.at(time)) for time in times]


def test_spans_that_touch_touch_when_they_are_corrected_in_parts_and_last_as_long_on_the_common_clock() -> None:
    host, recorder, parts = Fast(0.001, 0), Recorder(), []
    writer = recorder.register("rank", "0", 1)
    for number in range(40):
        begin = number * 250_000_000
        recorder.add(writer, "compute", begin, begin + 250_000_000, 0, 0, 0, number)
        if number % 4 == 3:
            parts.append(host.course.corrected(recorder.drain()))
            host.measure(begin + 250_000_000, 10**9)
    spans = pa.concat_tables(parts)
    start = spans["start_ns"].to_numpy()
    end = start + spans["duration_ns"].to_numpy()
    assert (start[1:] == end[:-1]).all()
    assert abs(end[-1] - host.true(40 * 250_000_000)) < 10
    assert spans["duration_ns"].to_numpy()[-1] == pytest.approx(250_000_000 / 1.001, abs=2)
    assert spans.schema.equals(schema())
