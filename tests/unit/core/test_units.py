"""Values with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit.core.units import format_bytes, parse_bytes, parse_microseconds, parse_seconds

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("1.5ms", 0.0015), ("500us", 0.0005), ("500µs", 0.0005), ("2m", 120.0), ("1h", 3600.0),
     (" 20 ms ", 0.02), ("1e3ms", 1.0), (".5s", 0.5), ("0s", 0.0)],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "ms", "abc", "1 2ms", "--1ms", "1e999s", "nan s", "1,5ms"])
def test_what_is_no_duration_shows_how_to_write_one(text):
    with pytest.raises(ValueError, match=r"is not a duration; write it like 20ms or 5s"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["5", "5 parsecs", "5MS", "5B"])
def test_a_duration_needs_a_known_unit(text):
    with pytest.raises(ValueError, match="needs a unit of time"):
        parse_seconds(text)


@given(st.integers(0, 10**9), st.sampled_from(sorted(SECONDS)))
def test_a_duration_is_its_number_times_its_unit(number, unit):
    assert parse_seconds(f"{number}{unit}") == pytest.approx(number * SECONDS[unit], rel=1e-12)


@pytest.mark.parametrize(
    ("value", "micros"),
    [(500, 500), ("500", 500), ("1ms", 1000), ("0.5ms", 500), ("2s", 2_000_000), ("3us", 3)],
)
def test_microseconds(value, micros):
    assert parse_microseconds(value) == micros


@given(st.integers(0, 10**9))
def test_every_whole_number_of_microseconds_is_read_back(micros):
    assert parse_microseconds(f"{micros}us") == parse_microseconds(micros) == micros


@given(st.integers(0, 10**6))
def test_milliseconds_are_thousands_of_microseconds(millis):
    assert parse_microseconds(f"{millis}ms") == millis * 1000


@pytest.mark.parametrize("value", ["-1ms", -1, "0.5us", "1ns", "1e999s", "²"])
def test_microseconds_must_be_whole_and_not_negative(value):
    with pytest.raises(ValueError, match=r"microseconds|duration"):
        parse_microseconds(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (64, 64),
        ("64", 64),
        ("64B", 64),
        ("64MiB", 64 * 2**20),
        ("1GB", 10**9),
        ("1.5KiB", 1536),
        ("2TiB", 2**41),
    ],
)
def test_sizes(value, size):
    assert parse_bytes(value) == size


@pytest.mark.parametrize("value", ["64mib", "64 Mb", "1.5B", "-1", -1, "abc", "1e999B", ""])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ValueError, match=r"size|unit|bytes"):
        parse_bytes(value)


@given(st.integers(0, 2**50))
def test_a_size_is_read_back_in_bytes(size):
    assert parse_bytes(f"{size}B") == size


@given(st.integers(0, 2**50))
def test_a_size_for_people_is_near_the_size(size):
    text = format_bytes(size).replace(" ", "")
    assert parse_bytes_roughly(text) == pytest.approx(size, rel=0.05, abs=0.5)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 * 2**20, "64.0 MiB"), (2**40, "1.0 TiB")],
)
def test_sizes_for_people(size, text):
    assert format_bytes(size) == text


def parse_bytes_roughly(text: str) -> float:
    """Read what people see, which is rounded to a tenth and so may be no whole number of bytes."""
    number = text.rstrip("BKMGTi")
    return float(number) * parse_bytes("1" + text[len(number) :])
