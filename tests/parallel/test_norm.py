"""The gradient norm of tensors as large as real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from preheat.parallel.norm import clip_gradients


@pytest.mark.parametrize("entries", [1, 65_536, 65_537, 10_000_000])
def test_the_norm_of_many_entries_is_that_of_float64(entries: int) -> None:
    """Added up in fp32 one after the other, 10^7 squares make a norm that is 4e-4 short on a CPU."""
    parameter = nn.Parameter(torch.empty(entries))
    parameter.grad = torch.randn(entries, generator=torch.Generator().manual_seed(0))
    exact = np.linalg.norm(parameter.grad.numpy().astype(np.float64))
    assert clip_gradients([parameter], 1.0).item() == pytest.approx(exact, rel=1e-6)
    assert np.linalg.norm(parameter.grad.numpy().astype(np.float64)) == pytest.approx(min(exact, 1.0), rel=2e-6)


def test_a_gradient_that_is_no_contiguous_block_and_one_without_entries_count_too() -> None:
    parameters = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(0))]
    parameters[0].grad, parameters[1].grad = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]).T, torch.zeros(0)
    assert clip_gradients(parameters, 10.0).item() == 5.0
