"""Spans of other libraries: their place in the run, and a JSON object of data without a column.

The object in ``attributes`` has the keys ``trace`` and ``span`` (hex, 32 and 16 digits), ``kind`` (``internal``,
``server``, ``client``, ``producer``, ``consumer``), ``scope`` (``name``, and ``version`` where given), and
optionally: ``parent`` (hex, 16 digits), ``attributes`` (an object), ``events`` (``name``, ``time_ns``, ``attributes``),
``links`` (``trace``, ``span``, ``attributes``) and ``status`` (``code``, ``description``). The column ``parent`` is the
parent's id as a signed number (0: none), and the column ``status`` is ``error`` or ``ok``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
A = TypeVar("A")


def plain(value: Any) -> str:
    """Return a library's value as storable text; file names may have bytes that are no characters."""
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # raised by the value's own code; the run's other spans stay
        return f"<{type(value).__name__}>"


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=plain).encode


class Here(NamedTuple):
    """The role and place in the run for which another library's code runs."""

    writer: int
    place: tuple[int, int, int, int]


#: Set while the library of a format reads a batch.
#: Set while a format's library reads a batch.
HERE: ContextVar[Here | None] = ContextVar("rayio_here", default=None)


def during(here: Here, function: Callable[[A], T]) -> Callable[[A], T]:
    """Return ``function`` such that spans of other libraries within it belong to this role and place."""

    def called(argument: A) -> T:
        token = HERE.set(here)
        try:
            return function(argument)
        finally:
            HERE.reset(token)

    return called


class Event(NamedTuple):
    """An event at one time of a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] | None


class Link(NamedTuple):
    """A link to another span."""

    trace: int
    span: int
    attributes: Mapping[str, Any] | None


def describe(
    *, trace: int, span: int, kind: str, scope: str, version: str | None = None, parent: int = 0,
    attributes: Mapping[str, Any] | None = None, events: Sequence[Event] = (), links: Sequence[Link] = (),
    status: str = "unset", description: str | None = None,
) -> str:  # fmt: skip
    """Return the JSON of one span; values without a JSON form become text."""
    whole: dict[str, Any] = {"trace": f"{trace:032x}", "span": f"{span:016x}", "kind": kind, "scope": {"name": scope}}
    if version:
        whole["scope"]["version"] = version
    if parent:
        whole["parent"] = f"{parent:016x}"
    if attributes:
        whole["attributes"] = dict(attributes)
    if events:
        whole["events"] = [_with(e.attributes, name=e.name, time_ns=e.time_ns) for e in events]
    if links:
        whole["links"] = [_with(to.attributes, trace=f"{to.trace:032x}", span=f"{to.span:016x}") for to in links]
    if status != "unset":
        whole["status"] = {"code": status, **({"description": description} if description else {})}
    try:
        text = _encode(whole)
    except (TypeError, ValueError):  # a key that is no text, or a number that is not finite
        text = _encode(_finite(whole))
    if "\\ud" in text:  # lone surrogates; pairs stay
        text = plain(json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False))
    return text


def signed(identity: int) -> int:
    """Return a 64-bit id as the column's signed number."""
    return identity - (1 << 64) if identity >> 63 else identity


def _with(attributes: Mapping[str, Any] | None, **entries: Any) -> dict[str, Any]:
    return entries | ({"attributes": dict(attributes)} if attributes else {})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {plain(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
