"""What a run will read, in which order, and its plan as numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from preheat.arithmetic import Timeline, flops_per_token
from preheat.data import Manifest, SampleOrder, StageSamples, opened
from preheat.errors import PreheatError
from preheat.hardware import Cluster, recognised
from preheat.plan import Planner, Way, program, whole_run
from preheat.recipe import Recipe
from preheat.train.device import Device


def sample_order(recipe: Recipe, manifest: Manifest, data: Path) -> tuple[SampleOrder, Timeline]:
    """The order of samples and the timeline of a recipe over prepared data."""
    timeline = Timeline(recipe)
    names = list(dict.fromkeys(name for stage in recipe.stage for name in stage.mix))
    datasets = {name: opened(data, manifest.source(name).train) for name in names}
    stages = [
        StageSamples(stage.mix, stage.seq_len or recipe.batch.seq_len, samples)
        for stage, samples in zip(recipe.stage, timeline.stage_samples(), strict=True)
    ]
    return SampleOrder(datasets, stages, recipe.seed), timeline


def foreseen(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """What `preheat plan --program preheat` says of the run on this cluster, to hold it against what is measured."""
    planner = Planner(recipe, cluster, program("preheat"))
    layout = planner.plan(Way.of(recipe))
    run = whole_run(planner, layout)
    step = layout.main.step
    return {
        "gpus": cluster.count,
        "gpu": cluster.gpu.name,
        "fits": layout.fits,
        "memory_bytes": layout.fullest.total,
        "step_time_s": step.seconds,
        "tokens_per_s": step.tokens_per_s_per_gpu * cluster.count,
        "mfu": step.mfu(),
        "days": run.days,
        "cost_usd": run.cost,
        "checkpoint_interval_steps": run.saving.interval_steps,
    }


def cluster_of(device: Device, ranks: int) -> Cluster | None:
    """Where a run is, as a planner knows it; None where no kind of GPU is recognised."""
    if device.torch_device.type != "cuda":
        return None
    gpu = recognised(device.name, torch.cuda.get_device_properties(device.torch_device).total_memory)
    return Cluster(ranks, gpu) if gpu is not None else None


def plan(recipe: Recipe, timeline: Timeline, order: SampleOrder, cluster: Cluster | None) -> dict[str, Any]:
    """What the run will do, as numbers: stages, tokens, FLOPs, how often each source is read, on known hardware how fast it should be."""
    expected, unforeseen = None, "no kind of GPU that `preheat plan` knows" if cluster is None else ""
    if cluster is not None:
        try:
            expected = foreseen(recipe, cluster)
        except PreheatError as error:  # an estimate is no reason not to train
            unforeseen = str(error)
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
        "foreseen": expected,
        "unforeseen": unforeseen,
    }
