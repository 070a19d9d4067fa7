"""The number format of products, for those that autocast does not know of."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast(x: Tensor) -> Tensor:
    """The tensor in the number format that autocast gives to products on its device; as it is where autocast is off."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x
