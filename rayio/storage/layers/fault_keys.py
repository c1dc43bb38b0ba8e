"""The keys of ``storage.faults``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rayio.schema.fields import (
    JsonSchema,
    Reads,
    RefusedError,
    Seconds,
    Section,
    choice,
    each,
    none_is_null,
    quantity,
    refusal,
)
from rayio.units import SECONDS

#: Errors that storage may return instead of a sample.
ERRORS = ("EIO", "ESTALE", "ETIMEDOUT", "500", "503")


def _number(value: Any, above: float, most: float, bounds: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= most:
        raise RefusedError(f"must be a number above {bounds}")
    return float(value)


def _share(value: Any) -> float:
    return _number(value, 0, 1, "0, and at most 1 (0.01 is one in a hundred)")


def _factor(value: Any) -> float:
    return _number(value, 1, 1e6, "1, at most 1000000")


_SHARE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_Rate = Annotated[float | None, Reads(lambda value: None if value is None else _share(value), _SHARE)]
_At = Annotated[float | None, quantity(SECONDS, or_none=True)]
_Lasts = Annotated[float, quantity(SECONDS, positive=True, maximum=86400.0)]


class Stall(Section):
    """Reads and writes that take longer: a share of them, or all that begin at a time."""

    rate: _Rate = Field(None, description="Share of samples read, and of files written, that stall; give this or at.")
    at: _At = Field(None, description="Time after the first read at which all of storage stalls, for reads and writes.")
    seconds: _Lasts = Field(description="How long a stall lasts.")


class Failure(Section):
    """Requests that storage answers with an error: a share of them, or all that begin at a time."""

    kind: Annotated[str, choice(*ERRORS)] = Field("EIO", description="The error.")
    rate: _Rate = Field(
        None, description="Share of samples read, and of files written, that fail in each attempt; give this or at."
    )
    at: _At = Field(None, description="Time after the first read from which on all reads and writes fail.")
    seconds: _Lasts = Field(1.0, description="How long they do, from at on.")
    after: Seconds = Field(0.0, description="Time until the error is answered, as of a timeout.")


class SlowFiles(Section):
    """Files that are read more slowly than the others, throughout the run."""

    share: Annotated[float, Reads(_share, _SHARE)] = Field(description="Share of files that are slow.")
    factor: Annotated[float, Reads(_factor, {"type": "number", "exclusiveMinimum": 1, "maximum": 1e6})] = Field(
        description="How many times as long their samples take to read."
    )


def _many(kind: type[Section]) -> Reads:
    def read(value: Any) -> tuple[Section, ...]:
        if value is None or value == "none":
            return ()
        if not isinstance(value, (list, tuple)) or not all(isinstance(fault, (Mapping, kind)) for fault in value):
            raise RefusedError(f"must be a list of mappings with {', '.join(kind.model_fields)}")
        return each(value, fault)

    def fault(value: Any) -> Section:
        fault = kind.model_validate(value)
        assert isinstance(fault, (Stall, Failure))
        if isinstance(fault, Failure) and fault.at is None and fault.seconds != 1.0:
            raise RefusedError("seconds is the length of errors at a time; give at, or leave it out")
        if (fault.rate is None) == (fault.at is None):
            raise RefusedError("needs rate (a share of samples and files) or at (a time of the run), and not both")
        return fault

    def schema() -> JsonSchema:
        return {"anyOf": [{"type": "array", "items": kind.model_json_schema()}, {"const": "none"}, {"type": "null"}]}

    return Reads(read, schema)


class FaultKeys(Section):
    """Faults that storage is given on purpose."""

    stalls: Annotated[tuple[Stall, ...], _many(Stall)] = Field((), description="Reads and writes that take longer.")
    errors: Annotated[tuple[Failure, ...], _many(Failure)] = Field((), description="Reads and writes that fail.")
    slow_files: Annotated[SlowFiles | None, BeforeValidator(none_is_null)] = Field(
        None, description="Files that are read more slowly."
    )
    on_error: Annotated[Literal["fail", "skip", "retry"], choice("fail", "skip", "retry")] = Field(
        "retry",
        description="Reaction of workers to an error: the run fails; the sample is left out of its batch, and counted; "
        "or it is read again after a pause, at most storage.max_attempts times in all. With skip a write is repeated.",
    )


def _or_none(value: Any) -> Any:
    if (
        isinstance(value, Mapping)
        and value.get("on_error", "retry") in ("fail", "skip", "retry")
        and {*value} <= {"on_error"}
    ):
        raise refusal(RefusedError("has no fault; give stalls, errors or slow_files, or write none"))
    if isinstance(value, Mapping):  # made here: as one of two alternatives, each error would be two
        return FaultKeys.model_validate(value)
    if value is None or value == "none" or isinstance(value, FaultKeys):
        return "none" if value is None else value
    raise refusal(RefusedError("must be none, or a mapping with stalls, errors, slow_files and on_error"))


class FaultOptions(Section):
    """The keys of faults in ``storage``."""

    faults: Annotated[FaultKeys | Literal["none"], BeforeValidator(_or_none)] = Field(
        "none", description="Faults that storage is given on purpose, real or modelled."
    )
