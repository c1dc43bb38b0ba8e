"""Requests to storage that failed and were made again, and how many of them storage refused as too many."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rayio.analyze.timeline import integers
from rayio.trace.slices import Slices
from rayio.units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa


def retried(spans: pa.Table | Slices) -> str | None:
    """Say how many requests failed and were made again, and what that took; None where there was none."""
    slices = Slices.of(spans)
    if not (number := slices.names.get("retry", 0)):
        return None
    took, answers = 0, Counter[str]()
    for part in slices.parts("name", "duration_ns", "attributes"):
        again = part.filter(pc.equal(part["name"], "retry"))
        took += int(integers(again, "duration_ns").sum())
        answers.update(again["attributes"].to_pylist())
    many = "request to storage was" if number == 1 else "requests to storage were"
    told = f"{number} {many} made again after a failure, which took {format_seconds(took / 1e9)} in all"
    return f"{told} (spans named retry){_throttled(answers)}"


def _throttled(answers: Counter[str]) -> str:
    """Say, as the end of a sentence, how many attempts storage refused as too many, and what it answered them."""
    refused = Counter[str]()
    for said, number in answers.items():
        why = json.loads(said)["why"] if said else ""  # which runs of version 0.1 do not say
        if why.startswith("429") or why.endswith(" SlowDown"):
            refused[why] += number
    words = ", ".join(why for why, _ in refused.most_common())
    return f"; storage throttled {refused.total()} of them ({words})" if refused else ""
