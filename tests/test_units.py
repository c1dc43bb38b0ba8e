from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio import units

POSITIVE = st.floats(min_value=1e-12, max_value=1e18, allow_nan=False)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("146.6 MB", 146_600_000),
        ("4 MiB", 4 << 20),
        ("4MiB", 4 << 20),
        (" 1 kB ", 1000),
        ("1 KB", 1000),
        ("1.1 GiB", 1181116006),
        ("1e3 B", 1000),
        ("1_000", 1000),
        (17, 17),
        (17.0, 17),
        (0, 0),
        (2**62 + 1, 2**62 + 1),
    ],
)
def test_bytes_are_read_in_decimal_and_binary_units(written: str | float, expected: int) -> None:
    assert units.parse_bytes(written) == expected
    assert type(units.parse_bytes(written)) is int


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("323 ms", 0.323),
        ("1.3604 s", 1.3604),
        ("20 us", 2e-5),
        ("20 µs", 2e-5),
        ("2 min", 120),
        ("1 h", 3600),
        (0.5, 0.5),
        ("7", 7),
    ],
)
def test_times_are_read_exactly_as_the_nearest_float(written: str | float, expected: float) -> None:
    assert units.parse_seconds(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"), [("12 GB/s", 12e9), ("1 MiB/s", 2**20), ("100 Gbit/s", 12.5e9), (5, 5.0)]
)
def test_rates_are_read_in_bytes_and_bits_per_second(written: str | float, expected: float) -> None:
    assert units.parse_rate(written) == expected


@pytest.mark.parametrize(
    ("parse", "written", "said"),
    [
        (units.parse_bytes, "4 mib", "did you mean MiB?"),
        (units.parse_bytes, "4 s", "unknown unit 's'; bytes are written in B, kB"),
        (units.parse_bytes, 1.5, "1.5: not a whole number of bytes"),
        (units.parse_bytes, "-1 B", "'-1 B': bytes must be 0 or more"),
        (units.parse_seconds, "3 msec", "'3 msec': unknown unit 'msec'; times are written in s, ms"),
        (units.parse_seconds, "", "times are written like"),
        (units.parse_seconds, "ms", "times are written like"),
        (units.parse_seconds, "1 2 ms", "unknown unit '2 ms'"),
        (units.parse_seconds, True, "not a number with a unit"),
        (units.parse_seconds, None, "not a number with a unit"),
        (units.parse_seconds, math.nan, "finite"),
        (units.parse_seconds, math.inf, "finite"),
        (units.parse_seconds, 10**400, "finite"),
        (units.parse_seconds, "1e999 s", "finite"),
        (units.parse_seconds, "1e99999999999 s", "unknown unit"),
        (units.parse_rate, "3 GB", "did you mean GB/s?"),
        (units.parse_rate, "100 Gb/s", "did you mean Gbit/s, or 8 times as much, GB/s?"),
        (units.parse_rate, "100 Mb/s", "did you mean Mbit/s, or 8 times as much, MB/s?"),
        (units.parse_rate, "1 Tb/s", "did you mean Tbit/s, or 8 times as much, TB/s?"),
        (units.parse_rate, "10 gbps", "did you mean Gbit/s, or 8 times as much, GB/s?"),
        (units.parse_rate, "100 Kb/s", "(bits are written in Mbit/s, Gbit/s, Tbit/s, bytes in KB/s)"),
        (units.parse_rate, "3 gB/s", "did you mean GB/s?"),
    ],
)
def test_what_is_no_quantity_is_refused_with_value_and_units(parse: object, written: object, said: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError) as caught:
        parse(written)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(value=POSITIVE, dimension=st.sampled_from([units.BYTES, units.SECONDS, units.RATE]))
def test_what_is_written_exactly_reads_back_to_the_last_bit(value: float, dimension: units.Dimension) -> None:
    assert dimension.parse(dimension.exact(value)) == value


@given(number=st.integers(0, 2**53))
def test_whole_bytes_survive_writing(number: int) -> None:
    assert units.parse_bytes(units.BYTES.exact(number)) == number


@given(value=POSITIVE)
def test_what_is_written_for_a_reader_is_right_to_a_percent(value: float) -> None:
    assert units.parse_seconds(units.format_seconds(value)) == pytest.approx(value, rel=0.01, abs=1e-11)
    assert units.parse_rate(units.format_rate(value)) == pytest.approx(value, rel=0.01, abs=0.01)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(4 << 20), "4 MiB"),
        (units.format_bytes(146_600_628), "140 MiB"),
        (units.format_bytes(1536), "1.50 KiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_seconds(0.323), "323 ms"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(90), "90 s"),
        (units.format_seconds(5400), "1.50 h"),
        (units.format_rate(3 << 30), "3 GiB/s"),
        (units.format_rate(math.inf), "inf"),
        (units.SECONDS.exact(0.323), "323 ms"),
        (units.SECONDS.exact(120.0), "120 s"),
        (units.BYTES.exact(4 << 20), "4 MiB"),
        (units.BYTES.exact(146_600_628), "146600628 B"),
        (units.RATE.exact(12e9), "12 GB/s"),
    ],
)
def test_quantities_are_written_as_people_would(text: str, expected: str) -> None:
    assert text == expected


def test_bytes_beyond_a_limit_never_read_as_the_limit() -> None:
    limit = 25_232_367_616
    assert units.format_bytes(limit) == units.format_bytes(limit + 1000)
    assert units.format_excess(limit + 1000, limit) == f"{units.format_bytes(limit)} (1000 B more)"
    assert units.format_excess(2 * limit, limit) == units.format_bytes(2 * limit)
