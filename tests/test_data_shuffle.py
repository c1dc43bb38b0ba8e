"""Shuffles: each a permutation of its key, computed anywhere in no memory, each with an access pattern of its own."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shuffles import Together

from rayio import seeds
from rayio.data.permuted import repeats
from rayio.data.shuffle import SHUFFLES

any_seed = st.integers(0, 2**64)
PERMUTATIONS = [shuffle for shuffle in SHUFFLES if not repeats(shuffle)]
HUGE = 5_000_000_000


def order(shuffle: str, num_samples: int, key: int, sizes: Together) -> NDArray[np.int64]:
    return SHUFFLES[shuffle](num_samples, key, np.arange(num_samples), sizes.of(shuffle))


@pytest.mark.parametrize("shuffle", PERMUTATIONS)
@given(
    files=st.integers(1, 400),
    sizes=st.builds(Together, file=st.integers(1, 9), block=st.integers(1, 4000), buffer=st.integers(1, 4000)),
    key=any_seed,
)
def test_a_shuffle_is_a_permutation_that_depends_on_its_key_alone(shuffle: str, files: int, sizes: Together, key: int):  # type: ignore[no-untyped-def]
    num_samples = files * sizes.file
    positions = np.arange(num_samples)
    whole = order(shuffle, num_samples, key, sizes)
    assert sorted(whole.tolist()) == positions.tolist()
    assert whole.dtype == np.int64
    ends = [*positions[:3], *positions[-3:]]
    one_by_one = [int(SHUFFLES[shuffle](num_samples, key, np.array([place]), sizes.of(shuffle))[0]) for place in ends]
    assert one_by_one == whole[ends].tolist()
    assert np.array_equal(SHUFFLES[shuffle](num_samples, key, positions[::-1], sizes.of(shuffle)), whole[::-1])


@pytest.mark.parametrize("shuffle", PERMUTATIONS)
@given(key=any_seed, other=any_seed)
def test_another_key_gives_another_order_unless_there_is_no_shuffle(shuffle: str, key: int, other: int):  # type: ignore[no-untyped-def]
    assume(key % 2**64 != other % 2**64)
    sizes = Together(file=10, block=16, buffer=50)
    same = np.array_equal(order(shuffle, 1000, key, sizes), order(shuffle, 1000, other, sizes))
    assert same == (shuffle == "none")


@pytest.mark.parametrize("shuffle", PERMUTATIONS)
def test_five_billion_samples_need_no_table(shuffle: str) -> None:
    positions = np.linspace(0, HUGE - 1, 40_000).astype(np.int64).reshape(4, -1)
    sizes = Together(file=1000, block=3000, buffer=7_000_001)
    tracemalloc.start()
    samples = SHUFFLES[shuffle](HUGE, 7, positions, sizes.of(shuffle))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * positions.nbytes, "memory for the positions asked of it, however large the sizes"
    assert samples.shape == positions.shape
    assert len(np.unique(samples)) == samples.size
    assert samples.min() >= 0
    assert HUGE * 0.99 < samples.max() < HUGE
    assert abs(float(samples.mean()) / HUGE - 0.5) < 0.01
    changed = (SHUFFLES[shuffle](HUGE, 8, positions, sizes.of(shuffle)) != samples).mean()
    assert changed == 0 if shuffle == "none" else changed > 0.99


@pytest.mark.parametrize(
    ("shuffle", "num_samples", "sizes", "whole"),
    [
        ("global", 5, Together(), 5),
        ("file", 15, Together(file=3), 5),
        ("block", 13, Together(block=3), 5),
        ("buffer", 5, Together(buffer=5), 5),
        ("buffer", 5, Together(buffer=99), 5),
    ],
)
def test_all_orders_of_a_few_come_equally_often(shuffle: str, num_samples: int, sizes: Together, whole: int) -> None:
    draws, orders = 3600, math.factorial(whole)
    seen = Counter(tuple(order(shuffle, num_samples, seeds.key(1, "t", draw), sizes).tolist()) for draw in range(draws))
    chi_square = sum((number - draws / orders) ** 2 for number in seen.values()) / (draws / orders)
    assert len(seen) == orders
    assert chi_square / (orders - 1) < 1.4  # 8 rounds give 2.4


def test_files_and_blocks_keep_their_inner_order() -> None:
    files = order("file", 40, 1, Together(file=4)).reshape(-1, 4)
    assert (files == files[:, :1] + np.arange(4)).all()
    assert (files[:, 0] % 4 == 0).all()
    blocks = order("block", 43, 1, Together(block=5)).tolist()
    starts = [sample for sample in blocks if sample % 5 == 0]
    assert blocks == [sample for start in starts for sample in range(start, min(start + 5, 43))]
    assert starts != sorted(starts)


def test_a_short_last_block_comes_anywhere() -> None:
    places = {order("block", 10, key, Together(block=4)).tolist().index(8) for key in range(60)}
    assert places == {0, 4, 8}


@given(num_samples=st.integers(1, 500), buffer=st.integers(1, 600), key=any_seed)
def test_a_buffer_moves_no_sample_further_than_it_is_long(num_samples: int, buffer: int, key: int) -> None:
    moved = order("buffer", num_samples, key, Together(buffer=buffer)) - np.arange(num_samples)
    assert np.abs(moved).max() <= min(buffer, num_samples) - 1


def test_windows_of_a_buffer_are_permuted_each_in_its_own_way() -> None:
    windows = order("buffer", 1000, 1, Together(buffer=20)).reshape(50, 20) - 20 * np.arange(50)[:, None]
    assert len({tuple(window) for window in windows.tolist()}) == 50
    assert np.abs(windows.mean(axis=0) - 9.5).max() < 4, "no place is favoured"


def test_a_small_rest_behind_a_large_buffer_is_found_at_once() -> None:
    num_samples = 2**40 + 3
    last = SHUFFLES["buffer"](num_samples, 1, np.arange(2**40, num_samples), Together(buffer=2**40).of("buffer"))
    assert sorted(last.tolist()) == [2**40, 2**40 + 1, 2**40 + 2]


def test_a_block_as_large_as_the_dataset_and_a_buffer_of_one_shuffle_nothing() -> None:
    sizes = Together(file=50, block=50, buffer=1)
    for shuffle in ("file", "block", "buffer"):
        assert order(shuffle, 50, 3, sizes).tolist() == list(range(50))


#: 200 files of 50 samples.
PATTERN = Together(file=50, block=20, buffer=500)


def pattern(shuffle: str) -> tuple[float, int]:
    """Give the share of samples that follow their predecessor in the dataset, and how often the file changes."""
    samples = order(shuffle, 10_000, seeds.key(1, "shuffle", 0), PATTERN)
    return float((np.diff(samples) == 1).mean()), int((np.diff(samples // PATTERN.file) != 0).sum())


def test_each_shuffle_has_an_access_pattern_of_its_own() -> None:
    patterns = {shuffle: pattern(shuffle) for shuffle in PERMUTATIONS}
    sequential = {shuffle: share for shuffle, (share, _) in patterns.items()}
    changes = {shuffle: number for shuffle, (_, number) in patterns.items()}
    assert sequential["none"] == 1
    assert sequential["file"] == pytest.approx(1 - 1 / 50, abs=0.001)
    assert sequential["block"] == pytest.approx(1 - 1 / 20, abs=0.001)
    assert sequential["buffer"] == pytest.approx(1 / 500, abs=0.002)
    assert sequential["global"] < 0.001
    assert changes["none"] == changes["file"] == 199
    # 500 blocks, of which one in five lies across the edge of two files.
    assert changes["block"] == pytest.approx(499 + 100, abs=10)
    # 10 files lie in a window: one sample in ten stays in its file.
    assert changes["buffer"] == pytest.approx(10_000 * 0.9, rel=0.01)
    assert changes["global"] == pytest.approx(10_000 * 199 / 200, rel=0.01)


def test_a_buffer_opens_few_files_in_a_stretch_and_a_global_shuffle_nearly_all() -> None:
    met = {
        shuffle: len(np.unique(order(shuffle, 10_000, 5, PATTERN)[2000:2500] // PATTERN.file))
        for shuffle in PERMUTATIONS
    }
    assert met["none"] == met["file"] == met["buffer"] == 10
    assert 20 <= met["block"] <= 45
    assert met["global"] > 150
