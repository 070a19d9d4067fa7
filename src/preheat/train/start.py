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
from preheat.check import untrained
from preheat.data import IndexedDataset, Manifest, SampleOrder, StageSamples
from preheat.errors import PreheatError, refuse
from preheat.parallel import Engine
from preheat.recipe import Loaded, Recipe, fingerprint
from preheat.train import checkpoint
from preheat.train.device import Device, choose, matmul_peak
from preheat.train.files import read_json, write_json
from preheat.train.initial import InitialWeights
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.optimizer import build_optimizer
from preheat.train.ranks import exchange, from_first, is_first, join, world_size
from preheat.train.run_folder import RunFolder, trained_part
from preheat.train.saver import Saver
from preheat.train.state import restore
from preheat.train.watchdog import Watchdog

Listeners = Callable[[RunFolder, int], tuple[Sequence[Sink], Judge]]
"""(run folder, steps that are behind) -> the sinks and the judge, with records of later steps taken back."""


def start(
    loaded: Loaded,
    data: Path,
    run: Path,
    listeners: Listeners,
    evaluator: Callable[[Manifest, Device], Evaluator],
    stop_requested: Callable[[], bool],
    patience_s: float,
    initial_folder: Path | None = None,
) -> Trainer:
    """Open or resume the run; a new one begins with the weights in `initial_folder`, or with those that the recipe's seed makes.

    Raises:
        PreheatError: the layout needs more than this process, data and recipe disagree, or the folder belongs to another run.
    """
    recipe, parallel = loaded.recipe, loaded.recipe.parallel
    refuse_untrained(loaded)
    store = join("cuda" if torch.cuda.is_available() else "cpu", patience_s)
    _refuse_layout(recipe)
    manifest = Manifest.load(data)
    order, timeline = sample_order(recipe, manifest, data)
    _refuse_small_corpus(recipe, timeline, manifest)
    initial = InitialWeights(recipe.model, initial_folder) if initial_folder is not None else None
    folder = RunFolder(run)
    resettings = from_first(lambda: _open(folder, loaded, manifest, initial))
    device = choose(recipe.precision)
    engine = Engine(recipe.model, parallel, recipe.seed, device.torch_device, device.compute, recipe.precision)
    optimizer = build_optimizer(engine, recipe.optimizer, offload=parallel.offload_optimizer)
    found, damaged = _newest(folder)
    if found:
        restore(found, engine, optimizer)
    elif initial is not None:
        initial.fill(engine.named_tensors())
    done = found.step if found else 0
    peak = sum(exchange(matmul_peak(device))) if not folder.environment_file.is_file() else 0.0
    environment, changed = from_first(lambda: _environment(folder, device, recipe, manifest, data, peak))
    if is_first() and not folder.plan_file.is_file():
        write_json(folder.plan_file, plan(recipe, timeline, order))
        write_json(folder.data_file, asdict(manifest))
    sinks, judge = listeners(folder, done) if is_first() else ([], Silence())
    trainer = Trainer(
        recipe=recipe,
        timeline=timeline,
        order=order,
        engine=engine,
        optimizer=optimizer,
        device=device,
        folder=folder,
        peak_flops=environment["matmul_peak_flops"],
        sinks=sinks,
        judge=judge,
        evaluate=evaluator(manifest, device),
        stop_requested=stop_requested,
        saver=Saver(
            folder.checkpoints,
            recipe.checkpoint.keep,
            lambda step: _stays(timeline, recipe, step),
            fingerprint(trained_part(recipe.model_dump(mode="json"))),
            writes_plain=engine.is_first_replica,
        ),
        watchdog=Watchdog(store, patience_s),
        eod=manifest.tokenizer.eod if recipe.batch.mask_documents else None,
        done=done,
    )
    for bad in damaged:
        trainer.event("checkpoint-damaged", bad.reason, bad.path.name, "passed over")
    _announce(trainer, found, resettings, changed)
    if initial is not None and found is None:
        trainer.event("initial-weights", f"begins with the weights in {initial.folder}", "; ".join(initial.notes))
    return trainer


def _stays(timeline: Timeline, recipe: Recipe, number: int) -> bool:
    """Whether the checkpoint of a step is kept for good: those at the ends of stages, and at the recipe's wide interval."""
    step = timeline.step(number)
    wide = recipe.checkpoint.keep_every
    ends_stage = step.end == timeline.end or timeline.step(number + 1).first_stage_sample == 0
    return ends_stage or (wide is not None and timeline.due(step, wide))


class Silence:
    """The judge of ranks that do not speak."""

    def judge(self, record: Record) -> None:
        """Nothing is odd: the first rank looks at the same numbers."""


def _announce(trainer: Trainer, found: checkpoint.Checkpoint | None, resettings: list[str] | None, changed: list[str]) -> None:
    """Tell how the run starts or goes on."""
    end, done = trainer.timeline.end, trainer.done
    if resettings is None:
        cause = f"{trainer.recipe.name}: {end.steps:_} steps, {end.tokens:_} tokens"
        trainer.event("start", cause, f"{trainer.device.compute_name}: {trainer.device.reason}")
    elif done < end.steps:
        trainer.event("resume", f"continues after step {done:_} of {end.steps:_}", found.path.name if found else "no checkpoint yet", "")
    if resettings:
        trainer.event("layout", "the run goes on in another layout or with other intervals", "; ".join(resettings))
    if changed:
        trainer.event("environment", "the machine or its software changed: results may differ in the last bits", "; ".join(changed))


def refuse_untrained(loaded: Loaded) -> None:
    """Refuse, by the names of `preheat check`'s rules, what this version does not train."""
    problems = untrained(loaded, world_size())
    if problems:
        raise PreheatError(*problems)


def _refuse_layout(recipe: Recipe) -> None:
    """The layout divides the processes, and each batch divides among the replicas and micro-batches."""
    try:
        sizes = layout(recipe.parallel, world_size())
    except ValueError as error:
        refuse("train.layout", str(error), "", "Start as many processes as the layout needs: --nproc, or torchrun")
    for segment in Timeline(recipe).segments:
        own, rest = divmod(segment.batch_size, sizes.dense_dp)
        got = f"stage {segment.stage.name}: a batch of {segment.batch_size} samples"
        if rest:
            refuse("train.batch", got, f"{sizes.dense_dp} replicas", "Change the batch or the number of processes")
        if recipe.parallel.pipeline > 1 and own % segment.micro_size:
            want = f"{sizes.dense_dp} replicas of whole micro-batches of {segment.micro_size}: a pipeline takes no smaller one"
            refuse("train.batch", got, want, "Change the batch, batch.micro_size or the number of processes")


def _open(folder: RunFolder, loaded: Loaded, manifest: Manifest, initial: InitialWeights | None) -> list[str] | None:
    resettings = folder.open(loaded, manifest.fingerprint, initial.digest if initial is not None else None)
    folder.checkpoints.mkdir(exist_ok=True)
    return resettings


def _newest(folder: RunFolder) -> tuple[checkpoint.Checkpoint | None, list[checkpoint.Damaged]]:
    """The checkpoint that all ranks go on from, as the first one finds it; leftovers of interrupted saves go."""

    def look() -> Record:
        found, damaged = checkpoint.newest(folder.checkpoints)
        checkpoint.retain(folder.checkpoints, sys.maxsize)
        return {"found": found.step if found else None, "damaged": [[str(bad.path), bad.reason] for bad in damaged]}

    seen = from_first(look)
    damaged = [checkpoint.Damaged(Path(path), reason) for path, reason in seen["damaged"]]
    return (
        None if seen["found"] is None else checkpoint.Checkpoint(folder.checkpoints / f"step-{seen['found']:08d}", seen["found"])
    ), damaged


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


def _environment(
    folder: RunFolder, device: Device, recipe: Recipe, manifest: Manifest, data: Path, peak: float
) -> tuple[Record, list[str]]:
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
        "layout": asdict(layout(recipe.parallel, world_size())),
        "mfu_convention": "causal",
    }
    if folder.environment_file.is_file():
        before = read_json(folder.environment_file)
        return before, [f"{key}: {before.get(key)} -> {value}" for key, value in now.items() if before.get(key) != value]
    now["matmul_peak_flops"] = peak
    write_json(folder.environment_file, now)
    return now, []
