"""Expert layers against Hugging Face's Mixtral and DeepSeek-V3 and against a float64 loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from preheat.model import Transformer, build, finish_step, generate, inference
from preheat.model.experts import Experts, GroupedLinear, combine, dispatch, fits_grouped, grouped_products, looped_products
from preheat.recipe import Model

SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "ffn_hidden": 48, "vocab_size": 260, "rope_theta": 100.0}
MIXTRAL = {"count": 8, "active": 2, "ffn_hidden": 24}
DEEPSEEK = {"count": 16, "active": 4, "ffn_hidden": 24, "shared": 2, "score": "sigmoid", "groups": 4, "active_groups": 2, "scaling": 2.5}


def model(experts: dict[str, object], **fields: object) -> Model:
    return Model.model_validate(SHAPE | {"experts": experts} | fields)


def layer(experts: dict[str, object], **fields: object) -> Experts:
    made = Experts(model(experts, **fields))
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return made


def hidden(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gradients(module: torch.nn.Module, x_BTD: Tensor, upstream_BTD: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor | None]]:
    module.zero_grad()
    x_BTD = x_BTD.clone().requires_grad_()
    y = module(x_BTD)
    y_BTD: Tensor = y[0] if isinstance(y, tuple) else y
    y_BTD.backward(upstream_BTD.to(y_BTD.dtype))
    assert x_BTD.grad is not None
    return y_BTD.detach(), x_BTD.grad, {name: parameter.grad for name, parameter in module.named_parameters()}


def joined(gradients: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Gradients under Hugging Face's names, which stacks gate on up."""
    gate, up = gradients["experts.gate.weight"], gradients["experts.up.weight"]
    assert gate is not None
    assert up is not None
    named = {
        "gate.weight": gradients["router.weight"],
        "experts.gate_up_proj": torch.cat((gate, up), 1),
        "experts.down_proj": gradients["experts.out.weight"],
    }
    theirs = {"gate": "gate_proj", "up": "up_proj", "out": "down_proj"}
    return named | {
        f"shared_experts.{theirs[name.split('.')[1]]}.weight": gradient for name, gradient in gradients.items() if name.startswith("shared")
    }


@pytest.mark.parametrize("fields", [MIXTRAL, DEEPSEEK])
def test_output_and_gradients_are_those_of_hugging_face(fields: dict[str, object]) -> None:
    if fields is MIXTRAL:
        mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
        theirs = mixtral.MixtralSparseMoeBlock(
            mixtral.MixtralConfig(hidden_size=32, intermediate_size=24, num_local_experts=8, num_experts_per_tok=2)
        )
    else:
        deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
        theirs = deepseek.DeepseekV3MoE(
            deepseek.DeepseekV3Config(
                hidden_size=32,
                moe_intermediate_size=24,
                n_routed_experts=16,
                num_experts_per_tok=4,
                n_group=4,
                topk_group=2,
                n_shared_experts=2,
                routed_scaling_factor=2.5,
                norm_topk_prob=True,
            )
        )
    ours = layer(fields)
    weights = joined({name: parameter.detach() for name, parameter in ours.named_parameters()})
    if ours.router.bias is not None:
        ours.router.bias.copy_(torch.linspace(-0.2, 0.2, 16))
        weights["gate.e_score_correction_bias"] = ours.router.bias
    theirs.load_state_dict(weights)
    x_BTD, upstream_BTD = hidden(3, 21, 32), hidden(3, 21, 32, seed=2)
    y_BTD, x_grad_BTD, gradients = with_gradients(ours, x_BTD, upstream_BTD)
    their_y, their_x_grad, their_gradients = with_gradients(theirs, x_BTD, upstream_BTD)
    torch.testing.assert_close(y_BTD, their_y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x_grad_BTD, their_x_grad, rtol=1e-4, atol=1e-5)
    gradients = joined(gradients)
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-4, atol=2e-5, msg=name)


def reference(made: Experts, x_TD: Tensor) -> Tensor:
    """One token after the other, in float64, with what autograd knows."""
    weights = {name: parameter.double() for name, parameter in made.named_parameters()}
    experts_BTK = made.router(x_TD.float()[None]).experts_BTK
    rows = []
    for token, x_D in enumerate(x_TD):
        scores_X = (weights["router.weight"] @ x_D).softmax(0)
        chosen = experts_BTK[0, token].tolist()
        total = sum(scores_X[expert] for expert in chosen)
        y_D = torch.zeros(32, dtype=torch.float64)
        for expert in chosen:
            up, out = weights["experts.up.weight"][expert], weights["experts.out.weight"][expert]
            inner_F = up @ x_D
            if "experts.up.bias" in weights:
                inner_F = inner_F + weights["experts.up.bias"][expert]
            if "experts.gate.weight" in weights:
                gate_F = weights["experts.gate.weight"][expert] @ x_D
                gate_F = gate_F + weights["experts.gate.bias"][expert] if "experts.gate.bias" in weights else gate_F
                inner_F = gate_F * gate_F.sigmoid() * inner_F
            else:
                inner_F = inner_F.clamp(min=0) ** 2
            z_D = out @ inner_F
            z_D = z_D + weights["experts.out.bias"][expert] if "experts.out.bias" in weights else z_D
            y_D = y_D + scores_X[expert] / total * z_D
        rows.append(y_D)
    return torch.stack(rows)


@pytest.mark.parametrize("width", [24, 23])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["swiglu", "squared_relu"])
def test_output_and_gradients_are_those_of_a_loop_in_float64(activation: str, bias: bool, width: int) -> None:
    """Width 23 is none that the grouped product takes."""
    made = layer(MIXTRAL | {"ffn_hidden": width}, activation=activation, bias=bias)
    x_TD, upstream_TD = hidden(19, 32), hidden(19, 32, seed=2)
    y_BTD, x_grad_BTD, gradients = with_gradients(made, x_TD[None], upstream_TD[None])
    exact_TD = x_TD.double().requires_grad_()
    expected_TD = reference(made, exact_TD)
    inputs = [exact_TD, *made.parameters()]
    exact = torch.autograd.grad(expected_TD, inputs, upstream_TD.double())
    torch.testing.assert_close(y_BTD[0].double(), expected_TD.detach(), rtol=1e-4, atol=1e-5)
    for got, expected in zip([x_grad_BTD[0], *gradients.values()], exact, strict=True):
        assert got is not None
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", [[5, 0, 9, 2], [0, 0, 0, 16], [4, 4, 4, 4]])
def test_grouped_and_looped_products_are_equal(dtype: torch.dtype, counts: list[int]) -> None:
    results = []
    for multiply in (grouped_products, looped_products):
        rows_MI, weight_XOI = hidden(16, 24).to(dtype).requires_grad_(), hidden(4, 40, 24, seed=2).to(dtype).requires_grad_()
        assert fits_grouped(rows_MI, weight_XOI)
        y_MO = multiply(rows_MI, weight_XOI, torch.tensor(counts))
        y_MO.backward(hidden(16, 40, seed=3).to(dtype))
        results.append((y_MO, rows_MI.grad, weight_XOI.grad))
    for grouped, looped in zip(*results, strict=True):
        torch.testing.assert_close(grouped, looped, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    for expert, count in enumerate(counts):
        assert results[0][2] is not None
        assert results[1][2] is not None
        assert bool(results[0][2][expert].any()) == bool(results[1][2][expert].any()) == (count > 0)


@pytest.mark.parametrize("bias", [False, True])
def test_no_rows_at_all(bias: bool) -> None:
    """So it may be on a rank of expert parallelism: the parameters still have gradients, which other ranks wait for."""
    linear = GroupedLinear(4, 8, 16, bias)
    rows_MI = torch.zeros(0, 8, requires_grad=True)
    linear(rows_MI, torch.zeros(4, dtype=torch.int64)).sum().backward()
    assert rows_MI.grad is not None
    for parameter in linear.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


CHOICES = st.integers(1, 3).flatmap(
    lambda active: st.lists(st.permutations(range(5)).map(lambda order: order[:active]), min_size=1, max_size=9)
)


@given(CHOICES, st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_dispatched_comes_back(choices: list[list[int]], data: st.DataObject) -> None:
    """Rows are sorted by expert and then by token, each kept choice is one row, and weighted copies add up."""
    experts_NK = torch.tensor(choices)
    kept_NK = torch.tensor([[data.draw(st.booleans()) for _ in row] for row in choices])
    x_ND, weights_NK = hidden(len(choices), 3).double(), hidden(*experts_NK.shape, seed=2).double()
    sent = dispatch(x_ND, experts_NK, 5, kept_NK)
    expected = sorted((expert, token) for token, row in enumerate(choices) for k, expert in enumerate(row) if kept_NK[token, k])
    assert torch.equal(sent.rows_MD, x_ND[[token for _, token in expected]])
    assert sent.counts_X.tolist() == [sum(expert == of for of, _ in expected) for expert in range(5)]
    back_ND = combine(sent.rows_MD, sent.choice_M, weights_NK)
    torch.testing.assert_close(back_ND, x_ND * (weights_NK * kept_NK).sum(1, keepdim=True))
    assert torch.equal(dispatch(x_ND, experts_NK, 5).rows_MD, dispatch(x_ND, experts_NK, 5, torch.ones_like(kept_NK)).rows_MD)


def test_slopes_of_dispatch_and_combine() -> None:
    experts_NK = torch.tensor([[0, 2], [2, 1], [0, 1], [2, 0]])
    kept_NK = torch.tensor([[True, True], [True, False], [False, True], [True, True]])

    def through(x_ND: Tensor, weights_NK: Tensor) -> Any:
        sent = dispatch(x_ND, experts_NK, 4, kept_NK)
        return combine(sent.rows_MD.sin(), sent.choice_M, weights_NK)

    torch.autograd.gradcheck(through, (hidden(4, 3).double().requires_grad_(), hidden(4, 2, seed=2).double().requires_grad_()))


def test_every_choice_is_a_row_and_no_more() -> None:
    """A padded or repeated row would train its expert once more."""
    made = layer(MIXTRAL)
    passed: list[tuple[int, int]] = []
    made.experts.register_forward_hook(lambda _, given, __: passed.append((len(given[0]), int(given[1].sum()))))
    made(hidden(3, 7, 32))
    assert passed == [(3 * 7 * 2, 3 * 7 * 2)]


def test_an_expert_without_a_token_gets_no_gradient_but_zero() -> None:
    made = layer(MIXTRAL)
    x_BTD = hidden(1, 1, 32)
    chosen = made.router(x_BTD).experts_BTK.flatten().tolist()
    _, _, gradients = with_gradients(made, x_BTD, torch.ones(1, 1, 32))
    for name in ("gate", "up", "out"):
        gradient = gradients[f"experts.{name}.weight"]
        assert gradient is not None
        assert [expert for expert in range(8) if gradient[expert].any()] == sorted(chosen)


def everything_to(first: int, second: int, **fields: object) -> Experts:
    """A layer whose tokens of ones all choose the same two of four experts."""
    made = layer({"count": 4, "active": 2, "ffn_hidden": 24, **fields})
    with torch.no_grad():
        made.router.weight.zero_()
        made.router.weight[first], made.router.weight[second] = 2.0, 1.0
    return made


def test_a_full_expert_drops_the_last_tokens_of_each_sequence() -> None:
    """1.1 of an even share of 10 x 2 / 4 are 6 rows; the tokens after them lose both their experts, and pass by on the residual stream."""
    made = everything_to(3, 1, capacity_factor=1.1)
    y_BTD, _ = made(torch.ones(2, 10, 32))
    nonzero_BT = y_BTD.abs().amax(-1) > 0
    assert nonzero_BT.tolist() == [[True] * 6 + [False] * 4] * 2
    balance = finish_step(made)
    assert balance is not None
    assert balance.dropped == pytest.approx([0.4])
    assert balance.fullest == (2.0,)


def test_capacity_is_the_smallest_whole_number() -> None:
    """1.1 of an even share of 100 x 2 / 4 are 55; in binary 1.1 x 200 / 4 is a little more, which would be 56."""
    made = everything_to(0, 2, capacity_factor=1.1)
    assert (made(torch.ones(1, 100, 32))[0].abs().amax(-1) > 0).sum() == 55


def test_a_dropped_choice_leaves_the_others_their_weights() -> None:
    """The second expert of all tokens is one expert, of which one row is kept in four; the first ones alternate and are kept."""
    made = layer({"count": 4, "active": 2, "ffn_hidden": 24, "capacity_factor": 1.0})
    x_BTD = hidden(1, 8, 32)
    routing = made.router(x_BTD)
    dropped_BTD = made(x_BTD)[0]
    kept = dict.fromkeys(range(4), 0)
    expected_BTD = torch.zeros_like(x_BTD)
    for token in range(8):
        for expert, weight in zip(routing.experts_BTK[0, token].tolist(), routing.weights_BTK[0, token].tolist(), strict=True):
            if kept[expert] < 4:
                counts_X = torch.nn.functional.one_hot(torch.tensor(expert), 4)
                expected_BTD[0, token] += weight * made.experts(x_BTD[0, token : token + 1], counts_X)[0]
            kept[expert] += 1
    assert max(kept.values()) > 4
    torch.testing.assert_close(dropped_BTD, expected_BTD, rtol=1e-4, atol=1e-6)


def test_capacity_depends_neither_on_the_micro_batch_nor_on_later_tokens() -> None:
    made, x_BTD = layer(MIXTRAL | {"capacity_factor": 0.8}), hidden(4, 16, 32)
    whole_BTD = made(x_BTD)[0]
    torch.testing.assert_close(torch.cat([made(x_BTD[row : row + 1])[0] for row in range(4)]), whole_BTD)
    changed_BTD = x_BTD.clone()
    changed_BTD[:, 9:] = hidden(4, 7, 32, seed=3)
    torch.testing.assert_close(made(changed_BTD)[0][:, :9], whole_BTD[:, :9])


def test_scoring_drops_nothing() -> None:
    limited, free, x_BTD = layer(MIXTRAL | {"capacity_factor": 0.5}), layer(MIXTRAL), hidden(2, 16, 32)
    assert not torch.equal(limited(x_BTD)[0], free(x_BTD)[0])
    assert torch.equal(limited.eval()(x_BTD)[0], free(x_BTD)[0])


TOKENS_BT = torch.randint(0, 260, (2, 17), generator=torch.Generator().manual_seed(0))
CHANGES = {
    "count": 12,
    "active": 3,
    "ffn_hidden": 16,
    "shared": 1,
    "first_dense": 0,
    "score": "sigmoid",
    "scaling": 2.0,
    "groups": 2,
    "aux_loss": 0.1,
    "sequence_aux_loss": 0.1,
    "z_loss": 0.1,
    "capacity_factor": 0.5,
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_of_the_recipe_changes_the_loss(field: str) -> None:
    plain: dict[str, object] = {"count": 8, "active": 2, "ffn_hidden": 24, "first_dense": 1}
    update = {field: CHANGES[field]} | ({"active_groups": 1} if field == "groups" else {})
    before, after = (
        build(model(experts, init_std=0.2), seed=0)(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]).total for experts in (plain, plain | update)
    )
    assert after.item() != pytest.approx(before.item(), rel=1e-6)


def test_losses_add_up() -> None:
    coefficients = {"aux_loss": 0.01, "sequence_aux_loss": 0.02, "z_loss": 0.001}
    transformer = build(model(DEEPSEEK | coefficients, init_std=0.1), seed=0)
    losses = transformer(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:], z_loss=1e-3)
    assert losses.total.item() == pytest.approx(sum(loss.item() for loss in (losses.cross_entropy, losses.z, losses.balance)), rel=1e-6)
    assert losses.balance > 0
    balance = finish_step(transformer)
    assert balance is not None
    assert balance.layers == ("blocks.0.feed_forward.router", "blocks.1.feed_forward.router")
    with inference(transformer):
        scored = transformer(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:])
    assert scored.balance == 0
    assert scored.total == scored.cross_entropy


def test_the_first_layers_stay_dense() -> None:
    names = {name for name, _ in Transformer(model(MIXTRAL | {"first_dense": 1})).named_parameters()}
    assert "blocks.0.feed_forward.up.weight" in names
    assert "blocks.1.feed_forward.experts.up.weight" in names
    assert not any(name.startswith(("blocks.0.feed_forward.router", "blocks.1.feed_forward.up")) for name in names)


@pytest.mark.parametrize("experts", [MIXTRAL, DEEPSEEK | {"capacity_factor": 0.7}])
def test_a_token_changes_nothing_before_it(experts: dict[str, object]) -> None:
    """In training too, where tokens are dropped."""
    transformer = build(model(experts, init_std=0.2), seed=0)
    changed_BT = TOKENS_BT.clone()
    changed_BT[:, 9] = (changed_BT[:, 9] + 1) % 260
    before_BTD, after_BTD = transformer(TOKENS_BT), transformer(changed_BT)
    torch.testing.assert_close(after_BTD[:, :9], before_BTD[:, :9], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after_BTD[:, 9:], before_BTD[:, 9:], rtol=1e-2)


@pytest.mark.parametrize("experts", [MIXTRAL, DEEPSEEK])
def test_generating_with_the_cache_is_reading_the_whole_text(experts: dict[str, object]) -> None:
    transformer = build(model(experts, init_std=0.2), seed=0)
    text = [1, 2, 3]
    for token in generate(transformer, text, max_new_tokens=8, temperature=0):
        with inference(transformer):
            assert int(transformer.logits(transformer(torch.tensor([text])))[0, -1].argmax()) == token
        text.append(token)


@pytest.mark.parametrize("experts", [MIXTRAL, DEEPSEEK])
def test_bf16_autocast_trains_near_fp32(experts: dict[str, object]) -> None:
    losses, gradients = [], []
    for enabled in (False, True):
        transformer = build(model(experts, init_std=0.1), seed=0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = transformer(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]).total
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in transformer.parameters() if parameter.grad is not None]))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99
