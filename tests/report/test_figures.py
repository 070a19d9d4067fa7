import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.report.figures import centred_mean, loss, stage_bands
from preheat.report.folder import load


def test_a_centred_mean_does_not_lag():
    falling = [100.0 - index for index in range(50)]
    assert centred_mean(falling, 3) == pytest.approx(falling)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60), st.integers(2, 40))
def test_a_mean_stays_within_its_values(values, half):
    means = centred_mean(values, half)
    assert len(means) == len(values)
    assert all(min(values) - 1e-9 <= mean <= max(values) + 1e-9 for mean in means)


def test_the_ends_are_smoothed_too():
    values = [9.0] + [1.0] * 40 + [9.0]
    # Half is 8, a quarter of it 2: the first mean is that of 9, 1, 1.
    assert centred_mean(values, 8)[0] == pytest.approx(11 / 3)
    assert centred_mean(values, 8)[-1] == pytest.approx(11 / 3)


def test_segments_of_one_stage_are_one_band(run):
    run.recipe()
    segment = {"steps": 1, "batch_size": 1, "seq_len": 1}
    parts = [("main", 0, 50), ("main", 50, 30), ("anneal", 80, 20)]
    segments = [segment | {"name": name, "start_tokens": start, "tokens": tokens} for name, start, tokens in parts]
    run.json("plan.json", {"total_tokens": 100, "total_steps": 3, "segments": segments})
    assert [(band.label, band.start, band.end) for band in stage_bands(load(run.path))] == [("main", 0, 80), ("anneal", 80, 100)]


def test_without_a_plan_the_bands_are_what_was_trained(run):
    run.recipe().metrics()
    # 300 steps of 4,096 tokens: the stages end after steps 225, 276 and 300.
    assert [(band.label, band.end / 4096) for band in stage_bands(load(run.path))] == [
        ("main", 225),
        ("anneal", 276),
        ("long-context", 300),
    ]


def test_the_held_out_mean_weighs_sources_by_their_tokens(run):
    run.recipe()
    sources = {
        "prose": {"loss": 2.0, "bits_per_byte": 1.0, "tokens": 300, "bytes": 1},
        "code": {"loss": 4.0, "bits_per_byte": 1.0, "tokens": 100, "bytes": 1},
    }
    record = next(run.records())
    run.lines("metrics.jsonl", [record | {"held_out": sources}])
    folder = load(run.path)
    assert loss(folder, stage_bands(folder)).lines[-1].points == [(4096, 2.5)]


def test_missing_losses_leave_gaps_in_the_smoothed_course_too(run):
    run.recipe()
    run.lines("metrics.jsonl", [record | ({"loss": None} if record["step"] == 3 else {}) for record in run.records(steps=5)])
    folder = load(run.path)
    raw, smoothed = loss(folder, stage_bands(folder)).lines
    assert [y is None for _, y in raw.points] == [y is None for _, y in smoothed.points] == [False, False, True, False, False]
