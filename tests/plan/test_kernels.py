"""Seconds of matrix products by hand: rows and columns over the rate, and what the last wave of tiles loses."""

import pytest

from preheat.plan.constants import Common
from preheat.plan.kernels import Device

COMMON = Common(
    wave=1.0, depth=0.0, misaligned=1.0, odd_heads=1.0, link=1.0, network=1.0, latency=0.0, network_latency=0.0, jitter=0.0
)  # fmt: skip
DEVICE = Device(matrix=1e15, wide=1e15, element=2, memory=1e18, attention=1e15, tiles=100 * 128 * 128, common=COMMON)
"""A hundred multiprocessors and memory without end."""


def test_a_product_loses_a_wave_of_its_own() -> None:
    """An output of 200 tiles on 100 multiprocessors: two waves, and one lost."""
    plain = 2 * 128 * 200 * 128 * 4096 / 1e15
    assert DEVICE.product(128, 200 * 128, 4096) == pytest.approx(plain * 1.5, rel=1e-3)


def test_products_beside_each_other_lose_it_together() -> None:
    """8 experts of 200 tiles: one after the other each loses a wave of two, four by four one of eight, all at once one of 16."""
    plain = 8 * 2 * 128 * 200 * 128 * 4096 / 1e15
    for at_once, lost in ((1, 1 / 2), (4, 1 / 8), (8, 1 / 16), (256, 1 / 16)):
        assert DEVICE.product(128, 200 * 128, 4096, groups=8, at_once=at_once) == pytest.approx(plain * (1 + lost), rel=1e-3)
