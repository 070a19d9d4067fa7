"""Rules about the length of the run, its units, and the learning rate."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preheat.check.megatron.registry import hazard
from preheat.check.registry import Finding
from preheat.megatron import Settings
from preheat.megatron.batch import full_batch, run_samples
from preheat.units import rounded

_SAID = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT])\s*tokens?", re.IGNORECASE)
_MOST_TOKENS = 10**15
"""A quadrillion: some sixty times the largest published run."""


@hazard("length", absence=True)
def length(settings: Settings) -> Iterator[Finding]:
    """The run has a length: --train-samples or --train-iters.

    Megatron-LM's validation lets a command without one through; it fails when the schedule is built. Example: a recipe that
    names everything but how long to train.
    """
    broken = {fault.flag for fault in settings.faults}
    if not settings["train_iters"] and not settings["train_samples"] and not {"--train-iters", "--train-samples"} & broken:
        yield Finding("--train-samples", "neither --train-samples nor --train-iters", "a run has a length", "Give --train-samples N")


@hazard("iters-and-samples")
def iterations_and_samples(settings: Settings) -> Iterator[Finding]:
    """A run counts in iterations or in samples: length, warm-up and decay all in the same.

    Example: --train-samples 3662109375 with --lr-warmup-iters 8000.
    """
    if settings["train_iters"] and settings["train_samples"]:
        yield Finding("--train-samples", "both --train-iters and --train-samples", "one of them", "Remove one")
        return
    if settings["train_samples"]:
        unit, other, wrong = "samples", "iters", ("lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters")
    elif settings["train_iters"]:
        unit, other, wrong = "iters", "samples", ("lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples")
    else:
        return
    for name in wrong:
        if settings[name]:
            flag = "--" + name.replace("_", "-")
            right = flag.removesuffix(other) + unit
            if other == "iters":
                value = f" {settings[name] * full_batch(settings)}" if full_batch(settings) else ""
            else:
                value = f" {settings[name] // full_batch(settings)}"
            yield Finding(flag, f"{flag} {settings[name]} in a run with --train-{unit}", "one unit", f"Write {right}{value}")


@hazard("warmup-twice")
def warmup_twice(settings: Settings) -> Iterator[Finding]:
    """The warm-up is a fraction or a length, not both.

    Example: --lr-warmup-fraction 0.1 with --lr-warmup-iters 500.
    """
    if settings["lr_warmup_fraction"] is not None and (settings["lr_warmup_iters"] or settings["lr_warmup_samples"]):
        yield Finding("--lr-warmup-fraction", "a warm-up as a fraction and as a length", "one of them", "Remove one")


@hazard("warmup-length")
def warmup_length(settings: Settings) -> Iterator[Finding]:
    """The warm-up ends before the decay does.

    Megatron-LM's validation lets it through; building the schedule fails. Example: --lr-warmup-iters 200 with --train-iters 100.
    """
    for unit in ("iters", "samples"):
        warmup = settings[f"lr_warmup_{unit}"] or 0
        end = settings[f"lr_decay_{unit}"] or settings[f"train_{unit}"]
        if warmup and end and warmup >= end:
            yield Finding(f"--lr-warmup-{unit}", f"a warm-up of {warmup:_} {unit}", f"the decay ends at {end:_}", "Shorten the warm-up")
    fraction = settings["lr_warmup_fraction"]
    if fraction is not None and not 0 <= fraction < 1:
        yield Finding("--lr-warmup-fraction", f"a warm-up of {fraction:g} of the run", "a fraction below 1", "Write for instance 0.01")


@hazard("decay-end", "warning")
def decay_end(settings: Settings) -> Iterator[Finding]:
    """The learning rate reaches its minimum when the run ends, unless another end is meant.

    Longer: the run stops at a rate above --min-lr. Example: --lr-decay-iters 100000 with --train-iters 50000.
    """
    for unit in ("iters", "samples"):
        end, whole = settings[f"lr_decay_{unit}"], settings[f"train_{unit}"]
        if end and whole and end > whole:
            flag = f"--lr-decay-{unit}"
            yield Finding(flag, f"the decay ends at {end:_} {unit}", f"the run ends at {whole:_}", "Make them agree")


@hazard("wsd", absence=True)
def wsd(settings: Settings) -> Iterator[Finding]:
    """Warm-up, stable, decay needs the length of its decay; with another style that length has no effect.

    Megatron-LM's validation lets a missing length through; building the schedule fails. Example: --lr-decay-style WSD alone.
    """
    unit = "samples" if settings["train_samples"] else "iters"
    given = settings[f"lr_wsd_decay_{unit}"]
    if settings["lr_decay_style"] == "WSD" and not given:
        flag = f"--lr-wsd-decay-{unit}"
        yield Finding("--lr-decay-style", f"--lr-decay-style WSD without {flag}", "", f"Give {flag}")
    if settings["lr_decay_style"] != "WSD" and given:
        style = settings["lr_decay_style"]
        yield Finding(f"--lr-wsd-decay-{unit}", f"a WSD decay with --lr-decay-style {style}", "", "Write --lr-decay-style WSD or remove it")


@hazard("lr-order")
def rates(settings: Settings) -> Iterator[Finding]:
    """The minimum learning rate is not above the peak.

    Example: --lr 3e-5 --min-lr 3e-4.
    """
    if settings["lr"] is not None and settings["min_lr"] > settings["lr"]:
        yield Finding("--min-lr", f"--min-lr {settings['min_lr']:g}", f"--lr is {settings['lr']:g}", "Swap them?")


@hazard("samples-amount")
def samples_amount(settings: Settings) -> Iterator[Finding]:
    """A number of samples that would be more text than exists is a number of tokens in the wrong place.

    Megatron-LM takes it. Example: --train-samples 15000000000000 at 4,096 tokens is 61.4 quadrillion tokens; 15T tokens are
    3,662,109,375 samples.
    """
    seq_len, samples = settings["seq_length"], run_samples(settings)
    if samples and seq_len and samples * seq_len > _MOST_TOKENS:
        flag = "--train-samples" if settings["train_samples"] else "--train-iters"
        count = settings["train_samples"] or settings["train_iters"]
        got = f"{flag} {count} is {samples * seq_len / 1e15:.1f} quadrillion tokens at {seq_len:_} tokens a sample"
        fix = f"{rounded(count)} tokens are {flag} {round(count / seq_len / (1 if settings['train_samples'] else full_batch(settings)))}"
        yield Finding(flag, got, "no corpus has as much", fix)


@hazard("amounts", "note")
def amounts(settings: Settings) -> Iterator[Finding]:
    """What the lengths are in tokens, so that a comment beside a number can be compared.

    Example: 3,906,252 warm-up samples of 4,096 tokens are 16.0B tokens (a public guide calls them 2B).
    """
    seq_len = settings["seq_length"]
    if not seq_len:
        return
    for name, what in (("train", "the run"), ("lr_warmup", "the warm-up"), ("lr_decay", "the decay")):
        samples, iterations = settings[f"{name}_samples"], settings[f"{name}_iters"]
        prefix = "--" + name.replace("_", "-")
        if samples:
            got = f"{what}: {samples:_} samples x {seq_len:_} = {rounded(samples * seq_len)} tokens"
            yield Finding(f"{prefix}-samples", got)
        elif iterations:
            batch = full_batch(settings)
            yield Finding(
                f"{prefix}-iters",
                f"{what}: {iterations:_} iterations x {batch:_} x {seq_len:_} = {rounded(iterations * batch * seq_len)} tokens",
            )


@hazard("comment", "warning")
def comments(settings: Settings) -> Iterator[Finding]:
    """A comment beside a length that names another number of tokens: one of the two is wrong.

    Example: lr-warmup-samples: 3906252 # ~2B tokens, at 4,096 tokens a sample (16.0B).
    """
    seq_len = settings["seq_length"]
    for name in ("train", "lr_warmup", "lr_decay"):
        for unit, tokens_each in (("samples", seq_len), ("iters", (seq_len or 0) * full_batch(settings))):
            argument, count = settings.given.get(f"{name}_{unit}"), settings[f"{name}_{unit}"]
            said = _SAID.search(settings.command.comments.get(argument.line, "")) if argument else None
            if said is None or not count or not tokens_each:
                continue
            tokens = float(said[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[said[2].upper()]
            if abs(count * tokens_each / tokens - 1) > 0.1:
                flag = f"--{name.replace('_', '-')}-{unit}"
                want = f"{flag} {count} is {rounded(count * tokens_each)} tokens"
                yield Finding(flag, f"the comment says {said[1]}{said[2]} tokens", want, "Correct one of them")


@hazard("ramp-warmup", "warning")
def warmup_under_ramp(settings: Settings) -> Iterator[Finding]:
    """With a batch ramp, warm-up iterations are converted to samples with the full batch size: the warm-up takes more steps than asked.

    Example: --lr-warmup-iters 2000 with --step-batch-size-schedule "0:384 200B:1152".
    """
    if settings["lr_warmup_iters"] and settings["step_batch_size_schedule"]:
        got = f"--lr-warmup-iters {settings['lr_warmup_iters']} under a batch ramp"
        yield Finding("--lr-warmup-iters", got, "iterations are counted at the full batch", "Count the run in samples")
