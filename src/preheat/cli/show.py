"""`preheat show`: the resolved recipe, where every value came from, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from preheat.arithmetic import (
    Timeline,
    flops_per_token,
    layout,
    padded_vocab,
    parameters,
    pipeline_split,
    rank_parameters,
    rank_states,
    smallest_world,
)
from preheat.check import check, refuse_absurd
from preheat.cli.options import AsJson, RecipeName, Sets
from preheat.cli.output import print_json, table
from preheat.errors import refuse
from preheat.hardware import Cluster
from preheat.recipe import Loaded, Recipe, load
from preheat.units import rounded

GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N[xTYPE]", help="GPUs to lay out [default: the recipe's, or as few as it takes].")
]


def run(recipe: RecipeName, sets: Sets = None, gpus: GpusOption = None, as_json: AsJson = False) -> None:
    """Show a recipe with the origin and the source note of each value."""
    loaded = load(recipe, tuple(sets or ()))
    where = Cluster.parse(gpus) if gpus is not None else None
    refuse_absurd(loaded)  # a list of 10^12 layers is no answer
    derived = _derived(loaded.recipe, where.count if where else None)
    errors = sum(problem.severity == "error" for problem in check(loaded, where))
    values = loaded.recipe.model_dump(mode="json")
    if as_json:
        origins = {key: asdict(origin) for key, origin in loaded.origins.items()}
        print_json({"schema": "preheat.show/1", "recipe": values, "origins": origins, "derived": derived, "errors": errors})
        return
    print(_listing(loaded, values))
    print(_summary(derived))
    if errors:
        print(f"\n`preheat check` finds {errors} error{'s' if errors > 1 else ''} in this recipe: do not rely on what follows from it")


def _derived(recipe: Recipe, gpus: int | None) -> dict[str, Any]:
    model, parallel = recipe.model, recipe.parallel
    ranks = gpus or parallel.gpus or smallest_world(parallel)
    try:
        run_end = Timeline(recipe).end
    except ValueError as error:
        refuse("run.timeline", str(error), "", "`preheat check` lists every problem")
    try:
        mesh = layout(parallel, ranks)
        split = pipeline_split(model.layers, parallel)
        states = rank_states(model, parallel, recipe.precision, ranks, recipe.optimizer)
    except ValueError as error:
        refuse("layout", str(error), "", "`preheat check` lists every problem")
    count = parameters(model)
    per_rank = [
        {
            "pipeline_rank": rank,
            "layers": [layer for chunk in chunks for layer in chunk.layers],
            "parameters": rank_parameters(model, parallel, rank).total,
            "state_bytes": {**asdict(held), "total": held.total},
        }
        for rank, (chunks, held) in enumerate(zip(split, states, strict=True))
    ]
    return {
        "parameters": {"total": count.total, **asdict(count)},
        "padded_vocab": padded_vocab(model.vocab_size, parallel.tensor),
        "flops_per_token": asdict(flops_per_token(model, recipe.batch.seq_len, parallel.tensor)),
        "total_tokens": run_end.tokens,
        "total_samples": run_end.samples,
        "total_steps": run_end.steps,
        "layout": asdict(mesh),
        "per_rank": per_rank,
    }


def _listing(loaded: Loaded, values: dict[str, Any]) -> str:
    blocks = []
    scalars = {key: value for key, value in values.items() if not isinstance(value, dict | list) or not value}
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
    flops, count, mesh, per_rank = derived["flops_per_token"], derived["parameters"], derived["layout"], derived["per_rank"]
    active = "" if count["active"] == count["total"] else f"{count['active']:_} active"
    rows = [
        ["parameters", f"{count['total']:_}", active],
        ["tokens", f"{derived['total_tokens']:_}", f"in {derived['total_steps']:_} steps"],
        [
            "FLOPs per token",
            rounded(flops["causal"]),
            f"causal; {rounded(flops['full_square'])} full square, {rounded(flops['megatron'])} Megatron-LM",
        ],
        [
            "data-parallel",
            str(mesh["dense_dp"]),
            f"replicas on {mesh['ranks']:_} GPUs" + (f"; experts {mesh['expert_dp']}" if active else ""),
        ],
    ]
    if len(per_rank) > 1:
        rows.append(["layers a stage", _range([len(rank["layers"]) for rank in per_rank], str), f"in {len(per_rank)} pipeline stages"])
    states = _range([rank["state_bytes"]["total"] / 1e9 for rank in per_rank], lambda size: f"{size:.3g}")
    held = f"parameters; {states} GB of weights, gradients and optimizer state"
    rows.append(["a GPU holds", _range([rank["parameters"] for rank in per_rank], rounded), held])
    return "\nderived\n" + table(rows, "  ")


def _range(values: list[Any], text: Callable[[Any], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
