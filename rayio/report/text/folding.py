"""Text in lines that fit: prose is wrapped in its column."""

from __future__ import annotations

import re
import textwrap

#: The narrowest last column in which text is wrapped, in characters.
NARROWEST = 24


def fit(text: str, width: int | None) -> str:
    """Return text with long lines wrapped, between words.

    Wrapped text continues in the last column of its line, or indented by four without room for that.

    >>> print(fit("  au   0.97  a long remark about it", 28))
      au   0.97  a long remark
                 about it
    """
    if width is None:
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    starts = [gap.end() for gap in re.finditer(r"(?<=\S) {2,}(?=\S)", line) if gap.end() < width]
    start = starts[-1] if starts else 0
    margin = len(line) - len(line.lstrip())
    has_room = start and width - start >= min(NARROWEST, len(line) - start, width // 2)
    indent = start if has_room else margin + 4 * bool(start or margin)
    return textwrap.wrap(
        line, width, subsequent_indent=" " * min(indent, width // 2), drop_whitespace=True, break_long_words=False,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip
