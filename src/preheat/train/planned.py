"""What a run will read, in which order, and its plan as numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from preheat.arithmetic import Timeline, flops_per_token
from preheat.data import IndexedDataset, Manifest, SampleOrder, StageSamples
from preheat.recipe import Recipe


def sample_order(recipe: Recipe, manifest: Manifest, data: Path) -> tuple[SampleOrder, Timeline]:
    """The order of samples and the timeline of a recipe over prepared data."""
    timeline = Timeline(recipe)
    names = list(dict.fromkeys(name for stage in recipe.stage for name in stage.mix))
    datasets = {name: IndexedDataset(data / manifest.source(name).train.prefix) for name in names}
    stages = [
        StageSamples(stage.mix, stage.seq_len or recipe.batch.seq_len, samples)
        for stage, samples in zip(recipe.stage, timeline.stage_samples(), strict=True)
    ]
    return SampleOrder(datasets, stages, recipe.seed), timeline


def plan(recipe: Recipe, timeline: Timeline, order: SampleOrder) -> dict[str, Any]:
    """What the run will do, as numbers: stages, tokens, FLOPs, how often each source is read."""
    segments = [
        {
            "name": segment.stage.name,
            "start_step": segment.start.steps,
            "start_tokens": segment.start.tokens,
            "steps": segment.steps,
            "tokens": segment.end.tokens - segment.start.tokens,
            "batch_size": segment.batch_size,
            "seq_len": segment.seq_len,
            "rope_theta": segment.rope_theta,
            "mix": {name: float(weight) for name, weight in segment.stage.mix.items()},
            "flops_per_token": asdict(flops_per_token(recipe.model, segment.seq_len)),
        }
        for segment in timeline.segments
    ]
    return {
        "schema": "preheat.plan/1",
        "total_tokens": timeline.end.tokens,
        "total_steps": timeline.end.steps,
        "warmup_tokens": timeline.learning_rate.warmup,
        "segments": segments,
        "sources": {name: asdict(usage) for name, usage in order.usage.items()},
    }
