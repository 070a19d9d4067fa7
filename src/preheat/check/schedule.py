"""Rules about units, the length of the run and the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from preheat.check.data import stage_ends
from preheat.check.registry import Finding, rule
from preheat.check.subject import Subject
from preheat.recipe import Recipe
from preheat.units import Quantity, rounded, short

ABSURD_TOKENS = 10**15
"""A quadrillion tokens: some 25 times the longest run made public."""


@rule("schedule.decay")
def decay_fields(subject: Subject) -> Iterator[Finding]:
    """Each decay has the fields that it needs and none that it would ignore.

    `wsd` (warm-up, stable, decay) needs `decay_length` and `decay_shape`, `segments` needs `[[schedule.segment]]`, and `constant` ends
    where it peaks. A field without effect would make the recipe say something that does not happen.
    Example: decay = "cosine" with decay_length = "10%".
    Source: preheat, a recipe says nothing that has no effect; cases B06, B10 (facebookresearch/lingua issue 72).
    """
    schedule = subject.recipe.schedule
    needed = {"wsd": ("decay_length", "decay_shape"), "segments": ("segment",)}
    for decay, fields in needed.items():
        for field in fields:
            value = getattr(schedule, field)
            given = value is not None and value != ()
            if schedule.decay == decay and not given:
                yield Finding(f"schedule.{field}", f'decay = "{decay}" without {field}', "", f"Set schedule.{field}")
            if schedule.decay != decay and given:
                yield Finding(f"schedule.{field}", f'{field} has no effect with decay = "{schedule.decay}"', "", "Remove it")
    if schedule.decay == "constant" and schedule.final_lr != schedule.peak_lr:
        got, want = f"final_lr {schedule.final_lr:g} is never reached", f"a constant rate stays at {schedule.peak_lr:g}"
        yield Finding("schedule.final_lr", got, want, "Set both alike")


@rule("schedule.lr-order")
def rates(subject: Subject) -> Iterator[Finding]:
    """The final learning rate is not above the peak.

    Two swapped numbers make a run that starts too low and ends too high; Megatron-LM refuses the same (`--min-lr` above `--lr`).
    Example: peak_lr = 3e-5 with final_lr = 3e-4.
    Source: Megatron-LM 0.19.2, validate_args.
    """
    schedule = subject.recipe.schedule
    if schedule.final_lr > schedule.peak_lr:
        yield Finding("schedule.final_lr", f"final_lr {schedule.final_lr:g}", f"peak_lr is {schedule.peak_lr:g}", "Swap them?")


@rule("schedule.fits")
def warmup_and_decay(subject: Subject) -> Iterator[Finding]:
    """Warm-up and decay fit into the run, without overlap.

    A smoke run that keeps the warm-up of the full recipe never reaches its peak; a decay that begins inside the warm-up never has one.
    Example: a run of 40 steps with a warm-up of 4 and a decay over 95% = 38 of them.
    Source: cases B07 (pytorch/torchtitan pull 950) and B08 (NVIDIA-NeMo/Megatron-Bridge pull 2857).
    """
    schedule = subject.recipe.schedule
    length = schedule.length
    if length.unit == "%" or length.amount == 0:
        return
    warmup = _in_unit_of(length, schedule.warmup)
    decay = _in_unit_of(length, schedule.decay_length) if schedule.decay == "wsd" and schedule.decay_length else Fraction(0)
    if warmup is None or decay is None or warmup + decay <= length.amount:
        return  # in different units the timeline compares them
    parts = f"warm-up of {_plain(warmup)}" + (f" + decay of {_plain(decay)} = {_plain(warmup + decay)}" if decay else "")
    yield Finding(
        "schedule.decay_length" if decay else "schedule.warmup",
        f"{parts} {length.unit}",
        f"the run has {_plain(length.amount)} {length.unit}",
        "Shorten the warm-up" + (" or the decay" if decay else "") + "; a percentage follows the length of the run",
    )


@rule("schedule.jump", "warning")
def jump(subject: Subject) -> Iterator[Finding]:
    """A decay takes more than one step, else it is a jump.

    Example: a cosine decay after a warm-up of "100%"; decay = "wsd" with decay_length = "0%" and a final_lr below the peak.
    Source: case B04 (pytorch/torchtitan pull 1261): such a schedule runs, and seldom is what was meant.
    """
    run, decay = subject.timeline, subject.recipe.schedule.decay
    if run is None:
        return
    start, before = run.learning_rate.warmup, run.learning_rate.peak
    for index, piece in enumerate(run.learning_rate.pieces):
        segment = next(segment for segment in run.segments if segment.end.tokens >= piece.end)
        if piece.shape != "constant" and piece.lr != before and piece.end - start < segment.batch_size * segment.seq_len:
            key = {"wsd": "schedule.decay_length", "segments": f"schedule.segment.{index}.until"}.get(decay, "schedule.warmup")
            got = f"the rate goes from {before:g} to {piece.lr:g} between {start:_} and {piece.end:_} tokens"
            want = f"more than a step of {segment.batch_size * segment.seq_len:_}"
            yield Finding(key, got, want, "Shorten what comes before, or lengthen the decay or the run")
        start, before = piece.end, piece.lr


@rule("schedule.segments")
def segments(subject: Subject) -> Iterator[Finding]:
    """The pieces of a schedule follow one another to the end of the run, and the last one ends at `final_lr`.

    Example: a last segment until "90%", or one to 7.3e-6 with final_lr = 2.2e-5.
    Source: DeepSeek-V3, arXiv 2412.19437, section 4.2; case B09: an end that was set by hand and left behind (Megatron-Bridge pull 676).
    """
    schedule = subject.recipe.schedule
    if schedule.decay != "segments" or not schedule.segment:
        return
    for index, piece in enumerate(schedule.segment[:-1]):
        if piece.until is None:
            got = f"segment {index + 1} of {len(schedule.segment)} has no end"
            yield Finding(f"schedule.segment.{index}.lr", got, "only the last may", "Set until")
    number, last = len(schedule.segment) - 1, schedule.segment[-1]
    if last.until is not None and not subject.ends_with_the_run(last.until):
        got, want = f"the last segment ends at {last.until}", f"the run ends at {schedule.length}"
        yield Finding(f"schedule.segment.{number}.until", got, want, "Remove `until` or change schedule.length")
    if last.lr != schedule.final_lr:
        got, want = f"final_lr {schedule.final_lr:g} is never reached", f"the last segment ends at {last.lr:g}"
        yield Finding("schedule.final_lr", got, want, "Make them agree")
    highest = max(piece.lr for piece in schedule.segment)
    if highest > schedule.peak_lr:
        index = [piece.lr for piece in schedule.segment].index(highest)
        got = f"segment {index + 1} goes to {highest:g}"
        yield Finding(f"schedule.segment.{index}.lr", got, f"peak_lr is {schedule.peak_lr:g}", "Raise peak_lr or lower the segment")


@rule("run.timeline")
def timeline(subject: Subject) -> Iterator[Finding]:
    """Length, stages, ramp, warm-up and decay add up to a run, and each stage has steps.

    Everything is counted on one clock; what is given in other units is converted through the batch ramp and the stages.
    Example: a warm-up of 2,000 steps in a run of 100M tokens that has only 95 of them.
    Source: preheat, `arithmetic.Timeline`.
    """
    fault, run, stages = subject.timeline_fault, subject.timeline, subject.recipe.stage
    if fault is not None:
        others = (stage_ends, decay_fields, warmup_and_decay, segments)
        if fault.key not in {finding.key for other in others for finding in other(subject)}:
            yield Finding(fault.key, str(fault), "", "Make the lengths agree")
    for index, samples in enumerate(run.stage_samples() if run else ()):
        if samples == 0:
            until, before = stages[index].until or "100%", stages[index - 1].until if index else "0%"
            key = f"stage.{index}.until" if stages[index].until else f"stage.{index}.name"
            got = f"stage {stages[index].name} ends at {until}, and what comes before it at {before}"
            yield Finding(key, got, "at least one step between them", "Check `until` of the stages, and the length of the run")


@rule("schedule.length", arguable=True)
def length(subject: Subject) -> Iterator[Finding]:
    """The run is not absurdly long; tokens written as samples or steps are the usual cause.

    Example: "15T samples" of 4,096 tokens are 61.4 quadrillion tokens; 15T tokens are 3,662,109,375 such samples.
    Source: the longest published runs take some 4 x 10^13 tokens; a public 405B recipe has 15000000000000 as `train-samples`.
    """
    if subject.timeline is None or subject.timeline.end.tokens <= ABSURD_TOKENS:
        return
    schedule, end = subject.recipe.schedule, subject.timeline.end
    as_tokens = Quantity(schedule.length.amount, "tokens")
    samples = -(-int(schedule.length.amount) // subject.recipe.batch.seq_len)
    yield Finding(
        "schedule.length",
        f"{schedule.length} are {rounded(end.tokens)} tokens in {rounded(end.steps)} steps",
        f"no run comes near {rounded(ABSURD_TOKENS)} tokens",
        f'Did you mean "{as_tokens}"? That is "{samples:_} samples" of {subject.recipe.batch.seq_len:_}',
    )


@rule("schedule.in-samples", "note")
def in_samples(subject: Subject) -> Iterator[Finding]:
    """Lengths that are given in samples, said in tokens, because nobody sees the tokens in a number of samples.

    Example: a warm-up of 3,906,252 samples of 4,096 tokens is 16.0B tokens; a public guide calls it 2B.
    Source: arithmetic through the ramp and the stages of the recipe.
    """
    run, schedule = subject.timeline, subject.recipe.schedule
    if run is None:
        return
    named = [("schedule.length", "the run", schedule.length), ("schedule.warmup", "warm-up", schedule.warmup)]
    for key, name, quantity in [*named, ("schedule.decay_length", "decay", schedule.decay_length)]:
        if quantity is None or quantity.unit != "samples" or not 0 < quantity.amount <= run.end.samples:
            continue
        back = key == "schedule.decay_length"
        rest = Quantity(run.end.samples - quantity.amount, "samples") if back else quantity
        tokens = run.end.tokens - run.tokens(rest) if back else run.tokens(rest)
        yield Finding(key, f"{name}: {short(int(quantity.amount))} samples are {rounded(tokens)} tokens", f"{tokens:_} exactly")


@rule("schedule.peak-lr", "warning")
def peak(subject: Subject) -> Iterator[Finding]:
    """The peak learning rate is within reach of what AdamW has been used with.

    Published peaks go from 6e-4 at 125M parameters down to 6e-5 at 175B (GPT-3), and up to 3e-3 for models of a few million. A rate above
    1e-2 or below 1e-6 is a slipped exponent.
    Example: peak_lr = 0.6 for 6e-1, where 6e-4 was meant.
    Source: arXiv 2005.14165, table 2.1.
    """
    rate = subject.recipe.schedule.peak_lr
    if not 1e-6 <= rate <= 1e-2:
        yield Finding("schedule.peak_lr", f"peak_lr {rate:g}", "published runs lie between 1e-5 and 3e-3", "Check the exponent")


@rule("run.intervals")
def intervals(subject: Subject) -> Iterator[Finding]:
    """Saving and measuring happen now and then, and not all the time.

    Example: checkpoint.every = "0 tokens".
    Source: preheat, an interval of nothing has no meaning.
    """
    for name, interval in _intervals(subject.recipe).items():
        if interval.amount == 0:
            yield Finding(name, f"{name} is {interval}", "more than nothing", "Write how often")


@rule("run.never-due", "warning")
def never_due(subject: Subject) -> Iterator[Finding]:
    """An interval that is longer than the run never comes due; at the end of the run, and of each stage, it is saved and measured anyway.

    Example: checkpoint.every = "10B tokens" in a trial run of 1B tokens.
    Source: preheat, a recipe says nothing that has no effect.
    """
    for name, interval in _intervals(subject.recipe).items():
        end = subject.end(interval.unit)
        if end is not None and interval.amount > end:
            yield Finding(name, f"{name} is {interval}", f"the run is over after {end:_} {interval.unit}", "Choose a shorter interval")


def _intervals(recipe: Recipe) -> dict[str, Quantity]:
    every = {"checkpoint.every": recipe.checkpoint.every, "evaluation.every": recipe.evaluation.every}
    return {name: interval for name, interval in every.items() if interval is not None}


@rule("run.unreached", "warning")
def unreached(subject: Subject) -> Iterator[Finding]:
    """What is to change during the run changes before it ends; a shortened run of a long recipe does not get that far.

    Nor has an entry of a ramp an effect when the next one comes within the same step, or in a stage with a batch of its own.
    Example: a ramp with { at = "300B tokens", size = 1024 } in a run of 200B tokens; a weight of 0.1 from 10T tokens on in a trial of 1T.
    Source: case B08: a trial run that is not the recipe any more must say so.
    """
    model = subject.model
    changes = {f"batch.ramp.{index}.at": entry.at for index, entry in enumerate(subject.recipe.batch.ramp)}
    for change in model.mtp.loss_weight if model.mtp else ():
        changes["model.mtp.loss_weight"] = change.at
    for rate in model.experts.bias_update_rate if model.experts else ():
        changes["model.experts.bias_update_rate"] = rate.at
    for key, at in changes.items():
        end = subject.end(at.unit)
        if end is not None and at.amount >= end:
            yield Finding(key, f"a change at {at}", f"the run ends at {end:_} {at.unit}", "Remove it or lengthen the run")
        elif subject.timeline and key.startswith("batch.ramp") and int(key.split(".")[2]) not in subject.timeline.ramp_used:
            yield Finding(key, f"a change at {at}", "no step has this size", "Remove it, or move it away from the next one or the stage")


@rule("optimizer.idle")
def idle_momentum(subject: Subject) -> Iterator[Finding]:
    """No key of [optimizer] is written where it has no effect.

    Example: momentum = 0.95 with name = "adamw", whose averages are `betas`.
    Source: preheat, a recipe says nothing that has no effect.
    """
    optimizer = subject.recipe.optimizer
    if optimizer.momentum is not None and optimizer.name != "muon":
        yield Finding("optimizer.momentum", f'momentum has no effect with name = "{optimizer.name}"', "", 'Remove it or set name = "muon"')


@rule("optimizer.range", "warning")
def ranges(subject: Subject) -> Iterator[Finding]:
    """The optimizer's other numbers are within reach of what has been used; a slipped exponent is not.

    Published runs decay weights by 0.01 to 0.3, add 1e-15 to 1e-5 to the root of the second moment, clip gradients at 0.1 to 10 and keep
    at least half of each moment.
    Example: weight_decay = 10.0 for 0.1; eps = 1.0; betas = [0.09, 0.95].
    Source: arXiv 2005.14165, appendix B (0.1, 1e-8, 1.0, 0.9 / 0.95); arXiv 2501.00656, table 4 (OLMo 2).
    """
    optimizer = subject.recipe.optimizer
    bounds = {"weight_decay": (0, 1), "eps": (0, 1e-3), "clip_grad_norm": (1e-2, 1e2)}
    for name, (low, high) in bounds.items():
        value = getattr(optimizer, name)
        if not low <= value <= high:
            want = f"published runs have {low:g} to {high:g}" if low else f"published runs have at most {high:g}"
            yield Finding(f"optimizer.{name}", f"{name} {value:g}", want, "Check the exponent")
    for beta in optimizer.betas:
        if beta < 0.5:
            yield Finding("optimizer.betas", f"a beta of {beta:g}", "published runs have 0.8 to 0.999", "Check the point")


@rule("optimizer.betas", "warning")
def betas(subject: Subject) -> Iterator[Finding]:
    """The second moment is averaged over longer than the first.

    With beta2 below beta1 the update may grow without bound, because the scale forgets faster than the direction.
    Example: betas = [0.95, 0.9], two numbers swapped.
    Source: arXiv 1412.6980, section 4 (beta1^2 / sqrt(beta2) < 1) and every published recipe since GPT-3 (0.9 / 0.95).
    """
    first, second = subject.recipe.optimizer.betas
    if second < first:
        yield Finding("optimizer.betas", f"betas {first:g} and {second:g}", "the second is the larger one", "Swap them?")


def _in_unit_of(length: Quantity, part: Quantity) -> Fraction | None:
    if part.unit == "%":
        return length.amount * part.amount
    return part.amount if part.unit == length.unit else None


def _plain(amount: Fraction) -> str:
    return f"{int(amount):_}" if amount.denominator == 1 else f"{float(amount):_g}"
