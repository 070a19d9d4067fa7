"""Maximal update parametrization through training: the coordinate check of arXiv 2203.03466, appendix D.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from preheat.model import build
from preheat.recipe import Model, Optimizer, WidthTransfer
from preheat.train.optimizer import build_optimizer, set_rate


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def size(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item()


def changes(width: int, mup: WidthTransfer | None, kind: str, tied: bool) -> dict[str, float]:
    """How far four steps at one rate move what the parts of a model put out, in root mean square, on the text that they learn.

    The heads grow with the width, so that also the scores have to be held.
    """
    shape = {"layers": 2, "hidden": width, "heads": 4, "ffn_hidden": 2 * width, "vocab_size": 300, "rope_theta": 1e4}
    model = Model.model_validate(shape | {"init_std": 0.05, "tied_embeddings": tied, "mup": mup})
    transformer = build(model, seed=0)
    tokens = torch.randint(0, 300, (8, 33), generator=torch.Generator().manual_seed(0))
    found: dict[str, Tensor] = {}

    def scores(name: str) -> Any:
        def keep(module: Any, inputs: tuple[Any, ...]) -> None:
            query, key, _, sight = inputs[:4]
            found[f"scores {name}"] = query @ key.transpose(-1, -2) * sight.scale

        return keep

    def outputs(name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            found[name] = output[0] if isinstance(output, tuple) else output

        return keep

    for layer, block in transformer.blocks.items():
        block.attention.inner.register_forward_pre_hook(scores(layer))
        block.attention.register_forward_hook(outputs(f"attention {layer}"))
        block.feed_forward.register_forward_hook(outputs(f"feed-forward {layer}"))

    def read() -> dict[str, Tensor]:
        with torch.no_grad():
            found["logits"] = transformer.logits(transformer(tokens[:, :-1]))
        return dict(found)

    before = read()
    optimizer = build_optimizer(transformer, Optimizer(name=kind, weight_decay=0.0))
    set_rate(optimizer, 0.01)
    for _ in range(4):
        (transformer(tokens[:, :-1], tokens[:, 1:]).total / 256).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = read()
    return {name: size(after[name] - before[name]) for name in before}


@pytest.mark.parametrize(
    ("kind", "tied", "widths"),
    # Muon's products in bf16 take long on a CPU.
    [("adamw", False, (64, 128, 256, 512)), ("adamw", True, (64, 512)), ("muon", False, (64, 256))],
)
def test_with_it_steps_are_as_large_at_every_width_and_without_they_grow(kind: str, tied: bool, widths: tuple[int, ...]) -> None:
    mup = WidthTransfer(base_hidden=64, base_head_dim=16)
    flat, growing = ([changes(width, how, kind, tied) for width in widths] for how in (mup, None))
    wider = (widths[-1] / widths[0]) ** 0.5
    for name in flat[0]:
        moved = [run[name] for run in flat]
        if name.startswith("scores"):  # they start at random, where they shrink with 1/sqrt(width), and may only not grow
            assert max(moved) <= 1.1 * moved[0], (name, moved)
        else:
            assert max(moved) <= 2 * min(moved), (name, moved)
        assert growing[-1][name] > 0.9 * wider * growing[0][name], (name, [run[name] for run in growing])
    # The base width is the standard parametrization itself.
    assert flat[0] == growing[0]
