"""Normalisation of the residual stream and of what is read from it.

Under autocast what comes in may be rounded and weights not, or the other way round where they are gathered in bf16. PyTorch's fused kernels
take one number format, so both come in the wider of the two.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from preheat.recipe import Model


def norm(model: Model, width: int) -> nn.Module:
    """The recipe's kind of normalisation over `width` dims."""
    return NORMS[model.norm](width, eps=model.norm_eps)


class RMSNorm(nn.RMSNorm):
    """arXiv 1910.07467."""

    def forward(self, x: Tensor) -> Tensor:
        x, weight = _widened(x, self.weight)
        return nn.functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class LayerNorm(nn.LayerNorm):
    """arXiv 1607.06450."""

    def forward(self, x: Tensor) -> Tensor:
        x, weight, bias = _widened(x, self.weight, self.bias)
        return nn.functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class LayerNorm1P(nn.LayerNorm):
    """LayerNorm whose weight is stored as an offset from one (Megatron-LM's zero-centred gamma), so that weight decay pulls it to one."""

    def forward(self, x: Tensor) -> Tensor:
        x, weight, bias = _widened(x, self.weight, self.bias)
        return nn.functional.layer_norm(x, self.normalized_shape, weight + 1, bias, self.eps)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()


def _widened(*tensors: Tensor) -> list[Tensor]:
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return [tensor.to(widest) for tensor in tensors]


NORMS: dict[str, type[nn.Module]] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm, "layernorm1p": LayerNorm1P}
