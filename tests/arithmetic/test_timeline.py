"""The clock against hand calculations, published schedules and properties of every run."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import SHAPES, LearningRate, Timeline
from preheat.recipe import Batch, Ramp, Recipe, Schedule, Stage, load
from preheat.units import Quantity, tokens

BASE = load("tiny").recipe


def run(length: str, batch: Batch, stages: tuple[Stage, ...] = (), **schedule: object) -> Timeline:
    settings = {"peak_lr": 1.0, "final_lr": 0.1, "warmup": Quantity.parse("0 steps"), "decay": "cosine"} | schedule
    stages = stages or (Stage(name="main", mix={"prose": Fraction(1)}),)
    whole = Schedule(length=Quantity.parse(length), **settings)  # type: ignore[arg-type]
    return Timeline(BASE.model_copy(update={"schedule": whole, "batch": batch, "stage": stages}))


def test_gpt3_takes_95368_steps_of_3_1_million_tokens() -> None:
    """300B tokens in batches of 1,536 x 2,048: 95,367 full ones and a rest."""
    timeline = run("300B tokens", Batch(global_size=1536, micro_size=1, seq_len=2048))
    assert timeline.end.steps == 95_368
    assert timeline.end.tokens == 95_368 * 1536 * 2048


def test_the_guides_toy_takes_152588_steps() -> None:
    assert run("10B tokens", Batch(global_size=64, micro_size=8, seq_len=1024)).end.steps == 152_588


def test_gpt3_warm_up_of_375m_tokens_is_120_steps() -> None:
    timeline = run("300B tokens", Batch(global_size=1536, micro_size=1, seq_len=2048), warmup=Quantity.parse("375M tokens"))
    clock, _ = timeline.at(Quantity.parse("375M tokens"))
    assert clock.steps == 120  # 119.2 full-size steps
    assert timeline.learning_rate(375_000_000) == 1.0


def test_samples_are_tokens() -> None:
    """15B-recipe of the guide: 3,906,252 samples of 4,096 tokens are 16.0B tokens and not 2B."""
    timeline = run("300B tokens", Batch(global_size=1152, micro_size=4, seq_len=4096), warmup=Quantity.parse("3_906_252 samples"))
    assert timeline.learning_rate.warmup == 16_000_008_192


def test_megatrons_ramp_of_the_guide() -> None:
    """384 samples for the first 48,828,125 (200B tokens), 768 until 97,656,250 (400B tokens), then 1,152."""
    ramp = tuple(Ramp(at=Quantity.parse(at), size=size) for at, size in [("0 tokens", 384), ("48828125 samples", 768), ("97656250 samples", 1152)])
    timeline = run("800B tokens", Batch(global_size=1152, micro_size=4, seq_len=4096, ramp=ramp))
    first, second, third = timeline.segments
    assert first.steps == math.ceil(48_828_125 / 384)
    assert second.start.samples == first.steps * 384
    assert second.end.samples >= 97_656_250 > second.end.samples - 768
    assert third.batch_size == 1152
    assert round(first.end.tokens / 1e9) == 200
    assert round(second.end.tokens / 1e9) == 400


def test_stage_with_its_own_sequence_length() -> None:
    stages = (
        Stage(name="short", until=Quantity.parse("50%"), mix={"prose": Fraction(1)}),
        Stage(name="long", seq_len=40, global_size=5, rope_theta=9.0, mix={"code": Fraction(1)}),
    )
    timeline = run("1000 tokens", Batch(global_size=10, micro_size=5, seq_len=10), stages)
    assert [(s.stage.name, s.steps, s.batch_size, s.seq_len, s.rope_theta) for s in timeline.segments] == [
        ("short", 5, 10, 10, 10_000),
        ("long", 3, 5, 40, 9.0),
    ]
    assert timeline.end.tokens == 500 + 600
    assert timeline.stage_samples() == (50, 15)
    assert timeline.step(6).first_stage_sample == 0
    assert timeline.step(8).first_stage_sample == 10


def test_percent_of_a_run_in_steps_counts_steps() -> None:
    stages = (Stage(name="a", until=Quantity.parse("85%"), mix={"x": Fraction(1)}), Stage(name="b", mix={"x": Fraction(1)}))
    timeline = run("1001 steps", Batch(global_size=2, micro_size=1, seq_len=4), stages)
    assert timeline.segments[0].steps == 851  # 850.85 rounded up to a step


def test_a_moment_past_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="past the end"):
        run("10 steps", Batch(global_size=2, micro_size=1, seq_len=4)).at(Quantity.parse("11 steps"))


def test_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2000 steps|longer"):
        run("1000 steps", Batch(global_size=2, micro_size=1, seq_len=4), warmup=Quantity.parse("2000 steps"))
    with pytest.raises(ValueError, match="200 tokens is longer than the run"):
        run("100 tokens", Batch(global_size=2, micro_size=1, seq_len=4), warmup=Quantity.parse("200 tokens"))


class TestLearningRate:
    """Values of Megatron-LM's and llm.c's published formulas."""

    def test_cosine_is_halfway_in_the_middle(self) -> None:
        rate = LearningRate(peak=3e-4, final=3e-5, warmup=1000, decay_start=1000, total=11_000, shape="cosine")
        assert rate(0) == 0
        assert rate(500) == pytest.approx(1.5e-4)
        assert rate(1000) == 3e-4
        assert rate(6000) == pytest.approx((3e-4 + 3e-5) / 2)
        assert rate(11_000) == rate(99_999) == 3e-5
        assert rate(3500) == pytest.approx(3e-5 + 0.5 * 2.7e-4 * (1 + math.cos(math.pi / 4)))

    def test_wsd_keeps_the_peak_until_the_decay(self) -> None:
        rate = LearningRate(peak=1.0, final=0.0, warmup=100, decay_start=800, total=1000, shape="1-sqrt")
        assert rate(800) == rate(100) == rate(450) == 1.0
        assert rate(850) == pytest.approx(1 - math.sqrt(0.25))
        assert rate(1000) == 0.0

    @pytest.mark.parametrize(("shape", "half"), [("linear", 0.5), ("cosine", 0.5), ("exponential", 2 * 0.5**0.5 - 1), ("1-sqrt", 1 - 0.5**0.5)])
    def test_tails_run_from_one_to_zero(self, shape: str, half: float) -> None:
        assert SHAPES[shape](0) == 1
        assert SHAPES[shape](1) == pytest.approx(0, abs=1e-15)
        assert SHAPES[shape](0.5) == pytest.approx(half)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Timeline, Recipe]:
    sizes = draw(st.lists(st.integers(1, 64), min_size=1, max_size=4))
    starts = sorted(draw(st.sets(st.integers(1, 3_000), min_size=len(sizes) - 1, max_size=len(sizes) - 1)))
    ramp = tuple(Ramp(at=tokens(at), size=size) for at, size in zip([0, *starts], sizes, strict=True))
    unit, most = draw(st.sampled_from([("tokens", 4_000), ("samples", 400), ("steps", 60)]))
    length = Quantity(Fraction(draw(st.integers(1, most))), unit)  # type: ignore[arg-type]
    ends = sorted(draw(st.sets(st.integers(1, 999), max_size=3)))
    stages = tuple(
        Stage(
            name=f"s{i}",
            until=Quantity(Fraction(end, 1000), "%") if end else None,
            seq_len=draw(st.none() | st.integers(2, 64)),
            global_size=draw(st.none() | st.integers(1, 32)),
            mix={"prose": Fraction(1)},
        )
        for i, end in enumerate([*ends, None])
    )
    decay = draw(st.sampled_from(["cosine", "linear", "wsd"]))
    extra = {"decay_length": Quantity.parse("20%"), "decay_shape": draw(st.sampled_from(sorted(SHAPES)))} if decay == "wsd" else {}
    schedule = Schedule(length=length, peak_lr=1.0, final_lr=0.1, warmup=Quantity.parse("10%"), decay=decay, **extra)
    batch = Batch(global_size=sizes[-1], micro_size=1, seq_len=draw(st.integers(2, 64)), ramp=ramp)
    recipe = BASE.model_copy(update={"schedule": schedule, "batch": batch, "stage": stages})
    return Timeline(recipe), recipe


@settings(max_examples=150, deadline=None)
@given(timelines())
def test_every_run_adds_up(case: tuple[Timeline, Recipe]) -> None:
    timeline, recipe = case
    clock_tokens = clock_samples = 0
    for number in range(1, timeline.end.steps + 1):
        step = timeline.step(number)
        segment = step.segment
        assert (step.start.tokens, step.start.samples, step.start.steps) == (clock_tokens, clock_samples, number - 1)
        clock_samples += segment.batch_size
        clock_tokens += segment.batch_size * segment.seq_len
        assert (step.end.tokens, step.end.samples) == (clock_tokens, clock_samples)
        assert 0 <= step.lr <= 1.0
    assert timeline.end.tokens == clock_tokens
    assert sum(timeline.stage_samples()) == clock_samples
    assert timeline.step(timeline.end.steps).lr == recipe.schedule.final_lr
    length, unit = recipe.schedule.length, recipe.schedule.length.unit
    last = timeline.step(timeline.end.steps)
    count = {"tokens": (last.start.tokens, clock_tokens), "samples": (last.start.samples, clock_samples), "steps": (last.start.steps, timeline.end.steps)}
    assert count[unit][0] < length.amount <= count[unit][1], "the run ends with the first step that reaches its length"


@settings(max_examples=100, deadline=None)
@given(timelines(), st.data())
def test_tokens_samples_and_steps_are_one_clock(case: tuple[Timeline, Recipe], data: st.DataObject) -> None:
    timeline, _ = case
    number = data.draw(st.integers(1, timeline.end.steps))
    end = timeline.step(number).end
    for quantity in (tokens(end.tokens), Quantity(Fraction(end.samples), "samples"), Quantity(Fraction(end.steps), "steps")):
        clock, segment = timeline.at(quantity)
        assert clock == end
        assert timeline.tokens(quantity) == end.tokens
        if number < timeline.end.steps:
            assert segment == timeline.step(number + 1).segment


@settings(max_examples=100, deadline=None)
@given(timelines(), st.integers(1, 500))
def test_every_multiple_of_an_interval_is_due_once(case: tuple[Timeline, Recipe], interval: int) -> None:
    timeline, _ = case
    assume(interval <= timeline.end.tokens)
    due = [step for n in range(1, timeline.end.steps + 1) if timeline.due(step := timeline.step(n), tokens(interval))]
    multiples = range(interval, timeline.end.tokens + 1, interval)
    passed = [[m for m in multiples if step.start.tokens < m <= step.end.tokens] for step in due]
    assert [multiple for step in passed for multiple in step] == list(multiples)
    assert all(passed)


@given(timelines())
@settings(max_examples=50, deadline=None)
def test_the_rate_never_rises_after_the_warm_up(case: tuple[Timeline, Recipe]) -> None:
    timeline, _ = case
    rate = timeline.learning_rate
    points = [rate(rate.warmup + (timeline.end.tokens - rate.warmup) * i // 50) for i in range(51)]
    assert all(a >= b for a, b in zip(points, points[1:], strict=False))
