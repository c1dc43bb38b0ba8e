"""Span rows of a call to storage: requests, failed attempts, delays of layers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rayio.place import Where
from rayio.storage.base import ISSUED, Issued, Served
from rayio.storage.itemise import Samples, sample_rows
from rayio.trace.rows import Many
from rayio.trace.span import DELAY_LANE, RETRY_LANE, SPANS


def parts_of(
    served: Served[Any], writer: int, at: Where, level: str, samples: Callable[[], Samples] | None
) -> Iterator[Many]:
    """Yield the rows of a call: failed attempts, delays, and at finer levels its requests or its samples."""
    if served.retried is not None:
        yield failed(writer, at, served.retried)
    if served.delays:
        yield _delayed(writer, at, served)
    if served.issued is None:
        return
    if level == "io":
        yield Many(writer, at, served.issued.rows, served.issued.files)
    elif samples is not None:
        rows, files = sample_rows(served.issued, samples())
        yield Many(writer, at, rows, files, ("sample",), SPANS["sample"].lanes["rank"])


def failed(writer: int, at: Where, retried: Issued) -> Many:
    """Return the spans ``retry`` of failed attempts."""
    attributes = tuple(_as_json(why=answer) for answer in retried.answers)
    return Many(writer, at, retried.rows, retried.files, ("retry",) * len(attributes), RETRY_LANE, attributes)


def _delayed(writer: int, at: Where, served: Served[Any]) -> Many:
    """Return the spans ``delay`` of layers."""
    rows, kinds = np.zeros(len(served.delays), ISSUED), dict[str, int]()
    for row, (start, end, cause, why) in zip(rows, served.delays, strict=True):
        text = _as_json(cause=cause, why=why)
        row["start"], row["end"], row["offset"], row["kind"] = start, end, -1, kinds.setdefault(text, len(kinds))
    return Many(writer, at, rows, [""], ("delay",) * len(kinds), DELAY_LANE, (*kinds,))


def _as_json(**words: str) -> str:
    return json.dumps(words, separators=(",", ":"), ensure_ascii=False)
