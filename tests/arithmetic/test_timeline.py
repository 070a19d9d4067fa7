"""The clock against hand calculations, published schedules and properties of every run."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from preheat.arithmetic import SHAPES, LearningRate, Piece, Timeline
from preheat.recipe import Batch, Ramp, RateChange, RateSegment, Recipe, Schedule, Stage, load
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
    ramp = tuple(
        Ramp(at=Quantity.parse(at), size=size) for at, size in [("0 tokens", 384), ("48828125 samples", 768), ("97656250 samples", 1152)]
    )
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
    with pytest.raises(ValueError, match=r"schedule.warmup is 2_000 steps, and the run has 8_000 tokens, 1_000 steps"):
        run("1000 steps", Batch(global_size=2, micro_size=1, seq_len=4), warmup=Quantity.parse("2000 steps"))
    with pytest.raises(ValueError, match="200 tokens, and the run has 104 tokens, 13 steps"):
        run("100 tokens", Batch(global_size=2, micro_size=1, seq_len=4), warmup=Quantity.parse("200 tokens"))


def test_deepseek_v3s_schedule() -> None:
    """arXiv 2412.19437, section 4.2: 2.2e-4 until 10T, cosine to 2.2e-5 over 4.3T, 333B at 2.2e-5, 167B at 7.3e-6."""
    timeline = Timeline(load("deepseek-v3").recipe)
    rate = timeline.learning_rate
    step = timeline.step(2000)
    assert (step.segment.batch_size, step.lr) == (3072, 2.2e-4)
    assert timeline.step(1000).lr == pytest.approx(1.1e-4)
    assert rate(10 * 10**12) == rate(5 * 10**12) == 2.2e-4
    assert rate(12_150 * 10**9) == pytest.approx((2.2e-4 + 2.2e-5) / 2)
    assert rate(14_300 * 10**9) == rate(14_633 * 10**9) == rate(14_500 * 10**9) == 2.2e-5
    assert rate(14_633 * 10**9 + 1) == rate(14_800 * 10**9) == rate(timeline.end.tokens) == 7.3e-6


def test_deepseek_v3s_batches_and_context_extension() -> None:
    """arXiv 2412.19437, sections 4.2 and 4.3: 3,072 to 15,360 over 469B; 1,000 steps of 1,920 x 32K; 1,000 of 480 x 128K."""
    timeline = Timeline(load("deepseek-v3").recipe)
    sizes = [segment.batch_size for segment in timeline.segments]
    assert sizes == [3072, 6144, 9216, 12_288, 15_360, 1920, 480]
    main, middle, long = timeline.segments[4:]
    assert 469 * 10**9 <= main.start.tokens < 469 * 10**9 + 12_288 * 4096
    assert 14_800 * 10**9 <= main.end.tokens < 14_800 * 10**9 + 15_360 * 4096
    assert (middle.steps, middle.seq_len, long.steps, long.seq_len) == (1000, 32_768, 1000, 131_072)
    assert middle.rope_scaling is not None
    assert (middle.rope_scaling.kind, middle.rope_scaling.factor) == ("yarn", 40)
    assert main.rope_scaling is None


def test_deepseek_v3s_settings_change_on_the_way() -> None:
    """arXiv 2412.19437, section 4.2: prediction weight 0.3 for 10T, then 0.1; bias speed 0.001 for 14.3T, then 0."""
    recipe = load("deepseek-v3").recipe
    timeline = Timeline(recipe)
    assert recipe.model.mtp is not None
    assert recipe.model.experts is not None
    weights = [timeline.in_force(recipe.model.mtp.loss_weight, at * 10**12) for at in (0, 9, 10, 14)]
    assert [change.weight for change in weights if change] == [0.3, 0.3, 0.1, 0.1]
    rates = [timeline.in_force(recipe.model.experts.bias_update_rate, at * 10**11) for at in (0, 142, 143, 149)]
    assert [change.rate for change in rates if change] == [0.001, 0.001, 0, 0]


def test_a_setting_holds_from_its_moment_in_any_unit() -> None:
    timeline = run("100 steps", Batch(global_size=2, micro_size=1, seq_len=4))
    changes = tuple(RateChange(at=Quantity.parse(at), rate=rate) for at, rate in [("10 steps", 1.0), ("50%", 2.0), ("2000 steps", 3.0)])
    found = [timeline.in_force(changes, tokens) for tokens in (79, 80, 399, 400, 800)]
    assert [change.rate if change else None for change in found] == [None, 1.0, 1.0, 2.0, 2.0]
    assert timeline.in_force((), 5) is None


def test_llama_405bs_batch_and_sequence_schedule() -> None:
    """arXiv 2407.21783, section 3.4: 4M tokens of 4,096, 8M of 8,192 after 252M, 16M after 2.87T; linear to 0 in the last 40M."""
    timeline = Timeline(load("llama3.1-405b").recipe)
    early = [(segment.batch_size * segment.seq_len, segment.seq_len) for segment in timeline.segments[:3]]
    assert early == [(4 * 2**20, 4096), (8 * 2**20, 8192), (16 * 2**20, 8192)]
    assert timeline.segments[1].start.tokens - 252 * 10**6 in range(4 * 2**20)
    assert timeline.segments[2].start.tokens - 2870 * 10**9 in range(8 * 2**20)
    assert {segment.batch_size * segment.seq_len for segment in timeline.segments[2:]} == {16 * 2**20}
    assert timeline.segments[-1].seq_len == 131_072
    rate = timeline.learning_rate
    assert timeline.step(8000).lr == 8e-5
    assert rate(15_600 * 10**9) == rate(16_400 * 10**9) == 8e-7
    assert rate(timeline.end.tokens) == 0
    assert timeline.end.tokens - 16_400_040 * 10**6 in range(16 * 2**20)
    growing = sum(s.steps * s.batch_size * s.seq_len for s in timeline.segments if s.stage.name.startswith("context"))
    assert growing / 1e9 == pytest.approx(800, abs=0.02)


def test_gpt3_stays_at_a_tenth_after_260b_tokens() -> None:
    """arXiv 2005.14165, appendix B: warm-up over 375M tokens, cosine to 10 % over 260B, the rest of 300B flat."""
    rate = Timeline(load("gpt3-175b").recipe).learning_rate
    assert rate(375 * 10**6) == 6e-5
    assert rate((375 + 260_000) * 10**6 // 2) == pytest.approx(3.3e-5)
    assert rate(260 * 10**9) == rate(280 * 10**9) == rate(300 * 10**9) == 6e-6


def test_nemotrons_ramp_is_200b_tokens_at_each_size() -> None:
    timeline = Timeline(load("gpt3-15b").recipe)
    assert [segment.batch_size for segment in timeline.segments] == [384, 768, 1152]
    assert [segment.start.tokens // 10**9 for segment in timeline.segments] == [0, 200, 400]
    assert timeline.learning_rate.warmup == 16_000_008_192
    assert timeline.end.samples - 1_953_125_000 in range(1152)


def test_the_guides_stages_are_85_10_and_5_percent() -> None:
    timeline = Timeline(load("llama3-8b-guide").recipe)
    ends = [segment.end.tokens / timeline.end.tokens for segment in timeline.segments]
    assert ends == pytest.approx([0.85, 0.95, 1], abs=1e-5)
    assert len({segment.batch_size * segment.seq_len for segment in timeline.segments}) == 1
    assert timeline.segments[-1].rope_theta == 8_000_000


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ((), "without a schedule.segment"),
        (((None, 0.5), (None, 0.1)), "segment 1 of the schedule has no `until`"),
        ((("80%", 0.5), ("70%", 0.1)), "segment 2 of the schedule ends at 560 tokens, and segment 1 before it at 640"),
        ((("2000 steps", 0.1),), "segment.0.until is 2_000 steps, and the run has 800 tokens, 100 steps"),
    ],
)
def test_segments_that_are_no_schedule_are_refused(segments: tuple[tuple[str | None, float], ...], words: str) -> None:
    pieces = tuple(RateSegment(until=Quantity.parse(until) if until else None, lr=lr, shape="linear") for until, lr in segments)
    with pytest.raises(ValueError, match=words):
        run("100 steps", Batch(global_size=2, micro_size=1, seq_len=4), decay="segments", segment=pieces)


def test_warm_up_and_decay_that_do_not_fit_are_refused() -> None:
    """torchtitan PR 950: 40 steps, 4 of warm-up, 95 % decay."""
    tail = {"decay": "wsd", "decay_length": Quantity.parse("95%"), "decay_shape": "linear", "warmup": Quantity.parse("4 steps")}
    with pytest.raises(ValueError, match="decay starts at 16 tokens, before the end of the warm-up at 32"):
        run("40 steps", Batch(global_size=2, micro_size=1, seq_len=4), **tail)


def test_linear_warm_up_stable_and_decay_step_by_step() -> None:
    """torchtitan PR 1261: 4 of warm-up, 2 stable, 4 of decay; an update uses the rate that it reaches."""
    tail = {"decay": "wsd", "decay_length": Quantity.parse("4 steps"), "decay_shape": "linear", "warmup": Quantity.parse("4 steps")}
    timeline = run("10 steps", Batch(global_size=2, micro_size=1, seq_len=4), final_lr=0.0, **tail)
    assert [timeline.step(n).lr for n in range(1, 11)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0])


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential", "1-sqrt"])
def test_no_warm_up_starts_at_the_peak_and_every_tail_ends_at_the_final_rate(shape: str) -> None:
    """pith-train PR 55 pinned the run to the minimum; lingua issue 72 ended at 0.526 instead of 0.1."""
    tail = {"decay": "wsd", "decay_length": Quantity.parse("10%"), "decay_shape": shape}
    timeline = run("1000 steps", Batch(global_size=2, micro_size=1, seq_len=4), **tail)
    assert timeline.step(1).lr == timeline.step(900).lr == 1.0
    assert timeline.step(1000).lr == 0.1
    assert timeline.learning_rate(10**9) == 0.1


class TestLearningRate:
    """Values of Megatron-LM's and llm.c's published formulas."""

    def test_cosine_is_halfway_in_the_middle(self) -> None:
        rate = LearningRate(peak=3e-4, warmup=1000, pieces=(Piece(11_000, 3e-5, "cosine"),))
        assert rate(0) == 0
        assert rate(500) == pytest.approx(1.5e-4)
        assert rate(1000) == 3e-4
        assert rate(6000) == pytest.approx((3e-4 + 3e-5) / 2)
        assert rate(11_000) == rate(99_999) == 3e-5
        assert rate(3500) == pytest.approx(3e-5 + 0.5 * 2.7e-4 * (1 + math.cos(math.pi / 4)))

    def test_the_run_ends_at_its_last_piece_however_short(self) -> None:
        """Half of a run of two tokens, rounded up, leaves nothing for the last piece."""
        rate = LearningRate(peak=1.0, warmup=0, pieces=(Piece(2, 1.0, "constant"), Piece(2, 0.1, "constant")))
        assert (rate(1), rate(2), rate(3)) == (1.0, 0.1, 0.1)

    def test_wsd_keeps_the_peak_until_the_decay(self) -> None:
        rate = LearningRate(peak=1.0, warmup=100, pieces=(Piece(800, 1.0, "constant"), Piece(1000, 0.0, "1-sqrt")))
        assert rate(800) == rate(100) == rate(450) == 1.0
        assert rate(850) == pytest.approx(1 - math.sqrt(0.25))
        assert rate(1000) == 0.0

    @pytest.mark.parametrize(
        ("shape", "half"), [("linear", 0.5), ("cosine", 0.5), ("exponential", 2 * 0.5**0.5 - 1), ("1-sqrt", 1 - 0.5**0.5)]
    )
    def test_tails_run_from_one_to_zero(self, shape: str, half: float) -> None:
        assert SHAPES[shape](0) == 1
        assert SHAPES[shape](1) == pytest.approx(0, abs=1e-15)
        assert SHAPES[shape](0.5) == pytest.approx(half)


@st.composite
def schedules(draw: st.DrawFn, length: Quantity) -> Schedule:
    """Any decay from a peak of 1 down to 0.1 after a warm-up of a tenth."""
    decay = draw(st.sampled_from(["cosine", "linear", "wsd", "constant", "segments"]))
    extra: dict[str, object] = {}
    if decay == "wsd":
        shape = draw(st.sampled_from(["linear", "cosine", "exponential", "1-sqrt"]))
        extra = {"decay_length": Quantity.parse("20%"), "decay_shape": shape}
    if decay == "segments":
        ends = sorted(draw(st.sets(st.integers(101, 999), max_size=3)))
        rates = sorted(draw(st.lists(st.floats(0.1, 1), min_size=len(ends), max_size=len(ends))), reverse=True)
        extra["segment"] = tuple(
            RateSegment(
                until=Quantity(Fraction(end, 1000), "%") if end else None,
                lr=rate,
                shape=draw(st.sampled_from(["constant", "linear", "cosine"])),
            )
            for end, rate in [*zip(ends, rates, strict=True), (0, 0.1)]
        )
    final = 1.0 if decay == "constant" else 0.1
    return Schedule(length=length, peak_lr=1.0, final_lr=final, warmup=Quantity.parse("10%"), decay=decay, **extra)


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
    batch = Batch(global_size=sizes[-1], micro_size=1, seq_len=draw(st.integers(2, 64)), ramp=ramp)
    recipe = BASE.model_copy(update={"schedule": draw(schedules(length)), "batch": batch, "stage": stages})
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
        assert min(timeline.learning_rate(0), recipe.schedule.final_lr) <= step.lr <= recipe.schedule.peak_lr
    assert timeline.end.tokens == clock_tokens
    assert sum(timeline.stage_samples()) == clock_samples
    assert timeline.step(timeline.end.steps).lr == recipe.schedule.final_lr
    length, unit = recipe.schedule.length, recipe.schedule.length.unit
    last = timeline.step(timeline.end.steps)
    count = {
        "tokens": (last.start.tokens, clock_tokens),
        "samples": (last.start.samples, clock_samples),
        "steps": (last.start.steps, timeline.end.steps),
    }
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
    assert all(a >= b for a, b in pairwise(points))
