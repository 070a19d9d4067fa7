"""The held-out side: its share, and that a document keeps its side while the data grows."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.data import split
from preheat.errors import PreheatError
from preheat.units import Quantity


def keys(count, start=0):
    return [hashlib.sha256(str(i).encode()).digest() for i in range(start, start + count)]


def held_out(source, keys, amount):
    """Numbers of the held-out documents."""
    positions = np.array([split.position(key) for key in keys], np.uint64)
    return set(np.flatnonzero(split.held_out(source, positions, amount)).tolist())


def share(text):
    return Quantity.parse(text)


@pytest.mark.parametrize("percent", [1, 3, 10, 50])
def test_the_share_is_met(percent):
    count = 20_000
    expected = count * percent / 100
    deviation = (expected * (1 - percent / 100)) ** 0.5
    assert abs(len(held_out("s", keys(count), share(f"{percent}%"))) - expected) < 4 * deviation


@given(st.integers(500, 1000), st.integers(0, 1000))
def test_a_document_keeps_its_side_when_the_data_grows(count, more):
    before = held_out("s", keys(count), share("3%"))
    after = held_out("s", keys(count + more), share("3%"))
    assert {n for n in after if n < count} == before


def test_a_larger_share_holds_out_the_same_and_more():
    assert held_out("s", keys(1000), share("1%")) < held_out("s", keys(1000), share("5%"))


@given(st.permutations(keys(40)))
def test_order_does_not_matter(order):
    assert {order[n] for n in held_out("s", order, share("10%"))} == {keys(40)[n] for n in held_out("s", keys(40), share("10%"))}


@given(st.integers(2, 30), st.integers(0, 10_000), st.sampled_from(["0.01%", "1%", "50%", "99.9%"]))
def test_both_sides_of_a_small_source_have_a_document(count, start, text):
    assert 1 <= len(held_out("s", keys(count, start), share(text))) <= count - 1


def test_nothing_is_held_out_at_zero():
    assert held_out("s", keys(1), share("0%")) == set()


def test_one_document_cannot_be_on_both_sides():
    with pytest.raises(PreheatError, match=r"source s has 1 document, 1% held out; .*data\.held_out to 0%"):
        held_out("s", keys(1), share("1%"))
    with pytest.raises(PreheatError, match="100% held out"):
        held_out("s", keys(9), share("100%"))
