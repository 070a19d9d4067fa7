"""What a whole run comes to: days, dollars, failures and checkpoints against them, disk, passes over the data, and the loss to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, sqrt

from preheat.arithmetic import parameters
from preheat.plan.constants import shipped
from preheat.plan.links import TO_HOST
from preheat.plan.planner import LayoutPlan, Planner
from preheat.recipe import Recipe
from preheat.units import Quantity

GPU_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
"""Llama 3 405B: 419 unexpected interruptions in 54 days of 16,384 H100 (arXiv 2407.21783, section 3.3.4)."""
RECOVERY = 600.0
"""Seconds from a failure until training goes on: found, restarted, loaded. An assumption, not from any paper."""
AGREEMENT = 5.0
"""Seconds that training waits for a save however small: ranks agree on what is written. An assumption, not from any paper."""
STORAGE = 2e12 / 24_000
"""Bytes/s that one GPU's share of a file system takes: 2 TB/s for a cluster of 24,000 GPUs (arXiv 2407.21783, section 3.3.1)."""
CHINCHILLA = 20.0
"""Training tokens for each parameter at which a budget of FLOPs gives the least loss (arXiv 2203.15556, table 3)."""

_SOURCES = {
    "failures": f"one in {GPU_HOURS_PER_FAILURE:,.0f} GPU hours: 419 in 54 days of 16,384 H100 (arXiv 2407.21783, section 3.3.4)",
    "recovery": f"{RECOVERY:.0f} s from a failure until training goes on: assumed",
    "save": f"training waits {AGREEMENT:.0f} s and for a copy at {TO_HOST / 1e9:.0f} GB/s a GPU: assumed; --save-wait takes yours",
    "write": f"{STORAGE / 1e6:.0f} MB/s a GPU: 2 TB/s for 24,000 (arXiv 2407.21783, section 3.3.1)",
    "interval": "Ts + sqrt(2 (Tf + Tr) Ts + Ts^2), arXiv 2410.18124, after Young 1974 and Daly 2006",
    "loss": "from the fit of arXiv 2203.15556, section D.3, to that of arXiv 2404.10102; on their corpus and tokenizer",
    "chinchilla": f"{CHINCHILLA:g} tokens a parameter, arXiv 2203.15556, table 3",
}
"""Where each kind of figure comes from that is the same in every plan."""


def assumptions(planner: Planner) -> dict[str, str]:
    """What a plan assumes, and from where."""
    gpu, speed = planner.cluster.gpu, shipped().program(planner.program.software)
    price = {"price": gpu.price_source} if gpu.price is not None else {}
    return {"speed": f"as of {speed.describes}; fitted to published runs", **price, **_SOURCES}


@dataclass(frozen=True)
class Saving:
    """Checkpoints against failures."""

    bytes: int
    """Of one checkpoint: fp32 weights and the optimizer's moments."""
    blocking: float
    """Seconds that training waits for a save."""
    flush: float
    """Seconds until it is on disk."""
    failures: float
    """Expected over the whole run."""
    mean_time_between: float
    """Seconds between failures anywhere."""
    interval_steps: int
    """Steps between saves at which least time is lost, of those steps that take most of the run."""
    interval: float
    """The same in seconds."""
    goodput: float
    """Share of the time that goes into steps that last."""
    goodput_of_recipe: float
    """The same when the run saves as often as the recipe says."""


@dataclass(frozen=True)
class LossBand:
    """Nats per token that published fits expect."""

    low: float
    high: float
    extrapolated: bool
    """Whether model or data are larger than anything that was fitted."""


@dataclass(frozen=True)
class SourceUse:
    """What a run reads of one source."""

    tokens: float
    epochs: float | None
    """None where the size of the source is not known."""


@dataclass(frozen=True)
class RunPlan:
    """The whole run."""

    days: float
    """With failures, saves and what they cost."""
    cost: float | None
    """USD; None where the GPU has no price."""
    saving: Saving
    checkpoint_disk: int
    """Bytes of all checkpoints that are kept at the end."""
    data_disk: int
    """Bytes of the tokens that are read, each once."""
    sources: dict[str, SourceUse]
    tokens_per_parameter: float
    loss: LossBand | None
    """None for models with experts and for runs smaller than any that was fitted."""


def whole_run(planner: Planner, plan: LayoutPlan, sizes: Mapping[str, int] | None = None, save_wait: float | None = None) -> RunPlan:
    """What the run of a layout comes to.

    Args:
        sizes: tokens that each source has, where that is known.
        save_wait: seconds that training waits for a save, where that was measured.
    """
    recipe = planner.recipe
    count = parameters(recipe.model)
    saves = max(1, _times(planner, recipe.checkpoint.every))
    saved = saving(plan, checkpoint_bytes(recipe), planner.timeline.end.steps, plan.seconds / saves, save_wait)
    seconds = plan.seconds / saved.goodput
    hours = seconds / 3600 * plan.ranks
    kept, end = _kept(planner), planner.timeline.end.tokens
    sources = _sources(planner, sizes or {})
    read = sum(min(use.tokens, (sizes or {}).get(name, inf)) for name, use in sources.items())
    return RunPlan(
        days=seconds / 86_400,
        cost=None if plan.gpu.price is None else hours * plan.gpu.price,
        saving=saved,
        checkpoint_disk=kept * saved.bytes,
        data_disk=round(read * (2 if recipe.model.vocab_size <= 65_536 else 4)),
        sources=sources,
        tokens_per_parameter=end / count.total,
        loss=expected_loss(count.total, end) if _fitted(recipe, count.total, end) else None,
    )


def checkpoint_bytes(recipe: Recipe) -> int:
    """Bytes of a checkpoint: weights in fp32 and AdamW's two moments; Muon's one is counted as two."""
    moment = 4 if recipe.optimizer.state_precision == "fp32" else 2
    return parameters(recipe.model).total * (4 + 2 * moment)


def saving(plan: LayoutPlan, size: int, steps: int, own_interval: float, wait: float | None = None) -> Saving:
    """The best interval between checkpoints of `size` bytes, and what is lost by failures.

    A failure costs half an interval, what was not on disk yet, and the recovery. Saves overlap with training but for the copy to the
    host, and follow each other no faster than they are written.

    Args:
        steps: of the whole run; a save at its end is always made.
        own_interval: seconds between saves that the recipe asks for.
        wait: seconds that training waits for a save; estimated when absent.
    """
    blocking = wait if wait is not None else AGREEMENT + size / plan.ranks / TO_HOST
    flush = size / plan.ranks / STORAGE
    between = GPU_HOURS_PER_FAILURE * 3600 / plan.ranks
    step = plan.main.step.seconds
    best = best_interval(blocking, between, RECOVERY)
    interval_steps = min(steps, max(1, int(best / step), ceil(flush / step)))

    def goodput(interval: float) -> float:
        return 1 / (1 + blocking / interval + (interval / 2 + flush + RECOVERY) / between)

    interval = interval_steps * step
    good = goodput(interval)
    failures = plan.seconds / good / between
    return Saving(size, blocking, flush, failures, between, interval_steps, interval, good, goodput(max(own_interval, flush)))


def best_interval(save: float, between: float, recovery: float) -> float:
    """Seconds between saves that lose least: Ts + sqrt(2 (Tf + Tr) Ts + Ts^2), arXiv 2410.18124.

    Args:
        save: seconds that training waits for a save.
        between: mean seconds between failures.
        recovery: seconds until training goes on after one.
    """
    return save + sqrt(2 * (between + recovery) * save + save**2)


def expected_loss(model_size: int, tokens: int) -> LossBand:
    """E + A / N^alpha + B / D^beta by Chinchilla's own fit (arXiv 2203.15556, section D.3) and by one that mends it (arXiv 2404.10102)."""
    found = sorted(e + a / model_size**alpha + b / tokens**beta for e, a, b, alpha, beta in _FITS)
    return LossBand(found[0], found[-1], model_size > _LARGEST_MODEL or tokens > _MOST_TOKENS)


_FITS = ((1.69, 406.4, 410.7, 0.34, 0.28), (1.8172, 482.01, 2085.43, 0.3478, 0.3658))
_SMALLEST_MODEL, _FEWEST_TOKENS = 70e6, 5e9
_LARGEST_MODEL, _MOST_TOKENS = 16e9, 500e9
"""The fits are of models from 70M to 16B parameters on 5B to 500B tokens (arXiv 2203.15556, abstract)."""


def _fitted(recipe: Recipe, model_size: int, tokens: int) -> bool:
    """Below their range the fits shoot up above what guessing costs."""
    return recipe.model.experts is None and model_size >= _SMALLEST_MODEL and tokens >= _FEWEST_TOKENS


def _times(planner: Planner, interval: Quantity) -> int:
    """How often an interval passes in the whole run."""
    if interval.unit == "%":
        return int(1 / interval.amount)
    end = planner.timeline.end
    return int({"tokens": end.tokens, "samples": end.samples, "steps": end.steps}[interval.unit] // interval.amount)


def _kept(planner: Planner) -> int:
    """Checkpoints on disk at the end: the newest, those at the ends of stages, those of a wide interval, the best."""
    policy = planner.recipe.checkpoint
    wide = _times(planner, policy.keep_every) if policy.keep_every is not None else 0
    stages = len({segment.stage_index for segment in planner.timeline.segments})
    return policy.keep + stages - 1 + wide + policy.keep_best


def _sources(planner: Planner, sizes: Mapping[str, int]) -> dict[str, SourceUse]:
    read: dict[str, float] = {}
    for segment in planner.timeline.segments:
        tokens = segment.end.tokens - segment.start.tokens
        whole = sum(map(float, segment.stage.mix.values()))
        for name, weight in segment.stage.mix.items():
            read[name] = read.get(name, 0.0) + tokens * float(weight) / whole
    return {name: SourceUse(tokens, tokens / sizes[name] if sizes.get(name) else None) for name, tokens in read.items()}
