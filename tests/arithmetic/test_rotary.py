"""Rotary frequencies against hand calculations of the released rules."""

import math
from typing import Any

import pytest

from preheat.arithmetic import attention_factor, rotary_frequencies
from preheat.recipe import Model, RopeScaling, load

LLAMA = load("llama3.1-405b").recipe
DEEPSEEK = load("deepseek-v3").recipe


def test_plain_frequencies_fall_from_one() -> None:
    model = Model(layers=1, hidden=8, heads=1, ffn_hidden=8, vocab_size=258, rope_theta=1e4)
    assert rotary_frequencies(model, 10_000) == pytest.approx((1, 0.1, 0.01, 0.001))
    half = model.model_copy(update={"rotary_fraction": 0.5})
    assert rotary_frequencies(half, 10_000) == pytest.approx((1, 0.01))


def test_llama_31_stretches_the_slow_dims_eightfold() -> None:
    """Wavelengths below 8,192 / 4 = 2,048 stay, above 8,192 are multiplied by 8, and go over between."""
    scaling = LLAMA.stage[-1].rope_scaling
    plain, scaled = (rotary_frequencies(LLAMA.model, 500_000, rule) for rule in (None, scaling))
    for before, after in zip(plain, scaled, strict=True):
        length = 2 * math.pi / before
        if length < 2048:
            assert after == before
        elif length > 8192:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before
    # By hand for pair 32 of 64: wavelength 2 pi sqrt(500,000) = 4,443 is 1.844 turns, share 0.2813, 0.28125 + 0.71875 / 8 of the frequency.
    share = (8192 / (2 * math.pi * math.sqrt(500_000)) - 1) / 3
    assert scaled[32] * math.sqrt(500_000) == pytest.approx(share + (1 - share) / 8)


def test_deepseeks_yarn_keeps_eleven_pairs_and_stretches_nine_fortyfold() -> None:
    """Pair of 32 turns in 4,096 positions: 64 ln(4096 / 64 pi) / (2 ln 10,000) = 10.47 -> 10; of 1 turn: 22.51 -> 23."""
    scaling = DEEPSEEK.stage[-1].rope_scaling
    plain, scaled = (rotary_frequencies(DEEPSEEK.model, 10_000, rule) for rule in (None, scaling))
    assert len(plain) == 32  # of the 64 dims that carry positions, not of all 192
    assert scaled[:11] == pytest.approx(plain[:11])
    assert scaled[23:] == pytest.approx([frequency / 40 for frequency in plain[23:]])
    assert all(before / 40 < after < before for before, after in zip(plain[11:23], scaled[11:23], strict=True))


def test_yarn_scales_attention() -> None:
    """DeepSeek-V3: 0.1 ln 40 + 1 = 1.3689 (arXiv 2412.19437, section 4.3)."""
    scaling = DEEPSEEK.stage[-1].rope_scaling
    assert scaling is not None
    assert attention_factor(scaling) == pytest.approx(1.3689, abs=5e-5)
    assert attention_factor(scaling.model_copy(update={"mscale": None})) == pytest.approx(1.3689, abs=5e-5)
    assert attention_factor(scaling.model_copy(update={"mscale": 0.5})) == pytest.approx(1.18444, abs=5e-5)
    assert attention_factor(None) == attention_factor(LLAMA.stage[-1].rope_scaling) == 1


@pytest.mark.parametrize("field", ["factor", "original_max_positions", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"])
def test_every_number_of_a_scaling_changes_the_frequencies(field: str) -> None:
    recipe = DEEPSEEK if field.startswith("beta") else LLAMA
    scaling = recipe.stage[-1].rope_scaling
    assert scaling is not None
    changed = scaling.model_copy(update={field: getattr(scaling, field) * 2})
    assert rotary_frequencies(recipe.model, 1e4, changed) != rotary_frequencies(recipe.model, 1e4, scaling)


@pytest.mark.parametrize(("kind", "words"), [("llama3", "low_freq_factor"), ("yarn", "beta_fast")])
def test_a_scaling_without_its_numbers_is_refused(kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rotary_frequencies(LLAMA.model, 1e4, RopeScaling(kind=kind, factor=2.0, original_max_positions=8))  # type: ignore[arg-type]


def test_a_base_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="rope_theta 1 "):
        rotary_frequencies(LLAMA.model, 1.0)


def test_a_share_of_a_head_is_rounded_and_not_cut() -> None:
    """0.58 of 100 dims are 58; in binary the product is 57.99999999999999."""
    model = Model(layers=1, hidden=100, heads=1, ffn_hidden=8, vocab_size=258, rope_theta=1e4, rotary_fraction=0.58)
    frequencies = rotary_frequencies(model, 10_000)
    assert len(frequencies) == 29
    assert frequencies[1] == pytest.approx(10_000 ** (-2 / 58))


@pytest.mark.parametrize(
    ("changed", "theta", "scaling", "words"),
    [
        ({"head_dim": 1}, 1e4, None, "1 dims of a head"),
        ({"rotary_fraction": 1e-300}, 1e4, None, "0 dims of a head"),
        ({}, 1.0, None, "above 1"),
        ({}, 1e4, {"kind": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "low_freq_factor 4 is not below"),
        ({}, 1e4, {"kind": "yarn", "beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast 1 is not above beta_slow 32"),
        ({}, 1e4, {"kind": "yarn", "beta_fast": 1e308, "beta_slow": 1e-308}, "measure|math domain"),
    ],
)
def test_numbers_that_turn_nothing_are_refused(changed: dict[str, float], theta: float, scaling: dict[str, Any] | None, words: str) -> None:
    model = Model(layers=1, hidden=8, heads=1, ffn_hidden=8, vocab_size=258, rope_theta=1e4).model_copy(update=changed)
    rule = RopeScaling(factor=8.0, original_max_positions=4096, **scaling) if scaling else None
    with pytest.raises(ValueError, match=words):
        rotary_frequencies(model, theta, rule)
