"""Maximal update parametrization: what of a model depends on its width, so that a learning rate found at one width holds at others.

The form for Adam in which every weight keeps O(1) entries where it can (arXiv 2203.03466, table 8 and appendix B.1): with
m = hidden / base_hidden, matrices between hidden dims start 1/sqrt(m) as large and move 1/m as fast, and logits are divided by m; what is
as wide on one side only (embedding, head, norms, biases) starts and moves as it did. All inner widths are taken to grow with `hidden`.
"""

from __future__ import annotations

from torch import Tensor

from preheat.recipe import Model

NOT_HIDDEN = ("embedding.weight", "positions.weight", "head.weight")
"""The matrices that have the model's width on one side only."""


def width_factor(model: Model) -> float:
    """m: how many times as wide as its base the model is; 1 without maximal update parametrization."""
    return 1.0 if model.mup is None else model.hidden / model.mup.base_hidden


def is_hidden_matrix(name: str) -> bool:
    """Whether a parameter is a matrix, or a stack of them, between hidden dims: not a table, the head, a norm or a bias.

    A router counts as one: its products sum over the model's width.
    """
    return name.endswith(".weight") and not name.endswith("norm.weight") and name not in NOT_HIDDEN


def scale_output(model: Model, hidden: Tensor) -> Tensor:
    """Normalised hidden states as the head reads them: divided by m, which divides the logits by m."""
    return hidden if model.mup is None else hidden / width_factor(model)
