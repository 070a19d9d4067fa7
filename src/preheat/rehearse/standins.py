"""What stands in, in a twin, for what a recipe may say and this version does not train: `recipe.beyond_training`, `check.engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from preheat.arithmetic import kv_heads
from preheat.arithmetic.pipeline import SPLIT_BACKWARD
from preheat.recipe import Recipe
from preheat.rehearse.axes import Axes


@dataclass(frozen=True)
class StandIn:
    """The nearest that is trained."""

    key: str
    """What is replaced, as a dotted key."""
    words: str
    needed: Callable[[Recipe, Axes], bool]
    """From a recipe and its real axes."""
    replaced: Callable[[Recipe], Recipe]


def trainable(recipe: Recipe, real: Axes) -> Recipe:
    """The recipe with everything replaced that has to be."""
    for each in STANDINS:
        if each.needed(recipe, real):
            recipe = each.replaced(recipe)
    return recipe


def standins(recipe: Recipe, real: Axes) -> Iterator[str]:
    """The same in words."""
    return (f"{each.key}: {each.words}" for each in STANDINS if each.needed(recipe, real))


def _put(table: str, **values: object) -> Callable[[Recipe], Recipe]:
    return lambda recipe: recipe.model_copy(update={table: getattr(recipe, table).model_copy(update=values)})


def _same_layout(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"stage": tuple(stage.model_copy(update={"context": None}) for stage in recipe.stage)})


def _without_capacity(recipe: Recipe) -> Recipe:
    assert recipe.model.experts is not None
    return _put("model", experts=recipe.model.experts.model_copy(update={"capacity_factor": None}))(recipe)


def _spread_capacity(recipe: Recipe, real: Axes) -> bool:
    experts = recipe.model.experts
    return experts is not None and experts.capacity_factor is not None and (real.context > 1 or real.tensor > 1)


def _split_backward(recipe: Recipe, real: Axes) -> bool:
    schedule, full = recipe.parallel.schedule, recipe.parallel.sharding == "full"
    return full and real.pipeline > 1 and schedule in (*SPLIT_BACKWARD, "dualpipe")


def _blind_ring(recipe: Recipe, real: Axes) -> bool:
    limited = recipe.batch.mask_documents or recipe.model.sliding_window is not None
    return real.context > 1 and recipe.parallel.context_exchange == "ring" and limited


def _shared_heads(recipe: Recipe, real: Axes) -> bool:
    over = real.tensor * (real.context if recipe.parallel.context_exchange == "ulysses" else 1)
    return recipe.model.mla is None and kv_heads(recipe.model) % over != 0


STANDINS = (
    StandIn("model.dropout", "left out", lambda recipe, _: recipe.model.dropout > 0, _put("model", dropout=0.0)),
    StandIn(
        "model.kv_heads",
        "each rank has one of its own, where the real layout keeps copies",
        _shared_heads,
        lambda recipe: recipe,  # a twin's heads are chosen by the ranks anyway
    ),
    StandIn(
        "model.experts.capacity_factor", "no token is dropped while sequences are split over ranks", _spread_capacity, _without_capacity
    ),
    StandIn(
        "optimizer.state_precision",
        "moments in fp32 stand in for bf16, which is for one rank",
        lambda recipe, _: recipe.optimizer.state_precision != "fp32",
        _put("optimizer", state_precision="fp32"),
    ),
    StandIn(
        "stage.context",
        "one layout through the run, with the context-parallel axis in all stages",
        lambda recipe, _: any(stage.context is not None for stage in recipe.stage),
        _same_layout,
    ),
    StandIn(
        "parallel.sequence",
        "on, as experts under tensor parallelism need it",
        lambda recipe, _: recipe.model.experts is not None and recipe.parallel.tensor > 1 and not recipe.parallel.sequence,
        _put("parallel", sequence=True),
    ),
    StandIn(
        "parallel.context_exchange",
        '"gather" stands in for "ring", which knows neither documents nor a window',
        _blind_ring,
        _put("parallel", context_exchange="gather"),
    ),
    StandIn(
        "parallel.sharding",
        '"optimizer" stands in for "full", which loses gradients where a schedule splits the backward pass',
        _split_backward,
        _put("parallel", sharding="optimizer"),
    ),
    StandIn(
        "parallel.schedule",
        "dualpipe-v stands in for DualPipe: the same order, with each piece of the model held once",
        lambda recipe, _: recipe.parallel.schedule == "dualpipe" and recipe.parallel.pipeline > 1,
        _put("parallel", schedule="dualpipe-v", virtual_pipeline=2),
    ),
)
"""In the order of a recipe file. Number formats are no matter of these: a twin computes in fp32 whatever the recipe says."""
