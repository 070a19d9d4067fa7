"""Layouts that others ran and published are accepted: no error, on the GPUs that they name."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from preheat.arithmetic import balanced_split
from preheat.errors import Problem
from preheat.recipe import load

ROWS = list(csv.DictReader((Path(__file__).parent / "published_layouts.csv").read_text("utf-8").splitlines()))
"""From Megatron-Bridge's performance summaries and NVIDIA's dgxc-benchmarking; recomputation is not published and not assumed."""


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['recipe']}-{n}" for n, row in enumerate(ROWS)])
def test_it_is_accepted(problems: Callable[..., list[Problem]], row: dict[str, str]) -> None:
    name, pieces = row["recipe"], int(row["pipeline"]) * int(row["virtual"])
    recipe = load(name).recipe
    mix = ", ".join(f"{source.name} = 1" for source in recipe.data.source)
    fp8 = ["precision={ compute = 'fp8', fp8_recipe = 'tensorwise' }"] if row["precision"] == "fp8" else ["precision={ compute = 'bf16' }"]
    split = list(balanced_split(recipe.model.layers, pieces))
    found = problems(
        name,
        f"stage=[{{ name = 'main', mix = {{ {mix} }} }}]",
        "batch.ramp=[]",
        "ignore=[]",
        "schedule.length=100000 steps",
        "schedule.warmup=2000 steps",
        "schedule.decay=cosine",
        "schedule.segment=[]",
        "checkpoint.every=1000 steps",
        "evaluation.every=1000 steps",
        f"batch.seq_len={row['seq_len']}",
        f"batch.micro_size={row['micro_size']}",
        f"batch.global_size={row['global_size']}",
        *fp8,
        "parallel={ "
        + ", ".join(f"{axis} = {row[axis]}" for axis in ("tensor", "pipeline", "context", "expert"))
        + f", virtual_pipeline = {row['virtual']}, schedule = '{'interleaved' if int(row['virtual']) > 1 else '1f1b'}'"
        + f", pipeline_layers = {split}, sequence = {'true' if int(row['tensor']) > 1 else 'false'}, sharding = '{row['sharding']}' }}",
        gpus=f"{row['gpus']}x{row['gpu']}",
    )
    assert [str(problem) for problem in found if problem.severity == "error"] == []
