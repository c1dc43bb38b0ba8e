"""Arithmetic on intervals, held to plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.intervals import Lookup, Occupied, pick, split_exactly

piece = st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 15), st.integers(0, 2))
moments = st.lists(st.tuples(st.integers(0, 2), st.integers(-25, 40)), max_size=8)


def columns(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return [np.array([row[n] for row in rows], np.int64) for n in range(width)]


@given(st.lists(piece, max_size=10), moments)
def test_how_long_each_kind_was_on_before_a_moment_is_what_counting_nanoseconds_gives(
    pieces: list[tuple[int, int, int, int]], asked: list[tuple[int, int]]
) -> None:
    group, start, length, kind = columns(sorted(pieces, key=lambda p: p[:3]), 4)
    end = start + length
    # Made disjoint: of two of a group that overlap, the one that began first ends where the other begins.
    end[:-1] = np.where(group[1:] == group[:-1], np.minimum(end[:-1], start[1:]), end[:-1])
    occupied = Occupied(group, start, end, kind)
    who, when = columns(list(asked), 2)
    on: dict[tuple[int, int], int] = {}
    for g, s, n, k in sorted(pieces, key=lambda p: (p[1], p[2])):
        for t in [t for (h, t) in on if h == g and t >= s]:
            del on[g, t]
        on |= {(g, t): k for t in range(s, s + n)}
    before = occupied.before(who, when, 3) - occupied.before(who, np.full(len(who), -1000), 3)
    for (g, t), row in zip(asked, before.tolist(), strict=True):
        assert row == [sum(1 for (h, u), k in on.items() if h == g and u < t and k == kind) for kind in range(3)]


@given(st.lists(piece, max_size=10), st.lists(piece, max_size=10))
def test_a_union_covers_each_moment_once_and_within_measures_what_two_have_in_common(
    one: list[tuple[int, int, int, int]], other: list[tuple[int, int, int, int]]
) -> None:
    def moments_of(pieces: list[tuple[int, int, int, int]]) -> set[tuple[int, int]]:
        return {(g, t) for g, s, n, _ in pieces for t in range(s, s + n)}

    def union(pieces: list[tuple[int, int, int, int]]) -> Occupied:
        group, start, length, _ = columns(list(pieces), 4)
        return Occupied.union(group, start, start + length)

    joined, another = union(one), union(other)
    assert int((joined.end - joined.start).sum()) == len(moments_of(one))
    assert int(joined.within(another).sum()) == len(moments_of(one) & moments_of(other))


@given(st.lists(piece, max_size=10))
def test_a_union_is_the_same_however_long_a_nanosecond_is(pieces: list[tuple[int, int, int, int]]) -> None:
    group, start, length, _ = columns(list(pieces), 4)
    near = Occupied.union(group, start, start + length)
    far = Occupied.union(group, start << 56, (start + length) << 56)  # no room for groups side by side
    assert far.group.tolist() == near.group.tolist()
    assert far.start.tolist() == (near.start << 56).tolist()
    assert far.end.tolist() == (near.end << 56).tolist()


amounts = st.lists(
    st.tuples(st.integers(0, 10**13), st.lists(st.integers(0, 10**13), min_size=3, max_size=3)), max_size=5
)


@given(amounts)
def test_a_split_is_in_proportion_and_sums_to_the_nanosecond(rows: list[tuple[int, list[int]]]) -> None:
    weight = np.array([row for _, row in rows], np.int64).reshape(-1, 3)
    total = weight.sum(axis=1)
    amount = np.array([min(amount, int(most)) for (amount, _), most in zip(rows, total, strict=True)], np.int64)
    parts = np.array(split_exactly(amount, [*weight.T]), np.int64).T
    assert parts.sum(axis=1).tolist() == amount.tolist()
    assert parts.min(initial=0) >= 0
    fair = weight * (amount / np.maximum(total, 1))[:, None]
    assert np.abs(parts - fair).max(initial=0) <= 3


@given(st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 3)), max_size=12), st.sampled_from([1, 1000]))
def test_a_lookup_finds_the_last_of_those_with_the_highest_rank_however_far_keys_lie_apart(
    rows: list[tuple[int, int]], apart: int
) -> None:
    key, rank = columns([(key * apart, rank) for key, rank in rows], 2)
    wanted = np.arange(-5, 15) * apart
    expected = [max(((rank, at) for at, (key, rank) in enumerate(rows) if key * apart == one), default=(0, -1))[1]
                for one in wanted.tolist()]  # fmt: skip
    assert Lookup(key, rank).find(wanted).tolist() == expected


def test_of_equal_keys_the_one_with_the_highest_rank_is_found() -> None:
    lookup = Lookup(np.array([7, 3, 7]), np.array([1, 0, 5]))
    assert lookup.find(np.array([3, 7, 8])).tolist() == [1, 2, -1]
    values = np.array([10, 20, 30])
    assert pick(values, np.array([1, -1]), np.array([0, 99])).tolist() == [20, 99]
    assert Lookup(np.empty(0, np.int64), np.empty(0, np.int64)).find(np.array([3])).tolist() == [-1]
