"""One clock for the whole run: from tokens consumed to step, sample, stage, batch, sequence length, mixture and learning rate, exactly.

A boundary (end of a stage, a ramp threshold, the length of the run) takes effect at the first step that starts at or after it, so that
a step is never split. Everything is computed in integers; a percentage is a share of the run's length in the length's own unit.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from preheat.arithmetic.rotary import Rope
from preheat.arithmetic.schedule import LearningRate, Piece
from preheat.recipe import RateChange, Recipe, RopeScaling, Stage, WeightChange
from preheat.units import Quantity

MAX_SEGMENTS = 100_000

Change = TypeVar("Change", RateChange, WeightChange)


@dataclass(frozen=True)
class Clock:
    """What has been consumed."""

    tokens: int
    samples: int
    steps: int


@dataclass(frozen=True)
class _Bound:
    """An amount of tokens, samples or steps that may be a fraction: 85% of 1,001 steps."""

    amount: Fraction
    unit: str


@dataclass(frozen=True)
class Segment:
    """Consecutive steps that look alike."""

    start: Clock
    steps: int
    stage: Stage
    stage_index: int
    batch_size: int
    """Samples per step."""
    micro_size: int
    seq_len: int
    rope_theta: float | None
    rope_scaling: RopeScaling | None

    @property
    def rope(self) -> Rope | None:
        """Rotary positions; None for a model with learned ones."""
        return Rope(self.rope_theta, self.rope_scaling) if self.rope_theta is not None else None

    def after(self, steps: int) -> Clock:
        """The clock after the first `steps` steps of this segment."""
        samples = steps * self.batch_size
        return Clock(self.start.tokens + samples * self.seq_len, self.start.samples + samples, self.start.steps + steps)

    @property
    def end(self) -> Clock:
        return self.after(self.steps)


@dataclass(frozen=True)
class Step:
    """One optimizer step: what it reads and with which rate it updates."""

    number: int
    """From 1."""
    start: Clock
    end: Clock
    first_stage_sample: int
    """Samples of this stage that were consumed before."""
    segment: Segment
    lr: float


class Unrunnable(ValueError):
    """A recipe that describes no run; `key` is the dotted key that is at fault."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Timeline:
    """The run of a recipe as segments of equal steps.

    Raises:
        Unrunnable: the recipe describes no run (a stage without an end before the last, more warm-up than run); `preheat check`
            reports the same with file and line.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.ramp_used: set[int] = set()
        """Numbers of the entries of the batch ramp that some step uses."""
        self.segments = tuple(self._walk())
        self._starts = [segment.start.steps for segment in self.segments]
        self._first_samples = _first_samples(self.segments)
        self.end = self.segments[-1].end
        self.learning_rate = self._learning_rate()

    def step(self, number: int) -> Step:
        """The step with this number, counted from 1."""
        if not 1 <= number <= self.end.steps:
            raise ValueError(f"step {number} is outside of the run's 1 to {self.end.steps}")
        segment = self.segments[bisect.bisect_right(self._starts, number - 1) - 1]
        done = number - 1 - segment.start.steps
        start, end = segment.after(done), segment.after(done + 1)
        first = start.samples - self._first_samples[segment.stage_index]
        return Step(number, start, end, first, segment, self.learning_rate(end.tokens))

    def at(self, quantity: Quantity) -> tuple[Clock, Segment]:
        """The clock at the first step boundary at or after a quantity, and the segment that goes on there (the last at the end)."""
        amount = self._absolute(quantity)
        for segment in self.segments:
            if _count(segment.end, amount.unit) >= amount.amount:
                per_step = _per_step(segment.batch_size, segment.seq_len, amount.unit)
                missing = amount.amount - _count(segment.start, amount.unit)
                clock = segment.after(max(0, math.ceil(missing / per_step)))
                following = self.segments[min(bisect.bisect_right(self._starts, clock.steps), len(self.segments)) - 1]
                return clock, following
        raise ValueError(f"{quantity} is past the end of the run: {self._run_length()}")

    def tokens(self, quantity: Quantity) -> int:
        """A length from the start of the run in tokens, exactly, without rounding to a step when it is given in tokens."""
        return math.ceil(self._tokens(self._absolute(quantity)))

    def _tokens(self, bound: _Bound) -> Fraction:
        for segment in self.segments:
            if _count(segment.end, bound.unit) >= bound.amount:
                steps = (bound.amount - _count(segment.start, bound.unit)) / _per_step(segment.batch_size, segment.seq_len, bound.unit)
                return segment.start.tokens + steps * segment.batch_size * segment.seq_len
        raise ValueError(f"{bound.amount} {bound.unit} is longer than the run: {self._run_length()}")

    def _run_length(self) -> str:
        return f"{self.end.tokens:_} tokens, {self.end.steps:_} step" + ("s" if self.end.steps > 1 else "")

    def _within(self, key: str, quantity: Quantity) -> int:
        """The tokens of a length that must fit into the run."""
        try:
            return self.tokens(quantity)
        except ValueError:
            raise Unrunnable(key, f"{key} is {quantity}, and the run has {self._run_length()}") from None

    def in_force(self, changes: tuple[Change, ...], tokens: int) -> Change | None:
        """The last entry of a setting that is reached after `tokens` tokens; None before its first, or when it has none."""
        found = None
        for change in changes:
            try:
                reached = self._tokens(self._absolute(change.at)) <= tokens
            except ValueError:  # past the end of the run
                break
            if not reached:
                break
            found = change
        return found

    def stage_samples(self) -> tuple[int, ...]:
        """Samples of each stage, in the order of the recipe; they sum to the run."""
        counts = [0] * len(self._recipe.stage)
        for segment in self.segments:
            counts[segment.stage_index] += segment.steps * segment.batch_size
        return tuple(counts)

    def due(self, step: Step, interval: Quantity) -> bool:
        """Whether a multiple of an interval is passed in this step."""
        every = self._absolute(interval)
        return _count(step.end, every.unit) // every.amount > _count(step.start, every.unit) // every.amount

    def _absolute(self, quantity: Quantity) -> _Bound:
        """A percentage as an amount of the length's own unit."""
        if quantity.unit != "%":
            return _Bound(quantity.amount, quantity.unit)
        length = self._recipe.schedule.length
        return _Bound(length.amount * quantity.amount, length.unit)

    def _walk(self) -> Iterator[Segment]:
        recipe, clock = self._recipe, Clock(0, 0, 0)
        if recipe.schedule.length.unit == "%" or recipe.schedule.length.amount == 0:
            got = f"schedule.length is {recipe.schedule.length}"
            raise Unrunnable("schedule.length", f"{got}: give the run a length in tokens, samples or steps")
        length = self._absolute(recipe.schedule.length)
        ends = [self._stage_end(index) for index in range(len(recipe.stage))]
        thresholds = [(self._absolute(ramp.at), ramp.size) for ramp in recipe.batch.ramp]
        stage_index, produced = 0, 0
        while _count(clock, length.unit) < length.amount:
            while stage_index < len(ends) - 1 and _reached(clock, ends[stage_index]):
                stage_index += 1
            stage = recipe.stage[stage_index]
            batch_size = stage.global_size or recipe.batch.global_size
            reached = [number for number, (at, _) in enumerate(thresholds) if _reached(clock, at)]
            if reached and not stage.global_size:
                batch_size = thresholds[reached[-1]][1]
                self.ramp_used.add(reached[-1])
            seq_len = stage.seq_len or recipe.batch.seq_len
            pending = [length, *ends[stage_index:-1], *(at for at, _ in thresholds)]
            steps = min(
                math.ceil((bound.amount - _count(clock, bound.unit)) / _per_step(batch_size, seq_len, bound.unit))
                for bound in pending
                if not _reached(clock, bound)
            )
            segment = Segment(
                start=clock,
                steps=steps,
                stage=stage,
                stage_index=stage_index,
                batch_size=batch_size,
                micro_size=stage.micro_size or recipe.batch.micro_size,
                seq_len=seq_len,
                rope_theta=stage.rope_theta or recipe.model.rope_theta,
                rope_scaling=stage.rope_scaling or recipe.model.rope_scaling,
            )
            yield segment
            clock, produced = segment.end, produced + 1
            if produced > MAX_SEGMENTS:
                raise Unrunnable("batch.ramp", f"more than {MAX_SEGMENTS:_} changes of stage and batch size")

    def _stage_end(self, index: int) -> _Bound:
        stages = self._recipe.stage
        until = stages[index].until
        if until is None:
            if index < len(stages) - 1:
                raise Unrunnable(f"stage.{index}.name", f"stage {stages[index].name} has no `until` and is not the last")
            return self._absolute(self._recipe.schedule.length)
        return self._absolute(until)

    def _learning_rate(self) -> LearningRate:
        schedule = self._recipe.schedule
        warmup, total = self._within("schedule.warmup", schedule.warmup), self.end.tokens
        if schedule.decay == "segments":
            pieces = tuple(self._segment_pieces(warmup))
        elif schedule.decay == "wsd":
            if schedule.decay_length is None or schedule.decay_shape is None:
                missing = "schedule.decay_shape" if schedule.decay_length else "schedule.decay_length"
                raise Unrunnable(missing, 'decay = "wsd" takes decay_length and decay_shape')
            start = total - self._tail_tokens(schedule.decay_length)
            if start < warmup:
                raise Unrunnable(
                    "schedule.decay_length",
                    f"the decay starts at {start:_} tokens, before the end of the warm-up at {warmup:_}; "
                    f"warm-up and decay are longer than the run of {total:_} tokens",
                )
            pieces = (Piece(start, schedule.peak_lr, "constant"), Piece(total, schedule.final_lr, schedule.decay_shape))
        else:
            pieces = (Piece(total, schedule.peak_lr if schedule.decay == "constant" else schedule.final_lr, schedule.decay),)
        return LearningRate(schedule.peak_lr, warmup, pieces)

    def _segment_pieces(self, warmup: int) -> Iterator[Piece]:
        """The pieces of a schedule in segments; the last ends with the run."""
        segments, before = self._recipe.schedule.segment, warmup
        if not segments:
            raise Unrunnable("schedule.segment", 'decay = "segments" without a schedule.segment')
        for index, segment in enumerate(segments):
            if segment.until is not None:
                end = self._within(f"schedule.segment.{index}.until", segment.until)
            elif index == len(segments) - 1:
                end = self.end.tokens
            else:
                raise Unrunnable(f"schedule.segment.{index}.lr", f"segment {index + 1} of the schedule has no `until` and is not the last")
            if end < before:
                what = f"segment {index}" if index else "the warm-up"
                got = f"segment {index + 1} of the schedule ends at {end:_} tokens"
                raise Unrunnable(f"schedule.segment.{index}.until", f"{got}, and {what} before it at {before:_}")
            before = end
            yield Piece(end, segment.lr, segment.shape)

    def _tail_tokens(self, quantity: Quantity) -> int:
        """A length counted back from the end of the run, in tokens."""
        amount = self._absolute(quantity)
        rest = _count(self.end, amount.unit) - amount.amount
        if rest < 0:
            raise Unrunnable("schedule.decay_length", f"schedule.decay_length is {quantity}, and the run has {self._run_length()}")
        return self.end.tokens - math.floor(self._tokens(_Bound(rest, amount.unit)))


def _count(clock: Clock, unit: str) -> int:
    return {"tokens": clock.tokens, "samples": clock.samples, "steps": clock.steps}[unit]


def _per_step(batch_size: int, seq_len: int, unit: str) -> int:
    return {"tokens": batch_size * seq_len, "samples": batch_size, "steps": 1}[unit]


def _reached(clock: Clock, bound: _Bound) -> bool:
    return Fraction(_count(clock, bound.unit)) >= bound.amount


def _first_samples(segments: tuple[Segment, ...]) -> dict[int, int]:
    """Stage index -> samples consumed before the stage began."""
    first: dict[int, int] = {}
    for segment in segments:
        first.setdefault(segment.stage_index, segment.start.samples)
    return first
