"""Initial weights: each parameter's values depend on the seed and its own name, and on nothing else.

A layer added, a parameter moved to another rank or another order of construction changes no other parameter. Values are drawn in blocks of
rows, each with a seed of its own, so that who holds a part of a large matrix, or some experts of a stack, draws no more than that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from preheat.model.mup import is_hidden_matrix, width_factor
from preheat.model.transformer import Transformer
from preheat.recipe import Model

BLOCK = 2**20
"""The most values that are drawn with one seed, as long as one row has no more. Another number gives other initial weights."""


def build(model: Model, seed: int, device: torch.device | str = "cpu") -> Transformer:
    """A transformer with its initial weights in fp32 on `device`; the global random state is not touched."""
    with torch.device("meta"):
        transformer = Transformer(model)
    transformer.to_empty(device=device)
    init_weights(transformer, model, seed)
    return transformer


Draw = Callable[[range | None], Tensor]
"""Rows of a parameter, or matrices of a stack -> their initial values; all for None."""


def _fill_whole(parameter: nn.Parameter, draw: Draw) -> None:
    parameter.copy_(draw(None))


@torch.no_grad()
def init_weights(module: nn.Module, model: Model, seed: int, fill: Callable[[nn.Parameter, Draw], None] = _fill_whole) -> None:
    """Fill in place every parameter of a transformer, or of a piece of one in which they have the same names, and every buffer.

    `fill` puts into a parameter what belongs there: where it is sharded that is not all.
    """
    for name, parameter in module.named_parameters():
        fill(parameter, partial(initial_values, name, parameter.shape, model, seed))
    for name, buffer in module.named_buffers():
        # The score bias that balances the experts' load starts at none, and their last known load at an even one.
        buffer.fill_(1 / len(buffer) if name.endswith("router.load") else 0.0)


def initial_values(name: str, shape: Sequence[int], model: Model, seed: int, rows: range | None = None) -> Tensor:
    """The initial values of a parameter in fp32, made on the CPU so that they are the same for every device.

    Norms start at 1 (stored as 0 where the weight is an offset from 1), biases at 0, matrices and tables normal with the standard deviation
    that `initial_std` says, without what lies beyond `init_truncation` of them.

    Args:
        name: the parameter's name in the whole model.
        shape: of the whole parameter: a vector, a matrix, or a stack of matrices.
        rows: which rows, or which matrices of a stack, are wanted (a range of step 1); all when absent.
    """
    rows = range(shape[0]) if rows is None else rows
    assert rows.step == 1, f"{rows} has gaps"
    assert 0 <= rows.start <= rows.stop <= shape[0], f"{rows} of {shape[0]}"
    if name.endswith("bias") or name.endswith("norm.weight"):
        ones = name.endswith("weight") and model.norm != "layernorm1p"
        return torch.full((len(rows), *shape[1:]), 1.0 if ones else 0.0)
    bound = model.init_truncation
    if len(shape) == 3:
        values = torch.empty(len(rows), *shape[1:])
        for place, index in enumerate(rows):
            values[place] = _rows(f"{seed}:{name}:{index}", shape[1], shape[2], range(shape[1]), bound)
    else:
        values = _rows(f"{seed}:{name}", shape[0], shape[1], rows, bound)
    return values.mul_(initial_std(name, model))


def initial_std(name: str, model: Model) -> float:
    """The standard deviation that a matrix or table is drawn with, before what `init_truncation` takes off.

    With `depth_scaled_init` the matrices that write into the residual stream, two a layer, start 1/sqrt(2 * layers) smaller (GPT-2). Under
    maximal update parametrization hidden matrices start 1/sqrt(m) smaller, m being the width as a multiple of the base.
    """
    std = model.init_std
    if model.depth_scaled_init and name.endswith("out.weight"):
        std *= (2 * model.layers) ** -0.5
    return std * width_factor(model) ** -0.5 if is_hidden_matrix(name) else std


def _rows(key: str, height: int, width: int, rows: range, bound: float | None) -> Tensor:
    """Rows of a height x width matrix of standard normal values whose blocks of rows are drawn apart; it draws only blocks it needs."""
    values = torch.empty(len(rows), width)
    in_block = max(1, BLOCK // width)
    for block in range(rows.start // in_block, -(-rows.stop // in_block)):
        first, last = block * in_block, min((block + 1) * in_block, height)
        wanted = range(max(first, rows.start), min(last, rows.stop))
        drawn = _normal((last - first, width), f"{key}:{block}" if block else key, bound)
        values[wanted.start - rows.start : wanted.stop - rows.start] = drawn[wanted.start - first : wanted.stop - first]
    return values


def _normal(shape: tuple[int, int], key: str, bound: float | None) -> Tensor:
    """Standard normal values; those beyond `bound` are drawn again until none is.

    The CPU generator (mt19937) takes 32 bits of its seed: of the 640,000 blocks of a 671B model some dozens are alike, in different places.
    """
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    values = torch.randn(shape, generator=generator)
    while bound is not None and (beyond := values.abs() > bound).any():
        values[beyond] = torch.randn(int(beyond.sum()), generator=generator)
    return values
