"""The model of a twin: every dimension small, every kind, ratio and divisibility as it was."""

from __future__ import annotations

import math
from typing import Any

from preheat.arithmetic import head_dim, kv_heads
from preheat.recipe import Experts, LatentAttention, Model, Parallel
from preheat.rehearse.axes import Axes
from preheat.rehearse.lengths import Lengths

Values = dict[str, Any]

MOST_HEADS = 32
FEW_HEADS = 8
"""Up to so many heads have a width of 8, more have 4."""


def shrunken_model(model: Model, parallel: Parallel, real: Axes, axes: Axes, layers: int, lengths: Lengths) -> Values:
    """What is different in the twin's `[model]` table."""
    heads, groups = _heads(model, parallel, real, axes)
    width = _head_width(model, heads)
    if model.mla is not None:
        hidden = 32 * heads
    elif model.head_dim is None:
        hidden = heads * width
    else:
        hidden = max(8, 8 * round(model.hidden * heads * width / (model.heads * model.head_dim) / 8))
    scale = hidden / model.hidden
    values: Values = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": groups if model.kv_heads is not None else None,
        "head_dim": width if model.head_dim is not None else None,
        "ffn_hidden": _width(model.ffn_hidden, scale, 4 * axes.tensor),
        "vocab_size": _vocabulary(model.vocab_size, parallel.tensor),
        "max_positions": lengths.table(model.max_positions) if model.max_positions is not None else None,
        "sliding_window": lengths.window(model.sliding_window) if model.sliding_window is not None else None,
        # Narrow matrices of the real spread would hardly contribute, and a fault in them would drown.
        "init_std": float(f"{min(0.3, model.init_std / math.sqrt(scale)):.3g}") if scale < 1 else model.init_std,
    }
    if model.mla is not None:
        values["mla"] = _latent(model.mla, scale)
    if model.experts is not None:
        values["experts"] = _experts(model.experts, axes, scale)
    if model.mtp is not None:
        values["mtp"] = {"layers": min(model.mtp.layers, 2)}
    if model.mup is not None:
        base = model.mup.base_head_dim
        values["mup"] = {
            "base_hidden": max(1, round(model.mup.base_hidden * scale)),
            "base_head_dim": max(1, round(base * width / head_dim(model))) if base is not None else None,
        }
    return values


def _heads(model: Model, parallel: Parallel, real: Axes, axes: Axes) -> tuple[int, int]:
    """Query heads and key/value heads: the same number of the former for each of the latter, as far as `MOST_HEADS` reaches."""
    exchanged = parallel.context_exchange == "ulysses"
    split, real_split = (each.tensor * (each.context if exchanged else 1) for each in (axes, real))
    if model.mla is not None:
        heads = split * min(2, max(1, model.heads // real_split))
        return heads, heads
    groups = kv_heads(model)
    each = model.heads // groups
    groups = split * min(2, max(1, groups // real_split))
    fitting = (n for n in range(min(each, MOST_HEADS // groups), 0, -1) if groups * n % split == 0)
    return groups * next(fitting, split), groups


def _head_width(model: Model, heads: int) -> int:
    """The smallest even width of which rotary positions turn a whole number of pairs."""
    for width in range(8 if heads <= FEW_HEADS else 4, 512, 2):
        turned = round(width * model.rotary_fraction, 6)
        if model.position == "learned" or (turned and turned % 2 == 0):
            return width
    return head_dim(model)


def _width(real: int, scale: float, multiple: int) -> int:
    return max(1, round(real * scale / multiple)) * multiple


def _vocabulary(size: int, tensor: int) -> int:
    """A small one with the same remainder over 128, and padded for tensor parallelism where the real one is."""
    if size <= 512:
        return size
    if size % 128:
        return 384 + size % 128
    return 384 if size % (128 * tensor) else 512


def _latent(mla: LatentAttention, scale: float) -> Values:
    each = 8 / mla.qk_nope_head_dim
    return {
        "q_lora_rank": max(12, round(mla.q_lora_rank * scale)) if mla.q_lora_rank is not None else None,
        "kv_lora_rank": max(8, round(mla.kv_lora_rank * scale)),
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": max(1, round(mla.qk_rope_head_dim * each / 2)) * 2,
        "v_head_dim": max(2, round(mla.v_head_dim * each)),
    }


def _experts(experts: Experts, axes: Axes, scale: float) -> Values:
    """Few experts of which a few are chosen, from some of the groups where the real ones are."""
    values: Values = {
        "ffn_hidden": _width(experts.ffn_hidden, scale, 4 * axes.expert_tensor),
        "shared": min(experts.shared, 2),
        "first_dense": min(experts.first_dense, 1),
    }
    if experts.groups is None or experts.active_groups is None:
        count = -(-min(experts.count, 8) // axes.expert) * axes.expert
        active = min(experts.active, 2) if experts.active < experts.count else count
        return values | {"count": count, "active": active}
    groups = min(experts.groups, 4)
    chosen = max(1, min(groups, round(experts.active_groups * groups / experts.groups)))
    if experts.active_groups < experts.groups:
        chosen = min(chosen, groups - 1)
    each = min(4, max(1, experts.count // experts.groups))
    each *= axes.expert if groups * each % axes.expert else 1
    of_group = max(1, min(each, round(experts.active / experts.active_groups)))
    return values | {"count": groups * each, "groups": groups, "active_groups": chosen, "active": min(experts.active, chosen * of_group)}
