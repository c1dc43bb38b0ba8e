"""JSON as its standard has it: what Python's parser would let through, and nothing here can count with, is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

#: Digits of a whole number: a file that has more of them is no file of ours, and arithmetic ends at 308.
MOST_DIGITS = 40


def loads(content: bytes | str, *, any_number: bool = False) -> Any:
    """Read JSON of which every number is finite, or with ``any_number`` whatever Python reads.

    >>> loads('{"au": NaN}')
    Traceback (most recent call last):
    ValueError: it has NaN, which is no number of JSON

    Raises:
        ValueError: not JSON (``json.JSONDecodeError`` says where), not text in UTF-8, a number that is not finite or
            has too many digits, or values that are nested too deeply.
    """
    try:
        if any_number:
            return json.loads(content)
        return json.loads(content, parse_constant=_no_number, parse_float=_finite, parse_int=_short)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has {_shown(text)}, which is too large for a number")
    return number


def _short(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"it has {_shown(text)}, which is too large for a number")
    return int(text)


def _shown(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."
