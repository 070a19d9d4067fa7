"""What training relies on: steps are repeatable to the bit, and a small model learns."""

import math

import pytest
import torch

from preheat.model import Transformer, build
from preheat.recipe import load


def steps(transformer: Transformer, count: int) -> list[float]:
    """AdamW steps on sequences that count up, each from another start; the loss in nats per token."""
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=3e-3, fused=True)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(count):
        tokens = torch.randint(0, 200, (8, 1), generator=generator) + torch.arange(33)
        loss = transformer(tokens[:, :-1], tokens[:, 1:]).total / tokens[:, 1:].numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def small() -> Transformer:
    return build(
        load("tiny").recipe.model.model_copy(
            update={"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn_hidden": 96, "vocab_size": 300}
        ),
        seed=0,
    )


def test_a_model_learns_to_count(small: Transformer) -> None:
    losses = steps(small, 60)
    assert losses[0] == pytest.approx(math.log(300), abs=0.2)
    assert losses[-1] < 0.5


def test_the_same_steps_give_the_same_bits() -> None:
    model = load("tiny").recipe.model.model_copy(update={"layers": 2})
    runs = []
    for _ in range(2):
        transformer = build(model, seed=0)
        steps(transformer, 3)
        runs.append(transformer.state_dict())
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())
