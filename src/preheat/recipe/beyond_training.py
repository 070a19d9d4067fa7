"""What a recipe may say and this version's training loop does not do."""

from __future__ import annotations

from preheat.recipe.schema import Recipe


def beyond_training(recipe: Recipe) -> list[str]:
    """Dotted keys of what this version shows, checks and exports but does not train, in the order of the file; empty when it trains all.

    `preheat train` refuses such a recipe by name: an option that is silently left out would train another model.
    """
    asked = {
        "model.dropout": recipe.model.dropout > 0,
        **{f"stage.{index}.context": stage.context is not None for index, stage in enumerate(recipe.stage)},
        "precision.compute": recipe.precision.compute == "fp16",
        "precision.fp8_recipe": recipe.precision.compute == "fp8" and recipe.precision.fp8_recipe not in ("tensorwise", "rowwise"),
        "parallel.schedule": recipe.parallel.schedule == "dualpipe" and recipe.parallel.pipeline > 1,
    }
    return [key for key, wanted in asked.items() if wanted]
