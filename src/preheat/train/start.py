"""From a recipe and prepared data to a `Trainer` that stands where the run folder left off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from preheat.arithmetic import Timeline
from preheat.data import Manifest, SampleOrder
from preheat.errors import PreheatError
from preheat.launch import Stop
from preheat.parallel import Engine
from preheat.recipe import Loaded, Recipe
from preheat.train import checkpoint
from preheat.train.batches import Batches
from preheat.train.device import Device, choose
from preheat.train.environment import environment
from preheat.train.files import read_json, write_json
from preheat.train.initial import InitialWeights
from preheat.train.loop import Evaluator, Judge, Record, Sink, Trainer
from preheat.train.mirror import Mirror
from preheat.train.optimizer import build_optimizer
from preheat.train.planned import cluster_of, plan, sample_order
from preheat.train.ranks import PATIENCE_S, first_deadline, from_first, is_first, join, world_size
from preheat.train.refusals import refuse_foreign_tokens, refuse_layout, refuse_small_corpus, refuse_untrained, task_problems
from preheat.train.run_folder import Reopened, RunFolder, trained_fingerprint
from preheat.train.saver import Saver
from preheat.train.state import restore
from preheat.train.watchdog import Watchdog

Listeners = Callable[[RunFolder, int, Record | None], tuple[Sequence[Sink], Judge, int]]
"""(run folder, steps that are told, what the judge remembers of them) -> the sinks, the judge, and the last step whose record is there;
records of later steps are taken back."""


@dataclass(frozen=True)
class Invocation:
    """What is said beside the recipe when a run is started."""

    data: Path
    run: Path
    initial: Path | None = None
    """The weights that a new run begins with; those that the recipe's seed makes when absent."""
    amend: str | None = None
    """Why the run goes on with another recipe or other data."""
    mirror: str | None = None
    """Address of a second copy."""
    patience_s: float = PATIENCE_S


def start(
    loaded: Loaded, invocation: Invocation, listeners: Listeners, evaluator: Callable[[Manifest, Device], Evaluator], stop: Stop
) -> Trainer:
    """Open or resume the run.

    Raises:
        PreheatError: the layout needs more than this process, data and recipe disagree, or the folder belongs to another run.
    """
    recipe = loaded.recipe
    refuse_untrained(loaded)
    store = join("cuda" if torch.cuda.is_available() else "cpu", invocation.patience_s)
    stop.deadline = first_deadline(store, stop.deadline)
    refuse_layout(recipe, from_first(lambda: checkpoint.newest_step(RunFolder(invocation.run).checkpoints)))
    manifest = Manifest.load(invocation.data)
    refuse_foreign_tokens(recipe, manifest)
    order, timeline = sample_order(recipe, manifest, invocation.data)
    refuse_small_corpus(recipe, timeline, manifest)
    initial = InitialWeights(recipe.model, invocation.initial) if invocation.initial is not None else None
    mirror = Mirror(invocation.mirror) if invocation.mirror is not None else None
    folder = RunFolder(invocation.run)
    retain = _retention(recipe, timeline)
    opening = _open(folder, loaded, manifest, initial, mirror, invocation.amend, retain)
    device = choose(recipe.precision)
    engine = Engine(recipe.model, recipe.parallel, recipe.seed, device.torch_device, device.compute, recipe.precision)
    optimizer = build_optimizer(engine, recipe.optimizer, offload=recipe.parallel.offload_optimizer)
    found = opening.found
    if found is not None:
        restore(found, engine, optimizer)
    elif initial is not None:
        initial.fill(engine.named_tensors())
    peak, changed = environment(folder, device, loaded, manifest, invocation.data)
    done = found.step if found is not None else 0
    refuse_layout(recipe, done)  # where a damaged checkpoint was passed over, more is to be trained
    unmeasured = found.unmeasured if found is not None else None
    if is_first():
        _write_plan(folder, plan(recipe, timeline, order, cluster_of(device, world_size())), manifest)
    told = done - (unmeasured is not None)
    sinks, judge, last = listeners(folder, told, found.judge if found is not None else None) if is_first() else ([], Silence(), told)
    trainer = Trainer(
        recipe=recipe,
        timeline=timeline,
        batches=Batches(timeline, order, engine.own_samples, device.torch_device),
        engine=engine,
        optimizer=optimizer,
        device=device,
        folder=folder,
        peak_flops=peak,
        sinks=sinks,
        judge=judge,
        evaluate=evaluator(manifest, device),
        stop=stop,
        saver=Saver(
            folder.checkpoints,
            retain,
            trained_fingerprint(recipe),
            writes_plain=engine.is_first_replica,
            mirror=mirror,
            records=folder.metrics_file,
        ),
        watchdog=Watchdog(store, invocation.patience_s),
        eod=manifest.tokenizer.eod if recipe.batch.mask_documents else None,
        done=done,
        saved=done,
        unmeasured=unmeasured,
    )
    _announce(trainer, order, opening, changed)
    if last < told:
        lost = f"metrics.jsonl ends with step {last:_}, the checkpoint is of step {done:_}"
        trainer.event("records-lost", lost, "", "goes on; the lines between are gone")
    if initial is not None and found is None:
        trainer.event("initial-weights", f"begins with the weights in {initial.folder}", "; ".join(initial.notes))
    return trainer


class Silence:
    """The judge of ranks that do not speak."""

    def judge(self, record: Record) -> None:
        """Nothing is odd: the first rank looks at the same numbers."""

    def memory(self) -> Record:
        """It remembers nothing, and writes no manifest."""
        return {}


@dataclass(frozen=True)
class Opening:
    """What was found in the run folder."""

    reopened: Reopened | None
    """None for a new run."""
    found: checkpoint.Checkpoint | None
    damaged: list[checkpoint.Damaged]
    """Set aside under the path that each has now."""
    restored: str | None
    """The checkpoint that came back from the mirror."""
    tasks: list[str]
    """What is wrong with the evaluation tasks of a run that has begun."""


def _open(
    folder: RunFolder,
    loaded: Loaded,
    manifest: Manifest,
    initial: InitialWeights | None,
    mirror: Mirror | None,
    amend: str | None,
    retain: Callable[[Path], None],
) -> Opening:
    """Open the folder and find the checkpoint that all ranks go on from, as the first one sees it; what an interrupted save left undone,
    a pointer or the removal of old ones and of its leftovers, is done."""

    def look() -> Record:
        restored = None
        if mirror is not None:
            mirror.refuse_other_run(folder.identity() if folder.recipe_file.is_file() else None)
            restored = mirror.restore(folder.path)
        odd = task_problems(loaded, manifest)
        if odd and not folder.recipe_file.is_file():
            raise PreheatError(*odd)
        reopened = folder.open(loaded, manifest.fingerprint, initial.digest if initial is not None else None, amend)
        folder.checkpoints.mkdir(exist_ok=True)
        found, damaged = checkpoint.newest(folder.checkpoints)
        aside = [{"path": str(checkpoint.set_aside(bad)), "reason": bad.reason} for bad in damaged]
        if found is not None:
            checkpoint.point_at(found.path)
        retain(folder.checkpoints)
        if mirror is not None:
            mirror.update(folder.path)
        return {
            "reopened": asdict(reopened) if reopened is not None else None,
            "found": asdict(found) | {"path": str(found.path)} if found is not None else None,
            "damaged": aside,
            "restored": restored,
            "tasks": [str(problem) for problem in odd],
        }

    seen = from_first(look)
    return Opening(
        Reopened(**seen["reopened"]) if seen["reopened"] is not None else None,
        checkpoint.Checkpoint(**seen["found"] | {"path": Path(seen["found"]["path"])}) if seen["found"] is not None else None,
        [checkpoint.Damaged(Path(bad["path"]), bad["reason"]) for bad in seen["damaged"]],
        seen["restored"],
        seen["tasks"],
    )


def _retention(recipe: Recipe, timeline: Timeline) -> Callable[[Path], None]:
    """What removes the checkpoints of a folder that the recipe does not keep."""
    policy = recipe.checkpoint

    def stays(number: int) -> bool:
        """Kept for good: those at the ends of stages, and at the recipe's wide interval."""
        step = timeline.step(number)
        ends_stage = step.end == timeline.end or timeline.step(number + 1).first_stage_sample == 0
        return ends_stage or (policy.keep_every is not None and timeline.due(step, policy.keep_every))

    return lambda folder: checkpoint.retain(folder, policy.keep, stays, policy.keep_best)


def _write_plan(folder: RunFolder, planned: Record, manifest: Manifest) -> None:
    """At the first start, and when an amendment changed it."""
    for file, content in ((folder.plan_file, planned), (folder.data_file, asdict(manifest))):
        try:
            there = read_json(file)
        except (FileNotFoundError, ValueError):  # it is new, or damaged
            there = None
        if there != content:
            write_json(file, content)


def _announce(trainer: Trainer, order: SampleOrder, opening: Opening, changed: list[str]) -> None:
    """Tell how the run starts or goes on."""
    end, done, reopened = trainer.timeline.end, trainer.done, opening.reopened
    for bad in opening.damaged:
        trainer.event("checkpoint-damaged", bad.reason, bad.path.name.removeprefix("damaged-"), f"passed over, kept as {bad.path.name}")
    if opening.restored is not None:
        trainer.event("mirror", f"{opening.restored} came back from the mirror", str(trainer.folder.path))
    if opening.tasks:
        trainer.event("tasks", "the evaluation tasks are not those of the data", "; ".join(opening.tasks), "goes on: the text is the same")
    if reopened is None:
        cause = f"{trainer.recipe.name}: {end.steps:_} steps, {end.tokens:_} tokens"
        trainer.event("start", cause, f"{trainer.device.compute_name}: {trainer.device.reason}")
        for name, usage in order.usage.items():
            if not usage.tokens:
                trainer.event("mixture", f"{name} gives no sample", "", "its weight is too small for this run")
            elif usage.epochs > 1:
                trainer.event("mixture", f"{name} is read {usage.epochs:.2f} times", f"{usage.tokens:_} tokens")
    elif done < end.steps:
        amended = f"amended {reopened.amendments} times, see recipe.json" if reopened.amendments else ""
        found = opening.found.path.name if opening.found is not None else "no checkpoint yet"
        trainer.event("resume", f"continues after step {done:_} of {end.steps:_}", found, amended)
    if reopened is not None and reopened.amended:
        reason = trainer.folder.identity()["amendments"][-1]["reason"] if is_first() else ""
        trainer.event("amend", reason, "; ".join(reopened.amended), "goes on with the new recipe; the old one is in recipe.json")
    if reopened is not None and reopened.resettings:
        trainer.event("layout", "the run goes on in another layout or with other intervals", "; ".join(reopened.resettings))
    if changed:
        trainer.event("environment", "the machine or its software changed: results may differ in the last bits", "; ".join(changed))
