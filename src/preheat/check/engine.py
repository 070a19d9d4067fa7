"""Rules about what this version's training engine does not run. A recipe that breaks one is planned, checked and exported; `preheat train`
refuses it by the rule's name, for an option that is left out in silence would train another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from preheat.arithmetic import kv_heads, smallest_world
from preheat.arithmetic.pipeline import SPLIT_BACKWARD
from preheat.check.machine import Machine
from preheat.check.registry import RULES, Finding, rule
from preheat.check.subject import Subject
from preheat.errors import Problem
from preheat.hardware import Cluster
from preheat.recipe import Loaded, beyond_training

FAMILY = "engine."


def untrained(loaded: Loaded, processes: int | None = None) -> list[Problem]:
    """What of a recipe is not trained: the findings of this file's rules, as errors. An `[[ignore]]` doesn't silence them.

    Args:
        processes: how many there are, where that is known.
    """
    subject = Subject(loaded, Cluster.parse(str(processes)) if processes else None, Machine())
    found = [problem for entry in RULES.values() if entry.name.startswith(FAMILY) for problem in entry.problems(subject, loaded.where)]
    return [replace(problem, severity="error") for problem in found]


@rule("engine.not-trained", "note")
def not_trained(subject: Subject) -> Iterator[Finding]:
    """What a recipe may say and training doesn't do, whatever else it says.

    DualPipe holds each layer twice; training runs its V shape, which holds it once.
    Example: dropout = 0.1; compute = "fp8"; a stage with a context-parallel size of its own; schedule = "dualpipe".
    Source: preheat, recipe/beyond_training.py; arXiv 2412.19437, section 3.2.1, and torch's ScheduleDualPipeV.
    """
    keys = beyond_training(subject.recipe)
    if keys:
        fix = "Export it: `preheat export megatron`"
        if "parallel.schedule" in keys:
            pieces = f", and pipeline_layers for {2 * subject.parallel.pipeline} pieces" if subject.parallel.pipeline_layers else ""
            fix += f'; to train, set schedule = "dualpipe-v" and virtual_pipeline = 2{pieces}'
        yield Finding(keys[0], f"`preheat train` of this version does not do {', '.join(keys)}", "", fix)


@rule("engine.ring", "note")
def ring(subject: Subject) -> Iterator[Finding]:
    """Ring attention is for plain causal order: it knows neither documents nor a window.

    Example: context_exchange = "ring" with mask_documents = true.
    Source: preheat, parallel/ring.py; arXiv 2310.01889.
    """
    if subject.parallel.context_exchange != "ring" or max(subject.context(stage) for stage in subject.recipe.stage) == 1:
        return
    if subject.recipe.batch.mask_documents:
        yield Finding("batch.mask_documents", "documents under ring attention", "", 'Set context_exchange = "gather" or "ulysses"')
    if subject.model.sliding_window is not None:
        got = f"a window of {subject.model.sliding_window} under ring attention"
        yield Finding("model.sliding_window", got, "", 'Set context_exchange = "gather" or "ulysses"')


@rule("engine.heads", "note")
def heads(subject: Subject) -> Iterator[Finding]:
    """Each rank has whole key/value heads of its own: over tensor ranks, and under "ulysses" over tensor x context ranks.

    Megatron-LM keeps a head on several tensor ranks where there are fewer heads than ranks; this engine has no such copies.
    Example: kv_heads = 2 with tensor = 4; kv_heads = 8 with "ulysses" over tensor 4 x context 4.
    Source: preheat, parallel/tensor.py and parallel/context.py; arXiv 2309.14509.
    """
    model, parallel = subject.model, subject.parallel
    if model.mla is not None:
        return
    spread = max(subject.context(stage) for stage in subject.recipe.stage) if parallel.context_exchange == "ulysses" else 1
    count, over = kv_heads(model), parallel.tensor * spread
    if count % over:
        got = f"{count} kv_heads over tensor {parallel.tensor}" + (f" x context {spread} = {over}" if spread > 1 else "")
        other = "a smaller tensor size" if spread == 1 else 'context_exchange = "gather"'
        yield Finding("parallel.tensor" if spread == 1 else "parallel.context_exchange", got, "whole heads on each rank", f"Use {other}")


@rule("engine.vocabulary", "note")
def vocabulary(subject: Subject) -> Iterator[Finding]:
    """Each tensor rank has rows of the vocabulary; all but the last have as many as the first.

    Example: vocab_size = 258 over tensor = 32 is 9 rows each, and 29 ranks hold them all.
    Source: preheat, parallel/vocabulary.py; torch.chunk.
    """
    size, ranks = subject.model.vocab_size, subject.parallel.tensor
    rows = -(-size // ranks)
    if rows * (ranks - 1) >= size:
        got = f"{size} rows of the vocabulary over tensor {ranks}, {rows} each"
        yield Finding("parallel.tensor", got, f"{-(-size // rows)} ranks hold them all", "Use a smaller tensor size")


@rule("engine.experts", "note")
def experts(subject: Subject) -> Iterator[Finding]:
    """Ranks route tokens of their own, each sequence's capacity is counted by one rank, and shared experts are cut evenly.

    Without sequence parallelism all tensor ranks route the same tokens, and experts would learn from each of them once more.
    Example: tensor = 2 and [model.experts] without sequence = true; capacity_factor = 1.25 with context = 2.
    Source: preheat, parallel/experts.py; Megatron-LM's MoE guide.
    """
    moe, parallel = subject.model.experts, subject.parallel
    if moe is None:
        return
    if parallel.tensor > 1 and not parallel.sequence:
        got = f"experts with tensor {parallel.tensor} and no sequence parallelism"
        yield Finding("parallel.sequence", got, "each tensor rank routes tokens of its own", "Set parallel.sequence = true")
    context = max(subject.context(stage) for stage in subject.recipe.stage)
    if moe.capacity_factor is not None and (context > 1 or parallel.sequence):
        split = f"context {context}" if context > 1 else f"tensor {parallel.tensor} with sequence parallelism"
        got = f"capacity_factor {moe.capacity_factor:g} over {split}"
        yield Finding("model.experts.capacity_factor", got, "a sequence on one rank", "Remove it: then no token is dropped")
    width = moe.ffn_hidden * moe.shared
    if width % parallel.tensor:
        got = f"shared experts of width {width} over tensor {parallel.tensor}"
        yield Finding("model.experts.shared", got, "tensor parallelism splits the inner width evenly", "Change the width or tensor")


@rule("engine.prediction", "note")
def prediction(subject: Subject) -> Iterator[Finding]:
    """A sequence has more tokens than are predicted ahead.

    Example: mtp = { layers = 4, loss_weight = 0.3 } with sequences of 4 tokens.
    Source: preheat, model/prediction.py; arXiv 2412.19437, section 2.2.
    """
    depths = subject.model.mtp.layers if subject.model.mtp else 0
    for _, _, key, seq_len in subject.stages():
        if seq_len <= depths:
            yield Finding(key, f"{depths} tokens ahead in sequences of {seq_len}", "", "Use longer sequences or fewer prediction layers")


@rule("engine.optimizer", "note")
def optimizer(subject: Subject) -> Iterator[Finding]:
    """Over several ranks moments are kept in fp32: rounding at random is written for whole tensors, and a rank has a shard.

    Example: state_precision = "bf16" with sharding = "full" on 8 GPUs.
    Source: preheat, train/optimizer.py.
    """
    several = max(subject.ranks or 1, smallest_world(subject.parallel)) > 1
    if several and subject.recipe.optimizer.state_precision == "bf16":
        got = "bf16 moments over several ranks are not trained"
        yield Finding("optimizer.state_precision", got, "", 'Set state_precision = "fp32"')


@rule("engine.compile", "note")
def compiled(subject: Subject) -> Iterator[Finding]:
    """Compiled blocks have a backward pass in one piece, and no DTensors.

    Under a schedule that splits the backward pass in two peers would wait forever; tensor parallelism ends in an error of the compiler.

    Example: compile = true with schedule = "zero-bubble-v"; compile = true with tensor = 2.
    Source: preheat, parallel/compile.py; PyTorch 2.13, torch.distributed.pipelining.
    """
    parallel = subject.parallel
    if parallel.compile and parallel.pipeline > 1 and parallel.schedule in SPLIT_BACKWARD:
        got = f'compiled blocks under schedule "{parallel.schedule}"'
        yield Finding("parallel.compile", got, "a backward pass in one piece", 'Set compile = false, or schedule = "interleaved"')
    if parallel.compile and parallel.tensor > 1:
        yield Finding("parallel.compile", f"compiled blocks over tensor {parallel.tensor}", "", "Set compile = false, or tensor = 1")


@rule("engine.sharding", "note")
def sharding(subject: Subject) -> Iterator[Finding]:
    """A schedule that computes the gradients of inputs and of weights apart finds the weights as the forward pass left them.

    With "full" they are let go of and gathered again in between, and PyTorch's FSDP then loses gradients without a word: on two stages and
    two replicas the gradient norm is a quarter off.
    Example: sharding = "full" with schedule = "zero-bubble-v".
    Source: preheat, measured with torch 2.13; tests/parallel/test_equality.py.
    """
    parallel = subject.parallel
    if parallel.sharding == "full" and parallel.pipeline > 1 and parallel.schedule in SPLIT_BACKWARD:
        got = f'sharding = "full" with schedule "{parallel.schedule}"'
        yield Finding("parallel.sharding", got, "weights that stay from forward to backward pass", 'Set sharding = "optimizer"')
