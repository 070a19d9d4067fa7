import hashlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.model import Transformer, build, init, init_weights, initial_values
from preheat.recipe import Experts, LatentAttention, Model, MultiTokenPrediction, WidthTransfer, load

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


def test_the_values_of_the_first_release() -> None:
    """Weights of models below 2**20 values a matrix, drawn by the code before there were blocks: a seed keeps its model."""
    values = weights(SMALL, 7)
    digest = hashlib.sha256(b"7:blocks.1.attention.out.weight").digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    expected = torch.randn(64, 64, generator=generator) * (0.02 / 2)
    assert torch.equal(values["blocks.1.attention.out.weight"], expected)


@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 40), st.integers(1, 40)), st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 20))
    ),
    block=st.integers(1, 200),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    bound=st.sampled_from([None, 1.0, 2.5]),
)
@settings(max_examples=60, deadline=None)
def test_a_part_of_the_rows_is_drawn_as_in_the_whole(
    shape: tuple[int, ...], block: int, ends: tuple[float, float], bound: float | None
) -> None:
    model = SMALL.model_copy(update={"init_truncation": bound})
    rows = range(*(int(end * shape[0]) for end in sorted(ends)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(init, "BLOCK", block)
        whole = initial_values("blocks.0.attention.query.weight", shape, model, 3)
        part = initial_values("blocks.0.attention.query.weight", shape, model, 3, rows)
    assert whole.shape == shape
    assert torch.equal(part, whole[rows.start : rows.stop])


def test_a_part_draws_no_more_than_the_blocks_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert of 256, and 10 rows of a table of 3 million: 15 billion values in all."""
    drawn: list[int] = []
    randn = torch.randn

    def counted(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        drawn.append(math.prod(shape))
        return randn(shape, generator=generator)

    monkeypatch.setattr(torch, "randn", counted)
    initial_values("blocks.3.feed_forward.experts.up.weight", (256, 2048, 1024), SMALL, 0, range(200, 201))
    assert sum(drawn) == 2048 * 1024
    drawn.clear()
    initial_values("embedding.weight", (3_000_000, 4096), SMALL, 0, range(2_999_990, 3_000_000))
    assert sum(drawn) <= 2**20


def test_blocks_and_experts_differ_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "BLOCK", 64)
    stack = initial_values("blocks.0.feed_forward.experts.up.weight", (4, 24, 8), SMALL, 0)
    assert len({tuple(block.flatten().tolist()) for matrix in stack for block in matrix.split(8)}) == 4 * 3


@given(bound=st.floats(1, 4))
@settings(max_examples=10, deadline=None)
def test_truncated_values_have_the_spread_of_the_truncated_normal(bound: float) -> None:
    """Var = 1 - 2 b pdf(b) / (2 cdf(b) - 1), a textbook's."""
    model = SMALL.model_copy(update={"init_truncation": bound, "depth_scaled_init": False})
    values = initial_values("embedding.weight", (500, 400), model, 1) / 0.02
    density, inside = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi), math.erf(bound / math.sqrt(2))
    assert values.abs().max().item() <= bound * (1 + 1e-6)
    assert values.var().item() == pytest.approx(1 - 2 * bound * density / inside, rel=0.02)


WIDE = Model(
    layers=32,
    hidden=64,
    heads=4,
    ffn_hidden=96,
    vocab_size=300,
    rope_theta=1e4,
    tied_embeddings=False,
    init_truncation=3.0,
    mla=LatentAttention(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16),
    experts=Experts(count=4, active=2, ffn_hidden=48, shared=1, first_dense=1),
    mtp=MultiTokenPrediction(layers=1, loss_weight=0.3),
)


@pytest.mark.parametrize("layer", [0, 31])
def test_truncation_and_depth_scaling_of_a_reported_case(layer: int) -> None:
    """A trainer truncated at 100 standard deviations and scaled other matrices. 32 layers: 0.02 / sqrt(64) = 0.0025 for those two."""
    before = f"blocks.{layer}"
    scaled = {f"{before}.attention.out.weight", f"{before}.feed_forward.out.weight", f"{before}.feed_forward.experts.out.weight"}
    scaled |= {f"{before}.feed_forward.shared.out.weight", "predictions.0.block.attention.out.weight"}
    plain = {"embedding.weight", "head.weight", "predictions.0.project.weight"} | {
        f"{before}.{rest}.weight"
        for rest in (
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.query.down",
            "attention.query.up",
            "attention.latent_down",
            "attention.latent_up",
            "feed_forward.gate",
            "feed_forward.up",
            "feed_forward.router",
            "feed_forward.experts.gate",
            "feed_forward.experts.up",
            "feed_forward.shared.up",
        )
    }
    for name in scaled | plain:
        values = initial_values(name, (400, 300), WIDE, 0)
        std = 0.0025 if name in scaled else 0.02
        assert values.abs().max().item() <= 3 * std * (1 + 1e-6), name
        assert values.std().item() == pytest.approx(std, rel=0.02), name


def test_deepseek_v3_starts_at_0_006_and_undamped() -> None:
    """arXiv 2412.19437, section 4.2: all learnable parameters with standard deviation 0.006."""
    model = load("deepseek-v3").recipe.model
    for name in ("embedding.weight", "blocks.5.attention.out.weight", "blocks.60.feed_forward.experts.out.weight"):
        assert initial_values(name, (400, 300), model, 0).std().item() == pytest.approx(0.006, rel=0.02), name


def test_an_offset_from_one_starts_at_zero() -> None:
    for norm, start in (("rmsnorm", 1.0), ("layernorm", 1.0), ("layernorm1p", 0.0)):
        model = SMALL.model_copy(update={"norm": norm, "qk_norm": True})
        found = {name: value for name, value in weights(model).items() if name.endswith("norm.weight")}
        assert len(found) == 2 * 4 + 1
        assert all((value == start).all() for value in found.values())


def test_wider_models_start_smaller_between_hidden_dims_only() -> None:
    """Maximal update parametrization at m = 64 / 4 = 16: hidden matrices start at a quarter; tables and head do not."""
    plain = weights(SMALL.model_copy(update={"tied_embeddings": False}))
    wide = weights(SMALL.model_copy(update={"tied_embeddings": False, "mup": WidthTransfer(base_hidden=4)}))
    for name, values in wide.items():
        hidden = name.startswith("blocks.") and values.dim() == 2
        torch.testing.assert_close(values, plain[name] / 4 if hidden else plain[name], rtol=1e-6, atol=0)


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
