"""Standard output and error: text without control characters, or only JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rayio.records.printed import escaped
from rayio.records.record import Record


class Escaped:
    """A stream of text that escapes what is written: files and clusters supply much of it.

    Once nobody reads it (``| head``), or it has no space left, further text is discarded: a command also writes files.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        #: True if the command ends with the reader of its output.
        self.ends = False
        #: Why text is discarded; None if it is not.
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        with self._discarding():
            self.raw.write(escaped(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._discarding():
            self.raw.flush()

    @contextlib.contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.ends or self.error is not None:
                raise
            self.error = error
            discard(self.raw.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def discard(descriptor: int) -> None:
    """Send all that is written to a file descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def end_with_reader() -> None:
    """End this command once nobody reads its output: it writes no files, and may have much to print."""
    if isinstance(sys.stdout, Escaped):
        sys.stdout.ends = True


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
