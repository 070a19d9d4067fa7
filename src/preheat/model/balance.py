"""What happens to the routers' load once a step: it moves the score bias, it is remembered for the next step, and it is reported."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from preheat.model.router import Router


@dataclass(frozen=True)
class Balance:
    """How evenly the tokens of a step fell on the experts, a number for each layer of `layers`."""

    layers: tuple[str, ...]
    """Names of the routers that saw tokens, as in `named_modules`."""
    fullest: tuple[float, ...]
    """Choices of the most chosen expert over those of a mean one: 1 is even, X / K the worst."""
    aux_loss: tuple[float, ...]
    """X * sum over experts of its share of the choices times its mean share of the scores, without coefficient: 1 is even."""
    dropped: tuple[float, ...]
    """Share of the choices that found their expert full."""


def routers(model: nn.Module) -> dict[str, Router]:
    """The routers of a model, or of a piece of one, by name; replicas add up what they counted before `finish_step`."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Router)}


@torch.no_grad()
def finish_step(model: nn.Module, bias_rate: float = 0.0) -> Balance | None:
    """Take the counts of a step's tokens into account and begin new ones; after the optimizer's step. None in a model without experts.

    The score bias of an expert that was chosen less than the mean rises by `bias_rate`, of one that was chosen more it falls by as much
    (arXiv 2408.15664, algorithm 1).
    """
    every = routers(model)
    if not every:
        return None
    choices_LX = torch.stack([router.choices for router in every.values()]).float()
    shares_LX = torch.stack([router.shares for router in every.values()])
    dropped_L = torch.stack([router.dropped.sum() for router in every.values()])
    # A layer that saw no token (a prediction layer whose weight is 0) has neither load nor record.
    total_L1 = choices_LX.sum(1, keepdim=True)
    load_LX = choices_LX / total_L1
    for router, choices_X, load_X, total_1 in zip(every.values(), choices_LX, load_LX, total_L1, strict=True):
        if router.bias is not None:
            router.bias += bias_rate * (choices_X.mean() - choices_X).sign()
        if router.load is not None:
            router.load.copy_(torch.where(total_1 > 0, load_X, router.load))
        for counted in (router.choices, router.dropped, router.shares):
            counted.zero_()
    experts = choices_LX.shape[1]
    aux_loss_L = experts * (load_LX * shares_LX / shares_LX.sum(1, keepdim=True)).sum(1)
    rows = torch.stack((total_L1[:, 0], experts * load_LX.amax(1), aux_loss_L, dropped_L / total_L1[:, 0])).T.tolist()
    seen = {name: row[1:] for name, row in zip(every, rows, strict=True) if row[0] > 0}
    fullest, aux_loss, dropped = zip(*seen.values(), strict=True) if seen else ((), (), ())
    return Balance(tuple(seen), fullest, aux_loss, dropped)
