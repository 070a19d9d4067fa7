"""The state in which a model is read and not trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without autograd; afterwards every module is in the mode it was in before."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode
