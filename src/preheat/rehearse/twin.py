"""The shrunken twin of a recipe: every dimension small, every pattern kept, and what can't be rehearsed said."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from preheat.errors import refuse
from preheat.recipe import Parallel, Recipe
from preheat.rehearse.axes import Axes, other_layout, real_axes, shrunken
from preheat.rehearse.course import changes, course, scaling, steps
from preheat.rehearse.lengths import Lengths
from preheat.rehearse.reasons import Change, compared, not_rehearsed
from preheat.rehearse.shapes import shrunken_model
from preheat.rehearse.standins import trainable

Values = dict[str, Any]


@dataclass(frozen=True)
class Twin:
    """A recipe that a laptop trains in a dozen steps, and what it tells about the real one."""

    recipe: Recipe
    changes: tuple[Change, ...]
    """Every value that is another one, and why."""
    real: Axes
    axes: Axes
    other: Axes
    """The layout that the run goes on in after its nodes were lost."""
    not_rehearsed: tuple[str, ...]

    @property
    def alone(self) -> Recipe:
        """The same training in one process."""
        return self.recipe.model_copy(update={"parallel": Parallel(recompute=self.recipe.parallel.recompute)})

    @property
    def elsewhere(self) -> Recipe:
        """The same training in the other layout."""
        return _valid(self.recipe.model_dump(mode="json") | {"parallel": _shrunken_parallel(self.recipe, self.other)[0]})


def twin(recipe: Recipe, gpus: int, processes: int) -> Twin:
    """The twin of a recipe on `gpus` GPUs that runs in at most `processes` processes.

    Raises:
        PreheatError: the recipe's layout does not divide the GPUs.
    """
    try:
        real = real_axes(recipe, gpus)
    except ValueError as error:
        refuse("layout", str(error), "", "`preheat check --gpus` lists every problem")
    whole, recipe = recipe, trainable(recipe, real)
    axes = shrunken(real, processes)
    other, lengths = other_layout(axes), Lengths.of(recipe)
    parallel, layers = _shrunken_parallel(recipe, axes)
    values = recipe.model_dump(mode="json")
    values |= {"name": f"{recipe.name[:59]}-twin", "description": "", "ignore": []}
    _merge(values, {"model": shrunken_model(recipe.model, recipe.parallel, real, axes, layers, lengths)})
    values["model"]["rope_scaling"] = scaling(recipe.model.rope_scaling, lengths)
    for table, key in (("experts", "bias_update_rate"), ("mtp", "loss_weight")):
        entries = (values["model"][table] or {}).get(key)
        if isinstance(entries, list):
            values["model"][table][key] = changes(entries, steps(recipe))
    _merge(values, course(recipe, axes, max(axes.data, other.data), lengths))
    values["parallel"] = parallel
    values["precision"] = {"compute": "fp32"}
    values["tokenizer"] = {"kind": "train-bpe"}
    values["data"] = _data(values["stage"])
    small = _valid(values)
    return Twin(small, compared(whole, small), real, axes, other, not_rehearsed(whole, real, axes, processes))


def _valid(values: Values) -> Recipe:
    return Recipe.model_validate(values)


def _merge(into: Values, values: Values) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _data(stages: list[Values]) -> Values:
    """Made-up text, see `preheat.rehearse.text`: a file for each name of a mixture."""
    names = dict.fromkeys(name for stage in stages for name in stage["mix"])
    sources = [
        {"name": name, "paths": [f"text/{place}.jsonl"], "format": "jsonl", "policy": "reference"} for place, name in enumerate(names)
    ]
    return {"source": sources, "held_out": "20%"}


def _shrunken_parallel(recipe: Recipe, axes: Axes) -> tuple[Values, int]:
    """The table `[parallel]` for these axes, and how many layers the model then has."""
    parallel, layers = recipe.parallel, min(recipe.model.layers, 2)
    values = parallel.model_dump(mode="json")
    values |= {name: size for name, size in asdict(axes).items() if name not in ("data", "expert_data")}
    values |= {"sequence": parallel.sequence and axes.tensor > 1, "compile": False, "gpus": axes.ranks}
    if axes.data * axes.context == 1:
        values["sharding"] = "none"
    if axes.context == 1:
        values["context_exchange"] = "gather"
    most = layers
    if axes.pipeline > 1:
        virtual = min(parallel.virtual_pipeline, 2)
        sizes = _pieces(recipe, axes.pipeline * virtual)
        layers = sum(sizes)
        most = max(sum(sizes[rank :: axes.pipeline]) for rank in range(axes.pipeline))
        values["virtual_pipeline"] = virtual
        values["pipeline_layers"] = list(sizes) if len(set(sizes)) > 1 or parallel.pipeline_layers is not None else None
    else:
        values |= {"schedule": "1f1b", "virtual_pipeline": 1, "pipeline_layers": None}
    if parallel.recompute.layers is not None:
        values["recompute"]["layers"] = min(parallel.recompute.layers, max(1, most))
    return values, layers


def _pieces(recipe: Recipe, count: int) -> tuple[int, ...]:
    """Layers of each piece of the twin's pipeline: pieces of the real one from its front to its end, by their rank among the sizes."""
    real = recipe.parallel.pipeline_layers
    if real is None:
        sizes = [1] * count
    else:
        picked = [real[round(place * (len(real) - 1) / (count - 1))] for place in range(count)]
        order = sorted(set(picked) - {0})
        sizes = [order.index(size) + 1 if size else 0 for size in picked]
        if len(set(sizes)) == 1 and len(set(real)) > 1:
            sizes[0] += 1  # few pieces have no middle: uneven all the same
    fewest = 2 if recipe.model.experts is not None and recipe.model.experts.first_dense else 1
    while sum(sizes) < fewest:
        sizes[max(range(count), key=lambda place: sizes[place])] += 1
    return tuple(sizes)
