"""Which micro-batch size and recomputation train fastest on the machine at hand: tried, each in processes of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from preheat.arithmetic import layout, smallest_world
from preheat.arithmetic.memory import MemoryModel, Step
from preheat.errors import Problem, RunFailed
from preheat.recipe import Recipe
from preheat.train.files import read_json, write_json
from preheat.train.trial import OUT_OF_MEMORY, Request, Result, first_stage, says_no_memory

NOISE = 0.02
"""Speeds that differ by less than this share are alike; then the smaller memory is chosen."""


@dataclass(frozen=True)
class Try:
    """A setting and how it went."""

    micro_size: int
    recompute: str
    result: Result | None
    """None where memory ran out."""


def tries(recipe: Recipe, kinds: Sequence[str], steps: int, memory_limit: int | None) -> Iterator[Try]:
    """Micro-batch sizes 1, 2, 4 ... of the first stage until memory or the batch of a replica is used up, for each way to recompute.

    After 1 it goes on with a quarter of the largest size that should fit by the planner's figures, and back if that was too much.

    Args:
        kinds: of `parallel.recompute.kind`.
        steps: that are timed.
        memory_limit: bytes of each process, see `preheat.train.trial.Request`.

    Raises:
        RunFailed: a try failed for another reason than memory.
    """
    replicas = layout(recipe.parallel, smallest_world(recipe.parallel)).dense_dp
    most = max(1, first_stage(recipe).batch_size // replicas)
    peak_flops: float | None = None
    for kind in kinds:
        size, largest, smallest_not = 1, 0, most + 1
        while largest < size < smallest_not:
            result = run_try(with_setting(recipe, size, kind), steps, memory_limit, peak_flops)
            yield Try(size, kind, result)
            if result is None:
                smallest_not, size = size, size // 2
                continue
            peak_flops, first, largest = result.peak_flops, size == 1, size
            size = max(2, likely_size(with_setting(recipe, 1, kind), result, most) // 4) if first else 2 * size


def likely_size(recipe: Recipe, first: Result, most: int) -> int:
    """The largest power of two up to `most` that should fit: what one sample took, and what the memory model says of the others."""
    if first.limit_bytes is None:
        return 1
    ranks, segment = smallest_world(recipe.parallel), first_stage(recipe)
    memory = MemoryModel(recipe.model, recipe.precision, recipe.optimizer)

    def total(size: int) -> int:
        return memory.fullest(recipe.parallel, ranks, Step(size, segment.seq_len, most // size)).total

    size = 1
    while 2 * size <= most and first.peak_bytes + total(2 * size) - total(1) <= first.limit_bytes:
        size *= 2
    return size


def best_try(done: Sequence[Try]) -> Try | None:
    """The fastest; among those that are as fast within `NOISE` the one that takes the least memory. None where nothing fitted."""
    fitting = [(attempt, attempt.result) for attempt in done if attempt.result is not None]
    if not fitting:
        return None
    fastest = max(result.tokens_per_s for _, result in fitting)
    return min(
        (pair for pair in fitting if pair[1].tokens_per_s >= (1 - NOISE) * fastest),
        key=lambda pair: (pair[1].peak_bytes, pair[0].micro_size),
    )[0]


def setting(recipe: Recipe, choice: Try) -> list[str]:
    """What `--set` takes to make the choice."""
    stage = recipe.stage[0]
    key = "batch.micro_size" if stage.micro_size is None else f"stage.{stage.name}.micro_size"
    kind = [f"parallel.recompute.kind={choice.recompute}"] if choice.recompute != recipe.parallel.recompute.kind else []
    return [f"{key}={choice.micro_size}", *kind]


def with_setting(recipe: Recipe, micro_size: int, kind: str) -> Recipe:
    """The recipe with another micro-batch size in its first stage, and another way to recompute."""
    stages = (recipe.stage[0].model_copy(update={"micro_size": micro_size}), *recipe.stage[1:])
    recompute = recipe.parallel.recompute
    if kind != recompute.kind:
        recompute = recompute.model_copy(update={"kind": kind, "layers": None})
    return recipe.model_copy(update={"stage": stages, "parallel": recipe.parallel.model_copy(update={"recompute": recompute})})


def run_try(recipe: Recipe, steps: int, memory_limit: int | None, peak_flops: float | None) -> Result | None:
    """Train a few steps in processes of their own, see `preheat.train.trial`; None where memory ran out."""
    with tempfile.TemporaryDirectory(prefix="preheat-") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.json"
        write_json(request, asdict(Request(recipe.model_dump(mode="json"), steps, memory_limit, peak_flops)))
        command = [sys.executable, "-m", "preheat.train.trial", str(request), str(result)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return Result(**read_json(result))
    killed = done.returncode == -signal.SIGKILL or f"was killed by signal {int(signal.SIGKILL)} " in done.stderr
    if done.returncode == OUT_OF_MEMORY or killed or says_no_memory(done.stderr):
        return None
    sys.stderr.write(done.stderr)
    got = f"a try with micro-batches of {recipe.stage[0].micro_size} ended with exit code {done.returncode}"
    raise RunFailed(Problem("tune.failed", got, "", "Its error is above"))
