import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from preheat.report.scale import Scale, fit, linear_ticks, number


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1_228_800, [0, 250_000, 500_000, 750_000, 1_000_000]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (2.95, 3.07, [2.95, 2.975, 3.0, 3.025, 3.05]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert linear_ticks(low, high, 5) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.1, 1000, [0.1, 1, 10, 100, 1000]),
        (2.9, 9, [3, 4, 5, 6, 8]),
        (0.4, 2.5, [0.5, 1, 2]),
        (2.0, 2.1, [2, 2.02, 2.04, 2.06, 2.08, 2.1]),
    ],
)
def test_logarithmic_ticks(low, high, ticks):
    assert Scale(low, high, log=True).ticks() == pytest.approx(ticks)


def test_a_logarithmic_axis_over_ninety_decades_stays_legible():
    assert len(Scale(1e-40, 1e50, log=True).ticks()) <= 8


numbers = st.floats(-1e12, 1e12)


@given(numbers, numbers)
def test_there_are_a_few_ticks_and_all_within_the_axis(a, b):
    axis = fit([a, b])
    ticks = axis.ticks()
    air = (axis.high - axis.low) * 1e-6
    assert 2 <= len(ticks) <= 8
    assert all(axis.low - air <= tick <= axis.high + air for tick in ticks)


@given(st.lists(st.floats(1e-8, 1e8), min_size=1), st.booleans(), st.booleans())
def test_an_axis_shows_every_value_in_order(values, zero, log):
    axis = fit(values, zero=zero, log=log)
    shares = [axis.share(value) for value in sorted(values)]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert axis.low <= min(values) <= max(values) <= axis.high


@given(st.floats(1e-6, 1e6), st.floats(1.01, 100))
def test_equal_factors_are_equally_far_on_a_logarithmic_axis(low, factor):
    axis = Scale(low, low * factor**4, log=True)
    assert axis.share(low * factor) == pytest.approx(0.25)
    assert axis.share(low * factor**2) == pytest.approx(0.5)


def test_values_that_are_not_positive_keep_a_linear_axis():
    assert not fit([0.0, 100.0], log=True).log
    assert fit([1.0, 100.0], log=True).log
    assert fit([3.0, 5.0], zero=True).low == 0
    assert fit([-3.0, 5.0], zero=True).low < -3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.003, "0.003"),
        (0.0003, "3e-4"),
        (0.00000001, "1e-8"),
        (-0.00025, "-2.5e-4"),
        (2.95, "2.95"),
        (4096, "4,096"),
        (10_000, "10K"),
        (124_439_808, "124.4M"),
        (1_228_800, "1.229M"),
        (15e12, "15T"),
        (1e20, "1e20"),
        (math.inf, "inf"),
    ],
)
def test_numbers_as_people_read_them(value, text):
    assert number(value) == text


@given(st.floats(1e-300, 1e300))
def test_a_written_number_is_right_to_three_digits(value):
    text = number(value).replace(",", "")
    assume(text[-1].isdigit())
    assert float(text) == pytest.approx(value, rel=1e-3)
