"""Normalisation of the residual stream and of what is read from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from preheat.recipe import Model


def norm(model: Model, width: int) -> nn.Module:
    """The recipe's kind of normalisation over `width` dims."""
    return NORMS[model.norm](width, eps=model.norm_eps)


class LayerNorm1P(nn.LayerNorm):
    """LayerNorm whose weight is stored as an offset from one (Megatron-LM's zero-centred gamma), so that weight decay pulls it to one."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()


NORMS: dict[str, type[nn.Module]] = {"rmsnorm": nn.RMSNorm, "layernorm": nn.LayerNorm, "layernorm1p": LayerNorm1P}
