import json
import math
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preheat.errors import PreheatError
from preheat.monitor import JsonLines, last_line, read_lines


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
    assert sink.truncate_after(7) == 7
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
    assert sink.truncate_after(3) == 2
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


BROKEN = [b"{", b"[1]", b"", b"null", b"\xff", b"{}{}", b"\r", b"\0" * 70_000, b'{"step": "2"}', b"{}"]


@pytest.mark.parametrize("line", BROKEN[:6])
def test_a_broken_line_in_the_middle_is_told_to_who_reads_it(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(PreheatError, match="line 2"):
        read_lines(path)


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_that_is_to_stay_is_refused_and_nothing_changes(tmp_path, line):
    """One of a step that is done over is taken back with the others."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + line + b'\n{"step": 4}\n')
    before, sink = path.read_bytes(), JsonLines(tmp_path)
    with pytest.raises(PreheatError, match=r"a line after that of step 2 .* the checkpoint is of step 3"):
        sink.truncate_after(3)
    assert path.read_bytes() == before
    assert sink.truncate_after(2) == 2
    sink.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_lines_that_are_gone_are_told(tmp_path):
    sink = written(tmp_path, 5)
    assert sink.truncate_after(9) == 5
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert sink.truncate_after(9) == 0
    sink.close()


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_it_is_cut_at_the_right_place_whatever_the_length_of_lines(tmp_path_factory, lengths, data):
    folder = tmp_path_factory.mktemp("run")
    lines = [json.dumps({"step": step, "text": "x" * length}).encode() + b"\n" for step, length in enumerate(lengths, start=1)]
    path, keep = folder / "metrics.jsonl", data.draw(st.integers(0, len(lines)))
    path.write_bytes(b"".join(lines) + b"x" * data.draw(st.integers(0, 100_000)))
    assert last_line(path)["step"] == len(lines)
    sink = JsonLines(folder)
    assert sink.truncate_after(keep) == keep
    sink.close()
    assert path.read_bytes() == b"".join(lines[:keep])


def test_it_reads_no_more_of_a_long_file_than_of_a_short_one(tmp_path):
    line = json.dumps({"step": 10_000_000, "loss": 2.5, "grad_norm": 0.25, "text": "x" * 200}).encode() + b"\n"
    (tmp_path / "metrics.jsonl").write_bytes(line * 100_000)
    for name in ("metrics.jsonl", "events.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.writelines(b'{"step": %d, "loss": 2.5}\n' % step for step in range(10_000_001, 10_001_001))
            os.fsync(file.fileno())
    sink = JsonLines(tmp_path)
    begin = time.perf_counter()
    assert sink.truncate_after(10_000_500) == 10_000_500
    assert time.perf_counter() - begin < 0.2  # to read it all takes seconds
    assert (tmp_path / "metrics.jsonl").stat().st_size == 100_000 * len(line) + 500 * len(b'{"step": 10000001, "loss": 2.5}\n')
    sink.close()


def test_text_of_any_kind_is_written(tmp_path):
    sink = JsonLines(tmp_path)
    sink.event({"cause": 'line\nbreak, "quotes", \u2028, \udcff'})
    sink.close()
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 1
    assert read_lines(tmp_path / "events.jsonl").records[0]["cause"].startswith('line\nbreak, "quotes", \u2028')


def test_an_absent_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "metrics.jsonl").records == []
