"""``loader.num_workers``: a number of workers per rank, or the bounds of autoscaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rayio.schema.fields import JsonSchema, Reads, RefusedError, Seconds, Section, refusal, whole

#: The most workers of a rank: each is a process or a thread.
MAX_WORKERS = 4096


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise RefusedError("must be a number greater than 0 and at most 1, such as 0.05")
    return float(value)


_Share = Annotated[float, Reads(_share, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})]


class Autoscaled(Section):
    """Workers of each rank come and go with its load, between ``min`` and ``max``."""

    min: Annotated[int, whole(1, MAX_WORKERS)] = Field(description="Workers per rank at the start, and at least.")
    max: Annotated[int, whole(1, MAX_WORKERS)] = Field(description="Workers per rank at most.")
    wait: _Share = Field(
        0.05, description="Share of time that a rank may wait for batches; above it, workers are added."
    )
    busy: _Share = Field(0.8, description="Share of the workers that may be busy; below it, workers are removed.")
    every: Seconds = Field(2.0, description="The least time over which the load is measured.")
    calm: Seconds = Field(
        30.0,
        description="Time for which fewer workers must suffice before some go, and pause after workers were added "
        "in vain. A wrong change doubles it.",
    )
    start: Seconds = Field(
        0.0, description="Start time of a worker that is not an actor; on Ray, actors take their real time."
    )

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.max < self.min:
            raise refusal(RefusedError(f"must be at least min, which is {self.min}", "max", self.max))
        for name in ("every", "calm"):
            if not getattr(self, name) > 0:
                raise refusal(RefusedError("must be greater than 0, such as 2 s", name, getattr(self, name)))
        return self


def _workers(value: Any) -> Any:
    if isinstance(value, Autoscaled):
        return value
    if isinstance(value, Mapping):
        return Autoscaled.model_validate(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RefusedError("must be a whole number of at least 0, or {min: ..., max: ...}")
    if value > MAX_WORKERS:
        raise RefusedError(f"must be at most {MAX_WORKERS}")
    return value


def _schema() -> JsonSchema:
    return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_WORKERS}, Autoscaled.model_json_schema()]}


#: The type of ``loader.num_workers``.
NumWorkers = Annotated[int | Autoscaled, Reads(_workers, _schema)]


def most(workers: int | Autoscaled) -> int:
    """Return the workers of a rank; with autoscaling, the most."""
    return workers.max if isinstance(workers, Autoscaled) else workers
