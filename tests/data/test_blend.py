"""The order of sources in a mixture."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.data.blend import Blend
from preheat.errors import PreheatError

weights = st.lists(st.integers(1, 40), min_size=1, max_size=8).map(lambda whole: {f"s{i}": Fraction(w) for i, w in enumerate(whole)})


@settings(max_examples=200, deadline=None)
@given(weights)
def test_every_prefix_is_within_one_sample_of_the_exact_share(mix: dict[str, Fraction]) -> None:
    blend = Blend(mix)
    whole = sum(mix.values())
    taken = dict.fromkeys(mix, 0)
    bound = 1 - Fraction(1, 2 * len(mix) - 2) if len(mix) > 1 else Fraction(0)
    for index in range(2 * blend.period + 3):
        for source, name in enumerate(blend.names):
            assert blend.count(index, source) == taken[name]
            assert abs(taken[name] - index * mix[name] / whole) <= bound
        taken[blend.names[blend.source(index)]] += 1


def test_two_equal_sources_alternate() -> None:
    blend = Blend({"a": Fraction(1), "b": Fraction(1)})
    assert [blend.source(i) for i in range(6)] in ([0, 1] * 3, [1, 0] * 3)


def test_counts_are_exact_far_out() -> None:
    """The guide's mixture after 10^15 samples: 67 % of them exactly."""
    blend = Blend({"web": Fraction("0.67"), "code": Fraction("0.17"), "books": Fraction("0.08"), "papers": Fraction("0.08")})
    assert [blend.count(10**15, source) for source in range(4)] == [67 * 10**13, 17 * 10**13, 8 * 10**13, 8 * 10**13]


def test_weights_that_never_repeat_are_refused() -> None:
    with pytest.raises(PreheatError, match=r"a = 0\.1234567, b = 0\.8765433; they repeat after 10_000_000 samples"):
        Blend({"a": Fraction("0.1234567"), "b": Fraction("0.8765433")})
