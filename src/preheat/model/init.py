"""Initial weights: each parameter's values depend on the seed and its own name, and on nothing else.

A layer added, a parameter moved to another rank or another order of construction changes no other parameter.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from preheat.model.transformer import Transformer
from preheat.recipe import Model


def build(model: Model, seed: int, device: torch.device | str = "cpu") -> Transformer:
    """A transformer with its initial weights in fp32 on `device`; the global random state is not touched."""
    with torch.device("meta"):
        transformer = Transformer(model)
    transformer.to_empty(device=device)
    init_weights(transformer, model, seed)
    return transformer


@torch.no_grad()
def init_weights(transformer: nn.Module, model: Model, seed: int) -> None:
    """Fill every parameter in place: norms 1, biases 0, matrices and tables normal with standard deviation `init_std`.

    With `depth_scaled_init` the matrices that write into the residual stream, two a layer, start 1/sqrt(2 * layers) smaller (GPT-2).
    """
    for name, parameter in transformer.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            scale = (2 * model.layers) ** -0.5 if model.depth_scaled_init and name.endswith("out.weight") else 1.0
            parameter.copy_(_normal(parameter.shape, seed, name) * (model.init_std * scale))


def _normal(shape: torch.Size, seed: int, name: str) -> Tensor:
    """Standard normal values. Drawn on the CPU, so that they are the same for every device."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    # The CPU generator (mt19937) takes 32 bits of its seed.
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.randn(shape, generator=generator)
