"""Requests to storage that failed and were retried, and those that storage refused as too many."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rayio.analyze.delays import attribute_of
from rayio.analyze.intervals import Occupied
from rayio.analyze.part import Part, groups
from rayio.analyze.stages import STAGES
from rayio.analyze.timeline import Ints, integers, is_text, texts
from rayio.records.explained import LossRow, Throttled
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("name", "role", "index", "start_ns", "duration_ns", "requests", "attributes")


class Retried(NamedTuple):
    """The requests of a run that failed and were retried."""

    number: int
    #: Their time, in s.
    seconds: float
    #: Those that storage refused as too many, by its answers.
    refused: Mapping[str, int]


def retried(spans: pa.Table | Slices) -> Retried | None:
    """Return the number and time of retried requests; None where there was none."""
    slices = Slices.of(spans)
    if not (number := slices.names.get("retry", 0)):
        return None
    took, attributes = 0, Counter[str]()
    for part in slices.parts("name", "duration_ns", "attributes"):
        again = np.flatnonzero(is_text(part, "name", "retry"))
        took += int(integers(part, "duration_ns", again).sum())
        attributes.update(part["attributes"].take(again).to_pylist())
    refused = Counter[str]()
    for text, times in attributes.items():
        if why := refusal(text):
            refused[why] += times
    return Retried(number, took / 1e9, refused)


def refusal(attributes: str) -> str:
    """Return storage's answer to a request that it refused as too many, from a span's attributes; else empty."""
    why = attribute_of(attributes, "why")
    return why if why.startswith("429") or why.endswith(" SlowDown") else ""


class _Refused(NamedTuple):
    """Refused reads of a slice: attempts by answer, requests served, and ns."""

    answers: Counter[str]
    served: int
    reading: int
    #: Waits of workers for retries after refusals, and for all retries.
    waited: int
    made_again: int


class Throttling:
    """Reads that storage refused as too many, and the wait for their retries, summed up by slices."""

    def __init__(self, slices: Slices) -> None:
        self._is_any = slices.names.get("retry", 0) > 0
        self.columns = _COLUMNS if self._is_any else ()
        self._sum = _Refused(Counter(), 0, 0, 0, 0)

    def of(self, part: Part) -> _Refused | None:
        """Return the sums of a slice; None for a run without retries."""
        if not self._is_any:
            return None
        spans, answers = part.spans, Counter[str]()
        of_workers = is_text(spans, "role", "reader", "rank")
        reads = np.flatnonzero(is_text(spans, "name", "read") & of_workers)
        tries = np.flatnonzero(is_text(spans, "name", "retry") & of_workers)
        recorded = {text for chunk in spans.column("attributes").chunks for text in chunk.dictionary.to_pylist()}
        whys = {text: why for text in sorted(recorded) if (why := refusal(text))}
        answer = texts(spans, "attributes", (*whys,), tries)
        for why, number in zip(whys.values(), np.bincount(answer[answer >= 0], minlength=len(whys)), strict=True):
            answers[why] += int(number)
        reading = integers(spans, "duration_ns", reads)
        served = integers(spans, "requests", reads)
        return _Refused(
            answers, int(served.sum()), int(reading.sum()), _waited(part, tries[answer >= 0]), _waited(part, tries)
        )

    def add(self, sums: _Refused | None) -> None:
        """Add the sums of a slice."""
        if sums is not None:
            self._sum = _Refused(*map(operator.add, self._sum, sums))

    def result(self, table: Sequence[LossRow]) -> Throttled | None:
        """Return the sums, with their part of exposed data loading in a ``table`` of losses; None without refusals.

        ``binds`` is set by the caller, which knows whether ranks wait for storage.
        """
        answers, served, reading, waited, made_again = self._sum
        if not answers:
            return None
        of_data = math.fsum(row.seconds for row in table if row.cause in STAGES)
        retry = next((row.seconds for row in table if row.cause == "retry"), 0.0)
        part = waited / made_again if made_again else 1.0
        return Throttled(
            refused=answers.total(),
            served=served,
            answers=dict(answers),
            waited_seconds=waited / 1e9,
            read_seconds=reading / 1e9,
            read_share=waited / reading if reading else None,
            data_wait_share=part * retry / of_data if of_data else None,
            binds=False,
        )


def _waited(part: Part, tries: Ints) -> int:
    group = groups(part.spans, texts(part.spans, "role", ("reader", "rank"), tries), tries)
    alone = Occupied.union(group, part.begin[tries], part.over[tries])
    return int((alone.end - alone.start).sum())
