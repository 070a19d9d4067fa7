import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.arithmetic import Rope, parameters
from preheat.errors import PreheatError
from preheat.model import Transformer, build, inference
from preheat.model.rotary import rotary_tables, rotate
from preheat.recipe import Model, load

SMALL = Model(layers=2, hidden=32, heads=4, kv_heads=2, ffn_hidden=48, vocab_size=260, rope_theta=10_000.0)
LEARNED = SMALL.model_copy(update={"position": "learned", "rope_theta": None, "max_positions": 16})
GPT2_SMALL = Model(
    layers=12,
    hidden=768,
    heads=12,
    ffn_hidden=3072,
    vocab_size=50_257,
    activation="gelu",
    norm="layernorm",
    bias=True,
    position="learned",
    max_positions=1024,
)


def on_meta(model: Model) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(model).parameters())


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 260, shape, generator=torch.Generator().manual_seed(seed))


def all_logits(model: Transformer, tokens: torch.Tensor, theta: float | None = None) -> torch.Tensor:
    with inference(model):
        return model.logits(model(tokens, rope=theta and Rope(theta)))


def test_gpt2_small_has_its_published_number_of_parameters() -> None:
    assert on_meta(GPT2_SMALL) == 124_439_808


def test_llama_3_8b_has_its_published_number_of_parameters() -> None:
    llama = Model(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn_hidden=14_336, vocab_size=128_256, rope_theta=500_000.0, tied_embeddings=False
    )
    assert on_meta(llama) == 8_030_261_248


@given(
    layers=st.integers(1, 3),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    width=st.sampled_from([2, 6, 8]),
    head_dim=st.sampled_from([None, 4, 10]),
    activation=st.sampled_from(["swiglu", "gelu"]),
    norm=st.sampled_from(["rmsnorm", "layernorm"]),
    bias=st.booleans(),
    learned=st.booleans(),
    tied=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_built_model_has_as_many_parameters_as_the_arithmetic_says(
    layers: int,
    groups: int,
    kv_heads: int,
    width: int,
    head_dim: int | None,
    activation: str,
    norm: str,
    bias: bool,
    learned: bool,
    tied: bool,
) -> None:
    heads = groups * kv_heads
    model = Model.model_validate(
        {
            "layers": layers,
            "hidden": heads * width,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "ffn_hidden": 20,
            "vocab_size": 260,
            "activation": activation,
            "norm": norm,
            "bias": bias,
            "tied_embeddings": tied,
            **({"position": "learned", "max_positions": 7} if learned else {"rope_theta": 100.0}),
        }
    )
    assert on_meta(model) == parameters(model).total


@pytest.mark.parametrize("model", [SMALL, LEARNED])
@given(position=st.integers(0, 15), token=st.integers(0, 259))
@settings(max_examples=20, deadline=None)
def test_a_token_changes_no_logit_before_it(model: Model, position: int, token: int) -> None:
    transformer = build(model, seed=0)
    tokens = random_tokens(1, 16)
    changed = tokens.clone()
    changed[0, position] = token
    assert torch.equal(all_logits(transformer, tokens)[0, :position], all_logits(transformer, changed)[0, :position])


def test_a_token_changes_the_logits_from_it_on() -> None:
    transformer = build(SMALL, seed=0)
    tokens = random_tokens(1, 16)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 260
    different = (all_logits(transformer, tokens) != all_logits(transformer, changed)).any(-1)[0]
    assert different.tolist() == [False] * 5 + [True] * 11


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    transformer = build(SMALL, seed=0)
    tokens = random_tokens(5, 16)
    together = all_logits(transformer, tokens)
    for row in range(5):
        torch.testing.assert_close(all_logits(transformer, tokens[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-6)


def test_products_of_rotated_heads_depend_on_the_distance_only() -> None:
    heads = torch.randn(2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    query_TE, key_TE = rotate(heads.expand(2, 50, 8), rotary_tables(SMALL, Rope(100.0), 50, torch.device("cpu")))
    products_TT = query_TE @ key_TE.T
    assert products_TT.std() > 0.1
    for distance in range(-49, 50):
        diagonal = products_TT.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-6)


def test_angles_far_out_are_exact() -> None:
    cos, sin = rotary_tables(SMALL.model_copy(update={"head_dim": 4}), Rope(10_000.0), 131_072, torch.device("cpu"))
    angle = 131_071 * 10_000.0**-0.5
    assert cos[-1].tolist() == pytest.approx([math.cos(131_071), math.cos(angle)] * 2, abs=1e-6)
    assert sin[-1].tolist() == pytest.approx([-math.sin(131_071), -math.sin(angle), math.sin(131_071), math.sin(angle)], abs=1e-6)


def test_the_first_loss_is_that_of_guessing() -> None:
    model = load("tiny").recipe.model.model_copy(update={"init_std": 0.02})
    transformer = build(model, seed=1)
    tokens = torch.randint(0, model.vocab_size, (4, 129), generator=torch.Generator().manual_seed(0))
    with inference(transformer):
        loss = transformer(tokens[:, :-1], tokens[:, 1:]).total.item() / tokens[:, 1:].numel()
    assert loss == pytest.approx(math.log(model.vocab_size), abs=0.1)


CHANGES = {
    "norm_eps": 0.1,
    "activation": "gelu",
    "norm": "layernorm",
    "rope_theta": 20.0,
    "init_std": 0.05,
    "depth_scaled_init": False,
    "tied_embeddings": False,
    "kv_heads": 4,
    "head_dim": 6,
    "layers": 3,
    "heads": 2,
    "ffn_hidden": 52,
    "position": "learned",
}


@pytest.mark.parametrize("field", [*CHANGES])
def test_every_field_of_the_recipe_changes_the_logits(field: str) -> None:
    update = {field: CHANGES[field]} | ({"rope_theta": None, "max_positions": 16} if field == "position" else {})
    tokens = random_tokens(1, 16)
    before, after = (all_logits(build(model, seed=0), tokens) for model in (SMALL, SMALL.model_copy(update=update)))
    assert not torch.allclose(before, after, rtol=1e-3)


def test_biases_exist_and_start_at_zero() -> None:
    with_bias = dict(build(SMALL.model_copy(update={"bias": True}), seed=0).named_parameters())
    without = dict(build(SMALL, seed=0).named_parameters())
    extra = {name: with_bias[name] for name in with_bias.keys() - without.keys()}
    assert len(extra) == 2 * 7
    assert all(not parameter.any() for parameter in extra.values())


def test_a_sequence_longer_than_the_position_table_is_refused() -> None:
    transformer = build(LEARNED, seed=0)
    all_logits(transformer, random_tokens(1, 16))
    with pytest.raises(PreheatError, match=r"17 tokens.*16 rows"):
        all_logits(transformer, random_tokens(1, 17))


def test_training_works_after_scoring_made_the_rotary_tables() -> None:
    transformer = build(SMALL.model_copy(update={"rope_theta": 1234.5}), seed=0)
    tokens = random_tokens(2, 9)
    all_logits(transformer, tokens)
    transformer(tokens[:, :-1], tokens[:, 1:]).total.backward()
    all_logits(transformer, tokens[:, :-1])
    transformer(tokens[:, :-1], tokens[:, 1:]).total.backward()


@pytest.mark.parametrize("model", [SMALL, LEARNED])
def test_bf16_autocast_trains_near_fp32(model: Model) -> None:
    tokens = random_tokens(2, 16)
    losses, gradients = [], []
    for enabled in (False, True):
        transformer = build(model.model_copy(update={"init_std": 0.1}), seed=0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = transformer(tokens, tokens.roll(1)).total
        loss.backward()
        assert loss.dtype == torch.float32
        losses.append(loss.item())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in transformer.parameters() if parameter.grad is not None]))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999


def test_inference_gives_every_module_its_mode_back_also_after_an_error() -> None:
    transformer = build(SMALL, seed=0)
    transformer.blocks["0"].eval()
    modes = []

    def fail() -> None:
        with inference(transformer):
            modes.append((transformer.training, torch.is_grad_enabled()))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert modes == [(False, False)]
    assert transformer.training
    assert [block.training for block in transformer.blocks.values()] == [False, True]
    assert torch.is_grad_enabled()
