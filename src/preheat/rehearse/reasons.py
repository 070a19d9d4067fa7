"""What is different in a twin, why, and what a rehearsal therefore says nothing about."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from preheat.recipe import Recipe
from preheat.rehearse.axes import Axes
from preheat.rehearse.standins import standins

REASONS = {
    "name": "it is another run",
    "description": "it is another run",
    "ignore": "findings about the real sizes are none of the twin's",
    "model": "as small as the pattern allows",
    "model.layers": "each piece of the pipeline has one at least, and more where the real one has more than the others",
    "model.heads": "as many for each key/value head as far as 32 heads reach; tensor-parallel ranks hold whole ones as in the real layout",
    "model.kv_heads": "each tensor-parallel rank has whole ones of its own",
    "model.vocab_size": "the same remainder over 128 rows, padded where the real one is",
    "model.rope_scaling": "made for sequences that are longer by as much",
    "model.max_positions": "the longest sequence, and more where the real table has more",
    "model.sliding_window": "the same share of the longest sequence",
    "model.dropout": "this version trains without",
    "optimizer": "what stands in runs over several ranks",
    "model.init_std": "narrow matrices with the real spread would hardly contribute, and a fault in them would drown",
    "model.mup": "the same width as a multiple of the base",
    "model.experts": "fewer and narrower; groups, shared experts and dense layers stay where there are any",
    "model.experts.bias_update_rate": "it changes within the twin's steps",
    "model.mtp.loss_weight": "it changes within the twin's steps",
    "tokenizer": "learned from the made-up text",
    "batch": "each replica has the micro-batches that its pipeline needs, and no more",
    "batch.seq_len": "short; the order of the lengths is kept",
    "batch.ramp": "one growth of the batch, early",
    "schedule": "as many steps as it takes to pass each event; the rates are the real ones",
    "stage": "the same switches within a few steps",
    "stage.context": "the context-parallel axis is there in all stages",
    "data": "made-up text, one source for each name of a mixture",
    "precision": "differences that matter would drown in the rounding of a shorter format",
    "checkpoint": "past the middle, and at the end",
    "evaluation": "short",
    "parallel": "the largest layout for the processes at hand that splits each axis of the real one",
    "parallel.sequence": "it goes with tensor parallelism",
    "parallel.sharding": "it goes with replicas, and not in full with a schedule that splits the backward pass",
    "parallel.schedule": "it goes with a pipeline, and dualpipe-v stands in for DualPipe",
    "parallel.virtual_pipeline": "two pieces a rank at most, and at dualpipe-v",
    "parallel.pipeline_layers": "the same pieces are the longer ones",
    "parallel.context_exchange": "it goes with a context-parallel axis, and ring attention knows neither documents nor a window",
    "parallel.recompute": "no more layers than a rank has",
    "parallel.compile": "compiling takes longer than the rehearsal",
    "parallel.gpus": "processes on this machine",
}
"""Dotted key, or the table around it -> why the twin has another value there."""
WHOLE = frozenset({"data", "tokenizer", "ignore", "precision", "model.rope_scaling", "batch.ramp", "parallel.pipeline_layers"})
"""Values that are shown in one piece."""


@dataclass(frozen=True)
class Change:
    """A value of the recipe that is another one in its twin."""

    key: str
    real: Any
    twin: Any
    why: str


def compared(real: Recipe, twin: Recipe) -> tuple[Change, ...]:
    """Every value that differs, in the order of the file."""
    found = _differences(real.model_dump(mode="json"), twin.model_dump(mode="json"), "")
    return tuple(Change(key, before, after, _reason(key)) for key, before, after in found)


def shown(value: Any) -> str:
    """A value in few characters."""
    text = "-" if value is None else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 40 else f"{text[:37]}..."


def not_rehearsed(recipe: Recipe, real: Axes, axes: Axes, processes: int) -> tuple[str, ...]:
    """What a rehearsal that agrees still says nothing about, in plain words."""
    sizes, chosen = asdict(real), asdict(axes)
    said = [
        f"{name} {size}: left at 1, because with all axes that this layout uses it takes more than {processes} processes"
        for name, size in sizes.items()
        if size > 1 and chosen[name] == 1
    ]
    said += standins(recipe, real)
    if recipe.parallel.compile:
        said.append("compiled kernels: the twin runs eagerly")
    if recipe.precision.compute not in ("auto", "fp32"):
        said.append(f"{recipe.precision.compute} and its rounding: the twin computes in fp32")
    return (
        *said,
        "sizes: depth, width, vocabulary, sequences and batches are small, so nothing is said about memory or speed",
        "GPUs and their network: the ranks are processes on CPUs that talk over gloo",
        "your text and tokenizer: the text is made up",
        "the quality of the model: so few steps tell nothing about it",
    )


def _reason(key: str) -> str:
    parts = [part for part in key.split(".") if not part.isdigit()]
    return next(REASONS[known] for length in range(len(parts), 0, -1) if (known := ".".join(parts[:length])) in REASONS)


def _differences(real: Any, twin: Any, key: str) -> list[tuple[str, Any, Any]]:
    if real == twin:
        return []
    if key not in WHOLE and isinstance(real, dict) and isinstance(twin, dict):
        return [found for name in real for found in _differences(real[name], twin.get(name), f"{key}.{name}" if key else name)]
    if key not in WHOLE and isinstance(real, list) and isinstance(twin, list) and len(real) == len(twin):
        return [found for place, pair in enumerate(zip(real, twin, strict=True)) for found in _differences(*pair, f"{key}.{place}")]
    return [(key, real, twin)]
