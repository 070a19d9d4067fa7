"""Rotary positions in config.json: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` of the versions before it.

Both are written, and both say the same: a reader that knows only one of them would else fall back to a base of 10,000 in silence.
"""

from __future__ import annotations

import math
from typing import Any

from preheat.arithmetic import Rope, attention_factor
from preheat.interop.huggingface.family import Config
from preheat.recipe import RopeScaling

_KNOWN = {
    *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"),
}


def rope_keys(rope: Rope, *, latent: bool = False) -> dict[str, Any]:
    """The keys of config.json for rotary positions.

    Args:
        latent: DeepSeek's form, in which yarn's factor on the scores is `mscale_all_dim`; elsewhere it is `attention_factor`.
    """
    scaling = _scaling_keys(rope.scaling, latent) if rope.scaling is not None else None
    new = {"rope_theta": rope.theta, **({"rope_type": "default"} if scaling is None else scaling)}
    return {"rope_theta": rope.theta, "rope_scaling": scaling, "rope_parameters": new}


def read_rope(config: Config, default_theta: float, *, latent: bool = False, partial: bool = False) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` of `[model]`, from either form; where both are there they have to agree.

    Args:
        partial: whether the class turns a part of each head's dims, which the family reads by itself.

    Raises:
        PreheatError: they disagree, or the scaling is of a kind that preheat does not have.
    """
    new, old = config.table("rope_parameters"), config.table("rope_scaling")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        unknown = value.keys() - _KNOWN - ({"partial_rotary_factor"} if partial else set())
        if unknown:
            config.refuse(key, f"no {sorted(unknown)[0]}")
    theta = config.number("rope_theta", default_theta) if "rope_theta" not in new else new["rope_theta"]
    if config.get("rope_theta", theta) != theta:
        config.refuse("rope_theta", f"rope_parameters has {theta}")
    theta = config.get("rope_theta", old.get("rope_theta", theta))
    if not isinstance(theta, int | float) or not 1 < theta < math.inf:
        config.refuse("rope_theta", "a number above 1")
    ours = _scaling(config, new or old, latent)
    if new and old and _scaling(config, old, latent) != ours:
        config.refuse("rope_scaling", "rope_parameters says otherwise")
    return {"rope_theta": float(theta), "rope_scaling": ours}


def _scaling_keys(scaling: RopeScaling, latent: bool) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
    if scaling.kind == "llama3":
        return keys | {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    # Before rope_type the key was called type, and DeepSeek's own code still reads that.
    keys |= {"type": scaling.kind, "beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    mscale = 1.0 if scaling.mscale is None else scaling.mscale
    if latent:
        # Cosines and sines stay as they are, and the scores of all dims grow.
        return keys | ({"mscale": mscale, "mscale_all_dim": mscale} if mscale else {"attention_factor": 1.0})
    return keys if mscale == 1 else keys | {"attention_factor": attention_factor(scaling)}


def _scaling(config: Config, keys: dict[str, Any], latent: bool) -> dict[str, Any] | None:
    kind = keys.get("rope_type", keys.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("llama3", "yarn"):
        refused = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
        config.refuse(refused, "rope_type default, llama3 or yarn")
    ours = {"kind": kind, "factor": keys.get("factor")}
    ours["original_max_positions"] = keys.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    if kind == "llama3":
        return ours | {name: keys.get(name) for name in ("low_freq_factor", "high_freq_factor")}
    if keys.get("truncate") is False:
        config.refuse("rope_scaling", "yarn with whole dims as bounds (truncate)")
    ours |= {"beta_fast": keys.get("beta_fast") or 32.0, "beta_slow": keys.get("beta_slow") or 1.0}
    mscale = _mscale(config, keys, latent)
    return ours if mscale == 1 else ours | {"mscale": mscale}


def _mscale(config: Config, keys: dict[str, Any], latent: bool) -> float:
    """Our `mscale`, which makes the scores grow by (0.1 * mscale * ln(factor) + 1) squared."""
    growth = 0.1 * math.log(keys["factor"]) if isinstance(keys.get("factor"), int | float) and keys["factor"] > 1 else 0.0
    mscale, all_dims, given = keys.get("mscale"), keys.get("mscale_all_dim"), keys.get("attention_factor")
    turned = given if given is not None else (growth * mscale + 1) / (growth * all_dims + 1) if mscale and all_dims else growth + 1
    if not latent:
        return round((turned - 1) / growth, 12) if growth else 1.0
    if growth and abs(turned - 1) > 1e-9:
        config.refuse("rope_scaling", "mscale equal to mscale_all_dim: here yarn scales turned and other dims alike")
    return float(all_dims or 0.0)
