from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayio import seeds
from rayio.kinds import DISTRIBUTIONS
from rayio.schema.distribution import Constant, Distribution, Exponential, LogNormal, Normal, Ramp, Uniform
from rayio.schema.empirical import Empirical, table
from rayio.schema.gamma import Gamma
from rayio.schema.poisson import Poisson

KEY = seeds.key(10, "test")
MANY = np.arange(200_000)

#: More measured values than are kept, of a skewed curve.
MEASURED = np.random.default_rng(7).lognormal(0.0, 0.5, 20_000)

#: One of every kind, and those in which much is drawn again.
EVERY: dict[str, Distribution] = {
    "constant": Constant(value=3.0),
    "uniform": Uniform(low=1.0, high=5.0),
    "exponential": Exponential(mean=2.0),
    "ramp": Ramp(begin=4.0, end=1.0, steps=1000),
    "normal": Normal(mean=3.0, stdev=0.5),
    "normal, wide": Normal(mean=1.0, stdev=2.0),
    "normal, half drawn again": Normal(mean=0.0, stdev=1.0),
    "normal, no spread": Normal(mean=3.0, stdev=0.0),
    "lognormal": LogNormal(median=2.0, sigma=0.5),
    "lognormal, capped": LogNormal(median=2.0, sigma=0.8, max=4.0),
    "lognormal, capped at its median": LogNormal(median=2.0, sigma=0.8, max=2.0),
    "lognormal, no spread": LogNormal(median=2.0, sigma=0.0, max=3.0),
    "lognormal by mean": LogNormal(mean=2.0, stdev=1.0),
    "lognormal by mean, capped": LogNormal(mean=2.0, stdev=1.0, max=3.0),
    "gamma": Gamma(shape=3.0, scale=0.5),
    "gamma, steep": Gamma(shape=0.5, scale=2.0),
    "gamma by mean": Gamma(mean=2.0, stdev=0.3),
    "gamma, no spread": Gamma(mean=2.0, stdev=0.0),
    "poisson": Poisson(mean=3.0),
    "poisson of a unit": Poisson(mean=3.0, unit=0.01),
    "poisson of nothing": Poisson(mean=0.0),
    "empirical": Empirical(values=(0.5, 1.0, 1.0, 4.0)),
    "empirical, of many": Empirical(values=tuple(table(MEASURED).tolist()), measured=len(MEASURED)),
}
every = pytest.mark.parametrize("distribution", EVERY.values(), ids=EVERY)


def test_every_kind_is_tested() -> None:
    assert {type(distribution) for distribution in EVERY.values()} == {*DISTRIBUTIONS.values()}


@every
def test_expected_is_the_mean_of_what_is_drawn(distribution: Distribution) -> None:
    drawn = distribution.draw(KEY, MANY)
    assert drawn.mean() == pytest.approx(distribution.expected, abs=5 * drawn.std() / math.sqrt(drawn.size) + 1e-12)


@every
def test_draws_are_never_negative_and_keep_their_shape(distribution: Distribution) -> None:
    drawn = distribution.draw(KEY, MANY.reshape(-1, 8))
    assert drawn.shape == (25_000, 8)
    assert drawn.dtype == np.float64
    assert drawn.min() >= 0
    assert distribution.draw(KEY, np.arange(0)).shape == (0,)


@every
@settings(max_examples=25)
@given(index=st.lists(st.integers(0, 2**60), min_size=1, max_size=50), key=st.integers(0, 2**64 - 1))
def test_a_draw_depends_on_its_address_alone(distribution: Distribution, index: list[int], key: int) -> None:
    together = distribution.draw(key, np.array(index))
    alone = [float(distribution.draw(key, np.array([i]))[0]) for i in index]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    "name",
    ["uniform", "exponential", "normal", "normal, wide", "lognormal", "lognormal, capped", "gamma", "gamma, steep"],
)
def test_other_addresses_give_other_draws(name: str) -> None:
    index = np.arange(1000)
    one, other = (EVERY[name].draw(seeds.key(10, "test", rank), index) for rank in (0, 1))
    assert len(np.intersect1d(one, other)) == 0
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_a_negative_normal_is_drawn_again_and_neither_folded_nor_clipped() -> None:
    wide = Normal(mean=1.0, stdev=2.0)
    drawn = wide.draw(KEY, MANY)
    # Of a normal truncated at 0, this share lies below x; folding or clipping would put far more near 0.
    below = [(np.mean(drawn < x), _truncated_share(x, 1.0, 2.0)) for x in (0.2, 1.0, 2.0, 5.0)]
    assert [share for share, _ in below] == pytest.approx([share for _, share in below], abs=0.005)


def test_draws_that_are_fine_are_not_touched_by_redrawing() -> None:
    shifted = Normal(mean=100.0, stdev=2.0).draw(KEY, MANY) - 99.0
    drawn = Normal(mean=1.0, stdev=2.0).draw(KEY, MANY)
    fine = shifted >= 0
    assert 0.2 < np.mean(~fine) < 0.4
    assert np.allclose(drawn[fine], shifted[fine])
    assert np.isclose(drawn[~fine], -shifted[~fine]).mean() < 0.001


def test_a_lognormal_has_its_median_and_stays_below_its_max() -> None:
    assert np.median(EVERY["lognormal"].draw(KEY, MANY)) == pytest.approx(2.0, rel=0.01)
    assert EVERY["lognormal, capped"].draw(KEY, MANY).max() <= 4.0


def test_a_normal_has_its_spread() -> None:
    assert EVERY["normal"].draw(KEY, MANY).std() == pytest.approx(0.5, rel=0.01)


def test_the_mean_of_a_normal_far_from_zero_is_as_given() -> None:
    assert Normal(mean=0.323, stdev=0.01).expected == 0.323


def _truncated_share(x: float, mean: float, stdev: float) -> float:
    def below(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    floor = below(-mean / stdev)
    return (below((x - mean) / stdev) - floor) / (1 - floor)
