import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.monitor import SpikeDetector

# BigScience, bigscience repository, train/tr11-176B-ml/chronicles.md, entry of 2022-04-12: (iteration, lm loss, grad norm).
BLOOM = [
    (31214, 2.198845, 0.242),
    (31215, 2.220424, 0.947),
    (31216, 2.595213, 2.390),
    (31217, 2.241558, 15.886),
    (31218, 2.345279, 145.119),
    (31219, 5.098124, 960.351),
    (31220, 3.492029, 353.201),
    (31221, 3.213059, 379.330),
    (31222, 2.804948, 650.246),
    (31250, 2.215699, 0.267),
    (31251, 2.235667, 0.205),
]


def record(loss, norm, stage="main"):
    return {"stage": stage, "loss": loss, "grad_norm": norm}


def steady(steps, seed=0):
    rng = random.Random(seed)
    return [record(rng.gauss(2.20, 0.03), rng.gauss(0.20, 0.03)) for _ in range(steps)]


def warmed(steps=200):
    detector = SpikeDetector()
    for step in steady(steps):
        detector.observe(step)
    return detector


def test_the_bloom_spike_is_seen_from_its_first_step_to_its_last():
    detector = warmed()
    seen = {step: {verdict.kind for verdict in detector.observe(record(loss, norm))} for step, loss, norm in BLOOM}
    assert [step for step, kinds in seen.items() if "grad_norm" in kinds] == list(range(31215, 31223))
    # 31220 is where a window of mean and standard deviation that took in the 5.10 stays silent.
    assert [step for step, kinds in seen.items() if "loss" in kinds] == [31216, 31219, 31220, 31221, 31222]


def test_a_spike_is_one_event():
    detector = warmed()
    events = [detector.judge(record(loss, norm)) for _, loss, norm in BLOOM]
    [event] = [event for event in events if event]
    assert event["cause"] == "spike of the loss and gradient norm"
    assert BLOOM[events.index(event)][0] == 31216, "the second step with a large gradient"


def test_a_single_large_gradient_is_flagged_and_makes_no_event():
    detector = warmed()
    assert [verdict.kind for verdict in detector.observe(record(2.20, 5.0))] == ["grad_norm"]
    assert detector.judge(record(2.20, 0.20)) is None
    assert detector.judge(record(2.20, 5.0)) is None
    assert detector.judge(record(2.20, 5.0))["cause"] == "spike of the gradient norm"


def test_steady_training_makes_no_events():
    detector = SpikeDetector()
    assert not any(detector.judge(step) for step in steady(20_000, seed=1))


def test_the_fall_of_the_loss_at_the_start_is_no_spike():
    rng = random.Random(2)
    losses = [2.5 + 6 * math.exp(-step / 100) + rng.gauss(0, 0.05) for step in range(500)]
    detector = SpikeDetector()
    assert not any(detector.observe(record(loss, 1.0)) for loss in losses)


def test_no_verdict_without_64_steps_of_the_stage():
    spike = record(9.0, 90.0)
    assert not warmed(63).observe(spike)
    assert len(warmed(64).observe(spike)) == 2
    assert not warmed(200).observe(spike | {"stage": "anneal"})


def test_a_loss_that_stays_high_is_the_new_level_after_64_steps():
    detector = warmed()
    rng = random.Random(3)
    verdicts = [detector.observe(record(rng.gauss(3.0, 0.03), 0.2)) for _ in range(100)]
    assert [verdict[0].streak for verdict in verdicts[:64]] == list(range(1, 65))
    assert not any(verdicts[64:])


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_is_not_finite_is_flagged_at_once_and_forgotten(value):
    detector = SpikeDetector()
    first, second = (detector.observe(record(value, 0.2)) for _ in range(2))
    assert (first[0].kind, first[0].streak, second[0].streak) == ("loss", 1, 2)
    assert math.isnan(first[0].value)
    assert not detector.observe(record(2.2, 0.2))


values = st.floats(0.01, 100) | st.none()
steps = st.lists(st.builds(record, values, values, st.sampled_from(["main", "anneal"])), max_size=40)


@settings(deadline=None)
@given(steps, st.integers(0, 240))
def test_a_resume_judges_as_if_there_had_been_no_interruption(tail, cut):
    history = steady(200) + tail
    whole, first = SpikeDetector(), SpikeDetector()
    verdicts = [repr((whole.observe(step), whole.judge(step))) for step in history]
    for step in history[:cut]:
        first.observe(step)
        first.judge(step)
    resumed = SpikeDetector(json.loads(json.dumps(first.memory(), allow_nan=False)))
    assert [repr((resumed.observe(step), resumed.judge(step))) for step in history[cut:]] == verdicts[cut:]


def test_what_is_remembered_is_small_whatever_came():
    """It lies in every checkpoint."""
    detector = warmed(10_000)
    for _ in range(63):
        detector.observe(record(9.0, 90.0))
    assert len(json.dumps(detector.memory())) < 16_000


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(0.01, 1000))
def test_the_verdict_on_a_gradient_norm_knows_no_unit(unit, norm):
    def flagged(unit):
        detector = SpikeDetector()
        for step in steady(100):
            detector.observe({**step, "grad_norm": step["grad_norm"] * unit})
        return [round(verdict.score, 3) for verdict in detector.observe(record(2.2, norm * unit))]

    assert flagged(unit) == pytest.approx(flagged(1.0), abs=0.01)
