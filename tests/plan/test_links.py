"""Seconds of collectives by hand: bytes over the slowest link, and where a group's ranks lie."""

import pytest

from preheat.hardware import find
from preheat.plan.constants import Common
from preheat.plan.links import Links

PLAIN = Common(
    wave=0.0, depth=0.0, misaligned=1.0, odd_heads=1.0, link=1.0, network=1.0, latency=0.0, network_latency=0.0, jitter=0.0
)  # fmt: skip
H100 = Links.of(find("H100"), PLAIN)
"""450 GB/s to seven others, 50 GB/s out of the server."""


def test_a_ring_inside_a_server_sends_all_but_one_part() -> None:
    """8 ranks, 8 GB: 7 parts of 1 GB over 450 GB/s."""
    assert H100.gather(8e9, 8, 1) == pytest.approx(7e9 / 450e9)


def test_ranks_a_server_apart_have_one_network_card_each() -> None:
    """Data-parallel ranks beyond 8 tensor-parallel ones: 15 of 16 parts of 16 GB over 50 GB/s."""
    assert H100.gather(16e9, 16, 8) == pytest.approx(15e9 / 50e9)


def test_ranks_beside_each_other_share_their_cards() -> None:
    """16 ranks on two servers: the ring leaves a server over 8 cards, 400 GB/s, which is less than NVLink's 450."""
    assert H100.gather(16e9, 16, 1) == pytest.approx(15e9 / 400e9)


def test_a_rack_of_72_is_one_domain() -> None:
    assert Links.of(find("GB200"), PLAIN).gather(64e9, 64, 1) == pytest.approx(63e9 / 900e9)


def test_a_token_crosses_the_network_once_for_each_server_that_wants_it() -> None:
    """Two servers and 8 experts a token: the other server wants it but for one time in 256; within, 7 of 8 copies leave the rank."""
    one_copy = 1e9
    crossing = one_copy * (1 - 0.5**8) / 50e9
    within = 8 * one_copy * 7 / 8 / 450e9
    assert H100.exchange(one_copy, 8, 16, 1) == pytest.approx(max(crossing, within))
    assert H100.exchange(one_copy, 8, 8, 1) == pytest.approx(within)


def test_one_rank_exchanges_nothing() -> None:
    assert H100.gather(1e9, 1, 1) == H100.exchange(1e9, 8, 1, 1) == 0.0


def test_a_stage_in_another_server_is_sent_to_over_the_network() -> None:
    assert H100.send(1e9, 8) == pytest.approx(1e9 / 50e9)
    assert H100.send(1e9, 4) == pytest.approx(1e9 / 450e9)


def test_small_messages_cost_what_their_ranks_wait() -> None:
    slow = Links.of(find("H100"), Common(**{**vars(PLAIN), "latency": 1e-6, "network_latency": 1e-5}))
    assert slow.latency(8, 1) == pytest.approx(7e-6)
    assert slow.latency(4, 8) == pytest.approx(3e-5)
