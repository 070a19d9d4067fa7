"""Rotary frequencies, plain or stretched for longer sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from preheat.arithmetic.parameters import head_dim
from preheat.recipe import Model, RopeScaling


@dataclass(frozen=True)
class Rope:
    """Rotary positions as a stage has them."""

    theta: float
    scaling: RopeScaling | None = None


def rotary_frequencies(model: Model, theta: float, scaling: RopeScaling | None = None) -> tuple[float, ...]:
    """Radians per position of each pair of turned dims, fastest first: theta^(-2i/d) (arXiv 2104.09864), stretched by `scaling`.

    `llama3` follows Llama 3.1's released rule, `yarn` arXiv 2309.00071, section 3.2, with its ramp over dims.

    Raises:
        ValueError: no dims are turned, the base is not above 1, or the scaling lacks a number of its kind or has absurd ones.
    """
    if theta <= 1:
        raise ValueError(f"rope_theta {theta:g} turns slow dims no slower than fast ones; it is above 1")
    dims = model.mla.qk_rope_head_dim if model.mla is not None else round(head_dim(model) * model.rotary_fraction)
    if dims < 2:
        raise ValueError(f"{dims} dims of a head are turned by position; rotary positions turn pairs of them")
    plain = [theta ** (-2 * pair / dims) for pair in range(dims // 2)]
    if scaling is None:
        return tuple(plain)
    try:
        if scaling.kind == "llama3":
            return tuple(_llama3(frequency, scaling) for frequency in plain)
        return _yarn(plain, theta, dims, scaling)
    except ArithmeticError:
        raise ValueError("the numbers of rope_scaling are beyond all measure") from None


def attention_factor(scaling: RopeScaling | None) -> float:
    """By how much yarn's queries and keys grow: 0.1 * mscale * ln(factor) + 1 (arXiv 2309.00071, section 3.4); 1 otherwise."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return 0.1 * (1.0 if scaling.mscale is None else scaling.mscale) * math.log(scaling.factor) + 1


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    if scaling.low_freq_factor is None or scaling.high_freq_factor is None:
        raise ValueError("rope_scaling of kind llama3 takes low_freq_factor and high_freq_factor")
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise ValueError(f"low_freq_factor {scaling.low_freq_factor:g} is not below high_freq_factor {scaling.high_freq_factor:g}")
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * frequency / scaling.factor + share * frequency


def _yarn(plain: list[float], theta: float, dims: int, scaling: RopeScaling) -> tuple[float, ...]:
    if scaling.beta_fast is None or scaling.beta_slow is None:
        raise ValueError("rope_scaling of kind yarn takes beta_fast and beta_slow")
    if scaling.beta_fast <= scaling.beta_slow:
        raise ValueError(f"beta_fast {scaling.beta_fast:g} is not above beta_slow {scaling.beta_slow:g}")

    def pair_with(turns: float) -> float:
        return dims * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_with(scaling.beta_slow)), dims - 1)
    stretched = [min(max((pair - low) / max(high - low, 0.001), 0.0), 1.0) for pair in range(len(plain))]
    return tuple(f * (1 - share) + f / scaling.factor * share for f, share in zip(plain, stretched, strict=True))
