"""Quantities: text ("4 MiB", "250 ms", "12 GB/s") to and from numbers in base units (bytes, seconds, bytes/s).

A bare number is in the base unit. Arithmetic is decimal until the last step, so "323 ms" is exactly the float 0.323.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S.*?)?\s*")

#: A quantity in a scenario: text with a unit, or a number in the base unit.
Written = str | int | float


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity.

    Args:
        name: its name in messages, in plural.
        example: an example for messages.
        units: the value of each unit in base units.
        shown: units that :meth:`exact` may write, largest first.
        most: the largest value of a scenario, so that 64-bit clocks and counters hold what follows from it.
        least: the smallest value of a scenario other than 0.
    """

    name: str
    example: str
    units: dict[str, Decimal]
    shown: tuple[str, ...]
    most: float
    least: float = 0.0

    @property
    def base(self) -> str:
        """The base unit."""
        return next(unit for unit, worth in self.units.items() if worth == 1)

    def parse(self, value: Written) -> float:
        """Return text or a bare number as a number in the base unit, finite and not negative.

        Raises:
            ValueError: the unit is unknown, or the number is negative or not finite.
        """
        number, unit = self._split(value)
        if unit and unit not in self.units:
            raise ValueError(
                f"unknown unit {unit!r}; {self.name} are written in {', '.join(self.units)}{self._hint(unit)}"
            )
        result = float(number * self.units[unit]) if unit else float(number)
        if not 0 <= result < math.inf:
            raise ValueError(f"{self.name} must be 0 or more and finite, such as {self.example}")
        return result

    def bounded(self, value: Written) -> float:
        """Return a scenario's quantity as :meth:`parse` does.

        Raises:
            ValueError: as by :meth:`parse`, or the number is above ``most``.
        """
        if (number := self.parse(value)) > self.most:
            raise ValueError(f"must be at most {self.exact(self.most)}")
        return number

    @property
    def number(self) -> dict[str, str | float]:
        """JSON Schema of a number in the base unit."""
        return {"type": "number", "minimum": 0, "maximum": self.most}

    @property
    def schema(self) -> dict[str, str]:
        """JSON Schema of such a quantity as text."""
        return {"type": "string", "pattern": self.pattern}

    @property
    def pattern(self) -> str:
        """A regular expression (of JSON Schema) that matches text with a known unit or none."""
        units = "|".join(sorted(map(re.escape, self.units), key=len, reverse=True))
        return rf"^\s*[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d{{1,3}})?\s*({units})?\s*$"

    def _hint(self, unit: str) -> str:
        """Return the probable meaning of an unknown unit, in brackets; ``b`` may mean bits or bytes."""
        if self.units.keys() >= _BITS.keys() and (bits := _SMALL_B.fullmatch(unit)):
            prefix = bits[1].upper()
            if f"{prefix}bit/s" in self.units:
                return f" (did you mean {prefix}bit/s, or 8 times as much, {prefix}B/s?)"
            return f" (bits are written in {', '.join(_BITS)}, bytes in {prefix}B/s)"
        near = get_close_matches(unit.lower(), [u.lower() for u in self.units], n=1, cutoff=0.5)
        return next((f" (did you mean {u}?)" for u in self.units if near and u.lower() == near[0]), "")

    def _split(self, value: Written) -> tuple[Decimal, str]:
        if isinstance(value, str):
            if match := _NUMBER.fullmatch(value):
                return Decimal(match[1].replace("_", "")), match[2] or ""
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if isinstance(value, int) or math.isfinite(value):
                return Decimal(value if isinstance(value, int) else repr(value)), ""
            raise ValueError(f"{self.name} must be 0 or more and finite, such as {self.example}")
        raise ValueError(f"not a number with a unit; {self.name} are written like {self.example}")

    def exact(self, value: float) -> str:
        """Return a value as text that :meth:`parse` reads back exactly, in the largest unit with few digits."""
        number = Decimal(repr(value))
        for unit in self.shown:
            digits = number / self.units[unit]
            text = f"{digits.normalize():f}"
            if digits >= 1 and len(text) <= 7 and self.parse(f"{text} {unit}") == value:
                return f"{text} {unit}"
        return f"{number.normalize():f} {self.base}"

    def human(self, value: float, units: tuple[str, ...]) -> str:
        """Return a value as text with three or four digits, in the largest of ``units`` (largest first) it reaches."""
        if not math.isfinite(value):
            return str(value)
        unit = next((u for u in units if abs(value) >= float(self.units[u])), units[-1]) if value else self.base
        scaled = value / float(self.units[unit])
        digits = (
            0 if scaled == int(scaled) and abs(scaled) < 10000 else max(0, 2 - int(math.log10(max(abs(scaled), 1))))
        )
        return f"{scaled:.{digits}f} {unit}"


def _scaled(base: str, suffix: str = "") -> dict[str, Decimal]:
    decimal = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
    binary = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
    units = {f"{prefix}{base}{suffix}": Decimal(10) ** power for prefix, power in decimal.items()}
    return units | {f"{prefix}{base}{suffix}": Decimal(2) ** power for prefix, power in binary.items()}


_BITS = {f"{p}bit/s": Decimal(10) ** n / 8 for p, n in {"M": 6, "G": 9, "T": 12}.items()}
#: Rates written with a small b: bits, or mistyped bytes.
_SMALL_B = re.compile(r"([kKmMgGtTpP]?)b(?:/s|ps)")
_SECONDS = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "ns": "1e-9", "min": "60", "h": "3600"}

BYTES = Dimension(
    "bytes", '"4 MiB" or "146.6 MB"', _scaled("B"), ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"), 2.0**62
)
SECONDS = Dimension(
    "times", '"250 ms" or "1.5 s"', {u: Decimal(w) for u, w in _SECONDS.items()}, ("s", "ms", "us", "ns"), 1e9
)
RATE = Dimension(
    "rates",
    '"12 GB/s" or "800 MiB/s"',
    _scaled("B", "/s") | _BITS,
    ("TB/s", "GB/s", "GiB/s", "MB/s", "MiB/s", "kB/s"),
    1e18,
    1.0,
)


def parse_moment(text: str) -> int:
    """Return a time such as 2024-09-02T13:34:44.2 in ns since 1970; UTC unless the text has a zone.

    Raises:
        ValueError: not a time, or outside the years that 64 bits of ns hold.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a time like 2024-09-02T13:34:44.2") from None
    if not 1970 <= moment.year < 2200:
        raise ValueError("expected a time between 1970 and 2200")
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _parse(dimension: Dimension, value: Written) -> float:
    try:
        return dimension.parse(value)
    except ValueError as error:
        raise ValueError(f"{value!r}: {error}") from None


def parse_bytes(value: Written) -> int:
    """Return "146.6 MB", "4 MiB" or a bare number in whole bytes; "1.1 GiB" is rounded to the nearest byte.

    Raises:
        ValueError: as by `Dimension.parse`, or a bare number is not whole.
    """
    number = _parse(BYTES, value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r}: not a whole number of bytes")
    return value if isinstance(value, int) else round(number)


def parse_seconds(value: Written) -> float:
    """Return "323 ms", "2 min" or a bare number in seconds.

    Raises:
        ValueError: as by `Dimension.parse`.
    """
    return _parse(SECONDS, value)


def parse_rate(value: Written) -> float:
    """Return "12 GB/s", "100 Gbit/s" or a bare number in bytes per second.

    Raises:
        ValueError: as by `Dimension.parse`.
    """
    return _parse(RATE, value)


def format_bytes(value: float) -> str:
    """Return bytes as text, rounded: ``format_bytes(4 << 20) == "4 MiB"``."""
    return BYTES.human(value, ("PiB", "TiB", "GiB", "MiB", "KiB", "B"))


def format_excess(value: float, limit: float) -> str:
    """Return bytes beyond a limit as text; if both round to the same text, with the difference.

    >>> format_excess(3 << 30, 2 << 30), format_excess((2 << 30) + 4096, 2 << 30)
    ('3 GiB', '2.00 GiB (4 KiB more)')
    """
    text = format_bytes(value)
    is_same = parse_bytes(text) == parse_bytes(format_bytes(limit))
    return f"{text} ({format_bytes(value - limit)} more)" if is_same else text


def format_seconds(value: float) -> str:
    """Return seconds as text, rounded: ``format_seconds(0.323) == "323 ms"``."""
    return SECONDS.human(value, ("h", "min", "s", "ms", "us", "ns") if value >= 600 else ("s", "ms", "us", "ns"))


def format_rate(value: float) -> str:
    """Return bytes per second as text, rounded, in binary units: ``format_rate(3 << 30) == "3 GiB/s"``."""
    return RATE.human(value, ("PiB/s", "TiB/s", "GiB/s", "MiB/s", "KiB/s", "B/s"))


#: What stands for a number that is not known.
UNKNOWN = "unknown"


def format_mib_rate(value: float | None) -> str:
    """Return MiB/s as text, from 1024 on in larger units; "unknown" for None.

    >>> format_mib_rate(112.14), format_mib_rate(1656.8), format_mib_rate(None)
    ('112.1 MiB/s', '1.62 GiB/s', 'unknown')
    """
    if value is None:
        return UNKNOWN
    return f"{format_number(value)} MiB/s" if value < 1024 else format_rate(value * 2**20)


def format_share(share: float | None, digits: int = 1) -> str:
    """Return a fraction as text in percent; "unknown" for None.

    >>> format_share(0.3453), format_share(-0.0001), format_share(None)
    ('34.5 %', '0.0 %', 'unknown')
    """
    return UNKNOWN if share is None else f"{100 * share:z.{digits}f} %"


def format_number(value: float | None) -> str:
    """Return a number as text with one decimal, or none from 100,000 on; "unknown" for None."""
    return UNKNOWN if value is None else f"{value:,.1f}" if value < 1e5 else f"{value:,.0f}"
