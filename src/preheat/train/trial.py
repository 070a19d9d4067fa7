"""A few training steps on random tokens, timed: what `preheat tune` runs in a process of its own, which may run out of memory.

`python -m preheat.train.trial REQUEST RESULT` reads a `Request` as JSON and writes a `Result`, in as many processes as the layout needs.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from preheat.arithmetic import Segment, Timeline, flops_per_token, layout, smallest_world
from preheat.launch import start_workers
from preheat.monitor import model_flops_utilization
from preheat.parallel import Engine, Objective
from preheat.recipe import Recipe
from preheat.train.device import Device, choose, matmul_peak
from preheat.train.files import read_json, write_json
from preheat.train.optimizer import build_optimizer, set_rate
from preheat.train.ranks import PATIENCE_S, exchange, is_first, join, leave, world_size
from preheat.train.watchdog import Watchdog

MOST_MICRO_BATCHES = 8
"""Of a step that is timed: an optimizer step after so many is little beside them."""
OUT_OF_MEMORY = 77
"""The exit code that says so."""
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "bad_alloc", "out of memory")
"""What an error says when a CPU's memory is used up, beside `MemoryError`."""


@dataclass(frozen=True)
class Request:
    """What is tried."""

    recipe: dict[str, Any]
    steps: int
    """That are timed, after one that is not."""
    memory_limit: int | None
    """Bytes that each process may take of its GPU, or of the CPU's memory for its data; all that is free when absent."""
    peak_flops: float | None
    """Of all devices together where it was measured before."""


@dataclass(frozen=True)
class Result:
    """How it went."""

    peak_flops: float
    """Of all devices together, see `preheat.train.device.matmul_peak`."""
    tokens_per_s: float
    """Of all processes together."""
    mfu: float
    """Causal convention, see `preheat.arithmetic.flops`."""
    peak_bytes: int
    """The most that a process held: on a GPU what PyTorch reserved, else resident memory with the program itself."""
    limit_bytes: int | None
    """The most that it might have held; None where nothing says so."""


def says_no_memory(text: str) -> bool:
    """Whether an error's text is that of an allocation that failed."""
    return any(phrase in text for phrase in _NO_MEMORY)


def tokens_per_second(engine: Engine, recipe: Recipe, steps: int) -> float:
    """Training speed of all ranks together in the shape of the first stage: at most `MOST_MICRO_BATCHES` a step, random tokens."""
    segment = first_stage(recipe)
    device, micro, length = engine.device, segment.micro_size, segment.seq_len
    replicas = layout(recipe.parallel, world_size()).dense_dp
    rows = min(segment.batch_size // replicas, MOST_MICRO_BATCHES * micro)
    mtp = recipe.model.mtp
    objective = Objective(
        tokens=rows * replicas * length,
        rope=segment.rope,
        prediction_weight=1.0 if mtp is not None else 0.0,
        z_loss=recipe.optimizer.z_loss,
    )
    optimizer = build_optimizer(engine, recipe.optimizer, offload=recipe.parallel.offload_optimizer)
    set_rate(optimizer, recipe.schedule.final_lr)
    source = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(recipe.model.vocab_size, (rows, length + 1), generator=source).to(device)

    def step() -> None:
        engine.accumulate(tokens_BT[:, :-1], tokens_BT[:, 1:], micro, objective)
        engine.clip(recipe.optimizer.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        engine.finish_step(0.0)

    return objective.tokens / seconds(step, steps, device)


def first_stage(recipe: Recipe) -> Segment:
    """The first stage at its full batch, after any ramp."""
    return [segment for segment in Timeline(recipe).segments if segment.stage_index == 0][-1]


def seconds(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Of one step, the best of `steps` after one that warms up."""
    best = float("inf")
    for number in range(steps + 1):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:
            best = min(best, time.perf_counter() - begin)
    return best


def limit_memory(device: Device, limit: int | None) -> int | None:
    """Let an allocation fail that would take more, see `Request`: on a CPU the system would else end some process to make room.

    Returns:
        The limit in bytes, or what there is; None where nothing says so.
    """
    if device.torch_device.type == "cuda":
        total = torch.cuda.get_device_properties(device.torch_device).total_memory
        if limit is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device.torch_device)
        return total if limit is None else min(total, limit)
    meminfo = Path("/proc/meminfo")
    if limit is None and meminfo.is_file():
        (available,) = (line.split()[1] for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        limit = int(available) * 1024 // world_size()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


def peak_bytes(device: Device) -> int:
    """The most memory that this process had at a time, see `Result`."""
    if device.torch_device.type == "cuda":
        return torch.cuda.max_memory_reserved(device.torch_device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def try_it(request: Request) -> Result:
    """Run the steps on this rank, as one of all."""
    recipe = Recipe.model_validate(request.recipe)
    Watchdog(join("cuda" if torch.cuda.is_available() else "cpu", PATIENCE_S), PATIENCE_S)
    device = choose(recipe.precision)
    peak = request.peak_flops or sum(exchange(matmul_peak(device)))
    limit = limit_memory(device, request.memory_limit)
    engine = Engine(recipe.model, recipe.parallel, recipe.seed, device.torch_device, device.compute, recipe.precision)
    rate = tokens_per_second(engine, recipe, request.steps)
    flops = flops_per_token(recipe.model, first_stage(recipe).seq_len).causal
    return Result(peak, rate, model_flops_utilization(rate, flops, peak), max(exchange(peak_bytes(device))), limit)


def main(request_file: Path, result_file: Path) -> None:
    """Try it and write down how it went; the first rank whose memory runs out ends all with `OUT_OF_MEMORY`."""
    request = Request(**read_json(request_file))
    processes = smallest_world(Recipe.model_validate(request.recipe).parallel)
    if processes > 1 and "RANK" not in os.environ:
        sys.exit(start_workers([sys.executable, "-m", "preheat.train.trial", *sys.argv[1:]], processes))
    try:
        result = try_it(request)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or says_no_memory(str(error))):
            raise
        os._exit(OUT_OF_MEMORY)
    if is_first():
        write_json(result_file, asdict(result))
    leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
