"""Rotary positions (RoFormer, arXiv 2104.09864): pairs of a head's dims are turned by an angle that grows with the position."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from preheat.arithmetic import Rope, attention_factor, head_dim, rotary_frequencies
from preheat.recipe import Model

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of the rotation angles, both T x R for the R turned dims; see `rotary_tables`."""


def model_rope(model: Model) -> Rope | None:
    """The rotary positions that a model starts with; None where positions are learned."""
    return Rope(model.rope_theta, model.rope_scaling) if model.rope_theta is not None else None


def rotary_tables(model: Model, rope: Rope, length: int, device: torch.device) -> Rotary:
    """Cosines and signed sines of position * frequency for the positions below `length`, both length x R, fp32.

    The angles repeat in the second half of the width, and the sines of the first half are negative: the form that `rotate` needs.
    """
    return _tables(rotary_frequencies(model, rope.theta, rope.scaling), length, device)


@lru_cache(maxsize=8)
def _tables(frequencies: tuple[float, ...], length: int, device: torch.device) -> Rotary:
    with torch.inference_mode(False):  # the tables outlive the call, and training may use them later
        # In fp64: in fp32 the angles are off by 0.01 radians at position 100,000.
        angles = torch.outer(torch.arange(length, dtype=torch.float64), torch.tensor(frequencies, dtype=torch.float64))
        cos_TR = torch.cat((angles.cos(), angles.cos()), dim=-1)
        sin_TR = torch.cat((-angles.sin(), angles.sin()), dim=-1)
        return cos_TR.to(device, torch.float32), sin_TR.to(device, torch.float32)


def rotate(x_BHTE: Tensor, rotary: Rotary) -> Tensor:
    """Turn the pairs (i, i + R/2) of the first R dims of each head by the angle of their position; the rest passes unturned.

    It is the pairing of Megatron-LM and of LLaMA in Hugging Face.
    """
    cos_TR, sin_TR = rotary
    turned = cos_TR.shape[-1]
    if turned < x_BHTE.shape[-1]:
        return torch.cat((rotate(x_BHTE[..., :turned], rotary), x_BHTE[..., turned:]), dim=-1)
    return torch.addcmul(x_BHTE * cos_TR, x_BHTE.roll(turned // 2, -1), sin_TR).to(x_BHTE.dtype)


def score_scale(model: Model, rope: Rope | None) -> float:
    """What products of queries and keys are multiplied with before the softmax.

    One over the root of the head width; under maximal update parametrization one over the head width, equal at the base width. Yarn makes
    queries and keys both larger by its attention factor (arXiv 2309.00071, section 3.4).
    """
    width = head_dim(model)
    plain = width**-0.5 if model.mup is None else (model.mup.base_head_dim or width) ** 0.5 / width
    return plain * attention_factor(rope.scaling if rope else None) ** 2
