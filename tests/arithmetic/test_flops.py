"""FLOPs against published figures and Megatron-LM's own counter."""

import pytest

from preheat.arithmetic import flops_per_token
from preheat.recipe import Model, load


def model_of(name: str) -> Model:
    return load(name).recipe.model


def test_llama3_8b_at_8k_by_convention() -> None:
    """51.5 GFLOP a token exactly, 61.1 with all parameters and full-square attention: the same step, 19 % apart."""
    flops = flops_per_token(model_of("llama3-8b"), 8192)
    assert flops.causal / 1e9 == pytest.approx(51.5, abs=0.05)
    assert flops.full_square / 1e9 == pytest.approx(61.1, abs=0.05)


def test_gpt3_175b_with_the_vocabulary_padded_for_tensor_8() -> None:
    """Megatron-LM counts 3,340 PFLOP for an iteration of 1,536 sequences of 2,048 tokens: 1,062 GFLOP a token."""
    flops = flops_per_token(model_of("gpt3-175b"), 2048, tensor=8).megatron
    assert flops * 1536 * 2048 / 1e15 == pytest.approx(3340, rel=5e-4)
    assert flops / 1e9 == pytest.approx(1062, abs=0.5)


@pytest.mark.parametrize(
    ("name", "seq_len", "per_sequence"),
    [
        ("mixtral-8x7b", 4096, 326_477_644_038_144),
        ("deepseek-v3", 4096, 1_064_931_126_411_264),
        ("llama3-8b", 8192, 421_645_529_382_912),
        ("gpt3-15b", 4096, 365_209_659_113_472),
    ],
)
def test_megatrons_own_count(name: str, seq_len: int, per_sequence: int) -> None:
    """num_floating_point_operations of megatron-core 0.17.1 for one sequence, called with the same shapes."""
    assert flops_per_token(model_of(name), seq_len).megatron * seq_len == per_sequence


def test_megatrons_own_count_without_the_prediction_layer() -> None:
    model = model_of("deepseek-v3").model_copy(update={"mtp": None})
    assert flops_per_token(model, 4096).megatron * 4096 == 1_023_230_173_249_536


def test_full_square_is_palms_formula() -> None:
    """6N + 12LHQT by hand for Llama 3 8B: N = 8,030,261,248, L = 32, HQ = 4,096."""
    assert flops_per_token(model_of("llama3-8b"), 2048).full_square == 6 * 8_030_261_248 + 12 * 32 * 4096 * 2048


def test_a_sliding_window_bounds_the_positions_that_a_token_sees() -> None:
    """Of 4 positions and a window of 2 the tokens see 1, 2, 2, 2: 7 pairs instead of 10."""
    model = Model(layers=1, hidden=8, heads=1, ffn_hidden=8, vocab_size=258, rope_theta=1e4)
    windowed = model.model_copy(update={"sliding_window": 2})
    per_pair = 12 * 8
    assert (flops_per_token(model, 4).causal - flops_per_token(windowed, 4).causal) * 4 == (10 - 7) * per_pair
    assert flops_per_token(model.model_copy(update={"sliding_window": 9}), 4) == flops_per_token(model, 4)
