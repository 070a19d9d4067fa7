"""Feed-forward layers of many experts of which each token passes through a few (arXiv 1701.06538, 2401.04088, 2412.19437).

The router chooses, `dispatch` brings the tokens together by expert, the experts multiply, `combine` brings their outputs back. Expert
parallelism takes the place of the experts: a function of rows sorted by expert and of their counts. Shapes beside those of `transformer`
and `router`: N = B * T tokens, M rows, one for each choice of a token that is not dropped.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from preheat.model.autocast import autocast
from preheat.model.feed_forward import ACTIVATIONS, FeedForward
from preheat.model.router import Router, times_chosen
from preheat.recipe import Model


class Experts(nn.Module):
    """A router, its experts, and those that every token passes through. No token is dropped unless the recipe sets a capacity."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        experts = model.experts
        assert experts is not None
        self.config = experts
        self.router = Router(model)
        self.experts = GroupedFeedForward(model, experts.count, experts.ffn_hidden)
        self.shared = FeedForward(model, experts.ffn_hidden * experts.shared) if experts.shared else None
        # As it is written: 1.1 x 200 / 4 is 55, and not a little more.
        self.capacity_factor = Fraction(str(experts.capacity_factor)) if experts.capacity_factor else None

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The layer's output, B x T x D, and what the router adds to the summed loss (see `Routing.penalty`)."""
        experts_BTK, weights_BTK, penalty = self.router(x_BTD)
        kept_BTK = self._kept(experts_BTK)
        kept_NK = kept_BTK.flatten(0, 1) if kept_BTK is not None else None
        # Rounded before they are copied K times, and sent to other ranks.
        x_ND = autocast(x_BTD).flatten(0, 1)
        rows_MD, counts_X, choice_M = dispatch(x_ND, experts_BTK.flatten(0, 1), self.config.count, kept_NK)
        y_BTD = combine(self.experts(rows_MD, counts_X), choice_M, weights_BTK.flatten(0, 1)).view_as(x_BTD)
        return (y_BTD if self.shared is None else y_BTD + self.shared(x_BTD)), penalty

    def _kept(self, experts_BTK: Tensor) -> Tensor | None:
        """Which choices find room, in training, where there is a capacity.

        Each sequence has a capacity of its own, and its earlier tokens come first. So what is dropped depends neither on the micro-batch
        nor on a later token. A dropped choice adds nothing, and the weights of the token's other experts stay. Scoring and generating drop
        none.
        """
        if self.capacity_factor is None or not self.training:
            return None
        chosen_BC = experts_BTK.flatten(1)
        choices = chosen_BC.shape[1]
        capacity = math.ceil(self.capacity_factor * choices / self.config.count)
        counts_BX = times_chosen(experts_BTK, self.config.count)
        sorted_BC, choice_BC = chosen_BC.sort(dim=1, stable=True)
        first_BX = counts_BX.cumsum(1) - counts_BX
        place_BC = torch.arange(choices, device=chosen_BC.device) - first_BX.gather(1, sorted_BC)
        kept_BC = torch.empty_like(chosen_BC, dtype=torch.bool).scatter_(1, choice_BC, place_BC < capacity)
        self.router.dropped += (counts_BX - capacity).clamp(min=0).sum(0)
        return kept_BC.view_as(experts_BTK)


class Dispatched(NamedTuple):
    """Tokens brought together by expert."""

    rows_MD: Tensor
    """The hidden state of each choice's token, sorted by expert, then by token."""
    counts_X: Tensor
    """How many rows each expert has, int64."""
    choice_M: Tensor
    """Which of the N * K choices a row is."""


def dispatch(x_ND: Tensor, experts_NK: Tensor, count: int, kept_NK: Tensor | None = None) -> Dispatched:
    """Bring the tokens together by the experts that they chose, of `count`, without the choices that are not kept."""
    expert_C = experts_NK.flatten()
    choice_M = expert_C.argsort(stable=True)
    if kept_NK is not None:
        choice_M = choice_M[kept_NK.flatten()[choice_M]]
    ends_X = torch.searchsorted(expert_C[choice_M], torch.arange(count, device=x_ND.device), right=True)
    counts_X = ends_X.diff(prepend=ends_X.new_zeros(1))
    return Dispatched(_Spread.apply(x_ND, choice_M, experts_NK.shape[1]), counts_X, choice_M)


def combine(rows_MD: Tensor, choice_M: Tensor, weights_NK: Tensor) -> Tensor:
    """The sum of each token's rows by their weights, N x D; a choice without a row adds nothing."""
    y_ND: Tensor = _Collect.apply(rows_MD, weights_NK, choice_M)
    return y_ND


class GroupedFeedForward(nn.Module):
    """The matrices of X feed-forward layers, stacked; see `FeedForward`."""

    def __init__(self, model: Model, count: int, width: int) -> None:
        super().__init__()
        gated, self.activation = ACTIVATIONS[model.activation]
        self.gate = GroupedLinear(count, model.hidden, width, bias=model.bias) if gated else None
        self.up = GroupedLinear(count, model.hidden, width, bias=model.bias)
        self.out = GroupedLinear(count, width, model.hidden, bias=model.bias)

    def forward(self, rows_MD: Tensor, counts_X: Tensor) -> Tensor:
        """The output of each row's expert, M x D; the first counts[0] rows are of expert 0, and so on."""
        inner_MF = self.up(rows_MD, counts_X)
        inner_MF = self.activation(inner_MF) if self.gate is None else self.activation(self.gate(rows_MD, counts_X)) * inner_MF
        out_MD: Tensor = self.out(inner_MF, counts_X)
        return out_MD


class GroupedLinear(nn.Module):
    """X linear layers from I to O dims, each for its own rows."""

    def __init__(self, count: int, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(count, outputs)) if bias else None

    def forward(self, rows_MI: Tensor, counts_X: Tensor) -> Tensor:
        rows_MI, weight_XOI = autocast(rows_MI), autocast(self.weight)
        multiply = grouped_products if fits_grouped(rows_MI, weight_XOI) else looped_products
        y_MO = multiply(rows_MI, weight_XOI, counts_X)
        if self.bias is not None:
            y_MO = y_MO + autocast(self.bias).repeat_interleave(counts_X, dim=0, output_size=len(rows_MI))
        return y_MO


def fits_grouped(rows_MI: Tensor, weight_XOI: Tensor) -> bool:
    """Whether PyTorch's grouped product takes these: rows of whole 16 bytes, at least one, and while compiling in bf16 only."""
    dtypes = (torch.bfloat16,) if torch.compiler.is_compiling() else (torch.float32, torch.bfloat16, torch.float16)
    whole = all(width * rows_MI.element_size() % 16 == 0 for width in weight_XOI.shape[1:])
    return whole and len(rows_MI) > 0 and rows_MI.dtype in dtypes


def grouped_products(rows_MI: Tensor, weight_XOI: Tensor, counts_X: Tensor) -> Tensor:
    """Each row times the transpose of its expert's matrix, M x O, in one call that does not wait for the counts to reach the CPU."""
    return nn.functional.grouped_mm(rows_MI, weight_XOI.transpose(1, 2), offs=counts_X.cumsum(0).to(torch.int32))


def looped_products(rows_MI: Tensor, weight_XOI: Tensor, counts_X: Tensor) -> Tensor:
    """The same one expert after the other."""
    # An expert without rows takes part too: its gradient is 0 and not absent.
    parts = zip(rows_MI.split(counts_X.tolist()), weight_XOI.unbind(0), strict=True)
    return torch.cat([rows @ weight_OI.T for rows, weight_OI in parts])


class _Spread(torch.autograd.Function):
    """Row m is the hidden state of the token that made choice m. The gradients of a token's rows are added in the order of its choices:
    in the order of arrival, as `index_select` does on a GPU, the sum would differ from run to run.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, choice_M: Tensor, active: int) -> Tensor:
        ctx.save_for_backward(choice_M)
        ctx.tokens, ctx.active = len(x_ND), active
        return x_ND.index_select(0, choice_M // active)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        (choice_M,) = ctx.saved_tensors
        return _sum_by_token(grad_MD, choice_M, ctx.tokens, ctx.active), None, None


class _Collect(torch.autograd.Function):
    """A token's rows times their weights, added in the order of its choices. Weights and products are in fp32, whatever the rows are in."""

    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, weights_NK: Tensor, choice_M: Tensor) -> Tensor:
        ctx.save_for_backward(rows_MD, weights_NK, choice_M)
        weights_M1 = weights_NK.flatten()[choice_M, None]
        return _sum_by_token((rows_MD * weights_M1).to(rows_MD.dtype), choice_M, *weights_NK.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_MD, weights_NK, choice_M = ctx.saved_tensors
        grad_MD = grad_ND.index_select(0, choice_M // weights_NK.shape[1])
        weights_grad_C = weights_NK.new_zeros(weights_NK.numel())
        weights_grad_C[choice_M] = (grad_MD * rows_MD).sum(1, dtype=weights_NK.dtype)
        return grad_MD.mul_(weights_NK.flatten()[choice_M, None]), weights_grad_C.view_as(weights_NK), None


def _sum_by_token(rows_MD: Tensor, choice_M: Tensor, tokens: int, active: int) -> Tensor:
    filled = rows_MD.new_empty if len(rows_MD) == tokens * active else rows_MD.new_zeros
    rows_CD = filled(tokens * active, rows_MD.shape[1]).index_copy_(0, choice_M, rows_MD)
    return rows_CD.unflatten(0, (tokens, active)).sum(1)
