"""Runs that are killed with SIGKILL at chosen and at random moments, over and over, until they are complete: then they are looked at.

    python chaos.py FOLDER LAYOUT [KILLS]        LAYOUT: one, fsdp, tp2-pp2, ep2, or changing (another of the first three at each start)

Starting Python with torch takes seconds, so one process imports everything and forks the ranks of each start. A rank that is to die at a
chosen moment has the function of that moment replaced by one that kills, before or after the real one; the program knows nothing of it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECIPE = """
name = "chaos"
seed = 5
[model]
layers = 2
hidden = 32
heads = 2
kv_heads = 2
ffn_hidden = 64
vocab_size = 320
rope_theta = 10_000
EXPERTS
[tokenizer]
kind = "train-bpe"
[precision]
compute = "fp32"
[batch]
global_size = 4
micro_size = 1
seq_len = 32
ramp = [{ at = "0 tokens", size = 2 }, { at = "1000 tokens", size = 4 }]
[optimizer]
z_loss = 1e-4
[schedule]
length = "60 steps"
peak_lr = 2e-3
final_lr = 2e-4
warmup = "5 steps"
decay = "wsd"
decay_length = "20 steps"
decay_shape = "1-sqrt"
[[stage]]
name = "main"
until = "60%"
mix = { small = 0.5, json = 0.5 }
[[stage]]
name = "long"
seq_len = 64
rope_theta = 50_000
global_size = 2
mix = { json = 1 }
[data]
held_out = "20%"
[data.dedup]
near = false
[[data.source]]
name = "small"
paths = ["small/*.txt"]
policy = "code"
[[data.source]]
name = "json"
paths = ["stdlib:json/*.py", "stdlib:http/*.py"]
policy = "code"
[checkpoint]
every = "7 steps"
keep_best = 1
[evaluation]
every = "20 steps"
held_out_tokens = 200
questions = 5
"""
EXPERTS = """
[model.experts]
count = 4
active = 2
ffn_hidden = 32
score = "sigmoid"
aux_loss = 0.01
bias_update_rate = 0.001
"""
LAYOUTS = {
    "one": (1, ()),
    "fsdp": (2, ("parallel.sharding=full",)),
    "tp2-pp2": (4, ("parallel.tensor=2", "parallel.pipeline=2")),
    "ep2": (2, ("parallel.expert=2",)),
}
RAMP, STAGE = 17, 37
"""The first steps of the larger batch and of the second stage."""
SAVE_POINTS = (
    ("write_tensors", "before"),
    ("write_tensors", "half"),
    ("write_tensors", "after"),
    ("write_json", "before"),
    ("write_json", "after"),
    ("point_at", "before"),  # renamed, and `latest` still at the one before
    ("point_at", "after"),
    ("retain", "before"),
    ("retain", "half"),
    ("retain", "after"),
)
STEP_POINTS = (
    ("_train_step", "before"),
    ("_train_step", "after"),
    ("_tell", "before"),
    ("_tell", "after"),
    ("_save", "before"),
    ("_save", "after"),
)
SPEED = {"step_time_s", "tokens_per_s", "mfu"}

Kill = tuple[str, str, int]
"""(function, when, step); one that comes from outside, about when a step is told, is ("", "", step)."""


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: Kill) -> None:
    """Let this process die at a moment."""
    from preheat.train import checkpoint, loop

    name, when, step = kill
    if name.startswith("_"):
        owner: Any = loop.Trainer
        is_it = lambda arguments: (arguments[1]["step"] if name == "_tell" else arguments[1].number) == step  # noqa: E731
    else:
        owner, saving = checkpoint, [0]
        save = checkpoint.save

        def watched(*arguments: Any, **named: Any) -> Any:
            saving[0] = arguments[1]
            return save(*arguments, **named)

        checkpoint.save = watched
        is_it = lambda arguments: saving[0] == step  # noqa: E731
    original = getattr(owner, name)

    def deadly(*arguments: Any) -> Any:
        if not is_it(arguments):
            return original(*arguments)
        if when == "before":
            die()
        if when == "half" and name == "retain":
            checkpoint.shutil.rmtree = lambda path: (next(path.iterdir()).unlink(), die())
        result = original(*arguments)
        if when == "half" and name == "write_tensors":
            os.truncate(arguments[0], arguments[0].stat().st_size // 2)
        if when != "half" or name == "write_tensors":
            die()
        return result

    setattr(owner, name, deadly)


def note_samples(rank: int, file: Path) -> None:
    """Write down what each step is trained on: a hash of every row, once per rank."""
    import hashlib

    from preheat.parallel import Engine
    from preheat.train import loop

    step, accumulate = loop.Trainer._train_step, Engine.accumulate
    at = [0]

    def watched_step(trainer: Any, moment: Any) -> Any:
        at[0] = moment.number
        return step(trainer, moment)

    def watched(engine: Any, inputs: Any, *more: Any) -> Any:
        rows = [hashlib.sha256(row.cpu().numpy().tobytes()).hexdigest()[:16] for row in inputs]
        with file.open("a") as out:
            out.write(json.dumps({"step": at[0], "rows": rows}) + "\n")
        return accumulate(engine, inputs, *more)

    loop.Trainer._train_step, Engine.accumulate = watched_step, watched


def attempt(folder: Path, run: Path, layout: str, kill: Kill | None = None, victim: int = 0) -> bool:
    """Start all ranks and let one die; whether all came to the end. Nobody of them is left when it returns."""
    ranks, sets = LAYOUTS[layout]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            if ranks > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with (folder / f"said-{rank}.txt").open("a") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            note_samples(rank, run.with_name(f"{run.name}.samples-{rank}"))
            if kill is not None and kill[0] and rank == victim:
                arm(kill)
            sys.argv = ["preheat", "train", str(folder / "chaos.toml"), "--data", str(folder / "data"), "--run", str(run)]
            sys.argv += [part for setting in sets for part in ("--set", setting)]
            from preheat.cli import main

            try:
                main()
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    if kill is not None and not kill[0]:
        lines, until = run / "metrics.jsonl", time.monotonic() + 60
        while (not lines.exists() or lines.read_bytes().count(b"\n") < kill[2]) and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(random.Random(kill[2]).random() * (0.03 if until - time.monotonic() < 59.9 else 0.6))
        os.kill(children[victim], signal.SIGKILL)
    return _ended(children)


def _ended(children: list[int]) -> bool:
    """Wait for all; five seconds after the first one that failed the rest is killed."""
    left, codes, since = set(children), [], None
    while left:
        for child in tuple(left):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                left.remove(child)
                codes.append(os.waitstatus_to_exitcode(status))
                since = since or (time.monotonic() if codes[-1] else None)
        if since is not None and time.monotonic() - since > 5:
            for child in left:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return codes == [0] * len(children)


def kills(layout: str, epoch: int, count: int) -> Iterator[tuple[Kill, int]]:
    """The kills of a layout, and who dies, in an order in which the run gets on between them."""
    ranks = LAYOUTS[layout][0] if layout in LAYOUTS else 4
    rng = random.Random(layout)
    chosen: list[tuple[int, Kill]] = []
    for number, (name, when) in enumerate(SAVE_POINTS):
        step = (7, 14, 28, 36, 49)[number % 5]
        chosen.append((step, (name, when, step)))
    for number, (name, when) in enumerate(STEP_POINTS):
        step = (RAMP, STAGE, epoch, 20, 36, 49)[number]
        chosen.append((step, (name, when, step)))
    chosen += [(step, ("_train_step", "before", step)) for step in (RAMP - 1, STAGE, epoch, epoch + 1, 60)]
    chosen.append((60, ("point_at", "before", 60)))
    if count < len(chosen):
        chosen = rng.sample(chosen, count)
    moments = (rng.randrange(58) for _ in range(count - len(chosen)))
    chosen += [(moment, ("", "", moment)) for moment in moments]
    for _, kill in sorted(chosen, key=lambda entry: (entry[0], entry[1][0] in ("point_at", "retain"))):  # these leave a checkpoint
        # Files of all are the first rank's affair; a victim beside it dies in what each rank does.
        own = kill[0] in ("write_tensors", "_train_step", "_save", "")
        yield kill, rng.randrange(ranks) if own else 0


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in SPEED} for line in lines]


def weights(run: Path) -> dict[str, Any]:
    from preheat.train import checkpoint

    newest, damaged = checkpoint.newest(run / "checkpoints")
    assert newest is not None
    assert not damaged, damaged
    assert newest.step == 60
    return json.loads((newest.path / "manifest.json").read_text())["files"]


def samples(run: Path) -> dict[int, set[str]]:
    """Step -> the rows that it read."""
    found: dict[int, set[str]] = {}
    for file in run.parent.glob(f"{run.name}.samples-*"):
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            found.setdefault(record["step"], set()).update(record["rows"])
    return found


def look_between(run: Path) -> None:
    """After any kill: `latest`, where it is there, leads to a checkpoint that loads."""
    from preheat.train import checkpoint

    latest = run / "checkpoints" / "latest"
    if latest.is_symlink():
        assert checkpoint.verify(latest.resolve()) is None, f"{latest.resolve().name}: {checkpoint.verify(latest.resolve())}"


def look_at_the_end(run: Path, whole: Path, *, same_layout: bool) -> None:
    """The run has what an undisturbed one has, to the bit under the same layout, and no leftovers."""
    from preheat.train import checkpoint

    ours, theirs = metrics(run), metrics(whole)
    assert [line["step"] for line in ours] == list(range(1, 61))
    if same_layout:
        assert ours == theirs, next((a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
        assert weights(run) == weights(whole)
    else:
        for a, b in zip(ours, theirs, strict=True):
            assert abs(a["loss"] - b["loss"]) <= 1e-5 * abs(b["loss"]), (a, b)
    assert samples(run) == samples(whole), "the samples of some step"
    kept, expected = ([path.name for path in checkpoint.published(folder / "checkpoints")] for folder in (run, whole))
    assert kept == expected, (kept, expected)
    left = [str(path) for path in run.rglob("*") if ".partial" in path.name or path.name.startswith((".step", "damaged"))]
    assert not left, left
    assert (run / "checkpoints" / "latest").resolve().name == "step-00000060"


def prepare(folder: Path, experts: bool) -> int:
    """Recipe and data; the step at which the small source begins its second epoch."""
    folder.mkdir(parents=True)
    (folder / "small").mkdir()
    rng = random.Random(1)
    words = [path.stem for path in Path(os.__file__).parent.glob("*.py")]
    for number in range(14):
        (folder / "small" / f"{number}.txt").write_text("\n".join(" ".join(rng.sample(words, 8)) for _ in range(2)) + "\n")
    (folder / "chaos.toml").write_text(RECIPE.replace("EXPERTS", EXPERTS if experts else ""))
    from preheat.arithmetic import Timeline
    from preheat.data import Manifest
    from preheat.recipe import load
    from preheat.train import sample_order

    run_alone(["data", "prepare", str(folder / "chaos.toml"), "--data", str(folder / "data")], folder)
    recipe = load(str(folder / "chaos.toml")).recipe
    order, timeline = sample_order(recipe, Manifest.load(folder / "data"), folder / "data")
    epoch = order.usage["small"]
    tokens = round((epoch.tokens + epoch.skipped) / epoch.epochs)
    for number in range(1, Timeline(recipe).end.steps + 1):
        step = timeline.step(number)
        for index in range(step.first_stage_sample, step.first_stage_sample + step.segment.batch_size):
            name, position = order.locate(step.segment.stage_index, index)
            if name == "small" and position >= tokens:
                return number
    raise AssertionError("the small source is too large for a second epoch")


def run_alone(arguments: list[str], folder: Path) -> None:
    """The program in a process of its own."""
    child = os.fork()
    if child == 0:
        with (folder / "said.txt").open("a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = ["preheat", *arguments]
        from preheat.cli import main

        try:
            main()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, (folder / "said.txt").read_text()


def storm(folder: Path, layout: str, count: int, tell: Callable[[str], None]) -> int:
    """Kill a run `count` times, let it finish, and look at it; how many kills struck."""
    if folder.exists():
        shutil.rmtree(folder)
    epoch = prepare(folder, layout == "ep2")
    tell(f"the second epoch of a source begins at step {epoch}")
    whole, run, struck = folder / "whole", folder / "run", 0
    assert attempt(folder, whole, "one" if layout == "changing" else layout), (folder / "said-0.txt").read_text()
    changing = ("fsdp", "tp2-pp2", "one")
    for number, (kill, victim) in enumerate(kills(layout, epoch, count)):
        now = changing[number % 3] if layout == "changing" else layout
        begin = time.monotonic()
        complete = attempt(folder, run, now, kill, victim % LAYOUTS[now][0])
        struck += not complete
        name = f"{kill[1]} {kill[0]} at step {kill[2]}" if kill[0] else f"about step {kill[2]}"
        tell(f"{now}: rank {victim % LAYOUTS[now][0]} {name}: {'complete' if complete else 'died'} ({time.monotonic() - begin:.1f} s)")
        look_between(run)
    assert attempt(folder, run, changing[0] if layout == "changing" else layout), (folder / "said-0.txt").read_text()[-3000:]
    look_at_the_end(run, whole, same_layout=layout != "changing")
    return struck


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch
    import torch._dynamo
    import torch.distributed.pipelining
    import torch.utils.tensorboard

    import preheat.cli.data
    import preheat.cli.train
    import preheat.evaluate
    import preheat.monitor.tensorboard
    import preheat.parallel
    import preheat.train  # noqa: F401

    torch.set_num_threads(1)
    folder, layout, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 23
    begin = time.monotonic()
    struck = storm(folder, layout, count, lambda text: print(text, flush=True))
    print(json.dumps({"layout": layout, "struck": struck, "seconds": round(time.monotonic() - begin)}))


if __name__ == "__main__":
    main()
