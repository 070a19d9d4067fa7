"""`preheat train`: start a run or continue it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from preheat.arithmetic import smallest_world
from preheat.check import check
from preheat.cli.options import AsJson, DataPath, RecipeName, Sets, data_folder
from preheat.cli.output import complain, print_json
from preheat.errors import PreheatError, refuse
from preheat.launch import REQUEUE, Stop, start_workers
from preheat.recipe import Loaded, load

if TYPE_CHECKING:
    from torch import Tensor

    from preheat.parallel import Engine
    from preheat.train import Evaluator, Invocation, Judge, Sink, Trainer

Processes = Annotated[int | None, typer.Option("--nproc", min=1, help="Processes on this machine [default: as many as the layout needs].")]
InitialWeights = Annotated[
    Path | None,
    typer.Option("--init-from", metavar="FOLDER", help="Begin a new run with the weights that `preheat import hf` wrote there."),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", metavar="SECONDS", min=1, help="How long processes wait for one that is stuck [default: ten minutes]."),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", metavar="3h50m", help="Save and stop before so much time is over [default: the end of the Slurm job]."),
]
Amend = Annotated[
    str | None,
    typer.Option("--amend", metavar="REASON", help="Go on with a changed recipe or other data, and write down why."),
]
MirrorOption = Annotated[
    str | None,
    typer.Option("--mirror", metavar="URL", help="Keep a second copy of the run there (s3://, gs://, file://); start from it if need be."),
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--run-folder",
        metavar="FOLDER",
        help="The folder of the run [default: runs/NAME]; torchrun takes --run for one of its own.",
    ),
]


def run(
    recipe: RecipeName,
    data: DataPath = None,
    run: RunOption = None,
    sets: Sets = None,
    init_from: InitialWeights = None,
    nproc: Processes = None,
    patience: Patience = None,
    time_limit: TimeLimit = None,
    amend: Amend = None,
    mirror: MirrorOption = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe on prepared data. The same command continues an interrupted run, in whatever layout.

    Under torchrun it is one of its processes; else it starts as many as the layout needs.

    Exit code 0: complete; 75: it was asked to stop, or its time was up, and the same command goes on; 1: it failed.
    """
    stop = Stop(time_limit)
    if amend is not None and not amend.strip():
        refuse("train.amend", "--amend has no reason", "", "Say why the run changes")
    loaded = load(recipe, tuple(sets or ()))
    problems = check(loaded)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise PreheatError(*errors)
    launched = "RANK" in os.environ
    if launched and nproc is not None and str(nproc) != os.environ["WORLD_SIZE"]:
        refuse("train.nproc", f"--nproc {nproc}", f"the launcher started {os.environ['WORLD_SIZE']}", "Remove --nproc")
    if os.environ.get("RANK", "0") == "0":
        complain([problem for problem in problems if problem.severity == "warning"])
    processes = nproc or smallest_world(loaded.recipe.parallel)
    if processes > 1 and not launched:
        raise typer.Exit(start_workers([sys.executable, "-m", "preheat", *sys.argv[1:]], processes))
    from preheat.train import Invocation
    from preheat.train.ranks import PATIENCE_S, is_first, leave, one_speaks

    invocation = Invocation(
        data=data_folder(data, loaded.recipe.name),
        run=run or Path("runs") / loaded.recipe.name,
        initial=init_from,
        amend=amend,
        mirror=mirror,
        patience_s=patience or PATIENCE_S,
    )
    with one_speaks(lambda error: complain(error.problems)):
        trainer = _start(loaded, invocation, stop)
        began = trainer.done
        was_complete = trainer.done == trainer.timeline.end.steps and trainer.unmeasured is None
        try:
            complete = trainer.run()
            if complete and not was_complete:
                trainer.event("finish", "the run is complete")
        finally:
            for sink in trainer.sinks:
                sink.close()
        if is_first():
            _report(trainer, began, complete, as_json)
    leave(0 if complete else REQUEUE)


def _report(trainer: Trainer, began: int, complete: bool, as_json: bool) -> None:
    from preheat.monitor import last_line

    last = last_line(trainer.folder.metrics_file) or {}
    if as_json:
        print_json({"schema": "preheat.train/1", "complete": complete, "run": str(trainer.folder.path), **last})
    elif complete:
        place = trainer.folder.path
        loss = f", loss {last['loss']:.4f}" if last else ""
        print(f"{place}: complete after {trainer.done:_} steps{loss}. Next: preheat evaluate {place}")
    elif trainer.done == began:
        print(
            f"{trainer.folder.path}: stopped before it did a step ({trainer.stop.reason}); the same command continues after step {began:_}"
        )
    else:
        print(f"{trainer.folder.path}: stopped and saved after step {trainer.done:_} ({trainer.stop.reason}); the same command continues")


def _start(loaded: Loaded, invocation: Invocation, stop: Stop) -> Trainer:
    from preheat.arithmetic import Step, Timeline
    from preheat.data import Manifest, Tokenizer, held_out_tokens
    from preheat.evaluate import held_out, score_record
    from preheat.monitor import Console, JsonLines, SpikeDetector
    from preheat.monitor.tensorboard import TensorBoard
    from preheat.train import Device, Record, RunFolder, start

    timeline, data = Timeline(loaded.recipe), invocation.data

    def listeners(place: RunFolder, done: int, remembered: Record | None) -> tuple[list[Sink], Judge, int]:
        lines = JsonLines(place.path)
        last = lines.truncate_after(done)
        board = TensorBoard(place.tensorboard, timeline.step(done).end.tokens if done else None)
        return [lines, board, Console(timeline.end.tokens)], SpikeDetector(remembered), last

    def evaluator(manifest: Manifest, device: Device) -> Evaluator:
        texts, token_bytes = held_out_tokens(manifest, data), Tokenizer.load(data).byte_lengths()

        def measure(engine: Engine, step: Step, pause: Callable[[], None]) -> Record:
            segment, most = step.segment, loaded.recipe.evaluation.held_out_tokens
            eod = manifest.tokenizer.eod if loaded.recipe.batch.mask_documents else None

            def nats(inputs_BT: Tensor, labels_BT: Tensor) -> float:
                pause()
                place = device.torch_device
                return engine.score(inputs_BT.to(place), labels_BT.to(place), segment.rope, eod)

            scores = held_out(nats, texts, token_bytes, seq_len=segment.seq_len, max_tokens=most)
            return {source: score_record(score) for source, score in scores.items()}

        return measure

    return start(loaded, invocation, listeners, evaluator, stop)
