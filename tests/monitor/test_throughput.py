import math

import pytest

from preheat.monitor import Pace, Smoothed, model_flops_utilization


def test_palm_reports_46_2_percent():
    # PaLM, arXiv 2204.02311: 540.35B parameters, 118 layers, 48 heads of 256, 2,048 tokens, 6,144 chips of 275 TFLOP/s, 238.3K tokens/s.
    flops_per_token = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    assert model_flops_utilization(238.3e3, flops_per_token, 6144 * 275e12) == pytest.approx(0.462, abs=0.0005)


def test_smoothing_starts_at_the_first_value_and_follows_with_its_time_constant():
    average = Smoothed(20)
    assert math.isnan(average.value)
    assert average.update(5.0) == pytest.approx(5.0)
    for _ in range(1000):
        average.update(5.0)
    for _ in range(20):
        average.update(6.0)
    assert average.value == pytest.approx(6 - math.exp(-1))


def test_smoothing_leaves_out_what_is_not_finite():
    average = Smoothed(20)
    average.update(5.0)
    assert average.update(math.nan) == pytest.approx(5.0)
    assert average.update(math.inf) == pytest.approx(5.0)


def test_the_pace_counts_pauses():
    pace = Pace(total_tokens=10_000)
    assert pace.seconds_left is None
    pace.update(100.0, 1_000)
    assert pace.seconds_left is None
    pace.update(101.0, 2_000)
    assert pace.seconds_left == 8.0
    pace.update(109.0, 3_000)  # a measurement took eight seconds in between
    assert pace.seconds_left == 7_000 * 9 / 2_000


def test_the_pace_is_that_of_the_last_minute():
    pace = Pace(total_tokens=100_000)
    for second in range(200):
        pace.update(second, 10 * second)
    for second in range(200, 300):
        pace.update(second, 2_000 + 100 * (second - 200))
    assert pace.seconds_left == pytest.approx((100_000 - 11_900) / 100)
