"""Rules about batches, stages, schedule and layout."""

from __future__ import annotations

import math
from collections.abc import Iterator

from preheat.arithmetic import Timeline, smallest_world
from preheat.check.registry import Finding, rule
from preheat.recipe import Recipe


@rule("schedule.decay")
def decay_fields(recipe: Recipe) -> Iterator[Finding]:
    """`wsd` needs `decay_length` and `decay_shape`; with another decay they have no effect. `constant` ends where it peaks.

    Example: decay = "cosine" with decay_length = "10%".
    """
    schedule = recipe.schedule
    for field in ("decay_length", "decay_shape"):
        given = getattr(schedule, field) is not None
        if schedule.decay == "wsd" and not given:
            yield Finding(f"schedule.{field}", f'decay = "wsd" without {field}', "", f"Set schedule.{field}")
        if schedule.decay != "wsd" and given:
            yield Finding(f"schedule.{field}", f'{field} has no effect with decay = "{schedule.decay}"', "", "Remove it")
    if schedule.decay == "constant" and schedule.final_lr != schedule.peak_lr:
        yield Finding(
            "schedule.final_lr",
            f"final_lr {schedule.final_lr:g} is never reached",
            f"a constant rate stays at {schedule.peak_lr:g}",
            "Set both alike",
        )


@rule("schedule.lr-order")
def rates(recipe: Recipe) -> Iterator[Finding]:
    """The final learning rate is not above the peak.

    Example: peak_lr = 3e-5 with final_lr = 3e-4, two numbers swapped.
    """
    if recipe.schedule.final_lr > recipe.schedule.peak_lr:
        yield Finding(
            "schedule.final_lr", f"final_lr {recipe.schedule.final_lr:g}", f"peak_lr is {recipe.schedule.peak_lr:g}", "Swap them?"
        )


@rule("stage.order")
def stage_ends(recipe: Recipe) -> Iterator[Finding]:
    """Every stage but the last says where it ends, each later than the one before, and names differ.

    Example: main until = "85%", anneal until = "80%".
    """
    names = [stage.name for stage in recipe.stage]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("stage", f"{names.count(name)} stages are called {name}", "", "Give each its own name")
    for index, stage in enumerate(recipe.stage[:-1]):
        if stage.until is None:
            yield Finding(
                f"stage.{index}.name", f"stage {stage.name} has no end", "only the last may", f'Set until = "..." in {stage.name}'
            )
    last = recipe.stage[-1].until
    if last is not None and not (last.unit == "%" and last.amount == 1) and last != recipe.schedule.length:
        where = f"stage.{len(recipe.stage) - 1}.until"
        yield Finding(
            where, f"the last stage ends at {last}", f"the run ends at {recipe.schedule.length}", "Remove `until` or change schedule.length"
        )


@rule("run.timeline")
def timeline(recipe: Recipe) -> Iterator[Finding]:
    """Length, stages, ramp, warm-up and decay must add up to a run: each stage has steps, the decay follows the warm-up.

    Example: a warm-up of 2,000 steps in a run of 1,000.
    """
    try:
        run = Timeline(recipe)
    except ValueError as error:
        yield Finding("schedule", str(error))
        return
    for stage, samples in zip(recipe.stage, run.stage_samples(), strict=True):
        if samples == 0:
            yield Finding("stage", f"stage {stage.name} has no steps", f"the run has {run.end.steps:_}", "Check `until` of the stages")
    for name, interval in (("checkpoint.every", recipe.checkpoint.every), ("evaluation.every", recipe.evaluation.every)):
        if interval is not None and interval.amount == 0:
            yield Finding(name, f"{name} is {interval}", "more than nothing", "Write how often")


@rule("batch.ramp")
def ramp(recipe: Recipe) -> Iterator[Finding]:
    """A ramp starts at 0, rises through its thresholds and ends at the global batch size.

    Example: ramp = [{ at = "0 tokens", size = 8 }] with global_size = 16 never reaches 16.
    """
    entries = recipe.batch.ramp
    if not entries:
        return
    if entries[0].at.amount != 0:
        yield Finding("batch.ramp.0.at", f"the ramp starts at {entries[0].at}", "0 tokens", "Say what size the run starts with")
    units = {entry.at.unit for entry in entries if entry.at.amount != 0}
    if len(units) > 1:
        yield Finding("batch.ramp", f"thresholds in {' and '.join(sorted(units))}", "one unit", "Write them in one unit")
    elif any(a.at.amount >= b.at.amount for a, b in zip(entries, entries[1:], strict=False)):
        yield Finding("batch.ramp", f"thresholds {', '.join(str(entry.at) for entry in entries)}", "each above the one before", "Sort them")
    if entries[-1].size != recipe.batch.global_size:
        yield Finding("batch.ramp", f"the ramp ends at {entries[-1].size}", f"global_size is {recipe.batch.global_size}", "Make them agree")


@rule("batch.micro-size")
def micro_batches(recipe: Recipe) -> Iterator[Finding]:
    """Every global batch of the run, ramp and stages included, is a whole number of micro-batches.

    Example: global_size = 100 with micro_size = 16. A micro-batch belongs to one data-parallel replica, not to one GPU.
    """
    batch = recipe.batch
    sizes = [("batch.global_size", batch.global_size, batch.micro_size)]
    sizes += [(f"batch.ramp.{i}.size", entry.size, batch.micro_size) for i, entry in enumerate(batch.ramp)]
    for i, stage in enumerate(recipe.stage):
        if stage.global_size or stage.micro_size:
            key = f"stage.{i}.global_size" if stage.global_size else f"stage.{i}.micro_size"
            sizes.append((key, stage.global_size or batch.global_size, stage.micro_size or batch.micro_size))
    for key, size, micro in sizes:
        if size < micro and key.startswith("batch.ramp"):
            continue  # a ramp may start below one micro-batch: the step is then one smaller pass
        if size % micro:
            fits = [n for n in range(1, micro + 1) if size % n == 0]
            yield Finding(key, f"{size} samples in micro-batches of {micro}", "a whole number", f"Use a micro_size of {fits[-1]}")


@rule("stage.mix")
def mixtures(recipe: Recipe) -> Iterator[Finding]:
    """A mixture names only sources that the recipe defines, and every source is used by some stage.

    Example: mix = { web = 0.7, cod = 0.3 } with sources web and code.
    """
    names = [source.name for source in recipe.data.source]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("data.source", f"{names.count(name)} sources are called {name}", "", "Give each its own name")
    for index, stage in enumerate(recipe.stage):
        unknown = sorted(set(stage.mix) - set(names))
        if unknown:
            yield Finding(
                f"stage.{index}.mix",
                f"stage {stage.name} mixes {', '.join(unknown)}",
                f"known: {', '.join(names) or 'none'}",
                "Define the source",
            )
    unused = sorted(set(names) - {name for stage in recipe.stage for name in stage.mix})
    if unused:
        yield Finding("data.source", f"no stage mixes {', '.join(unused)}", "", "Mix it or remove it")


@rule("stage.seq-len")
def sequence_lengths(recipe: Recipe) -> Iterator[Finding]:
    """Sequence lengths of the stages divide the longest one, so that no sample repeats before its source's epoch ends.

    Example: 4,096 in the main stage and 10,000 in the last.
    """
    lengths = [stage.seq_len or recipe.batch.seq_len for stage in recipe.stage]
    for index, length in enumerate(lengths):
        if max(lengths) % length:
            key = f"stage.{index}.seq_len" if recipe.stage[index].seq_len else "batch.seq_len"
            near = math.gcd(max(lengths), length)
            yield Finding(
                key, f"sequence length {length} does not divide the longest, {max(lengths)}", "", f"Use a divisor, for instance {near}"
            )


@rule("tokenizer.path")
def tokenizer_path(recipe: Recipe) -> Iterator[Finding]:
    """A tokenizer of kind `file` has a path, one that is trained has none, and GPT-2's 50,257 ids fit the vocabulary.

    Example: kind = "gpt2" with model.vocab_size = 32_000.
    """
    kind, path = recipe.tokenizer.kind, recipe.tokenizer.path
    if kind == "file" and path is None:
        yield Finding("tokenizer.path", 'kind = "file" without a path', "", "Give the tokenizer.json")
    if kind == "train-bpe" and path is not None:
        yield Finding("tokenizer.path", 'path has no effect with kind = "train-bpe"', "", "Remove it")
    if kind == "gpt2" and recipe.model.vocab_size < 50_257:
        yield Finding("model.vocab_size", f"vocab_size {recipe.model.vocab_size}", "GPT-2 has 50257 ids", "Set vocab_size = 50_257")


@rule("parallel.batch")
def parallel_batch(recipe: Recipe) -> Iterator[Finding]:
    """Context parallelism cuts a sequence in 2 x context chunks (zig-zag), so it must divide the sequence length.

    Example: context = 2 with sequences of 1,022 tokens. Source: arXiv 2407.21783, section 3.3.2.
    """
    chunks = 2 * recipe.parallel.context
    for index, stage in enumerate(recipe.stage):
        seq_len = stage.seq_len or recipe.batch.seq_len
        if recipe.parallel.context > 1 and seq_len % chunks:
            key = f"stage.{index}.seq_len" if stage.seq_len else "batch.seq_len"
            yield Finding(
                key, f"{seq_len} tokens in 2 x context = {chunks} chunks", "a whole number", "Change the sequence length or context"
            )


@rule("parallel.single-process", "warning")
def single_process(recipe: Recipe) -> Iterator[Finding]:
    """This version trains in one process; a recipe with a parallel layout is planned and checked but not yet run.

    Example: tensor = 8 in [parallel].
    """
    ranks = smallest_world(recipe.parallel)
    if ranks > 1 or recipe.parallel.expert > 1:
        yield Finding("parallel", f"the layout takes {ranks} ranks", "`preheat train` runs one process in this version")
