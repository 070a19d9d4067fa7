"""The older ramp option against Megatron-LM's calculator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.arithmetic import Timeline, linear_ramp
from preheat.recipe import Batch, Schedule, load
from preheat.units import Quantity


def test_the_guides_ramp_has_three_sizes() -> None:
    """384 for 48,828,125 samples, 768 until 97,656,250, then 1,152 (Megatron-LM's calculator); not 384 more at every step."""
    ramp = linear_ramp(384, 384, 97_656_250, 1152)
    assert [(entry.at.amount, entry.at.unit, entry.size) for entry in ramp] == [
        (0, "samples", 384),
        (48_828_125, "samples", 768),
        (97_656_250, "samples", 1152),
    ]


def test_bloom_has_127_increments_of_76895_samples() -> None:
    """tr11: 16 to 2,048 by 16 over 9,765,625 samples: 4,806 iterations at 16 and 26,076 until 2,048."""
    ramp = linear_ramp(16, 16, 9_765_625, 2048)
    assert len(ramp) == 128
    assert ramp[1].at.amount == 76_895
    batch = Batch(global_size=2048, micro_size=2, seq_len=2048, ramp=ramp)
    schedule = Schedule(length=Quantity.parse("20M samples"), peak_lr=1.0, final_lr=0.0, warmup=Quantity.parse("0 samples"))
    recipe = load("toy-124m").recipe
    segments = Timeline(recipe.model_copy(update={"batch": batch, "schedule": schedule})).segments
    assert segments[0].steps == 4806
    assert segments[-1].batch_size == 2048
    assert segments[-1].start.steps == 26_076


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 60), st.integers(1, 10**7), st.integers(0, 2 * 10**7))
def test_sizes_are_those_of_the_calculator(start: int, increment: int, steps: int, samples: int, consumed: int) -> None:
    """start + increment * floor(consumed / (samples / steps)) until `samples`, the full size from there on; in whole numbers."""
    full = start + increment * steps
    want = full if consumed > samples else start + increment * (consumed * steps // samples)
    ramp = linear_ramp(start, increment, samples, full)
    assert [entry.size for entry in ramp if entry.at.amount <= consumed][-1] == want


@pytest.mark.parametrize(
    ("numbers", "words"), [((16, 16, 100, 1000), "from 16 to 1000"), ((9, 1, 5, 8), "from 9 to 8"), ((1, 0, 5, 8), "at least 1")]
)
def test_a_ramp_that_does_not_arrive_is_refused(numbers: tuple[int, int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        linear_ramp(*numbers)
