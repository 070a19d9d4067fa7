import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.model import Transformer, build, init_weights
from preheat.recipe import Model

SMALL = Model(layers=2, hidden=64, heads=4, kv_heads=2, ffn_hidden=96, vocab_size=300, rope_theta=10_000.0, norm="layernorm", bias=True)


def weights(model: Model, seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in build(model, seed).named_parameters()}


@given(seed=st.integers(0, 2**63 - 1))
@settings(max_examples=10, deadline=None)
def test_more_layers_and_an_own_head_change_no_other_parameter(seed: int) -> None:
    small = weights(SMALL.model_copy(update={"depth_scaled_init": False}), seed)
    large = weights(SMALL.model_copy(update={"depth_scaled_init": False, "layers": 3, "tied_embeddings": False}), seed)
    assert small.keys() < large.keys()
    assert all(torch.equal(small[name], large[name]) for name in small)


def test_parameters_and_seeds_differ_from_each_other() -> None:
    one, other = weights(SMALL, 0), weights(SMALL, 1)
    drawn = [value.flatten()[:64] for run in (one, other) for name, value in run.items() if value.dim() == 2]
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn)


def test_values_have_the_spread_that_the_recipe_says() -> None:
    values = weights(SMALL.model_copy(update={"init_std": 0.5}))
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert (value == 1).all(), name
        else:
            # GPT-2: matrices that write into the residual stream start 1/sqrt(2 * 2 layers) = 1/2 as large.
            expected = 0.25 if name.endswith("out.weight") else 0.5
            assert value.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * value.numel())), name
            assert abs(value.mean().item()) < 5 * expected / math.sqrt(value.numel()), name


def test_weights_made_on_the_meta_device_are_the_same() -> None:
    with torch.device("meta"):
        transformer = Transformer(SMALL)
    transformer.to_empty(device="cpu")
    init_weights(transformer, SMALL, 7)
    expected = weights(SMALL, 7)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in transformer.named_parameters())


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build(SMALL, 0)
    assert torch.equal(before, torch.get_rng_state())
