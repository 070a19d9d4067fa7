"""Multi-token prediction against section 2.2 of arXiv 2412.19437, written down once more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from preheat.arithmetic import parameters
from preheat.model import Losses, Transformer, build, finish_step, generate, inference
from preheat.recipe import Model, MultiTokenPrediction, WeightChange
from preheat.units import tokens

DEPTHS = MultiTokenPrediction(layers=2, loss_weight=(WeightChange(at=tokens(0), weight=0.3),))
DENSE = Model(layers=2, hidden=32, heads=4, ffn_hidden=48, vocab_size=260, rope_theta=100.0, init_std=0.2, norm_eps=1e-6, mtp=DEPTHS)
SPARSE = Model.model_validate(
    DENSE.model_dump(exclude={"mtp"})
    | {"mtp": DEPTHS, "experts": {"count": 8, "active": 2, "ffn_hidden": 24, "first_dense": 1, "z_loss": 0.01}}
)
LENGTH = 12
TEXT_BT = torch.randint(0, 260, (3, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def losses(model: Transformer, text_BT: Tensor = TEXT_BT, weight: float = 0.3, documents_BT: Tensor | None = None) -> Losses:
    result = model(text_BT[:, :-1], text_BT[:, 1:], prediction_weight=weight, documents_BT=documents_BT)
    assert isinstance(result, Losses)
    return result


def with_odd_norms(model: Model) -> Transformer:
    """Norm weights that are not 1, so that a missing one shows."""
    transformer = build(model, seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if name.endswith("norm.weight"):
                parameter.mul_(1 + 0.5 * torch.rand(parameter.shape, generator=generator))
    return transformer.eval()


def root_mean_square(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_the_loss_is_that_of_the_paper(model: Model) -> None:
    """h'(k, i) = M_k [RMSNorm(embedding of token i + k), RMSNorm(h(k - 1, i))] for i up to T - k, a block, and -log p of token i + k + 1.

    Megatron-LM and vLLM take the normalised h(k - 1, i), and the embedding first. Block and embedding are tested elsewhere.
    """
    transformer = with_odd_norms(model)
    weights = dict(transformer.named_parameters())
    # A plain model's blocks are given the layers of the depths, to run these on inputs of our own.
    plain = build(model.model_copy(update={"layers": model.layers, "mtp": None}), seed=0).eval()
    h_BTD = transformer(TEXT_BT[:, :-1])
    sums = []
    for depth in (1, 2):
        name = f"predictions.{depth - 1}."
        ahead_BTD = weights["embedding.weight"][TEXT_BT[:, depth:LENGTH]]
        joined_BTD = torch.cat(
            (
                root_mean_square(ahead_BTD, weights[name + "embedding_norm.weight"]),
                root_mean_square(h_BTD[:, : LENGTH - depth], weights[name + "hidden_norm.weight"]),
            ),
            dim=-1,
        )
        x_BTD = joined_BTD @ weights[name + "project.weight"].T
        sight = plain._sight(TEXT_BT[:, : LENGTH - depth], None, None, None, None)
        x_BTD = transformer.predictions[str(depth - 1)].block(x_BTD, sight)[0]
        h_BTD = root_mean_square(x_BTD, weights[name + "norm.weight"])
        probabilities_BTV = (h_BTD @ weights["embedding.weight"].T).double().softmax(-1)
        sums.append(-probabilities_BTV.gather(-1, TEXT_BT[:, depth + 1 :, None]).log().sum().item())
    assert losses(transformer).prediction.item() == pytest.approx(sum(sums) / 2, rel=1e-5)


@pytest.mark.parametrize(("weight", "expected"), [(0.3, 0.3), (0.1, 0.1), (0.0, 0.0)])
def test_the_weight_multiplies_the_mean_of_the_depths(weight: float, expected: float) -> None:
    transformer = build(DENSE, seed=0)
    got, full = losses(transformer, weight=weight), losses(transformer, weight=1.0)
    assert (got.total - got.cross_entropy).item() == pytest.approx(expected * full.prediction.item(), rel=1e-5)


def test_only_positions_whose_target_exists_are_scored() -> None:
    """All words equally likely: each scored position costs ln 260; depth 1 has 11 of 12 positions, depth 2 has 10."""
    transformer = build(DENSE.model_copy(update={"tied_embeddings": False}), seed=0)
    assert transformer.head is not None
    torch.nn.init.zeros_(transformer.head.weight)
    assert losses(transformer).prediction.item() == pytest.approx(3 * (11 + 10) / 2 * math.log(260), rel=1e-6)
    labels_BT = TEXT_BT[:, 1:].clone()
    labels_BT[0] = -1
    labels_BT[1, 5] = -1
    masked = transformer(TEXT_BT[:, :-1], labels_BT, prediction_weight=0.3)
    assert masked.prediction.item() == pytest.approx((2 * (11 + 10) - 2) / 2 * math.log(260), rel=1e-6)


def test_nothing_scored_is_nothing_learned() -> None:
    transformer = build(DENSE, seed=0)
    result = transformer(TEXT_BT[:, :-1], torch.full_like(TEXT_BT[:, 1:], -1), prediction_weight=0.3)
    result.total.backward()
    assert result.total == 0
    assert not any(parameter.grad is None or parameter.grad.any() for parameter in transformer.parameters())


def test_documents_do_not_see_each_other() -> None:
    """Documents of 5, 4 and 3 tokens. Depth k reads k further tokens, so it scores none of the last k positions of a document."""
    documents_BT = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    transformer = build(DENSE, seed=0)
    text_BT = TEXT_BT[:1]
    whole = losses(transformer, text_BT, documents_BT=documents_BT).prediction.item()
    alone = 0.0
    for start, end in ((0, 5), (5, 9), (9, 12)):
        result = transformer(text_BT[:, start:end], text_BT[:, start + 1 : end + 1], prediction_weight=0.3)
        alone += result.prediction.item()
    assert whole == pytest.approx(alone, rel=1e-5)
    assert whole != pytest.approx(losses(transformer, text_BT).prediction.item(), rel=1e-2)


def test_the_embedding_comes_first() -> None:
    """As in DeepSeek's eh_proj: without the first half of the columns the further tokens are not read."""
    transformer = build(DENSE.model_copy(update={"mtp": DEPTHS.model_copy(update={"layers": 1})}), seed=0)
    changed_BT = TEXT_BT.clone()
    changed_BT[:, LENGTH - 1] = (changed_BT[:, LENGTH - 1] + 1) % 260
    labels_BT = TEXT_BT[:, 1:]

    def last_position(text_BT: Tensor) -> float:
        """Of position T - 2 alone, which reads token T - 1."""
        only_BT = torch.full_like(labels_BT, -1)
        only_BT[:, -1] = labels_BT[:, -1]
        return transformer(text_BT[:, :-1], only_BT, prediction_weight=1.0).prediction.item()

    assert last_position(TEXT_BT) != last_position(changed_BT)
    with torch.no_grad():
        transformer.predictions["0"].project.weight[:, :32] = 0
    assert last_position(TEXT_BT) == last_position(changed_BT)


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_without_weight_the_layers_do_not_run(model: Model) -> None:
    """Their parameters get no gradient then, and their routers report no load."""
    transformer = build(model, seed=0)
    result = losses(transformer, weight=0.0)
    result.total.backward()
    assert result.prediction == 0
    idle = {name for name, parameter in transformer.named_parameters() if parameter.grad is None}
    assert idle == {name for name, _ in transformer.named_parameters() if name.startswith("predictions")}
    balance = finish_step(transformer)
    if model is SPARSE:
        assert balance is not None
        assert balance.layers == ("blocks.1.feed_forward.router",)


def test_their_routers_are_balanced_too() -> None:
    transformer = build(SPARSE, seed=0)
    result = losses(transformer)
    assert result.balance > losses(transformer, weight=0.0).balance
    balance = finish_step(transformer)
    assert balance is not None
    assert balance.layers == tuple(f"{place}.feed_forward.router" for place in ("blocks.1", "predictions.0.block", "predictions.1.block"))
    assert result.total.item() == pytest.approx((result.cross_entropy + result.balance + 0.3 * result.prediction).item(), rel=1e-6)


def test_text_does_not_depend_on_them() -> None:
    """Neither do scores of text."""
    transformer, plain = build(DENSE, seed=0), build(DENSE.model_copy(update={"mtp": None}), seed=0)
    assert generate(transformer, [1, 2, 3], max_new_tokens=5) == generate(plain, [1, 2, 3], max_new_tokens=5)
    with inference(transformer), inference(plain):
        assert torch.equal(transformer(TEXT_BT), plain(TEXT_BT))
        assert transformer(TEXT_BT[:, :-1], TEXT_BT[:, 1:]).total == plain(TEXT_BT[:, :-1], TEXT_BT[:, 1:]).total


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_embedding_and_head_are_shared(model: Model) -> None:
    transformer = build(model, seed=0)
    assert sum(parameter.numel() for parameter in transformer.parameters()) == parameters(model).total
    losses(transformer, weight=1.0).total.backward()
    with_depths = transformer.embedding.weight.grad
    transformer.zero_grad()
    losses(transformer, weight=0.0).total.backward()
    assert with_depths is not None
    assert transformer.embedding.weight.grad is not None
    assert not torch.allclose(with_depths, transformer.embedding.weight.grad, rtol=0.1)


def test_bf16_autocast_is_near_fp32() -> None:
    transformer = build(SPARSE.model_copy(update={"init_std": 0.1}), seed=0)
    exact = losses(transformer).prediction.item()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = losses(transformer).prediction.item()
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.01)
