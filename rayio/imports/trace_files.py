"""Trace files of other programs, read event by event: a file of any size takes a few MiB of memory.

A file that breaks off gives what is whole, with a note; anything else that is no trace is an error with file and line.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from rayio.errors import DataError
from rayio.files import NotAFileError, check_regular

#: Characters that are read at a time, and the most of one event.
CHUNK, MOST_EVENT = 1 << 20, 1 << 24

#: The largest number of an event that counts: others are no counts of anything.
MOST = 1 << 53
#: The latest time (ns): those of DFTracer count since 1970, and this is in 2096.
LATEST_NS = 4 * 10**18
#: Characters of the longest literal of JSON, which may be cut.
LITERAL = len("false")

_decode = json.JSONDecoder().raw_decode
#: The window of zlib for files with a header of gzip.
_GZIP = 31
_SPACE = re.compile(r"[\s,]*")
#: A comma before the end of an object, as early versions of DFTracer write.
_SPARE_COMMA = re.compile(r",(\s*[}\]])")


class TraceFile:
    """A trace file; after its events were read, ``broke_off`` says whether it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The line of the last event.
        self.line = 1
        #: The unit of its times, in ns.
        self.unit_ns = 1000
        #: Where the file breaks off, in words; empty if it is whole.
        self.broke_off = ""
        #: The text before the events of a file that is one object.
        self.head = ""

    def of_object(self) -> Iterator[dict[str, Any]]:
        """Yield the events of a file that is one JSON object with ``traceEvents``, as torch.profiler writes.

        Raises:
            DataError: the file cannot be read, or is no such trace.
        """
        pieces = self._pieces()
        text = next(pieces, "")
        while (position := text.find('"traceEvents"')) < 0 or (begin := text.find("[", position)) < 0:
            if len(text) > MOST_EVENT or not (more := next(pieces, "")):
                raise DataError(f"{self.path}: it has no traceEvents; give a trace that torch.profiler exported")
            text += more
        self.head = text[:position]
        self.line += text.count("\n", 0, begin)
        yield from self._array(pieces, text[begin + 1 :])

    def _array(self, pieces: Iterator[str], text: str) -> Iterator[dict[str, Any]]:
        position = 0
        while True:
            start = _SPACE.match(text, position).end()  # type: ignore[union-attr]
            self.line += text.count("\n", position, start)
            position = start
            if text[position : position + 1] == "]":
                return
            try:
                event, end = _decode(text, position)
            except (json.JSONDecodeError, RecursionError) as error:
                text = text[position:]
                if isinstance(error, RecursionError) or not _is_cut(error, position, text):
                    self.line += text.count("\n", 0, getattr(error, "pos", position) - position)
                    raise self._no_event(getattr(error, "msg", "nested too deeply")) from None
                if len(text) > MOST_EVENT:
                    raise self._no_event(f"it is longer than {MOST_EVENT >> 20} MiB") from None
                if not (more := next(pieces, "")):
                    self.broke_off = f"{self.path.name} breaks off in line {self.line}"
                    return
                text, position = text + more, 0
                continue
            if not isinstance(event, dict):
                raise self._no_event(f"it is {type(event).__name__}")
            yield event
            self.line += text.count("\n", position, end)
            position = end
            if position > CHUNK:
                text, position = text[position:], 0

    def of_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the events of a file with one in a line, as DFTracer writes.

        Raises:
            DataError: the file cannot be read, or a line is no event.
        """
        self.line, lines = 0, self._lines()
        line = next(lines, None)
        while line is not None:
            self.line += 1
            following = next(lines, None)
            stripped = line.strip().rstrip(",")
            if stripped not in ("", "[", "]"):
                if (event := _parsed(stripped)) is not None:
                    yield event
                elif following is not None or self.line == 1:
                    raise self._no_event("it is no JSON object")
                else:
                    self.broke_off = f"{self.path.name} breaks off in line {self.line}"
            line = following

    def _lines(self) -> Iterator[str]:
        rest = ""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split("\n")
            yield from whole
            if len(rest) > MOST_EVENT:
                self.line += 1
                raise self._no_event(f"it is longer than {MOST_EVENT >> 20} MiB")
        if rest:
            yield rest

    def _no_event(self, why: str) -> DataError:
        return DataError(f"{self.path}, line {self.line}: no event of a trace ({why}): the file is damaged")

    def _pieces(self) -> Iterator[str]:
        """Yield the text of the file in pieces; nothing follows where it breaks off."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            check_regular(self.path)
            with self.path.open("rb") as file:
                is_packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                for content in self._unpacked(file) if is_packed else iter(lambda: file.read(CHUNK), b""):
                    yield decoder.decode(content)
        except NotAFileError as error:
            raise DataError(f"{self.path}: {error.strerror}") from None
        except zlib.error as error:
            raise DataError(f"{self.path}, line {self.line}: damaged ({error})") from None
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the content of a gzip file of one part or several."""
        unpacker, content = zlib.decompressobj(_GZIP), file.read(CHUNK)
        while content:
            yield unpacker.decompress(content, CHUNK)
            content = unpacker.unconsumed_tail
            if unpacker.eof:
                content = unpacker.unused_data or file.read(CHUNK)
                if not content.strip(b"\0"):
                    return
                unpacker = zlib.decompressobj(_GZIP)
            content = content or file.read(CHUNK)
        self.broke_off = f"{self.path.name} breaks off after line {self.line}"


def _is_cut(error: json.JSONDecodeError, position: int, text: str) -> bool:
    """Return True if an event is wrong only because the text ends: the error is at its end, or in an open string."""
    return error.pos - position >= len(text.rstrip()) - LITERAL or error.msg.startswith("Unterminated string")


def _parsed(line: str) -> dict[str, Any] | None:
    for text in (line, _SPARE_COMMA.sub(r"\1", line)):
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return event if isinstance(event, dict) else None
    return None


def files_of(paths: Sequence[Path], endings: Sequence[str], what: str) -> list[Path]:
    """Return the files among ``paths``, and those in folders among them that have one of the endings.

    Raises:
        DataError: a path is missing, or a folder has no such file.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file; give {what}")
        inside = (
            sorted(each for each in path.rglob("*") if each.name.endswith((*endings,))) if path.is_dir() else [path]
        )
        if not inside:
            raise DataError(f"{path}: no file in it ends with {' or '.join(endings)}; give {what}")
        files += inside
    return list(dict.fromkeys(files))


def is_process(pid: object) -> TypeGuard[int]:
    """Return True if a value is the number of a process, as operating systems have it."""
    return isinstance(pid, int) and not isinstance(pid, bool) and 0 <= pid < 1 << 31


def time_ns(event: dict[str, Any], key: str, trace: TraceFile) -> int:
    """Return a time of an event in ns.

    Raises:
        DataError: it is missing, or no time.
    """
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value * trace.unit_ns < LATEST_NS:
        unit = "microseconds" if trace.unit_ns == 1000 else "nanoseconds"
        raise DataError(f"{trace.path}, line {trace.line}: {key}={value!r} is no time in {unit}")
    return round(value * trace.unit_ns)
