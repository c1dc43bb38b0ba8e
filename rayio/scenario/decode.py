"""Decoding as a scenario says it: a time that is slept, or work that a processor really does on the bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.scenario.distribution import Constant, Exponential, LogNormal, Normal, Of, Uniform
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

    #: Bytes of samples per second of one worker: what it costs on modelled storage, where there are no bytes.
    rate: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = None


class Checksum(Work):
    """Every byte of every sample goes through a checksum, ``passes`` times."""

    kind: Literal["checksum"] = "checksum"
    algorithm: Annotated[Literal["crc32", "sha256"], choice("crc32", "sha256")] = "sha256"
    passes: Positive = 1


class Decompress(Work):
    """For every sample as many bytes of zlib data are inflated as it has, to ``ratio`` times that.

    A sample's own bytes are random and do not compress, so that no storage can cheat; in their place stand data made
    for the ratio.
    """

    kind: Literal["decompress"] = "decompress"
    ratio: Annotated[float, Reads(_ratio, {"type": "number", "minimum": 1, "maximum": MAX_RATIO})] = 2.0


WORK: dict[str, type[Section]] = {"checksum": Checksum, "decompress": Decompress}
Decode = Annotated[
    Annotated[
        Constant | Normal | LogNormal | Uniform | Exponential | Checksum | Decompress, Field(discriminator="kind")
    ],
    Of(SECONDS, WORK),
]
