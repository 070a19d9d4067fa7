"""`preheat show`: the resolved recipe, where every value came from, and what follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from preheat.arithmetic import Timeline, flops_per_token, layout, parameters, smallest_world
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, table
from preheat.errors import refuse
from preheat.recipe import Loaded, Recipe, load
from preheat.units import rounded

Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="Ranks to lay out [default: as few as the layout takes].")]


def run(recipe: RecipeName, sets: Sets = None, gpus: Gpus = None, as_json: AsJson = False) -> None:
    """Show a recipe with the origin and the source note of each value."""
    loaded = load(recipe, tuple(sets or ()))
    derived = _derived(loaded.recipe, gpus)
    values = loaded.recipe.model_dump(mode="json")
    if as_json:
        origins = {key: asdict(origin) for key, origin in loaded.origins.items()}
        print_json({"schema": "preheat.show/1", "recipe": values, "origins": origins, "derived": derived})
        return
    print(_listing(loaded, values))
    print(_summary(derived))


def _derived(recipe: Recipe, gpus: int | None) -> dict[str, Any]:
    ranks = gpus or smallest_world(recipe.parallel)
    try:
        run_end = Timeline(recipe).end
        mesh = layout(recipe.parallel, ranks)
    except ValueError as error:
        refuse("run.timeline", str(error), "", "`preheat check` lists every problem")
    count = parameters(recipe.model)
    return {
        "parameters": {"total": count.total, "active": count.active, **asdict(count)},
        "flops_per_token": asdict(flops_per_token(recipe.model, recipe.batch.seq_len, recipe.parallel.tensor)),
        "total_tokens": run_end.tokens,
        "total_samples": run_end.samples,
        "total_steps": run_end.steps,
        "layout": asdict(mesh),
    }


def _listing(loaded: Loaded, values: dict[str, Any]) -> str:
    blocks = []
    scalars = {key: value for key, value in values.items() if not isinstance(value, dict | list)}
    for title, part, prefix in [("", scalars, ""), *((f"[{key}]", value, key) for key, value in values.items() if key not in scalars)]:
        rows = [
            [key.removeprefix(prefix).lstrip("."), _text(value), str(loaded.origins[key]), loaded.origins[key].note]
            for key, value in _flat(part, prefix)
        ]
        if rows:
            blocks.append((title + "\n" if title else "") + table(rows, "  " if title else ""))
    return "\n\n".join(blocks)


def _flat(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, entry in value.items() for leaf in _flat(entry, f"{prefix}.{key}" if prefix else key)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for index, entry in enumerate(value) for leaf in _flat(entry, f"{prefix}.{index}")]
    return [(prefix, value)]


def _text(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def _summary(derived: dict[str, Any]) -> str:
    flops = derived["flops_per_token"]
    rows = [
        ["parameters", f"{derived['parameters']['total']:_}", ""],
        ["tokens", f"{derived['total_tokens']:_}", f"in {derived['total_steps']:_} steps"],
        [
            "FLOPs per token",
            rounded(flops["causal"]),
            f"causal; {rounded(flops['full_square'])} full square, {rounded(flops['megatron'])} Megatron-LM",
        ],
        [
            "data-parallel",
            str(derived["layout"]["dense_dp"]),
            f"on {derived['layout']['ranks']} ranks; experts {derived['layout']['expert_dp']}",
        ],
    ]
    return "\nderived\n" + table(rows, "  ")
