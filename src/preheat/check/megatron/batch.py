"""Rules about batch sizes and their ramp."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.batch import amount, data_parallel, full_batch, model_ranks, run_samples, size, step_schedule

_LONGEST_SCHEDULE = 1_000
"""Entries of a batch schedule; one with more is a slip."""


@hazard("global-batch")
def global_batch(settings: Settings) -> Iterator[Finding]:
    """A global batch is a whole number of micro-batches on every data-parallel replica.

    Replicas are GPUs / (tensor x pipeline x context); expert parallelism does not divide them. Example: a global batch of 12 with
    micro-batches of 1 on 8 replicas.
    """
    if settings.gpus % model_ranks(settings):
        return
    micro, replicas = size(settings, "micro_batch_size"), data_parallel(settings)
    batch = settings["global_batch_size"]
    if batch and not settings["step_batch_size_schedule"] and batch % (micro * replicas):
        down = batch // (micro * replicas) * micro * replicas
        legal = [down, down + micro * replicas] if down else [micro * replicas]
        got, want = f"a global batch of {batch}", f"a multiple of micro-batch {micro} x {replicas} replicas = {micro * replicas}"
        yield Finding("--global-batch-size", got, want, f"Use {' or '.join(map(str, legal))}")


@hazard("two-batches")
def two_batches(settings: Settings) -> Iterator[Finding]:
    """A batch schedule replaces the global batch size; both together are refused.

    Example: NVIDIA's own examples/gpt3/train_gpt3_175b_distributed.sh of 2026 passes both.
    """
    if settings["step_batch_size_schedule"] and settings.has("global_batch_size"):
        yield Finding(
            "--global-batch-size", "--global-batch-size beside --step-batch-size-schedule", "one of them", "Remove --global-batch-size"
        )


@hazard("batch-schedule")
def batch_schedule(settings: Settings) -> Iterator[Finding]:
    """A batch schedule is a list of TOKENS:SIZE that starts at 0, rises, and holds whole micro-batches of every replica.

    Megatron-LM's validation reads none of it; the run stops when the size is reached. Example: "0:384 200B:768 400B:1152".
    """
    text = settings["step_batch_size_schedule"]
    if not text:
        return
    flag, entries = "--step-batch-size-schedule", step_schedule(settings)
    if not entries:
        odd = next((e for e in text.replace(",", " ").split() if amount(e.partition(":")[0]) is None or not e.partition(":")[2]), text)
        yield Finding(flag, f"the entry {odd[:40]!r}", "TOKENS:SIZE, for instance 200B:768", "Correct the entry")
        return
    if len(entries) > _LONGEST_SCHEDULE:
        yield Finding(flag, f"a schedule of {len(entries):_} entries", f"at most {_LONGEST_SCHEDULE:_}", "Use fewer steps")
        return
    if entries[0][0] != 0:
        yield Finding(flag, f"the schedule starts at {entries[0][0]:_} tokens", "it starts at 0", "Say what size the run starts with")
    for before, after in itertools.pairwise(entries):
        if before[0] // size(settings, "seq_length") >= after[0] // size(settings, "seq_length"):
            yield Finding(flag, f"two sizes at {after[0]:_} tokens", "rising thresholds", "Remove one")
    if settings.gpus % model_ranks(settings):
        return
    unit = size(settings, "micro_batch_size") * data_parallel(settings)
    for at, batch in entries:
        if batch % unit:
            yield Finding(
                flag, f"a batch of {batch} from {at:_} tokens on", f"a multiple of micro-batch x replicas = {unit}", "Change the size"
            )


@hazard("batch-never", "warning")
def never_reached(settings: Settings) -> Iterator[Finding]:
    """Every size of a batch schedule is reached before the run ends.

    Example: "0:384 200B:768" in a run of 100B tokens.
    """
    whole, entries = run_samples(settings), step_schedule(settings)
    if whole and entries and entries[-1][0] >= whole * size(settings, "seq_length"):
        got = f"a size from {entries[-1][0]:_} tokens on"
        yield Finding("--step-batch-size-schedule", got, "the run ends before", "Remove the entry or lengthen the run")
    old = settings["rampup_batch_size"]
    if whole and old and not settings.since("0.18") and old[-1] > whole:
        yield Finding("--rampup-batch-size", f"a ramp over {old[-1]:_} samples", f"the run has {whole:_}", "Shorten the ramp")


@hazard("ramp")
def ramp(settings: Settings) -> Iterator[Finding]:
    """The older ramp, START INCREMENT SAMPLES, holds each size for SAMPLES / increments samples; it counts in samples only.

    Honoured up to core 0.17, ignored since. Example: 384 384 97656250 to 1152 is 384 until 48,828,125 samples, 768 until 97,656,250,
    then 1152.
    """
    entry = settings["rampup_batch_size"]
    if not entry or settings.since("0.18"):
        return
    flag = "--rampup-batch-size"
    start, increment, _ = entry
    if settings["train_iters"]:
        yield Finding(flag, "a batch ramp in a run with --train-iters", "--train-samples", "Count the run in samples")
    batch = full_batch(settings)
    if increment < 1 or start < 1 or batch < start or (batch - start) % increment:
        yield Finding(flag, f"from {start} to {batch} in increments of {increment}", "a whole number of them", "Change the increment")
        return
    unit = size(settings, "micro_batch_size") * data_parallel(settings)
    if settings.gpus % model_ranks(settings) == 0:
        value = next((value for value in range(start, batch + 1, increment) if value % unit), None)
        if value is not None:
            yield Finding(
                flag, f"a batch of {value} on the way", f"a multiple of micro-batch x replicas = {unit}", "Change start or increment"
            )


@hazard("pipeline-full", "warning")
def pipeline_full(settings: Settings) -> Iterator[Finding]:
    """Fewer micro-batches than pipeline stages leave most GPUs idle: the bubble is (p - 1) / (m + p - 1).

    Example: 8 stages and 4 micro-batches stand still for 64 % of the step. Source: arXiv 2104.04473, section 2.2.
    """
    stages = size(settings, "pipeline_model_parallel_size")
    micro_batches = full_batch(settings) // (size(settings, "micro_batch_size") * data_parallel(settings))
    if stages > 1 and 0 < micro_batches < stages and settings.gpus % model_ranks(settings) == 0:
        share = (stages - 1) / (micro_batches + stages - 1)
        got = f"{micro_batches} micro-batches on {stages} pipeline stages: {share:.0%} of the step is idle"
        yield Finding("--pipeline-model-parallel-size", got, f"at least {stages}", "Use a larger global batch or fewer stages")


@hazard("virtual-batches")
def virtual_batches(settings: Settings) -> Iterator[Finding]:
    """The interleaved schedule takes micro-batches in groups of at least the pipeline size, and so is the last group.

    Megatron-LM's validation lets it through; the first step fails. A group is as large as the pipeline unless
    --microbatch-group-size-per-virtual-pipeline-stage says otherwise. Example: 3 micro-batches on 4 stages with virtual stages.
    """
    interleaved = settings["num_layers_per_virtual_pipeline_stage"] or (settings["num_virtual_stages_per_pipeline_rank"] or 1) > 1
    stages = size(settings, "pipeline_model_parallel_size")
    if not interleaved or stages == 1 or settings.gpus % model_ranks(settings) or not settings.has("global_batch_size"):
        return
    micro_batches = full_batch(settings) // (size(settings, "micro_batch_size") * data_parallel(settings))
    group = max(1, settings["microbatch_group_size_per_vp_stage"] or stages)
    if group < stages:
        flag = "--microbatch-group-size-per-virtual-pipeline-stage"
        yield Finding(flag, f"groups of {group} micro-batches on {stages} stages", f"at least {stages}", "Remove it")
    elif group > micro_batches or 0 < micro_batches % group < stages:
        got = f"{micro_batches} micro-batches in groups of {group} on {stages} interleaved stages"
        yield Finding("--global-batch-size", got, f"no group below {stages}", f"Make it a multiple of {group}")
