import math

from hypothesis import given
from hypothesis import strategies as st

from preheat.report.thin import runs, thin

series = st.lists(st.floats(-100, 100), min_size=1, max_size=400).map(lambda values: [(float(x), y) for x, y in enumerate(values)])


@given(series, st.integers(1, 20))
def test_every_column_keeps_its_ends_and_its_extremes(points, columns):
    end = float(len(points))
    kept = thin(points, 0.0, end, columns)
    assert len(kept) <= 4 * columns
    assert [point for point in points if point in set(kept)] == kept
    for column in range(columns):
        inside = [point for point in points if int(point[0] / (end / columns)) == column]
        there = [point for point in kept if int(point[0] / (end / columns)) == column]
        if inside:
            assert (there[0], there[-1]) == (inside[0], inside[-1])
            assert min(y for _, y in there) == min(y for _, y in inside)
            assert max(y for _, y in there) == max(y for _, y in inside)


def test_one_spike_among_a_hundred_thousand_steps_survives():
    points = [(float(x), 2.0) for x in range(100_000)]
    points[77_777] = (77_777.0, 9.0)
    kept = thin(points, 0.0, 100_000.0, 600)
    assert (77_777.0, 9.0) in kept
    assert len(kept) < 2_000


def test_what_is_not_finite_splits_a_line():
    assert runs([(0, None), (1, 1.0), (2, 2.0), (3, math.nan), (4, math.inf), (5, 5.0), (6, None)]) == [[(1, 1.0), (2, 2.0)], [(5, 5.0)]]
    assert runs([(0, None)]) == []
    assert runs([]) == []
