import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.monitor import JsonLines, read_lines


def written(folder, steps):
    sink = JsonLines(folder)
    for step in range(1, steps + 1):
        sink.step({"step": step, "loss": 1 / step})
    return sink


def test_each_line_is_on_disk_before_the_next_step(tmp_path):
    sink = written(tmp_path, 3)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    sink.close()


def test_numbers_that_are_not_finite_are_null_at_any_depth(tmp_path):
    sink = JsonLines(tmp_path)
    sink.step({"step": 1, "loss": math.nan, "held_out": {"prose": {"loss": math.inf}}})
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": null, "held_out": {"prose": {"loss": null}}}\n'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_to_the_last_bit(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("run")
    sink = JsonLines(folder)
    sink.step({"step": 1, "loss": value})
    sink.close()
    assert read_lines(folder / "metrics.jsonl").records[0]["loss"].hex() == value.hex()


def test_a_resume_takes_later_steps_back_and_keeps_the_events(tmp_path):
    sink = written(tmp_path, 10)
    sink.event({"step": 9, "kind": "spike"})
    assert sink.truncate_after(7) == 3
    sink.step({"step": 8, "loss": 0.5})
    sink.close()
    assert [record["step"] for record in read_lines(tmp_path / "metrics.jsonl").records] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read_lines(tmp_path / "events.jsonl").records == [{"step": 9, "kind": "spike"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "metrics.jsonl"]


@pytest.mark.parametrize("cut", range(1, len('{"step": 3, "loss": 0.3333333333333333}\n')))
def test_a_kill_within_the_last_line_costs_that_line_only(tmp_path, cut):
    written(tmp_path, 3).close()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_lines(path).torn
    assert len(read_lines(path).records) == 2
    sink = JsonLines(tmp_path)
    assert sink.truncate_after(3) == 1
    sink.step({"step": 3, "loss": 1 / 3})
    sink.close()
    assert path.read_bytes() == whole


def test_a_torn_event_is_taken_back_too(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"step": 1, "kind": "start"}\n{"ste')
    sink = JsonLines(tmp_path)
    assert sink.truncate_after(0) == 0
    sink.event({"step": 1, "kind": "resume"})
    sink.close()
    assert [event["kind"] for event in read_lines(tmp_path / "events.jsonl").records] == ["start", "resume"]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"", b"null", b"\xff", b"{}{}"])
def test_a_broken_line_in_the_middle_is_refused_and_nothing_changes(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    before = path.read_bytes()
    with pytest.raises(PreheatError, match="line 2"):
        read_lines(path)
    with pytest.raises(PreheatError, match="line 2"):
        JsonLines(tmp_path).truncate_after(0)
    assert path.read_bytes() == before


def test_text_of_any_kind_is_written(tmp_path):
    sink = JsonLines(tmp_path)
    sink.event({"cause": 'line\nbreak, "quotes", \u2028, \udcff'})
    sink.close()
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 1
    assert read_lines(tmp_path / "events.jsonl").records[0]["cause"].startswith('line\nbreak, "quotes", \u2028')


def test_an_absent_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "metrics.jsonl").records == []
