"""Spans of other libraries: where in the run they are, and as JSON what our columns cannot say of them.

The object in ``attributes`` has the keys ``trace`` and ``span`` (hex, 32 and 16 digits), ``kind`` (``internal``,
``server``, ``client``, ``producer``, ``consumer``), ``scope`` (``name``, and ``version`` where given), and where there
are any: ``parent`` (hex, 16 digits), ``attributes`` (an object), ``events`` (``name``, ``time_ns``, ``attributes``),
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


def plain(said: Any) -> str:
    """What a library says as text that can be stored; names of files may have bytes that are no characters."""
    try:
        return str(said).encode("utf-8", "replace").decode()
    except Exception:  # its own, and its author's to mend: the run's other spans do not go with it
        return f"<{type(said).__name__}>"


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=plain).encode


class Here(NamedTuple):
    """Which role does what, while another library's code runs on its behalf."""

    writer: int
    place: tuple[int, int, int, int]


#: Set while the library of a format reads a batch.
HERE: ContextVar[Here | None] = ContextVar("rayio_here", default=None)


def during(here: Here, function: Callable[[A], T]) -> Callable[[A], T]:
    """Wrap ``function``: spans that other libraries record in it belong to this role and place."""

    def called(argument: A) -> T:
        token = HERE.set(here)
        try:
            return function(argument)
        finally:
            HERE.reset(token)

    return called


class Event(NamedTuple):
    """Something that happened at one time of a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] | None


class Link(NamedTuple):
    """Another span that a span has to do with."""

    trace: int
    span: int
    attributes: Mapping[str, Any] | None


def describe(
    *, trace: int, span: int, kind: str, scope: str, version: str | None = None, parent: int = 0,
    attributes: Mapping[str, Any] | None = None, events: Sequence[Event] = (), links: Sequence[Link] = (),
    status: str = "unset", description: str | None = None,
) -> str:  # fmt: skip
    """Write the JSON of one span; a value that JSON has no word for is written as text."""
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
        whole["links"] = [_with(one.attributes, trace=f"{one.trace:032x}", span=f"{one.span:016x}") for one in links]
    if status != "unset":
        whole["status"] = {"code": status, **({"description": description} if description else {})}
    try:
        text = _encode(whole)
    except (TypeError, ValueError):  # a key that is no text, a number that is none
        text = _encode(_finite(whole))
    if "\\ud" in text:  # halves of characters; whole ones stay
        text = plain(json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False))
    return text


def signed(identity: int) -> int:
    """A 64-bit id as a column has it."""
    return identity - (1 << 64) if identity >> 63 else identity


def _with(attributes: Mapping[str, Any] | None, **entries: Any) -> dict[str, Any]:
    return entries | ({"attributes": dict(attributes)} if attributes else {})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {plain(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
