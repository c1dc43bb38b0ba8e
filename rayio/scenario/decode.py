"""Decoding as a scenario says it: a time that is slept, or work that a processor really does on the bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.kinds import DECODES
from rayio.scenario.distribution import Distribution, Of
from rayio.scenario.fields import Positive, Reads, RefusedError, Section, choice, quantity
from rayio.units import RATE, SECONDS

#: Beyond this zlib's matches, not the data, decide how long inflating takes.
MAX_RATIO = 16


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= MAX_RATIO:
        raise RefusedError(f"must be a number from 1 to {MAX_RATIO}")
    return float(value)


class Work(Section):
    """Decoding that is really done, by the worker that has read the batch; it takes what it takes."""

    rate: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None, description="Bytes of samples per second of one reader: what it costs on modelled storage."
    )
    kind: str


class Checksum(Work):
    """Every byte of every sample goes through a checksum, ``passes`` times."""

    kind: Literal["checksum"] = "checksum"
    algorithm: Annotated[Literal["crc32", "sha256"], choice("crc32", "sha256")] = Field(
        "sha256", description="Which checksum."
    )
    passes: Positive = Field(1, description="Times that each sample goes through it.")


class Decompress(Work):
    """For every sample as many bytes of zlib data are inflated as it has, to ``ratio`` times that.

    A sample's own bytes are random and do not compress, so that no storage can cheat; in their place stand data made
    for the ratio.
    """

    kind: Literal["decompress"] = "decompress"
    ratio: Annotated[float, Reads(_ratio, {"type": "number", "minimum": 1, "maximum": MAX_RATIO})] = Field(
        2.0, description="Bytes that come out for each byte that goes in."
    )


Decode = Annotated[Distribution | Work, Of(SECONDS, DECODES)]
