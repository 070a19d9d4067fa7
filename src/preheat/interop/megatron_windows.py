"""Cuts a run into what one Megatron-LM command can do: one stage, one learning-rate formula, one value of each setting."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from preheat.arithmetic import LearningRate, Piece, Segment, Timeline
from preheat.interop.megatron_schedule import TAILS
from preheat.recipe import Recipe

TAIL_STYLES = {ours: theirs for theirs, ours in TAILS.items()}


@dataclass(frozen=True)
class Rate:
    """A learning-rate formula of Megatron-LM; lengths in tokens from the start of the run."""

    style: str
    """`constant`, `linear`, `cosine` or `WSD`."""
    peak: float
    final: float
    warmup: int
    """Where the peak is reached, or in a later command where its decay begins."""
    end: int
    """Where the decay ends; the rate stays at `final` afterwards."""
    tail: int = 0
    """Length of a WSD decay."""
    tail_style: str = ""


@dataclass(frozen=True)
class Window:
    """A part of the run that one command trains."""

    stage_index: int
    segments: tuple[Segment, ...]
    """Steps that look alike, cut to the window."""
    start: int
    end: int
    """In tokens."""
    rate: Rate


def windows(recipe: Recipe, timeline: Timeline) -> tuple[Window, ...]:
    """The commands that a run takes, in order.

    Raises:
        ValueError: a piece of the schedule has a shape that Megatron-LM lacks.
    """
    found: list[Window] = []
    for index in range(len(recipe.stage)):
        segments = [segment for segment in timeline.segments if segment.stage_index == index]
        if not segments:
            continue
        first, last = segments[0].start.tokens, segments[-1].end.tokens
        cuts = sorted({first, last, *(cut for cut in _changes(recipe, timeline) if first < cut < last)})
        for start, end in pairwise(cuts):
            while start < end:
                rate, reached = _rate(timeline.learning_rate, start, end)
                reached = _step_boundary(segments, reached) if reached < end else end
                found.append(Window(index, _cut(segments, start, reached), start, reached, rate))
                start = reached
    return tuple(found)


def _changes(recipe: Recipe, timeline: Timeline) -> list[int]:
    """Step boundaries at which a setting of experts or prediction layers changes."""
    entries = []
    if recipe.model.experts is not None:
        entries += [change.at for change in recipe.model.experts.bias_update_rate[1:]]
    if recipe.model.mtp is not None:
        entries += [change.at for change in recipe.model.mtp.loss_weight[1:]]
    cuts = []
    for at in entries:
        try:
            cuts.append(timeline.at(at)[0].tokens)
        except ValueError:  # behind the end of the run
            continue
    return cuts


def _step_boundary(segments: list[Segment], tokens: int) -> int:
    """The first step boundary at or after a number of tokens."""
    for segment in segments:
        if tokens <= segment.end.tokens:
            step = segment.batch_size * segment.seq_len
            return segment.start.tokens + max(0, -(-(tokens - segment.start.tokens) // step)) * step
    return segments[-1].end.tokens


def _cut(segments: list[Segment], start: int, end: int) -> tuple[Segment, ...]:
    """The parts of the segments that lie in a window; a segment that begins before it keeps its own beginning."""
    return tuple(segment for segment in segments if segment.start.tokens < end and segment.end.tokens > start)


def _rate(rate: LearningRate, start: int, end: int) -> tuple[Rate, int]:
    """The formula from `start` on, and how far (at most to `end`) it holds."""
    origin, before = rate.warmup, rate.peak
    pieces = list(rate.pieces)
    while pieces and pieces[0].end <= start:
        origin, before = pieces[0].end, pieces[0].lr
        pieces = pieces[1:]
    if not pieces:
        return Rate("constant", before, before, 0, end), end
    pieces = [piece for piece in _merged(pieces, before) if piece.end > origin]
    warmup = origin if start < origin or pieces[0].shape != "constant" else 0
    flat = pieces[0].shape == "constant" or pieces[0].lr == before
    if flat and pieces[0].lr == before:
        if len(pieces) == 1 or pieces[0].end >= end:
            held = rate.warmup if start < rate.warmup else 0
            return Rate("constant", before, before, held, max(end, held + 1)), end
        tail = pieces[1]
        style = TAIL_STYLES.get(tail.shape)
        if style is not None and tail.end > tail_start(pieces):
            held = rate.warmup if start < rate.warmup else 0
            made = Rate("WSD", before, tail.lr, held, tail.end, tail.end - pieces[0].end, style)
            return made, _holds(pieces[2:], tail.lr, tail.end, end)
        return Rate("constant", before, before, 0, end), pieces[0].end
    if flat:  # a step down at the start of a constant piece
        return Rate("constant", pieces[0].lr, pieces[0].lr, 0, end), min(end, pieces[0].end)
    return _decaying(pieces, before, origin, warmup, end)


def tail_start(pieces: list[Piece]) -> int:
    """Where the second piece begins."""
    return pieces[0].end


def _decaying(pieces: list[Piece], before: float, origin: int, warmup: int, end: int) -> tuple[Rate, int]:
    """A formula that decays from the start on."""
    piece = pieces[0]
    if piece.lr > before:
        raise ValueError(f"the learning rate rises from {before:g} to {piece.lr:g}; Megatron-LM only lets it fall")
    if piece.shape in ("linear", "cosine"):
        made = Rate(piece.shape, before, piece.lr, warmup, piece.end)
    elif piece.shape in TAIL_STYLES:
        made = Rate("WSD", before, piece.lr, warmup, piece.end, piece.end - origin, TAIL_STYLES[piece.shape])
    else:
        raise ValueError(f"a decay of shape {piece.shape} is not known to Megatron-LM")
    return made, _holds(pieces[1:], piece.lr, piece.end, end)


def _holds(rest: list[Piece], final: float, reached: int, end: int) -> int:
    """How far the rate stays at `final` after the decay."""
    for piece in rest:
        if piece.shape != "constant" or piece.lr != final:
            break
        reached = piece.end
    else:
        return end
    return min(end, reached)


def _merged(pieces: list[Piece], before: float) -> list[Piece]:
    """Neighbouring pieces that stay at the same rate as one."""
    merged: list[Piece] = []
    for piece in pieces:
        level = merged[-1].lr if merged else before
        shape = "constant" if piece.lr == level else piece.shape
        if merged and shape == "constant" and merged[-1].shape == "constant" and merged[-1].lr == piece.lr:
            merged[-1] = Piece(piece.end, piece.lr, "constant")
        else:
            merged.append(Piece(piece.end, piece.lr, shape))
    return merged
