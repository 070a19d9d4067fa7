"""The transformer against LLaMA and GPT-2 written down once more, in numpy fp64 and one token after the other, from their papers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from preheat.arithmetic import Rope
from preheat.model import Transformer, build
from preheat.recipe import Model

Array = npt.NDArray[np.float64]

LLAMA = Model(layers=3, hidden=48, heads=6, kv_heads=2, head_dim=10, ffn_hidden=56, vocab_size=300, norm_eps=1e-4, rope_theta=500.0)
UNTIED = LLAMA.model_copy(update={"tied_embeddings": False, "kv_heads": None, "head_dim": None, "bias": True, "init_std": 0.1})
GPT2 = Model(
    layers=2,
    hidden=32,
    heads=4,
    ffn_hidden=128,
    vocab_size=300,
    activation="gelu",
    norm="layernorm",
    bias=True,
    position="learned",
    max_positions=40,
)


def reference_logits(weights: dict[str, Array], model: Model, tokens: list[int], theta: float | None) -> Array:
    """T x V logits of one sequence."""
    x = weights["embedding.weight"][tokens]
    if model.position == "learned":
        x = x + weights["positions.weight"][: len(tokens)]
    for layer in range(model.layers):
        block = f"blocks.{layer}."
        x = x + _attention(weights, block + "attention.", model, _norm(weights, block + "attention_norm", model, x), theta)
        x = x + _feed_forward(weights, block + "feed_forward.", _norm(weights, block + "feed_forward_norm", model, x))
    x = _norm(weights, "norm", model, x)
    return x @ weights.get("head.weight", weights["embedding.weight"]).T


def _norm(weights: dict[str, Array], name: str, model: Model, x: Array) -> Array:
    if model.norm == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_eps) * weights[f"{name}.weight"]
    return scaled + weights.get(f"{name}.bias", 0.0)


def _linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def _attention(weights: dict[str, Array], name: str, model: Model, x: Array, theta: float | None) -> Array:
    width = model.head_dim or model.hidden // model.heads
    length, kv_heads = len(x), model.kv_heads or model.heads
    q = _linear(weights, name + "query", x).reshape(length, model.heads, width)
    k = _linear(weights, name + "key", x).reshape(length, kv_heads, width)
    v = _linear(weights, name + "value", x).reshape(length, kv_heads, width)
    if theta is not None:
        q, k = _turn(q, theta), _turn(k, theta)
    y = np.zeros((length, model.heads, width))
    for head in range(model.heads):
        shared = head * kv_heads // model.heads
        for t in range(length):
            scores = k[: t + 1, shared] @ q[t, head] / np.sqrt(width)
            scores = np.exp(scores - scores.max())
            y[t, head] = scores / scores.sum() @ v[: t + 1, shared]
    return _linear(weights, name + "out", y.reshape(length, -1))


def _turn(x: Array, theta: float) -> Array:
    """Multiply the complex numbers x[i] + j x[i + width/2] by exp(j position / theta^(2i/width))."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] / theta ** (np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate((turned.real, turned.imag), -1)


def _feed_forward(weights: dict[str, Array], name: str, x: Array) -> Array:
    up = _linear(weights, name + "up", x)
    if name + "gate.weight" in weights:
        gate = _linear(weights, name + "gate", x)
        return _linear(weights, name + "out", gate / (1 + np.exp(-gate)) * up)
    # Hendrycks & Gimpel 2016, the tanh form that GPT-2 was trained with.
    return _linear(weights, name + "out", 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3))))


def reference_loss(weights: dict[str, Array], model: Model, tokens: list[int], labels: list[int], theta: float | None) -> float:
    rows = reference_logits(weights, model, tokens, theta)
    return float((np.log(np.exp(rows).sum(-1)) - rows[np.arange(len(labels)), labels]).sum())


def with_random_weights(model: Model) -> tuple[Transformer, dict[str, Array]]:
    """Norms and biases too, so that leaving one out shows."""
    transformer = build(model, seed=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return transformer, {name: value.double().numpy() for name, value in transformer.state_dict().items()}


SHAPES = pytest.mark.parametrize(("model", "theta"), [(LLAMA, 500.0), (LLAMA, 40_000.0), (UNTIED, 500.0), (GPT2, None)])


@SHAPES
def test_logits_are_those_of_the_reference(model: Model, theta: float | None) -> None:
    transformer, weights = with_random_weights(model)
    tokens = np.random.default_rng(1).integers(0, 300, (2, 33))
    given_theta = None if theta == model.rope_theta else theta
    logits = transformer.logits(transformer(torch.from_numpy(tokens), rope=given_theta and Rope(given_theta))).detach().numpy()
    for row in range(2):
        np.testing.assert_allclose(logits[row], reference_logits(weights, model, tokens[row].tolist(), theta), rtol=1e-4, atol=2e-5)


@SHAPES
def test_gradients_are_the_slopes_of_the_reference(model: Model, theta: float | None) -> None:
    transformer, weights = with_random_weights(model)
    rng = np.random.default_rng(2)
    tokens, labels = rng.integers(0, 300, (2, 12))
    loss = transformer(torch.from_numpy(tokens)[None], torch.from_numpy(labels)[None], rope=theta and Rope(theta)).total
    assert loss.item() == pytest.approx(reference_loss(weights, model, tokens.tolist(), labels.tolist(), theta), rel=1e-5)
    loss.backward()
    for name, parameter in transformer.named_parameters():
        direction = rng.standard_normal(parameter.shape)
        slopes = [
            reference_loss({**weights, name: weights[name] + step * direction}, model, tokens.tolist(), labels.tolist(), theta)
            for step in (1e-5, -1e-5)
        ]
        assert parameter.grad is not None
        along = float((parameter.grad.double().numpy() * direction).sum())
        assert along == pytest.approx((slopes[0] - slopes[1]) / 2e-5, rel=1e-3, abs=1e-3), name
