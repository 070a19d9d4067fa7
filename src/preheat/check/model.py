"""Rules about the shape of the model."""

from __future__ import annotations

from collections.abc import Iterator

from preheat.arithmetic import head_dim, kv_heads, parameters
from preheat.check.registry import Finding, rule
from preheat.recipe import Recipe
from preheat.units import rounded


@rule("model.head-dim")
def head_width(recipe: Recipe) -> Iterator[Finding]:
    """Heads must share the hidden width evenly, unless `head_dim` is given; rotary positions need an even head width.

    Example: hidden = 100 with heads = 3 leaves a remainder of 1. Rotary embeddings turn pairs of dims (arXiv 2104.09864).
    """
    model = recipe.model
    if model.head_dim is None and model.hidden % model.heads:
        legal = [n for n in range(1, min(model.hidden, 256) + 1) if model.hidden % n == 0]
        nearest = min(legal, key=lambda n: abs(n - model.heads))
        yield Finding(
            "model.heads", f"hidden {model.hidden} / heads {model.heads}", "a whole head width", f"Use {nearest} heads or set head_dim"
        )
    elif model.position == "rotary" and head_dim(model) % 2:
        yield Finding(
            "model.heads", f"head width {head_dim(model)} is odd", "rotary positions turn pairs of dims", "Choose an even head width"
        )


@rule("model.kv-heads")
def key_value_heads(recipe: Recipe) -> Iterator[Finding]:
    """Each key/value head serves the same number of query heads (grouped-query attention, arXiv 2305.13245).

    Example: heads = 12 with kv_heads = 5.
    """
    model = recipe.model
    if model.heads % kv_heads(model):
        legal = [n for n in range(1, model.heads + 1) if model.heads % n == 0]
        yield Finding(
            "model.kv_heads", f"{model.heads} heads over {kv_heads(model)} kv_heads", "a whole number each", f"Use one of {legal}"
        )


@rule("model.position")
def positions(recipe: Recipe) -> Iterator[Finding]:
    """Rotary positions take `rope_theta`, learned positions take `max_positions`; the other one would have no effect.

    Example: position = "learned" with rope_theta = 500_000, or a stage of 2,048 tokens with a table of 1,024 rows.
    """
    model = recipe.model
    learned = model.position == "learned"
    needed, useless = ("max_positions", "rope_theta") if learned else ("rope_theta", "max_positions")
    if getattr(model, needed) is None:
        yield Finding(f"model.{needed}", f'position = "{model.position}" without {needed}', "", f"Set model.{needed}")
    if getattr(model, useless) is not None:
        yield Finding(f"model.{useless}", f'{useless} has no effect with position = "{model.position}"', "", "Remove it")
    for index, stage in enumerate(recipe.stage):
        if learned and stage.rope_theta is not None:
            yield Finding(f"stage.{index}.rope_theta", 'rope_theta has no effect with position = "learned"', "", "Remove it")
        seq_len = stage.seq_len or recipe.batch.seq_len
        if learned and model.max_positions is not None and seq_len > model.max_positions:
            key = f"stage.{index}.seq_len" if stage.seq_len else "batch.seq_len"
            yield Finding(
                key, f"sequences of {seq_len} tokens", f"the position table has {model.max_positions} rows", "Raise max_positions"
            )


@rule("model.over-trained", "note")
def over_trained(recipe: Recipe) -> Iterator[Finding]:
    """How many tokens each parameter sees; about 20 is compute-optimal (Hoffmann et al. 2022, arXiv 2203.15556).

    More is no mistake: it buys a smaller model for the same quality. Less than 5 says that a smaller model would have been better.
    """
    if recipe.schedule.length.unit != "tokens":
        return
    ratio = float(recipe.schedule.length.amount) / parameters(recipe.model).total
    if ratio > 40:
        optimum = rounded(20 * parameters(recipe.model).total)
        yield Finding("schedule.length", f"{ratio:.0f} tokens per parameter", f"20 would be {optimum} tokens", source="arXiv 2203.15556")
