"""Standard output and error: text without control characters, or only JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rayio.records.record import Record

#: What a terminal would obey: control characters but tab and end of line, and changes of the direction of text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""Return text with all that a terminal would obey written as JSON writes it.

    >>> escaped("\x1b[2Jgone")
    '\\u001b[2Jgone'
    """
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


class Escaped:
    """A stream of text that escapes what is written: files and clusters supply much of it."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        self.raw.write(escaped(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """Escape all that is printed; :func:`raw` is the only other way to a terminal."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):  # no traceback for characters that the terminal cannot show
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = Escaped(before[0]), Escaped(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """Return the stream of a terminal for control sequences of our own; escape all else that goes there."""
    return stream.raw if isinstance(stream, Escaped) else stream


@contextlib.contextmanager
def only_json(as_json: bool) -> Iterator[None]:
    """Redirect what libraries print to standard error, so that standard output has only JSON."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        kept = None
    try:
        if kept is not None:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def print_json(value: Record | Any) -> None:
    """Print a record or plain values as JSON."""
    plain = value.as_json() if isinstance(value, Record) else value
    print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
