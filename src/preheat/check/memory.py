"""Rules about memory: whether a recipe can be on its GPUs at all, and whether it is likely to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from preheat.arithmetic import layout, stage_parallel
from preheat.arithmetic.memory import CUDA_CONTEXT, Memory, MemoryModel, Step
from preheat.arithmetic.programs import LEAST, MEGATRON, PREHEAT, Program
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject

USUAL_MEMORY = 80_000_000_000
"""Bytes of a GPU when nobody says what the recipe runs on."""


@dataclass(frozen=True)
class Need:
    """What the fullest GPU needs, in bytes."""

    memory: Memory
    stage: int
    """The stage of the recipe in which that is."""
    ranks: int

    @property
    def least(self) -> int:
        """What has to be there whatever else is."""
        return self.memory.states + self.memory.activations + CUDA_CONTEXT


@rule("memory.fits", arguable=True)
def fits(subject: Subject) -> Iterator[Finding]:
    """Weights, gradients, optimizer state and the least of activations fit into the GPU.

    Under AdamW in mixed precision a parameter's state is 18 bytes; 12 can be sharded over the replicas. Activations are counted as what
    must wait for the backward pass: layer inputs under full recomputation, else what a layer cannot cheaply make again, for as many
    micro-batches as the pipeline has under way. Only CUDA's context is added, so a recipe that is refused here does not run, and one that
    passes may still be too large.
    Example: 405B on 128 GPUs with tensor 8, pipeline 8 and context 2 has 76 GB of state a GPU and no room for activations in 80 GB.
    Source: arXiv 1910.02054 (state); arXiv 2205.05198, section 4 (activations).
    """
    need = needed(subject, LEAST)
    if need is None or need.least <= _capacity(subject):
        return
    states, activations = need.memory.states / 1e9, need.memory.activations / 1e9
    yield Finding(
        subject.ranks_key,
        f"{_where(subject, need)} {states:.1f} GB of weights and their state and {activations:.1f} GB of activations at least"
        + _stage(subject, need),
        f"a GPU has {_capacity(subject) / 1e9:g} GB" + _assumed(subject),
        _way_out(subject, need),
    )


@rule("memory.tight", "warning")
def tight(subject: Subject) -> Iterator[Finding]:
    """All that a step takes, as far as it can be told beforehand, leaves a tenth of the GPU free.

    Beside states and activations these are logits, buffers, the libraries' own and what the allocator can't use. It is an estimate of the
    leaner of two programs, this one and Megatron-LM: half of the published figures are within a twentieth of it, others further off. So it
    is held against a GPU that somebody named, and not against one that is assumed.
    Example: 405B on 128 H100 with everything recomputed: 79 of 85 GB.
    Source: preheat.arithmetic.memory, held against published runs by `preheat plan calibrate`.
    """
    if subject.gpus is None or subject.gpus.assumed:
        return
    least = needed(subject, LEAST)
    estimates = [need for program in (MEGATRON, PREHEAT) if (need := needed(subject, program))]
    capacity = _capacity(subject)
    if least is None or least.least > capacity or not estimates:
        return
    need = min(estimates, key=lambda need: need.memory.total)
    if need.memory.fits(capacity):
        return
    parts = sorted(need.memory.parts(), key=lambda part: -part[1])[:4]
    told = ", ".join(f"{size / 1e9:.1f} {name}" for name, size in parts)
    yield Finding(
        subject.ranks_key,
        f"{_where(subject, need)} about {need.memory.total / 1e9:.1f} GB{_stage(subject, need)} ({told})",
        f"a GPU has {capacity / 1e9:g} GB",
        _way_out(subject, need),
    )


@lru_cache(maxsize=3)
def needed(subject: Subject, program: Program) -> Need | None:
    """The need of the fullest GPU over pipeline ranks and stages; None when ranks are unknown or the layout does not divide."""
    recipe, ranks = subject.recipe, subject.ranks
    if not ranks:
        return None
    model = MemoryModel(subject.model, recipe.precision, recipe.optimizer, program)
    found: list[Need] = []
    for index, stage, _, seq_len in subject.stages():
        parallel = stage_parallel(subject.parallel, stage)
        micro, samples = stage.micro_size or recipe.batch.micro_size, stage.global_size or recipe.batch.global_size
        try:
            step = Step(micro, seq_len, max(1, samples // (micro * layout(parallel, ranks).dense_dp)))
            found += [Need(memory, index, ranks) for memory in model.per_rank(parallel, ranks, step)]
        except ValueError:
            return None
    return max(found, key=lambda need: need.least if program is LEAST else need.memory.total, default=None)


def _capacity(subject: Subject) -> int:
    return subject.gpus.gpu.usable if subject.gpus else USUAL_MEMORY


def _assumed(subject: Subject) -> str:
    return "" if subject.gpus and not subject.gpus.assumed else " (no kind was named: --gpus 64xH200 names one)"


def _where(subject: Subject, need: Need) -> str:
    where = f"pipeline rank {need.memory.rank}" if subject.parallel.pipeline > 1 else "each GPU"
    return f"{where} of {need.ranks:_} ranks needs"


def _stage(subject: Subject, need: Need) -> str:
    return f" in stage {subject.recipe.stage[need.stage].name}" if len(subject.recipe.stage) > 1 else ""


def _way_out(subject: Subject, need: Need) -> str:
    ways = []
    if subject.parallel.sharding == "none":
        ways.append('set parallel.sharding = "optimizer"')
    if need.memory.activations > need.memory.states / 4 and subject.parallel.recompute.kind != "full":
        ways.append('set parallel.recompute.kind = "full"')
    ways.append("use more GPUs, or more tensor or pipeline ranks")
    text = "; ".join(ways)
    return text[0].upper() + text[1:]
