"""What a recipe may say and this version's training loop does not do."""

from __future__ import annotations

from preheat.recipe.schema import Parallel, Recipe

_AXES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")


def beyond_training(recipe: Recipe) -> list[str]:
    """Dotted keys of what this version shows, checks and exports but does not train, in the order of the file; empty when it trains all.

    `preheat train` refuses such a recipe by name: an option that is silently left out would train another model.
    """
    model, precision, parallel = recipe.model, recipe.precision, recipe.parallel
    asked = {
        "model.activation": model.activation == "squared_relu",
        "model.norm": model.norm == "layernorm1p",
        "model.qk_norm": model.qk_norm,
        "model.rotary_fraction": model.rotary_fraction < 1,
        "model.rope_scaling": model.rope_scaling is not None,
        "model.sliding_window": model.sliding_window is not None,
        "model.dropout": model.dropout > 0,
        "model.mla": model.mla is not None,
        "model.experts": model.experts is not None,
        "model.mtp": model.mtp is not None,
        **{f"stage.{index}.rope_scaling": stage.rope_scaling is not None for index, stage in enumerate(recipe.stage)},
        **{f"stage.{index}.context": stage.context is not None for index, stage in enumerate(recipe.stage)},
        "precision.compute": precision.compute in ("fp16", "fp8"),
    }
    return [key for key, wanted in asked.items() if wanted] + _parallel(parallel)


def _parallel(parallel: Parallel) -> list[str]:
    keys = [axis for axis in _AXES if getattr(parallel, axis) > 1]
    plain = Parallel()
    keys += [field for field in ("sequence", "sharding", "schedule", "recompute") if getattr(parallel, field) != getattr(plain, field)]
    return [f"parallel.{key}" for key in keys]
