import io
import re

import pytest
from rich.console import Console as RichConsole

from preheat.monitor import Console


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def drive(console, clock, steps=100, held_out_at=()):
    for step in range(1, steps + 1):
        clock.now += 0.5
        stage = "main" if step <= 60 else "[anneal]"
        record = {"tokens": step * 1000, "step": step, "stage": stage, "lr": 3e-4, "loss": 4.0, "tokens_per_s": 2000.0, "mfu": 0.41}
        if step in held_out_at:
            record["held_out"] = {"prose": {"bits_per_byte": 1.25}}
        console.step(record)


@pytest.fixture
def plain():
    stream, clock = io.StringIO(), Clock()
    return stream, clock, Console(100_000, RichConsole(file=stream, width=80), clock)


def test_a_plain_stream_gets_a_line_every_ten_seconds_at_a_new_stage_and_at_the_end(plain):
    stream, clock, console = plain
    drive(console, clock)
    console.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("%")[0].strip() for line in lines] == ["1.0", "21.0", "41.0", "61.0", "81.0", "100.0"]
    assert "\x1b" not in stream.getvalue()
    assert all("loss 4.000" in line and "3.00e-04" in line and "2.0K tokens/s" in line and "MFU 41%" in line for line in lines)
    # 79,000 tokens at 2,000 tokens a second.
    assert "40 s left" in lines[1]
    assert "left" not in lines[-1]
    assert "[anneal]" in lines[3]


def test_held_out_measurements_and_events_are_shown(plain):
    stream, clock, console = plain
    drive(console, clock, steps=3, held_out_at=(2,))
    console.event({"step": 3, "kind": "spike", "cause": "loss [bold]", "evidence": "9 after 2", "action": ""})
    console.event({"step": 3, "kind": "checkpoint", "cause": "saved"})
    lines = stream.getvalue().splitlines()
    assert lines[1:] == ["step 2: held-out bits per byte: prose 1.250", "step 3: spike: loss [bold] (9 after 2)"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_gets_one_line_with_a_bar(width):
    stream, clock = io.StringIO(), Clock()
    console = Console(100_000, RichConsole(file=stream, force_terminal=True, width=width, color_system=None), clock)
    drive(console, clock, steps=75)
    console.close()
    parts = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", stream.getvalue())
    shown = [part for part in parts if part.strip()][-1]
    assert shown.startswith("[anneal] ")
    assert len(shown) <= width
    assert " 75%  12 s left" in shown
    full, empty = shown.count("━"), shown.count("─")
    assert full / (full + empty) == pytest.approx(0.75, abs=0.06)


def test_a_loss_that_is_null_does_not_end_the_line(plain):
    stream, _, console = plain
    console.step({"tokens": 1, "step": 1, "stage": "main", "lr": 1.0, "loss": None, "tokens_per_s": 1.0, "mfu": 0.1})
    assert "loss nan" in stream.getvalue()
