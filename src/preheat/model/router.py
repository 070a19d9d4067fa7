"""The router of an expert layer: which experts a token passes through, with what weights, and what keeps their load even.

Every term of the penalty is a sum over tokens, so that neither micro-batch size nor accumulation nor the number of replicas changes its
gradient. Shapes beside those of `transformer`: K experts that a token chooses (`active`), G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from preheat.recipe import Model


class Routing(NamedTuple):
    """What the router decided for each token."""

    experts_BTK: Tensor
    """Indices of the chosen experts, int64, the highest score first."""
    weights_BTK: Tensor
    """Factors on their outputs, fp32."""
    penalty: Tensor | None
    """What is added to the summed loss, a scalar in fp32; None outside of training and where no coefficient is set."""


class Router(nn.Module):
    """Scores each token's hidden state against all experts, in fp32 also under autocast: rounded scores would choose others.

    Softmax scores are Mixtral's, sigmoid scores with a bias that only chooses are DeepSeek-V3's (arXiv 2412.19437, eq. 12 to 16). The
    weights of the chosen experts are their scores (without bias) over the sum of the chosen ones, times `scaling`. Where a single expert is
    chosen its weight is its score (arXiv 2101.03961, eq. 2): as a share it would be 1, and the router would learn nothing. Of equal scores
    the lower index is chosen.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        assert model.experts is not None
        self.config = model.experts
        count = self.config.count
        self.weight = nn.Parameter(torch.empty(count, model.hidden))
        # Choices within sequences pass here: ranks that have parts of them add up theirs.
        self.sequence_counts: nn.Module = nn.Identity()
        self.bias: Tensor | None
        """Added to sigmoid scores to choose by, X; `finish_step` moves it against the load."""
        self.register_buffer("bias", torch.zeros(count) if self.config.score == "sigmoid" else None)
        self.load: Tensor | None
        """Share of the choices that fell on each expert in the last step, X; see `_penalties`."""
        self.register_buffer("load", torch.full((count,), 1 / count) if self.config.aux_loss else None)
        # What passed since the last `finish_step`.
        self.choices: Tensor
        """How often each expert was chosen, X."""
        self.register_buffer("choices", torch.zeros(count, dtype=torch.int64), persistent=False)
        self.dropped: Tensor
        """How many of these choices found the expert full, X."""
        self.register_buffer("dropped", torch.zeros(count, dtype=torch.int64), persistent=False)
        self.shares: Tensor
        """Sum over tokens of the scores as shares of one, X."""
        self.register_buffer("shares", torch.zeros(count), persistent=False)

    def forward(self, x_BTD: Tensor) -> Routing:
        with torch.autocast(x_BTD.device.type, enabled=False):
            logits_BTX = nn.functional.linear(x_BTD.float(), self.weight.float())
            scores_BTX = logits_BTX.softmax(-1) if self.config.score == "softmax" else logits_BTX.sigmoid()
            experts_BTK = self._choose(scores_BTX.detach())
            weights_BTK = scores_BTX.gather(-1, experts_BTK)
            if self.config.active > 1:
                weights_BTK = weights_BTK / (weights_BTK.sum(-1, keepdim=True) + 1e-20)
            penalty = self._balance(logits_BTX, scores_BTX, experts_BTK) if self.training else None
        return Routing(experts_BTK, weights_BTK * self.config.scaling, penalty)

    def _choose(self, scores_BTX: Tensor) -> Tensor:
        if self.bias is not None:
            scores_BTX = scores_BTX + self.bias
        if self.config.groups and self.config.active_groups:
            scores_BTGX = scores_BTX.unflatten(-1, (self.config.groups, -1))
            # A group is as good as its two best experts together (DeepSeek-V3's released code).
            group_scores_BTG = scores_BTGX.topk(min(2, scores_BTGX.shape[-1]), dim=-1).values.sum(-1)
            chosen_BTG = torch.zeros_like(group_scores_BTG, dtype=torch.bool)
            chosen_BTG.scatter_(-1, best(group_scores_BTG, self.config.active_groups), True)
            scores_BTX = scores_BTGX.masked_fill(~chosen_BTG[..., None], -torch.inf).flatten(-2)
        return best(scores_BTX, self.config.active)

    def _balance(self, logits_BTX: Tensor, scores_BTX: Tensor, experts_BTK: Tensor) -> Tensor | None:
        """Count what was chosen, and return the penalty."""
        shares_BTX = scores_BTX if self.config.score == "softmax" else scores_BTX / (scores_BTX.sum(-1, keepdim=True) + 1e-20)
        with torch.no_grad():
            self.choices += times_chosen(experts_BTK.flatten(0, 1)[None], self.config.count)[0]
            self.shares += shares_BTX.sum((0, 1))
        penalties = [*self._penalties(logits_BTX, scores_BTX, shares_BTX)]
        return torch.stack(penalties).sum() if penalties else None

    def _penalties(self, logits_BTX: Tensor, scores_BTX: Tensor, shares_BTX: Tensor) -> Iterator[Tensor]:
        experts = self.config
        if self.load is not None:
            # Switch's loss times N: X * sum of load * mean share. The load is of the whole last step: this step's is not known before its
            # last micro-batch has passed, and a micro-batch's own would make the loss depend on how the batch is cut. Before the first
            # step the load counts as even, and the term is constant.
            yield experts.aux_loss * experts.count * (shares_BTX.sum((0, 1)) @ self.load)
        if experts.sequence_aux_loss:
            # DeepSeek-V3, eq. 17 to 20, by scores without bias and groups; times T, for it is a sum over tokens.
            chosen_BX = self.sequence_counts(times_chosen(best(scores_BTX.detach(), experts.active), experts.count))
            load_BX = chosen_BX / chosen_BX.sum(1, keepdim=True)
            yield experts.sequence_aux_loss * experts.count * (load_BX * shares_BTX.sum(1)).sum()
        if experts.z_loss:
            yield experts.z_loss * logits_BTX.logsumexp(-1).square().sum()


def best(scores: Tensor, count: int) -> Tensor:
    """Indices of the highest scores along the last dim, the highest first; of equal ones the first. `topk` promises no order of equals."""
    left, chosen = scores.clone(), []
    for _ in range(count):
        chosen.append(left.argmax(-1, keepdim=True))
        left.scatter_(-1, chosen[-1], -torch.inf)
    return torch.cat(chosen, dim=-1)


def times_chosen(experts_BTK: Tensor, count: int) -> Tensor:
    """How often each of X experts was chosen within each sequence, B x X, int64."""
    chosen_BC = experts_BTK.flatten(1)
    zeros_BX = torch.zeros(len(chosen_BC), count, dtype=torch.int64, device=chosen_BC.device)
    return zeros_BX.scatter_add_(1, chosen_BC, torch.ones_like(chosen_BC))
