"""AdamW with weight decay on matrices only."""

from __future__ import annotations

import torch
from torch import nn

from preheat.recipe import Optimizer


def build_optimizer(model: nn.Module, optimizer: Optimizer) -> torch.optim.AdamW:
    """AdamW over the model; norms and biases are not decayed. The rate is set before each step by `set_rate`."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": optimizer.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=optimizer.betas, eps=optimizer.eps, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
