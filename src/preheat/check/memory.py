"""Rules about memory: whether the weights, their state and the least that activations take can be on a GPU at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from preheat.arithmetic import dense_layers, head_dim, kv_heads, pipeline_split, rank_states, stage_parallel
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject
from preheat.recipe import Parallel, Recipe


@dataclass(frozen=True)
class Need:
    """What the fullest GPU needs at least, in bytes."""

    rank: int
    """Its pipeline rank."""
    states: int
    activations: int
    stage: int
    """The stage of the recipe in which that is."""
    ranks: int

    @property
    def total(self) -> int:
        return self.states + self.activations


@rule("memory.fits", arguable=True)
def fits(subject: Subject) -> Iterator[Finding]:
    """Weights, gradients, optimizer state and the least of activations fit into the GPU.

    Under AdamW in mixed precision a parameter's state is 18 bytes; 12 can be sharded over the replicas. Activations are counted as what
    must wait for the backward pass: layer inputs under full recomputation, else what a layer cannot cheaply make again, for as many
    micro-batches as the pipeline has under way. What is left of the binary size (7%) is for CUDA, NCCL and fragmentation, so a recipe that
    is refused here does not run, and one that passes may still be too large: `preheat plan` measures.
    Example: 405B on 128 GPUs with tensor 8, pipeline 8 and context 2 has 76 GB of state a GPU and no room for activations in 80 GB.
    Source: arXiv 1910.02054 (state); arXiv 2205.05198, section 4 (activations).
    """
    need = needed(subject)
    if need is None or need.total <= _capacity(subject):
        return
    yield Finding(
        subject.ranks_key,
        _told(subject, need),
        f"a GPU has {_capacity(subject) / 1e9:g} GB" + _assumed(subject),
        _way_out(subject, need),
    )


@rule("memory.tight", "warning")
def tight(subject: Subject) -> Iterator[Finding]:
    """What is needed at least leaves a tenth of the GPU for buffers of communication, logits and the rest.

    Example: 405B on 128 GPUs with everything recomputed: 78 of 80 GB are spoken for before the first buffer.
    Source: as memory.fits; the tenth is preheat's.
    """
    need = needed(subject)
    if need is not None and 0.9 * _capacity(subject) < need.total <= _capacity(subject):
        want = f"a GPU has {_capacity(subject) / 1e9:g} GB" + _assumed(subject)
        yield Finding(subject.ranks_key, _told(subject, need), want, _way_out(subject, need))


@lru_cache(maxsize=1)
def needed(subject: Subject) -> Need | None:
    """The need of the fullest GPU over pipeline ranks and stages; None when ranks are unknown or the layout does not divide."""
    found: list[Need] = []
    for index, stage, _, seq_len in subject.stages():
        layout = stage_parallel(subject.parallel, stage)
        micro = stage.micro_size or subject.recipe.batch.micro_size
        try:
            split = pipeline_split(subject.model.layers, layout)
            recipe, ranks = subject.recipe, subject.ranks
            every = rank_states(subject.model, layout, recipe.precision, ranks, recipe.optimizer) if ranks else ()
        except ValueError:
            return None
        for rank, states in enumerate(every):
            layers = [layer for chunk in split[rank] for layer in chunk.layers]
            tokens = micro * seq_len // layout.context
            found.append(Need(rank, states.total, _activations(subject.recipe, layout, layers, rank, tokens), index, subject.ranks or 0))
    return max(found, key=lambda need: need.total, default=None)


def _activations(recipe: Recipe, layout: Parallel, layers: list[int], rank: int, tokens: int) -> int:
    """Bytes that a pipeline rank keeps at least, of `tokens` tokens per micro-batch.

    1F1B has pipeline - rank micro-batches under way on a rank, DualPipe (pipeline + 1) / 2 in each of its two pieces.
    """
    recomputed = 0
    if layout.recompute.kind == "full":
        recomputed = len(layers) if layout.recompute.layers is None else min(layout.recompute.layers, len(layers))
    layer_input = 2 * recipe.model.hidden * tokens // (layout.tensor if layout.sequence else 1)
    kept = sorted((_layer(recipe, layout, layer, tokens) for layer in layers), reverse=True)
    one = recomputed * layer_input + sum(kept[recomputed:])
    return one * (layout.pipeline + 1) // 2 if layout.schedule == "dualpipe" else one * (layout.pipeline - rank)


def _layer(recipe: Recipe, layout: Parallel, layer: int, tokens: int) -> int:
    """Bytes that one layer keeps at least when it is not recomputed as a whole.

    These are the inputs of both blocks, queries, keys, values (or their latents) and output of attention, and what goes into the activation
    function. Norms, activation functions and projections up from a latent cost nothing to compute again, so they are not counted: of the 34
    bytes per token and hidden unit that arXiv 2205.05198 counts for a GPT layer with flash attention, 20 are left.
    """
    model, mla, experts = recipe.model, recipe.model.mla, recipe.model.experts
    if mla is None:
        inside = (2 * model.heads + 2 * kv_heads(model)) * head_dim(model)
    else:
        inside = mla.kv_lora_rank + (mla.q_lora_rank or 0) + model.heads * mla.v_head_dim
    width = model.ffn_hidden
    if experts is not None and layer >= dense_layers(model):
        width = (experts.active + experts.shared) * experts.ffn_hidden
    inside += (2 if model.activation == "swiglu" else 1) * width
    size = {"fp8": 1, "fp32": 4}.get(recipe.precision.compute, 2)
    return size * tokens * (2 * model.hidden // (layout.tensor if layout.sequence else 1) + inside // layout.tensor)


def _capacity(subject: Subject) -> float:
    return subject.gpus.gpu.usable if subject.gpus else 80e9


def _assumed(subject: Subject) -> str:
    return "" if subject.gpus and not subject.gpus.assumed else " (no kind was named: --gpus 64xH200 names one)"


def _told(subject: Subject, need: Need) -> str:
    where = f"pipeline rank {need.rank}" if subject.parallel.pipeline > 1 else "each GPU"
    stage = f" in stage {subject.recipe.stage[need.stage].name}" if len(subject.recipe.stage) > 1 else ""
    state, rest = need.states / 1e9, need.activations / 1e9
    return (
        f"{where} of {need.ranks:_} ranks needs {state:.1f} GB of weights and their state and {rest:.1f} GB of activations at least{stage}"
    )


def _way_out(subject: Subject, need: Need) -> str:
    ways = []
    if subject.parallel.sharding == "none":
        ways.append('set parallel.sharding = "optimizer"')
    if need.activations > need.states / 4 and subject.parallel.recompute.kind != "full":
        ways.append('set parallel.recompute.kind = "full"')
    ways.append("use more GPUs, or more tensor or pipeline ranks")
    text = "; ".join(ways)
    return text[0].upper() + text[1:]
