"""Rules about batches: the ramp, micro-batches, and how they fill the replicas and the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from preheat.arithmetic import bubble
from preheat.check.registry import Finding, rule
from preheat.check.subject import Batches, Subject, divisors
from preheat.units import rounded


@rule("batch.ramp")
def ramp(subject: Subject) -> Iterator[Finding]:
    """A ramp starts at 0, rises through its thresholds, and ends at the global batch size.

    Example: ramp = [{ at = "0 tokens", size = 8 }] with global_size = 16 never reaches 16.
    Source: Megatron-LM's step batch-size schedule (pull 3779, 4411); case C03: a ramp that has no effect must not pass.
    """
    batch = subject.recipe.batch
    entries = batch.ramp
    if not entries:
        return
    if entries[0].at.amount != 0:
        yield Finding("batch.ramp.0.at", f"the ramp starts at {entries[0].at}", "0 tokens", "Say what size the run starts with")
    units = {entry.at.unit for entry in entries if entry.at.amount != 0}
    if len(units) > 1:
        yield Finding("batch.ramp", f"thresholds in {' and '.join(sorted(units))}", "one unit", "Write them in one unit")
    elif any(a.at.amount >= b.at.amount for a, b in pairwise(entries)):
        yield Finding("batch.ramp", f"thresholds {', '.join(str(entry.at) for entry in entries)}", "each above the one before", "Sort them")
    if entries[-1].size != batch.global_size:
        yield Finding("batch.ramp", f"the ramp ends at {entries[-1].size}", f"global_size is {batch.global_size}", "Make them agree")


@rule("batch.ramp-rises", "warning")
def rises(subject: Subject) -> Iterator[Finding]:
    """Each size of a ramp is larger than the one before.

    A size that is repeated has no effect; one that falls makes the gradient noisier while the learning rate is at its highest.
    Example: ramp = [{ at = "0 tokens", size = 64 }, { at = "1B tokens", size = 64 }, { at = "2B tokens", size = 256 }].
    Source: arXiv 1711.00489 (growing batches); every published ramp (GPT-3, BLOOM, Llama 3, DeepSeek-V3) rises.
    """
    for index, (before, after) in enumerate(pairwise(subject.recipe.batch.ramp), start=1):
        if after.size <= before.size:
            got = f"{after.size} samples after {before.size}"
            yield Finding(f"batch.ramp.{index}.size", got, "more", "Remove the entry or raise its size")


@rule("batch.micro-size")
def micro_batches(subject: Subject) -> Iterator[Finding]:
    """Every global batch of the run, ramp and stages included, is a whole number of micro-batches.

    A micro-batch belongs to one data-parallel replica, not to one GPU. In a single process a ramp may start below one micro-batch.
    Example: global_size = 10 with micro_size = 4; or global_size = 8 with micro_size = 16.
    Source: case A13 (marin-community/levanter pull 1261).
    """
    for batch in subject.batches:
        if batch.global_size % batch.micro_size and not _small_first_steps(batch):
            fits = max(n for n in divisors(batch.global_size) if n <= batch.micro_size)
            got = f"{batch.global_size} samples in micro-batches of {batch.micro_size}"
            yield Finding(batch.key, got, "a whole number", f"Use a micro_size of {fits}")


@rule("batch.replicas")
def data_parallel(subject: Subject) -> Iterator[Finding]:
    """Every global batch is the same whole number of micro-batches on each data-parallel replica.

    The global batch is that of the whole run: with more GPUs each replica accumulates less, and the tokens of a step stay the same.
    Example: a ramp that starts at 8 samples on 16 replicas; 1,024 samples in micro-batches of 16 on 48 replicas.
    Source: cases A08 (Lightning-AI/litgpt issue 1474), A12 (deepspeedai/DeepSpeed pull 8395), C06 (NVIDIA/Megatron-LM pull 3913).
    """
    for batch in subject.batches:
        together = batch.micro_size * batch.replicas
        if batch.replicas == 1 or batch.global_size % together == 0 or batch.global_size % batch.micro_size:
            continue
        got = f"{batch.global_size} samples in micro-batches of {batch.micro_size} on {batch.replicas} data-parallel replicas"
        share, rest = divmod(batch.global_size, batch.replicas)
        if rest:
            below = batch.global_size - batch.global_size % together
            near = f"{below} or {below + together}" if below else f"{together}"
            fix = f"Use a batch of {near} samples, or a number of replicas that divides {batch.global_size}"
        else:
            sizes = " or ".join(str(n) for n in divisors(share)[-3:])
            fix = f"A replica gets {share} samples: use a micro_size of {sizes}"
        yield Finding(batch.key, got, f"a multiple of {batch.micro_size} x {batch.replicas} = {together}", fix)


@rule("batch.pipeline-fill", "warning")
def fill(subject: Subject) -> Iterator[Finding]:
    """A step has at least as many micro-batches as the pipeline has stages.

    With fewer, some ranks never work at the same time: of p stages and m micro-batches the share (p-1)/(m+p-1) of the step is idle.
    Example: 4 micro-batches on 8 stages wait 63.6% of the time; BLOOM's planned start at 16 samples on 12 stages waits 91.7%.
    Source: arXiv 2104.04473; cases A11 (pytorch/torchtitan issue 775), C04 (bigscience-workshop/bigscience issue 70).
    """
    stages = subject.parallel.pipeline
    thin = [batch for batch in subject.batches if batch.micro_batches < stages]
    ramped = [batch for batch in thin if batch.key.startswith("batch.ramp")]
    for batch in [*(b for b in thin if b not in ramped), *ramped[:1]]:
        waiting = f"{float(bubble(subject.parallel, batch.micro_batches)):.1%} of the step is waiting"
        got = f"{_micro_batches(batch)} for {stages} pipeline stages: {waiting}"
        if batch in ramped and len(ramped) > 1:
            last = ramped[-1]
            got += f"; so it goes on until {last.global_size} samples, {float(bubble(subject.parallel, last.micro_batches)):.1%}"
        fix = "Start the ramp higher" if batch in ramped else "Use a larger batch, a smaller micro_size or fewer stages"
        yield Finding(batch.key, got, f"at least {stages} micro-batches", fix)


@rule("batch.pipeline-schedule")
def pipeline_schedule(subject: Subject) -> Iterator[Finding]:
    """The number of micro-batches suits the pipeline's schedule.

    The interleaved schedule runs micro-batches in groups of the pipeline's size; DualPipe feeds from both ends and needs an even number.
    Megatron-LM's parser lets the first through, and training stops at the first step; it knows other sizes of group, a recipe does not.
    DualPipeV fills both halves of its V before it works at full speed.
    Example: 3 micro-batches on 4 interleaved stages; 6 on 4 ranks of "dualpipe-v".
    Source: arXiv 2104.04473, section 2.2; arXiv 2412.19437, section 3.2.1; torch's ScheduleDualPipeV.
    """
    parallel = subject.parallel
    for batch in subject.batches:
        if subject.ranks is None or batch.global_size % (batch.micro_size * batch.replicas):
            continue
        count = batch.micro_batches
        if parallel.schedule == "interleaved" and parallel.virtual_pipeline > 1 and count % parallel.pipeline:
            want = f"a multiple of the {parallel.pipeline} stages of an interleaved pipeline"
            yield Finding(batch.key, _micro_batches(batch), want, "Change the batch or its micro_size")
        if parallel.schedule == "dualpipe" and count % 2:
            yield Finding(batch.key, _micro_batches(batch), "an even number for DualPipe", "Change the batch or its micro_size")
        if parallel.schedule == "dualpipe-v" and count < 2 * parallel.pipeline:
            want = f"at least 2 x {parallel.pipeline} for DualPipeV"
            yield Finding(batch.key, _micro_batches(batch), want, "Use a larger batch or a smaller micro_size")


@rule("batch.tokens", "warning")
def tokens(subject: Subject) -> Iterator[Finding]:
    """A step does not take more tokens than any run has found useful.

    Above the critical batch size more samples a step buy nothing. The largest batches made public are of some 130M tokens (MiniMax-01),
    most are below 64M.
    Example: global_size = 65_536 with sequences of 4,096: 268M tokens a step.
    Source: arXiv 1812.06162; arXiv 2501.08313.
    """
    for segment in subject.timeline.segments if subject.timeline else ():
        per_step = segment.batch_size * segment.seq_len
        if per_step > 150_000_000:
            key = f"stage.{segment.stage_index}.global_size" if segment.stage.global_size else "batch.global_size"
            got = f"{segment.batch_size} samples x {segment.seq_len} = {rounded(per_step)} tokens a step"
            yield Finding(key, got, "at most some 130M are known", "Are these tokens where samples are meant?")
            return


def _small_first_steps(batch: Batches) -> bool:
    """A ramp that starts below one micro-batch, in a single process: the step is then one smaller pass."""
    return batch.key.startswith("batch.ramp") and batch.global_size < batch.micro_size and batch.replicas == 1


def _micro_batches(batch: Batches) -> str:
    of = f"{batch.global_size} samples / ({batch.micro_size} a micro-batch x {batch.replicas} replicas)"
    return f"{of} = {batch.micro_batches} micro-batch" + ("es" if batch.micro_batches > 1 else "")
