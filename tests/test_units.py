from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.units import Quantity, duration, rounded, short


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("10B tokens", 10_000_000_000, "tokens"),
        ("1.5M tokens", 1_500_000, "tokens"),
        ("15T tokens", 15_000_000_000_000, "tokens"),
        ("2000 steps", 2000, "steps"),
        ("2,000 steps", 2000, "steps"),
        ("1 step", 1, "steps"),
        ("3_906_252 samples", 3_906_252, "samples"),
        ("0.1B tokens", 100_000_000, "tokens"),
        ("85%", Fraction(17, 20), "%"),
        ("12.5 %", Fraction(1, 8), "%"),
    ],
)
def test_reads_what_people_write(text: str, amount: Fraction, unit: str) -> None:
    assert Quantity.parse(text) == Quantity(Fraction(amount), unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "10",
        "10B",
        "B tokens",
        "-5 steps",
        "1e9 tokens",
        "10 kg",
        "10b tokens",
        "101%",
        "0.5 steps",
        "1.0001K tokens",
        "",
        "5K%",
        "1 000 steps",
    ],
)
def test_refuses_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Quantity.parse(text)


@given(st.integers(0, 10**16), st.sampled_from(["tokens", "samples", "steps"]))
def test_a_count_survives_printing(count: int, unit: str) -> None:
    quantity = Quantity(Fraction(count), unit)  # type: ignore[arg-type]
    assert Quantity.parse(str(quantity)) == quantity


@given(st.integers(0, 10**6))
def test_a_share_survives_printing(millionths: int) -> None:
    quantity = Quantity(Fraction(millionths, 10**6), "%")
    assert Quantity.parse(str(quantity)) == quantity


def test_short_counts_lose_no_digit() -> None:
    assert short(10_000_000_000) == "10B"
    assert short(15_600_000_000_000) == "15.6T"
    assert short(65_536) == "65_536"
    assert short(124_439_808) == "124_439_808"
    assert short(999_999_999_999_000) == "999999999.999M"


def test_rounded_counts_are_for_reading() -> None:
    assert rounded(124_439_808) == "124.4M"
    assert rounded(512) == "512"


def test_a_text_of_any_length_is_refused_in_a_line() -> None:
    """Python itself refuses a number of more than 4,300 digits, and writing a fraction of 100,000 takes seconds."""
    for text in ("9" * 100_000 + " tokens", "0." + "9" * 100_000 + "%", "x" * 100_000):
        with pytest.raises(ValueError, match="is no quantity") as caught:
            Quantity.parse(text)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (192, "3 min 12 s"), (5400, "1 h 30 min"), (86_400, "1 d"), (200_000, "2 d 7 h")],
)
def test_durations_as_people_say_them(seconds, text):
    assert duration(seconds) == text
