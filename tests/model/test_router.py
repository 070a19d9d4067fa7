"""The router against Hugging Face's Mixtral and DeepSeek-V3, and its load balancing against their papers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from preheat.model import finish_step
from preheat.model.router import Router, best
from preheat.recipe import Model

SHAPE = {"layers": 2, "hidden": 16, "heads": 2, "ffn_hidden": 24, "vocab_size": 260, "rope_theta": 100.0}
SOFTMAX = {"count": 8, "active": 2, "ffn_hidden": 8}
SIGMOID = {"count": 16, "active": 4, "ffn_hidden": 8, "score": "sigmoid", "groups": 4, "active_groups": 2, "scaling": 2.5}


def router(**fields: object) -> Router:
    made = Router(Model.model_validate(SHAPE | {"experts": {**SOFTMAX, **fields}}))
    torch.nn.init.normal_(made.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    return made


def hidden(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, 16, generator=torch.Generator().manual_seed(seed))


def scored(logits: list[float], **fields: object) -> Router:
    """A router whose logits for the input of ones are the given ones."""
    made = router(count=len(logits), **fields)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(logits)[:, None].expand(-1, 16) / 16)
    return made


def weight_gradient(made: Router, batches: list[Tensor]) -> Tensor:
    made.weight.grad = None
    for x_BTD in batches:
        penalty = made(x_BTD).penalty
        assert penalty is not None
        penalty.backward()
    assert made.weight.grad is not None
    return made.weight.grad


def test_mixtral_chooses_the_same_experts_with_the_same_weights() -> None:
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    config = mixtral.MixtralConfig(hidden_size=16, num_local_experts=8, num_experts_per_tok=2)
    ours, theirs = router(), mixtral.MixtralTopKRouter(config)
    theirs.weight.data = ours.weight.data.clone()
    x_BTD = hidden(3, 20)
    _, weights_NK, experts_NK = theirs(x_BTD)
    chosen = ours(x_BTD)
    assert torch.equal(chosen.experts_BTK.flatten(0, 1), experts_NK)
    torch.testing.assert_close(chosen.weights_BTK.flatten(0, 1), weights_NK, rtol=1e-6, atol=1e-6)


def test_deepseek_chooses_the_same_experts_with_the_same_weights() -> None:
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = deepseek.DeepseekV3Config(
        hidden_size=16, n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True
    )
    ours, theirs = router(**SIGMOID), deepseek.DeepseekV3TopkRouter(config)
    assert ours.bias is not None
    ours.bias.copy_(torch.randn(16, generator=torch.Generator().manual_seed(5)) * 0.2)
    theirs.weight.data, theirs.e_score_correction_bias = ours.weight.data.clone(), ours.bias.clone()
    x_BTD = hidden(3, 20)
    _, weights_NK, experts_NK = theirs(x_BTD)
    chosen = ours(x_BTD)
    ours_NK, order_NK = chosen.experts_BTK.flatten(0, 1).sort()
    theirs_NK, their_order_NK = experts_NK.sort()
    assert torch.equal(ours_NK, theirs_NK)
    ours_w, theirs_w = chosen.weights_BTK.flatten(0, 1).gather(1, order_NK), weights_NK.gather(1, their_order_NK)
    torch.testing.assert_close(ours_w, theirs_w, rtol=1e-6, atol=1e-6)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    """Sigmoid scores 0.8, 0.6, 0.5, 0.2; a bias of 0.5 on the last lifts it to second place, with a weight of 0.2 / (0.8 + 0.2)."""
    made = scored([math.log(4), math.log(1.5), 0.0, -math.log(4)], score="sigmoid", scaling=3.0)
    assert made.bias is not None
    made.bias[3] = 0.5
    chosen = made(torch.ones(1, 1, 16))
    assert chosen.experts_BTK.tolist() == [[[0, 3]]]
    assert chosen.weights_BTK.flatten().tolist() == pytest.approx([2.4, 0.6], rel=1e-6)


def test_a_group_counts_by_its_two_best_experts_together() -> None:
    """The best expert is in the first group, the best pair in the second: sigmoid scores 0.88 + 0.00 and 0.73 + 0.71."""
    logits = [2.0, -9.0, -9.0, 1.0, 0.9, -9.0]
    made = scored(logits, groups=2, active_groups=1, score="sigmoid")
    assert made(torch.ones(1, 1, 16)).experts_BTK.tolist() == [[[3, 4]]]
    assert scored(logits, score="sigmoid")(torch.ones(1, 1, 16)).experts_BTK.tolist() == [[[0, 3]]]


def test_a_single_expert_weighs_its_score_and_the_router_learns() -> None:
    """Switch, arXiv 2101.03961, eq. 2."""
    made = scored([math.log(6), math.log(3), 0.0], active=1)
    chosen = made(torch.ones(1, 1, 16))
    assert chosen.weights_BTK.item() == pytest.approx(0.6, rel=1e-6)
    chosen.weights_BTK.sum().backward()
    assert made.weight.grad is not None
    assert made.weight.grad.abs().max() > 0.1


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=12), st.data())
def test_of_equal_scores_the_first_is_chosen(scores: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    expected = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]
    assert best(torch.tensor([scores]), count).tolist() == [expected]


@pytest.mark.parametrize("fields", [SOFTMAX, SIGMOID])
def test_autocast_does_not_touch_the_router(fields: dict[str, object]) -> None:
    made, x_BTD = router(**fields, z_loss=0.1), hidden(2, 30)
    plain = made(x_BTD)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = made(x_BTD)
    assert under_autocast.weights_BTK.dtype == torch.float32
    for left, right in zip(plain, under_autocast, strict=True):
        assert left is not None
        assert torch.equal(left, right)


def test_the_batch_loss_is_that_of_mixtral_over_k() -> None:
    """Mixtral counts K choices a token as K, Megatron-LM and DeepSeek as 1: 1 is even."""
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    made, x_BTD = router(aux_loss=0.01), hidden(2, 30)
    expected = mixtral.load_balancing_loss_func((torch.nn.functional.linear(x_BTD.flatten(0, 1), made.weight),), 8, 2) / 2
    assert made(x_BTD).penalty.item() == pytest.approx(0.01 * 60, rel=1e-6)  # the load counts as even before the first step
    balance = finish_step(made)
    assert balance is not None
    assert balance.aux_loss == pytest.approx([expected.item()], rel=1e-5)
    penalty = made(x_BTD).penalty
    assert penalty.item() == pytest.approx(0.01 * 60 * expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(penalty, made.weight)
    (reference,) = torch.autograd.grad(0.01 * 60 * expected, made.weight)
    torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fields", [SOFTMAX, SIGMOID])
def test_the_sequence_loss_is_equation_17_of_deepseek(fields: dict[str, object]) -> None:
    made, x_BTD = router(**fields, sequence_aux_loss=0.3), hidden(3, 11)
    if made.bias is not None:
        made.bias.copy_(torch.linspace(-1, 1, 16))  # equation 18 has no bias
    count, active = made.config.count, made.config.active
    expected = 0.0
    for sequence_TD in x_BTD.double():
        logits_TX = sequence_TD @ made.weight.detach().double().T
        scores_TX = logits_TX.softmax(-1) if fields is SOFTMAX else logits_TX.sigmoid()
        for expert in range(count):
            chosen = sum(expert in row.topk(active).indices for row in scores_TX)
            mean_share = sum((row[expert] / row.sum()).item() for row in scores_TX) / 11
            expected += 0.3 * 11 * (count / active) * chosen / 11 * mean_share
    assert made(x_BTD).penalty.item() == pytest.approx(expected, rel=1e-5)


def test_the_z_loss_is_the_squared_log_of_the_sum() -> None:
    made = scored([0.0, math.log(2), math.log(3), math.log(4)], z_loss=0.5)
    assert made(torch.ones(2, 3, 16)).penalty.item() == pytest.approx(6 * 0.5 * math.log(10) ** 2, rel=1e-6)


COEFFICIENTS = {"aux_loss": 0.01, "sequence_aux_loss": 0.01, "z_loss": 0.01}


@pytest.mark.parametrize("field", COEFFICIENTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batch_size_does_not_change_the_gradient(field: str, size: int) -> None:
    """NVIDIA/Megatron-LM pull 5798: it shrank as 1 / micro-batch size."""
    made, x_BTD = router(**{field: 0.01}), hidden(4, 12)
    made(x_BTD)
    finish_step(made)
    whole = weight_gradient(made, [x_BTD])
    expected = finish_step(made)
    torch.testing.assert_close(weight_gradient(made, list(x_BTD.split(size))), whole, rtol=1e-6, atol=1e-6)
    in_parts = finish_step(made)
    assert expected is not None
    assert in_parts is not None
    assert in_parts.fullest == expected.fullest
    assert in_parts.aux_loss == pytest.approx(expected.aux_loss, rel=1e-5)


@pytest.mark.parametrize("field", COEFFICIENTS)
def test_the_gradient_is_linear_in_the_coefficient(field: str) -> None:
    """NVIDIA-NeMo/Automodel pull 1412: it had no effect, or one that depended on the number of GPUs."""
    gradients = []
    for coefficient in (0.01, 1.0):
        made = router(**{field: coefficient})
        made(hidden(4, 12))
        finish_step(made)
        gradients.append(weight_gradient(made, [hidden(4, 12)]))
    assert gradients[0].abs().max() > 1e-4
    torch.testing.assert_close(gradients[0] * 100, gradients[1], rtol=1e-4, atol=1e-5)
    plain = router()
    assert plain(hidden(4, 12)).penalty is None


@pytest.mark.parametrize(
    ("fields", "bias_rate"),
    [({"aux_loss": 1.0}, 0.0), ({"sequence_aux_loss": 1.0}, 0.0), ({"score": "sigmoid"}, 0.02)],
)
def test_fifty_steps_even_the_load_out(fields: dict[str, object], bias_rate: float) -> None:
    """Tokens with a common direction, as hidden states have, all go the same way at first."""
    made, fullest = router(**fields), []
    common_D = hidden(1)[0]
    optimizer = torch.optim.Adam(made.parameters(), lr=0.02)
    for step in range(50):
        x_BTD = hidden(8, 32, seed=step) + common_D
        penalty = made(x_BTD).penalty
        if penalty is not None:
            (penalty / 256).backward()
            optimizer.step()
            optimizer.zero_grad()
        balance = finish_step(made, bias_rate)
        assert balance is not None
        fullest += balance.fullest
    assert fullest[0] > 2
    assert sum(fullest[-5:]) / 5 < 1.5


def test_the_bias_moves_against_the_load() -> None:
    made = scored([3.0, 2.0, 1.0, 1.0], score="sigmoid")
    made(torch.ones(2, 5, 16))
    balance = finish_step(made, 0.001)
    assert made.bias is not None
    assert made.bias.tolist() == pytest.approx([-0.001, -0.001, 0.001, 0.001])
    assert balance is not None
    assert balance.fullest == (2.0,)
    assert balance.dropped == (0.0,)


def test_a_layer_without_tokens_keeps_its_load_and_is_not_reported() -> None:
    made = router(aux_loss=0.1, score="sigmoid")
    made(hidden(1, 8))
    finish_step(made, 0.5)
    assert made.load is not None
    assert made.bias is not None
    load, bias = made.load.clone(), made.bias.clone()
    balance = finish_step(made, 0.5)
    assert balance is not None
    assert balance.layers == ()
    assert torch.equal(made.load, load)
    assert torch.equal(made.bias, bias)


def test_recomputation_does_not_change_the_load() -> None:
    seen = []
    for recompute in (False, True):
        made, x_BTD = router(aux_loss=0.1, z_loss=0.1), hidden(2, 9).requires_grad_()
        routing = checkpoint(made, x_BTD, use_reentrant=False) if recompute else made(x_BTD)
        routing.penalty.backward()
        seen.append((finish_step(made), made.load, x_BTD.grad))
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])
    assert torch.equal(seen[0][2], seen[1][2])


def test_evaluation_neither_counts_nor_penalises() -> None:
    made = router(aux_loss=0.1, sequence_aux_loss=0.1, z_loss=0.1).eval()
    assert made(hidden(2, 9)).penalty is None
    balance = finish_step(made)
    assert balance is not None
    assert balance.layers == ()


@settings(max_examples=40, deadline=None)
@given(
    count=st.sampled_from([4, 8, 12]),
    active=st.integers(1, 4),
    groups=st.sampled_from([None, 1, 2, 4]),
    sigmoid=st.booleans(),
    data=st.data(),
)
def test_no_token_chooses_an_expert_twice(count: int, active: int, groups: int | None, sigmoid: bool, data: st.DataObject) -> None:
    """Saturated and equal scores too. Experts are of the chosen groups."""
    active_groups = data.draw(st.integers(-(-active * groups // count), groups)) if groups else None
    fields = {
        "count": count,
        "active": active,
        "groups": groups,
        "active_groups": active_groups,
        "score": "sigmoid" if sigmoid else "softmax",
    }
    made = router(**fields)
    scale = data.draw(st.sampled_from([0.0, 1.0, 1000.0]))
    experts_BTK, weights_BTK, _ = made(hidden(1, 20) * scale)
    for chosen in experts_BTK[0].tolist():
        assert len(set(chosen)) == active
        assert all(0 <= expert < count for expert in chosen)
        if groups and active_groups:
            assert len({expert // (count // groups) for expert in chosen}) <= active_groups
    assert weights_BTK.isfinite().all()


def test_the_state_that_is_saved() -> None:
    """Counts of an unfinished step are none of it: a checkpoint is written between steps."""
    assert set(router().state_dict()) == {"weight"}
    assert set(router(score="sigmoid", aux_loss=0.1).state_dict()) == {"weight", "bias", "load"}
