"""The planned mixture against the published cases, and against what the order of samples really reads."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.data import SampleOrder, StageSamples, mixture


@pytest.mark.parametrize(("weights", "samples", "epochs"), [((1, 1), [15, 15], [1.5, 0.75]), ((10, 20), [10, 20], [1.0, 1.0])])
def test_weights_are_shares_of_the_samples_whatever_the_size_of_a_source(weights, samples, epochs):
    # Case D04 (NVIDIA/Megatron-LM issue 547): sources of 10 and of 20 samples, 30 wanted.
    mix = {"a": Fraction(weights[0]), "b": Fraction(weights[1])}
    (shares,) = mixture([StageSamples(mix, 8, 30)], {"a": 80, "b": 160})
    assert [share.samples for share in shares] == samples
    assert [share.epochs for share in shares] == epochs
    assert ["read" in share.warning for share in shares] == [epochs[0] > 1, False]


def test_a_source_that_is_never_drawn_is_told():
    # Case D05 (NVIDIA/Megatron-LM pull 1007).
    mix = {"a": Fraction("0.99999"), "b": Fraction("0.00001")}
    (shares,) = mixture([StageSamples(mix, 8, 1000)], {"a": 10**6, "b": 10**6})
    assert [share.samples for share in shares] == [1000, 0]
    assert [share.warning for share in shares] == ["", "gives no sample"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=4))
def test_it_is_what_the_order_of_samples_takes(rows):
    class Source:
        token_count = 1000

        def starts(self, begin, end):
            return np.arange(begin, end)[:0]

        def read(self, begin, out):
            out[:] = 0

    stages = [StageSamples({"a": Fraction(a), "b": Fraction(b)}, 8, samples) for a, b, samples in rows]
    order = SampleOrder({"a": Source(), "b": Source()}, stages, 1)
    planned = mixture(stages, {"a": 1000, "b": 1000})
    for number, name in enumerate("ab"):
        assert sum(stage[number].tokens for stage in planned) == order.usage[name].tokens
    read = [order.locate(stage, index) for stage, (*_, samples) in enumerate(rows) for index in range(samples)]
    last = rows[-1][2] // 2
    until = read[: len(read) - rows[-1][2] + last]
    for name, usage in order.used(len(rows) - 1, last).items():
        assert usage.tokens == 8 * sum(source == name for source, _ in until)
        assert usage.epochs == (usage.tokens + usage.skipped) / 992  # 124 sequences of 8 and the last label
    assert [sum(share.samples for share in stage) for stage in planned] == [samples for *_, samples in rows]
