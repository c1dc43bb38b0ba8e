"""The section ``failures``: what dies and when, how long recovery takes, and where training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rayio.place import MAX_STEPS
from rayio.schema.fields import (
    JsonSchema,
    Natural,
    Reads,
    RefusedError,
    Section,
    choice,
    each,
    quantity,
    refusal,
    whole,
)
from rayio.units import SECONDS, format_seconds

#: Failures that end the attempt: every rank starts again.
ENDING = ("rank", "node")
#: Processes that Ray starts again by itself, while the ranks wait.
REPLACED = ("reader", "queue", "checkpoint_writer", "barrier")
#: Processes without which a run breaks off. It goes on in its run directory, in a further attempt.
BREAKING = ("driver", "collector")
KINDS = (*ENDING, *REPLACED, *BREAKING)
#: What a run has once, so that its name has no number.
SINGLE = ("barrier", *BREAKING)
#: A kind that is no process of the run, and what a scenario says instead.
NO_PROCESS = {
    "storage": "storage is no process of a run; an outage is a fault of it: storage.faults: {errors: [{at: 10 s, "
    "seconds: 5 s}]}, or stalls instead of errors"
}
#: The longest time of a recovery: a day.
MOST_SECONDS = 86400.0
MOST_EVENTS = 10_000


class FailureEvent(Section):
    """One failure at a time of the run, or at a step."""

    kind: Annotated[str, choice(*KINDS)] = Field(
        description="What dies. The death of a rank or a node ends the attempt. Without driver or collector the run "
        "breaks off, and goes on in a further attempt. Ray replaces the others by itself, so they can be killed on Ray "
        "only."
    )
    number: Natural = Field(
        0, description="Which of them, from 0. Workers are counted rank by rank: with w workers, worker 1 of rank 2 is "
        "2 × w + 1."
    )  # fmt: skip
    at: Annotated[float | None, quantity(SECONDS, or_none=True)] = Field(
        None, description="Time since the start of the first rank. One of at and at_step is given."
    )
    at_step: Annotated[int | None, whole(0, MAX_STEPS, or_none=True)] = Field(
        None,
        description="Number of completed steps of the rank, counted over epochs, after which it dies; of a node its "
        "first rank. Only for ranks and nodes.",
    )

    @property
    def name(self) -> str:
        """Its name, such as ``rank 3``."""
        return named(self.kind, self.number)

    @property
    def planned(self) -> str:
        """Its name and time, such as ``rank 3 at 20 s`` or ``rank 3 at step 40``."""
        when = format_seconds(self.at) if self.at is not None else f"step {self.at_step}"
        return f"{self.name} at {when}"

    def refusal(self) -> str:
        """Return the reason why this event is impossible in any scenario; empty if it is possible."""
        if (self.at is None) == (self.at_step is None):
            return "needs at (a time of the run) or at_step (a step of the rank), and not both"
        if self.at_step is not None and self.kind not in ENDING:
            return f"at_step is for kind rank or node; give kind {self.kind} a time (at)"
        return ""


def named(kind: str, number: int) -> str:
    """Return what dies in words; there is one barrier.

    >>> named("rank", 3), named("checkpoint_writer", 0), named("barrier", 0)
    ('rank 3', 'checkpoint writer 0', 'barrier')
    """
    return kind if kind in SINGLE else f"{kind.replace('_', ' ')} {number}"


def _events(value: Any) -> tuple[FailureEvent, ...]:
    if value is None or value == "none":
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(event, (Mapping, FailureEvent)) for event in value):
        raise RefusedError("must be a list of mappings with kind, number, and at or at_step")
    if len(value) > MOST_EVENTS:
        raise RefusedError(f"has {len(value)} events; at most {MOST_EVENTS} are possible, or give mtbf")
    return each(value, _event)


def _event(value: Any) -> FailureEvent:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in NO_PROCESS:
        raise RefusedError(f"kind={kind}: {NO_PROCESS[kind]}")
    event = FailureEvent.model_validate(value)
    if reason := event.refusal():
        raise RefusedError(reason)
    return event


def _events_schema() -> JsonSchema:
    events = {"type": "array", "items": FailureEvent.model_json_schema()}
    return {"anyOf": [events, {"const": "none"}, {"type": "null"}]}


_Recovery = Annotated[float, quantity(SECONDS, maximum=MOST_SECONDS)]


class Failures(Section):
    """Failures on purpose, and how the run survives these and others."""

    events: Annotated[tuple[FailureEvent, ...], Reads(_events, _events_schema)] = Field(
        (), description="Single failures."
    )
    mtbf: Annotated[float | None, quantity(SECONDS, positive=True, or_none=True)] = Field(
        None,
        description="Mean time between failures of one node, in exponential draws from the start of each attempt. n "
        "nodes fail n times as often.",
    )
    detect: _Recovery = Field(
        10.0, description="Time from a failure until it is noticed, on the virtual clock and with engine local. On Ray "
        "it is measured."
    )  # fmt: skip
    restart: _Recovery = Field(
        30.0, description="Time from there until all ranks run again, on the virtual clock and with engine local. On "
        "Ray it is measured."
    )  # fmt: skip
    policy: Annotated[
        Literal["from_checkpoint", "from_start", "fail"], choice("from_checkpoint", "from_start", "fail")
    ] = Field(
        "from_checkpoint",
        description="After the death of a rank or a node: all ranks go on from the newest complete checkpoint; they "
        "begin again; or the run fails.",
    )
    rejoin: _Recovery = Field(
        0.0, description="On Ray: longest time to wait for a lost node to come back. After it the run uses the nodes "
        "that are left."
    )  # fmt: skip
    max_restarts: Annotated[int, whole(0, 1_000_000)] = Field(
        1000, description="Restarts after which a further failure ends the run."
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Failures:
        if not self.events and self.mtbf is None and self.model_fields_set <= {"events", "mtbf"}:
            raise refusal(RefusedError("has no failure; give events, mtbf or policy, or write none"))
        return self

    def killed_on_ray_only(self, *possible: str) -> Iterator[str]:
        """Yield a line for each event that an engine in one process cannot carry out; ``possible`` are more kinds."""
        for place, event in enumerate(self.events):
            if event.kind not in (*ENDING, *possible):
                yield (
                    f"failures.events[{place}].kind={event.kind}: only an actor on Ray can be killed; use the "
                    f"Ray engine, or kind {', '.join((*ENDING, *possible)[:-1])} or {(*ENDING, *possible)[-1]}"
                )

    @property
    def description(self) -> str:
        """The section in words, for a prediction."""
        parts = [f"mtbf {format_seconds(self.mtbf)} of a node"] if self.mtbf is not None else []
        parts += [f"{len(self.events)} event{'s' * (len(self.events) != 1)}"] if self.events else []
        return f"failures: {', '.join(parts)}" if parts else ""
