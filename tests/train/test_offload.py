"""Moments that wait in the CPU's memory: the same training, bit by bit."""

from __future__ import annotations

import pytest
import torch

from preheat.model import build
from preheat.recipe import Optimizer, load
from preheat.train.optimizer import build_optimizer, set_rate


@pytest.mark.parametrize("settings", [{}, {"state_precision": "bf16"}, {"name": "muon"}], ids=["adamw", "bf16", "muon"])
def test_offloading_changes_nothing(settings: dict[str, str]) -> None:
    config = load("tiny").recipe.model.model_copy(update={"layers": 1})
    models = [build(config, seed=0) for _ in range(2)]
    optimizers = [
        build_optimizer(model, Optimizer.model_validate(settings), offload=offload)
        for model, offload in zip(models, (False, True), strict=True)
    ]
    for step in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            draw = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw)
            set_rate(optimizer, 0.01)
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
