import re
from xml.etree import ElementTree

import pytest

from preheat.report.chart import Band, Chart, Line, Mark, svg


def drawn(**changes):
    chart = {"title": "Loss", "unit": "nats per token", "lines": [Line("loss", [(1, 4.0), (2, 2.0)], 0)], "x_end": 2.0, "height": 100}
    return ElementTree.fromstring(svg(Chart(**chart | changes)))


def heights(root, index=0):
    path = root.findall(".//path")[index].get("d")
    return [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def titles(root):
    return [title.text for title in root.iter("title")]


def test_a_higher_value_stands_higher_and_later_stands_to_the_right():
    root = drawn()
    places = [tuple(map(float, place)) for place in re.findall(r"([\d.]+) ([\d.]+)", root.find(".//path").get("d"))]
    assert [x for x, _ in places] == [500.0, 1000.0]
    assert places[0][1] < places[1][1]
    assert all(0 <= y <= 100 for _, y in places)


def test_a_stage_covers_its_share_of_the_width():
    root = drawn(bands=[Band("main", 0, 1.5, 0), Band("anneal", 1.5, 2, 1)])
    places = [(band.get("x"), band.get("width")) for band in root.iter("rect") if "band" in band.get("class")]
    assert places == [("0.00%", "75.00%"), ("75.00%", "25.00%")]
    assert "stage anneal" in titles(root)


def test_a_staircase_changes_where_the_step_before_ended():
    points = [(1, 8.0), (2, 8.0), (3, 16.0), (4, 16.0)]
    path = drawn(lines=[Line("batch", points, 0, step=True)], x_end=4.0, y="zero").find(".//path").get("d")
    assert [float(x) for x, _ in re.findall(r"([\d.]+) ([\d.]+)", path)] == [250, 500, 500, 1000]


def test_a_gap_is_not_bridged():
    path = drawn(lines=[Line("loss", [(0, 1.0), (1, None), (2, 1.0)], 0)]).find(".//path").get("d")
    assert path.count("M") == 2


def test_the_pointer_is_told_the_range_of_each_column():
    points = [(x / 1000, 2.0 + (x % 2)) for x in range(2001)]
    texts = [title for title in titles(drawn(lines=[Line("loss", points, 0)])) if "loss: 2 to 3" in title]
    assert len(texts) == 72


def test_marks_at_one_place_are_one_line_that_counts_them():
    marks = [Mark(1.0, "resume at step 5", False), Mark(1.00001, "spike at step 5", True), Mark(2.0, "resume", False)]
    root = drawn(marks=marks)
    groups = [group for group in root.iter("g") if "mark" in group.get("class")]
    assert [group.get("class") for group in groups] == ["mark alarm", "mark"]
    assert groups[0].find("title").text == "resume at step 5\nand 1 more here"


def test_ticks_at_levels_do_not_touch():
    root = drawn(lines=[Line("batch", [(1, 1000.0), (2, 8.0)], 0)], y="zero", levels=[0, 8, 16, 512, 1000])
    assert [text.text for text in root.iter("text") if text.get("class") == "ytick"] == ["1,000", "512", "16"]


def test_a_share_is_shown_in_percent():
    root = drawn(lines=[Line("MFU", [(1, 0.4), (2, 0.41)], 0)], y="zero", percent=True)
    assert [text.text for text in root.iter("text") if text.get("class") == "ytick"] == ["0%", "20%", "40%"]


def test_the_ninth_curve_looks_unlike_the_first():
    root = drawn(lines=[Line(str(index), [(1, 1.0), (2, 2.0)], index) for index in range(9)])
    classes = [path.get("class") for path in root.iter("path")]
    assert len(set(classes)) == 9
    assert classes[8] == "curve c0 dashed"


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-100, 1e100, 5e-324])
@pytest.mark.parametrize("kind", ["fit", "zero", "log"])
def test_a_single_value_of_any_size_is_drawn(value, kind):
    root = drawn(lines=[Line("loss", [(1, value)], 0)], y=kind)
    assert all(0 <= y <= 100 for y in heights(root))


@pytest.mark.parametrize("values", [(-1e100, 1e100), (5e-324, 1e100), (1e-99, 1e100), (9e99, 1e100)])
@pytest.mark.parametrize("kind", ["fit", "zero", "log"])
def test_the_widest_range_is_drawn(values, kind):
    root = drawn(lines=[Line("loss", list(enumerate(values)), 0)], y=kind)
    assert all(0 <= y <= 100 for y in heights(root))


def test_names_are_escaped():
    root = drawn(lines=[Line("<script>", [(1, 1.0)], 0, dots=True)], bands=[Band('"><script>', 0, 1, 0)], title="</svg>")
    assert not list(root.iter("script"))
    assert root.get("aria-label").startswith("</svg>")


def test_thousands_of_measurements_become_a_curve():
    def shapes(count):
        root = drawn(lines=[Line("held-out", [(index / count, 1.0) for index in range(count)], 0, dots=True, line=False)])
        return sum(1 for _ in root.iter("circle")), sum(1 for _ in root.iter("path"))

    assert shapes(100) == (100, 0)
    assert shapes(5000) == (0, 1)
