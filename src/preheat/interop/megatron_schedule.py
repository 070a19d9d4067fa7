"""Megatron-LM's learning-rate arguments as the `[schedule]` table of a recipe."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from preheat.megatron import Settings
from preheat.megatron.architecture import Lost
from preheat.megatron.batch import full_batch
from preheat.units import Quantity, tokens

TAILS = {"linear": "linear", "cosine": "cosine", "exponential": "exponential", "minus_sqrt": "1-sqrt"}
"""Megatron-LM's name of a WSD decay -> a recipe's."""


def schedule_table(settings: Settings, seq_len: int, placeholders: dict[str, Any], stated: list[str], lost: Lost) -> dict[str, Any]:
    """The `[schedule]` table. A run in iterations keeps its steps; one in samples is written in tokens."""
    peak = settings["lr"]
    if peak is None:
        peak = placeholders["peak_lr"]
        stated.append(f"schedule.peak_lr = {peak:g}: no --lr; put the right value there")
    if settings["lr_warmup_init"]:
        lost.append(("--lr-warmup-init", f"a warm-up from {settings['lr_warmup_init']:g}"))
    samples = bool(settings["train_samples"])
    length = settings["train_samples"] or settings["train_iters"]
    unit = "samples" if samples else "iters"

    def text(count: int) -> str:
        return str(tokens(count * seq_len)) if samples else f"{count} steps"

    if not length:
        stated.append(
            f"schedule.length = {placeholders['length']!r}: neither --train-samples nor --train-iters; put the right length there"
        )
        text = _in_tokens(settings, seq_len)
    table: dict[str, Any] = {"length": text(length) if length else placeholders["length"], "peak_lr": peak, "final_lr": settings["min_lr"]}
    end = settings[f"lr_decay_{unit}"] or length
    table["warmup"] = _warmup(settings, seq_len, length, end)
    return table | _decay(settings, peak, length, end, unit, text, lost)


def _in_tokens(settings: Settings, seq_len: int) -> Any:
    return lambda count: str(tokens(count * seq_len * full_batch(settings)))


def _warmup(settings: Settings, seq_len: int, length: int | None, end: int | None) -> str:
    """The warm-up in the unit in which the command has it."""
    fraction = settings["lr_warmup_fraction"]
    if fraction:
        share = Fraction(str(fraction)) * Fraction(end or 1, length or end or 1)
        try:
            return str(Quantity(share, "%")) if _decimal(share) else f"{round(fraction * (end or 0))} steps"
        except ValueError:
            return "0 tokens"
    if settings["lr_warmup_samples"]:
        return str(tokens(settings["lr_warmup_samples"] * seq_len))
    if settings["lr_warmup_iters"]:
        return f"{settings['lr_warmup_iters']} steps"
    return "0 tokens"


def _decimal(share: Fraction) -> bool:
    """Whether a share has finitely many decimal digits."""
    rest = share.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return rest == 1


def _decay(settings: Settings, peak: float, length: int | None, end: int | None, unit: str, text: Any, lost: Lost) -> dict[str, Any]:
    style, final = settings["lr_decay_style"], settings["min_lr"]
    if style == "inverse-square-root":
        lost.append(("--lr-decay-style", "a decay by the inverse square root"))
        style = "cosine"
    if style == "constant":
        return {"final_lr": peak, "decay": "constant"}
    if length and end and end > length:
        lost.append((f"--lr-decay-{unit}", f"a decay that goes on behind the end of the run, to {end:_} {unit}"))
        end = length
    early = length is not None and end is not None and end < length
    tail = settings[f"lr_wsd_decay_{unit}"]
    if style == "WSD":
        shape = TAILS[settings["lr_wsd_decay_style"]]
        if not tail:
            lost.append(("--lr-decay-style", "a WSD decay without a length"))
            return {"decay": "cosine"}
        if not early:
            return {"decay": "wsd", "decay_length": text(tail), "decay_shape": shape}
        if shape not in ("linear", "cosine"):
            lost.append(("--lr-wsd-decay-style", f"a {shape} decay that ends before the run"))
            shape = "cosine"
        stable = {"until": text(end - tail), "lr": peak, "shape": "constant"}
        return _segments([stable, {"until": text(end), "lr": final, "shape": shape}], final)
    if early:
        return _segments([{"until": text(end), "lr": final, "shape": style}], final)
    return {"decay": style}


def _segments(pieces: list[dict[str, Any]], final: float) -> dict[str, Any]:
    return {"decay": "segments", "segment": [*pieces, {"lr": final, "shape": "constant"}]}
