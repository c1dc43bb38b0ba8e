"""The kinds of values a scenario is made of: each reads what a person wrote, refuses in plain words, writes it back.

Pydantic checks structure (unknown keys, missing keys); every leaf is read here, so that messages stay ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from rayio.signals import deferred
from rayio.units import BYTES, RATE, SECONDS, Dimension

JsonSchema = dict[str, Any]
T = TypeVar("T")

#: The largest whole number that a key may have: what 64 bits hold.
MAX_WHOLE = (1 << 63) - 1


class Section(BaseModel):
    """One mapping of a scenario: immutable, hashable, and closed to unknown keys."""

    #: What checks values is built when the first are checked: actors, which get values, never do.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    #: Keys that are documented and whose part is not built: refused as such, not as unknown.
    keys_not_yet: ClassVar[frozenset[str]] = frozenset()
    #: Options of a format that change how files are read, and not the files: an existing dataset goes with any of them.
    reading: ClassVar[frozenset[str]] = frozenset()

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """Return plain values; a signal waits meanwhile, because Pydantic would turn it into another error."""
        with deferred():
            return super().model_dump(**how)

    @classmethod
    def unwritten(cls) -> tuple[str, ...]:
        """Fields that are no keys."""
        return ()

    @classmethod
    def known_keys(cls) -> list[str]:
        """Every key that may be written here."""
        return [*cls.model_fields]

    def contradictions(self) -> Iterator[str]:
        """Values of this section that cannot be together: a line each, which begins with a key and its value."""
        yield from ()

    def idle(self) -> Iterator[str]:
        """Keys of this section that do nothing, as its other keys have it: a line each."""
        yield from ()


class RefusedError(ValueError):
    """Why a value cannot be, as the end of a sentence that begins with key and value.

    ``key`` is the part of the value that is meant, and ``value`` what it is, when that is not the whole.
    """

    def __init__(self, reason: str, key: str = "", value: Any = None) -> None:
        super().__init__(reason)
        self.key = key
        self.value = value


class NotYetError(ValueError):
    """A documented value whose part is not built; its text is that value, ``key`` the part of the whole it is.

    ``instead`` are the values that can be chosen.
    """

    def __init__(self, value: str, key: str = "", instead: Iterable[Any] = ()) -> None:
        there = listed([*instead])
        super().__init__(f"{value}; there is {there}" if there else value)
        self.key = key


def refusal(error: ValueError) -> PydanticCustomError:
    """Wrap a reason so that pydantic passes it on untouched, with the place it belongs to."""
    if isinstance(error, NotYetError):
        return PydanticCustomError("not_yet", "{reason}", {"reason": str(error), "key": error.key})
    key, value = (error.key, error.value) if isinstance(error, RefusedError) else ("", None)
    return PydanticCustomError("refused", "{reason}", {"reason": str(error), "key": key, "value": value})


def failures(error: ValueError, value: Any, *place: int | str) -> list[InitErrorDetails]:
    """Return why a part, at ``place`` in a whole, is refused; ``value`` is what was written there."""
    if not isinstance(error, ValidationError):
        return [InitErrorDetails(type=refusal(error), loc=place, input=value)]
    return [
        InitErrorDetails(
            type=PydanticCustomError(detail["type"], "{reason}", detail["ctx"])
            if "reason" in detail.get("ctx", {})
            else detail["type"],
            loc=(*place, *detail["loc"]),
            input=detail["input"],
            ctx=detail.get("ctx", {}),
        )
        for detail in error.errors(include_url=False)
    ]


def each(values: Iterable[Any], read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the values of a list as read.

    Raises:
        ValidationError: every refused value, with its number.
    """
    made, errors = [], []
    for number, value in enumerate(values):
        try:
            made.append(read(value))
        except ValueError as error:
            errors += failures(error, value, number)
    if errors:
        raise ValidationError.from_exception_data("list", errors)
    return tuple(made)


def besides(handler: Callable[[Any], T], data: Any, refused: Sequence[RefusedError]) -> T:
    """Return a section as ``handler`` makes it of ``data``.

    Raises:
        ValidationError: what is refused already, and all that ``handler`` refuses.
    """
    if not refused:
        return handler(data)
    errors = [InitErrorDetails(type=refusal(error), loc=(), input=error.value) for error in refused]
    try:
        handler(data)
    except ValidationError as error:
        errors += failures(error, data)
    raise ValidationError.from_exception_data("section", errors)


def without_removed(data: Any, removed: Mapping[str, tuple[tuple[Any, ...], str]], handler: Callable[[Any], T]) -> T:
    """Return a section without keys of earlier versions, which run directories carry with their defaults.

    ``removed`` has, by key, the values that are accepted and why any other is refused. ``handler`` makes the section.
    """
    if not isinstance(data, Mapping):
        return handler(data)
    refused = [
        RefusedError(reason, key, data[key])
        for key, (accepted, reason) in removed.items()
        if key in data and data[key] not in accepted
    ]
    return besides(handler, {key: value for key, value in data.items() if key not in removed}, refused)


def refusing(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a validator that passes on the refusals of ``read``, and those of sections within it, unchanged."""

    def validate(value: Any) -> Any:
        try:
            return read(value)
        except ValidationError:
            raise
        except ValueError as error:
            raise refusal(error) from None

    return validate


@dataclass(frozen=True, eq=False)
class Reads:
    """Annotation of a leaf: how it is read, what an editor may accept, and how it is written back to YAML."""

    read: Callable[[Any], Any]
    #: What an editor may accept; a function where it takes looking up.
    schema: JsonSchema | Callable[[], JsonSchema]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        writes = self.write and core_schema.plain_serializer_function_ser_schema(self.write, when_used="json")
        return core_schema.no_info_plain_validator_function(refusing(self.read), serialization=writes)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return dict(self.schema() if callable(self.schema) else self.schema)


def _in_digits(value: Any, minimum: int) -> str:
    """Return how to write a whole number that YAML reads as text or a fraction, such as 1e3 or 1000.0; else nothing."""
    try:
        number = float(value) if isinstance(value, (str, float)) else math.nan
    except ValueError:
        return ""
    is_exact = number.is_integer() and minimum <= number <= 1 << 53
    return f"; write {int(number)}" if is_exact else ""


def whole(
    minimum: int,
    maximum: int = MAX_WHOLE,
    *,
    or_word: str | None = None,
    or_none: bool = False,
) -> Reads:
    """Read a whole number between two others, a word, or none."""
    words = [f"or {w}" for w in (or_word, "none" if or_none else None) if w]
    allowed = " ".join([f"must be a whole number of at least {minimum}", *words])

    def read(value: Any) -> Any:
        if or_none and (value is None or value == "none"):
            return None
        if or_word is not None and value == or_word:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise RefusedError(f"{allowed}{_in_digits(value, minimum)}")
        if value > maximum:
            raise RefusedError(f"must be at most {maximum}")
        return value

    number: JsonSchema = {"type": "integer", "minimum": minimum, "maximum": maximum}
    others: list[JsonSchema] = [{"const": w} for w in (or_word, "none" if or_none else None) if w]
    if or_none:
        others.append({"type": "null"})
    return Reads(read, {"anyOf": [number, *others]} if others else number)


def quantity(
    dimension: Dimension,
    *,
    positive: bool = False,
    integer: bool = False,
    maximum: float | None = None,
    least: float = 0.0,
    or_word: str | None = None,
    or_none: bool = False,
) -> Reads:
    """Read a number with a unit into the base unit, or one word, or none; above 0 it is ``least``, or more."""
    smallest = max(dimension.least, least)

    def read(value: Any) -> Any:
        if or_none and (value is None or value == "none"):
            return None
        if or_word is not None and value == or_word:
            return value
        number = dimension.bounded(value)
        if maximum is not None and number > maximum:
            raise RefusedError(f"must be at most {dimension.exact(maximum)}")
        if integer and isinstance(value, float) and not value.is_integer():
            raise RefusedError(f"not a whole number of {dimension.name}")
        if positive and (round(number) if integer else number) <= 0:
            raise RefusedError(f"must be greater than 0, such as {dimension.example}")
        if 0 < number < smallest:
            or_nothing = "0, or " if least and not positive else ""
            raise RefusedError(f"must be {or_nothing}at least {dimension.exact(smallest)}")
        return round(number) if integer else number

    def write(value: Any) -> Any:
        return value if value is None or isinstance(value, str) else dimension.exact(value)

    most = dimension.most if maximum is None else maximum
    number: JsonSchema = {"type": "number", "exclusiveMinimum" if positive else "minimum": 0, "maximum": most}
    words: list[JsonSchema] = [{"const": word} for word in (or_word, "none" if or_none else None) if word]
    schema = {"anyOf": [number, dimension.schema, *words, *([{"type": "null"}] if or_none else [])]}
    return Reads(read, schema, write)


def choice(*allowed: Any, later: tuple[Any, ...] = ()) -> Reads:
    """Read one of ``allowed``; a value in ``later`` (or of a type in it) is documented and refused as not built yet."""

    def read(value: Any) -> Any:
        for word in allowed:
            if value == word and type(value) is type(word):
                return word
        for word in later:
            if isinstance(value, word) if isinstance(word, type) else (value == word and type(value) is type(word)):
                raise NotYetError(show(value), instead=allowed)
        if value is False and "none" in allowed:
            raise RefusedError("write none (YAML reads off and no as false)")
        raise RefusedError(f"must be {listed(allowed)}")

    return Reads(read, {"enum": list(allowed)})


def text() -> Reads:
    """Read text, which may be empty."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise RefusedError("must be text (quote it)")
        if len(value) > MAX_TEXT:
            raise RefusedError(f"has {len(value)} characters; {MAX_TEXT} are the most")
        return value

    return Reads(read, {"type": "string", "maxLength": MAX_TEXT})


#: Characters of a text, such as where numbers come from.
MAX_TEXT = 10_000
#: Characters of a name: with the time behind it, it must be one of a folder.
MAX_NAME = 200


def file_name() -> Reads:
    """Read a name that can be part of a file's name on any system."""

    def read(value: Any) -> Any:
        if isinstance(value, (int, float, date)):
            raise RefusedError("must be text (quote it)")
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise RefusedError("must be letters, digits, dots, dashes and underscores (runs/ has folders of that name)")
        if len(value) > MAX_NAME:
            raise RefusedError(f"has {len(value)} characters; {MAX_NAME} are the most (runs/ has folders of that name)")
        return value

    pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    return Reads(read, {"type": "string", "pattern": pattern, "maxLength": MAX_NAME})


def none_is_null(value: Any) -> Any:
    """Read the word none as no value at all."""
    return None if value == "none" else value


def boolean() -> Reads:
    """Read true or false, and nothing that merely looks like it."""
    return choice(True, False)


#: The least and the most that may happen per second: what follows must fit into clocks of 64 bits.
LEAST, MOST = 1e-6, 1e12


def per_second(*, or_none: bool = False) -> Reads:
    """Read how often something may happen per second, or none."""
    allowed = f"must be a number per second from {LEAST:f} to 10^12{', or none' * or_none}"

    def read(value: Any) -> float | None:
        if or_none and (value is None or value == "none"):
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST <= value <= MOST:
            raise RefusedError(allowed)
        return float(value)

    number: JsonSchema = {"type": "number", "minimum": LEAST, "maximum": MOST}
    return Reads(read, {"anyOf": [number, {"const": "none"}, {"type": "null"}]} if or_none else number)


#: What stands before the host of an address, where people write passwords; they may hold anything.
_CREDENTIALS = re.compile(r"://.*@")
#: What follows an address, where links that are signed have their token.
_QUERY = re.compile(r"(://[^?#\s]*[?#])\S*=\S*")
#: Keys that are none of a scenario's, and of which the value is nobody's business.
_SECRETS = re.compile(r"secret|password|token|credential|access_key", re.IGNORECASE)


def unless_secret(key: Any, value: Any) -> Any:
    """A key's value, or three stars for one that a message must not show."""
    return "***" if isinstance(key, str) and _SECRETS.search(key) else value


def show(value: Any) -> str:
    """Write a value as YAML would have it, on one short line, for a message."""
    match value:
        case None:
            shown = "null"
        case bool():
            shown = str(value).lower()
        case Mapping():
            shown = "{" + ", ".join(f"{show(k)}: {show(unless_secret(k, v))}" for k, v in value.items()) + "}"
        case list() | tuple():
            shown = "[" + ", ".join(map(show, value)) + "]"
        case str():
            value = _QUERY.sub(r"\1***", _CREDENTIALS.sub("://***@", value))
            shown = value if value and value.isprintable() and value == value.strip() else repr(value)
        case int() if value.bit_length() > 256:  # Python refuses to write very long ones
            shown = f"<a number of {value.bit_length()} bits>"
        case _:
            shown = str(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def listed(words: tuple[Any, ...] | list[Any]) -> str:
    """Join words for a sentence: ``a, b or c``."""
    shown = [show(word) for word in words]
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


Name = Annotated[str, file_name()]
Text = Annotated[str, text()]
Flag = Annotated[bool, boolean()]
Positive = Annotated[int, whole(1)]
Natural = Annotated[int, whole(0)]
Bytes = Annotated[int, quantity(BYTES, positive=True, integer=True)]
Seconds = Annotated[float, quantity(SECONDS)]
Rate = Annotated[float, quantity(RATE, positive=True)]
PerSecond = Annotated[float, per_second()]
