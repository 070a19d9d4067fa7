"""The dense feed-forward layer and the functions between its two matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from preheat.recipe import Model


def _squared_relu(x: Tensor) -> Tensor:
    """relu(x) squared (Primer, arXiv 2109.08668)."""
    return nn.functional.relu(x).square()


ACTIVATIONS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "swiglu": (True, nn.functional.silu),
    "gelu": (False, partial(nn.functional.gelu, approximate="tanh")),
    "squared_relu": (False, _squared_relu),
}
"""Name in a recipe -> whether it is gated, and the function. Gated (arXiv 2002.05202): function(gate(x)) * up(x); else function(up(x))."""


class FeedForward(nn.Module):
    """Two matrices, or three with a gate, around a function of inner width F. GPT-2's gelu is the tanh form."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        gated, self.activation = ACTIVATIONS[model.activation]
        self.gate = nn.Linear(model.hidden, width, bias=model.bias) if gated else None
        self.up = nn.Linear(model.hidden, width, bias=model.bias)
        self.out = nn.Linear(width, model.hidden, bias=model.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner_BTF = self.up(x_BTD)
        inner_BTF = self.activation(inner_BTF) if self.gate is None else self.activation(self.gate(x_BTD)) * inner_BTF
        y_BTD: Tensor = self.out(inner_BTF)
        return y_BTD
