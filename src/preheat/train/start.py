"""From a recipe and prepared data to a `Trainer` that stands where the run folder left off."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

import preheat
from preheat.arithmetic import Timeline, flops_per_token, layout, parameters
from preheat.data import IndexedDataset, Manifest, SampleOrder, StageSamples
from preheat.errors import refuse
from preheat.model import build
from preheat.recipe import Loaded, Recipe, beyond_training
from preheat.train import checkpoint
from preheat.train.device import Device, choose, matmul_peak
from preheat.train.files import read_json, write_json
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.optimizer import build_optimizer
from preheat.train.run_folder import RunFolder

Listeners = Callable[[RunFolder, int], tuple[Sequence[Sink], Judge]]
"""(run folder, steps that are behind) -> the sinks and the judge, with records of later steps taken back."""


def start(
    loaded: Loaded,
    data: Path,
    run: Path,
    listeners: Listeners,
    evaluator: Callable[[Manifest, Device], Evaluator],
    stop_requested: Callable[[], bool],
) -> Trainer:
    """Open or resume the run.

    Raises:
        PreheatError: the layout needs more than this process, data and recipe disagree, or the folder belongs to another run.
    """
    recipe = loaded.recipe
    beyond = beyond_training(recipe)
    if beyond:
        got = f"{', '.join(beyond)} in the recipe"
        refuse("train.beyond", got, "this version trains dense models in one process", "It can be checked, planned and exported")
    manifest = Manifest.load(data)
    order, timeline = sample_order(recipe, manifest, data)
    _refuse_small_corpus(recipe, timeline, manifest)
    folder = RunFolder(run)
    there = folder.open(loaded, manifest.fingerprint)
    folder.lock()
    folder.checkpoints.mkdir(exist_ok=True)
    device = choose(recipe.precision)
    model = build(recipe.model, recipe.seed, device.torch_device)
    optimizer = build_optimizer(model, recipe.optimizer)
    found, damaged = checkpoint.newest(folder.checkpoints)
    if found:
        checkpoint.load(found, model, optimizer)
    checkpoint.retain(folder.checkpoints, sys.maxsize)
    done = found.step if found else 0
    environment, changed = _environment(folder, device, recipe, manifest, data)
    if not folder.plan_file.is_file():
        write_json(folder.plan_file, plan(recipe, timeline, order))
        write_json(folder.data_file, asdict(manifest))
    sinks, judge = listeners(folder, done)
    evaluate = evaluator(manifest, device)
    trainer = Trainer(
        recipe,
        timeline,
        order,
        model,
        optimizer,
        device,
        folder,
        environment["matmul_peak_flops"],
        sinks,
        judge,
        evaluate,
        stop_requested,
        done,
    )
    for bad in damaged:
        trainer.event("checkpoint-damaged", bad.reason, bad.path.name, "passed over")
    if not there:
        trainer.event(
            "start",
            f"{recipe.name}: {timeline.end.steps:_} steps, {timeline.end.tokens:_} tokens",
            f"{device.compute_name}: {device.reason}",
        )
    elif done < timeline.end.steps:
        trainer.event(
            "resume", f"continues after step {done:_} of {timeline.end.steps:_}", found.path.name if found else "no checkpoint yet", ""
        )
    if changed:
        trainer.event("environment", "the machine or its software changed: results may differ in the last bits", "; ".join(changed))
    return trainer


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


def plan(recipe: Recipe, timeline: Timeline, order: SampleOrder) -> Record:
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


def _refuse_small_corpus(recipe: Recipe, timeline: Timeline, manifest: Manifest) -> None:
    """One batch must not read a text twice: the sources of a stage hold at least the tokens of its largest batch."""
    for segment in timeline.segments:
        available = sum(manifest.source(name).train.tokens for name in segment.stage.mix)
        needed = segment.batch_size * segment.seq_len
        if available < needed:
            refuse(
                "data.too-small",
                f"the sources of stage {segment.stage.name} have {available:_} training tokens",
                f"one batch of {segment.batch_size} x {segment.seq_len} takes {needed:_}",
                "Add text, or lower batch.global_size",
            )


def _environment(folder: RunFolder, device: Device, recipe: Recipe, manifest: Manifest, data: Path) -> tuple[Record, list[str]]:
    """The machine and software of the run, kept from its first start, and what is different now."""
    now: Record = {
        "schema": "preheat.environment/1",
        "preheat": preheat.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device.name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": device.compute_name,
        "precision_reason": device.reason,
        "data": str(data.resolve()),
        "data_fingerprint": manifest.fingerprint,
        "parameters": {"total": parameters(recipe.model).total, "active": parameters(recipe.model).active},
        "layout": asdict(layout(recipe.parallel, 1)),
        "mfu_convention": "causal",
    }
    if folder.environment_file.is_file():
        before = read_json(folder.environment_file)
        return before, [f"{key}: {before.get(key)} -> {value}" for key, value in now.items() if before.get(key) != value]
    now["matmul_peak_flops"] = matmul_peak(device)
    write_json(folder.environment_file, now)
    return now, []
