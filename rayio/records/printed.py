"""Text that is safe to print: what a terminal would obey is written out."""

from __future__ import annotations

import re

#: Control characters but tab and end of line, and changes of the direction of text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""Return text with all that a terminal would obey written as JSON writes it.

    >>> escaped("\x1b[2Jgone")
    '\\u001b[2Jgone'
    """
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)
