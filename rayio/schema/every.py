"""How often something is due."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rayio.schema.fields import RefusedError, Section, quantity, refusal, whole
from rayio.units import SECONDS


class Every(Section):
    """When something is due: after every n steps (counted over epochs), n epochs, or n seconds."""

    steps: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Steps from one occasion to the next, counted over epochs. One of the three keys is given."
    )
    epochs: Annotated[int | None, whole(1, or_none=True)] = Field(
        None,
        description="Epochs from one occasion to the next. One of the three keys is given. Without "
        "train.evaluate.every, evaluations have {epochs: 1}.",
    )
    seconds: Annotated[float | None, quantity(SECONDS, positive=True, or_none=True)] = Field(
        None,
        description="Time from one checkpoint to the next: each follows the first step that ends in a new interval, "
        "counted from the end of the first step. Only checkpoints have it. One of the three keys is given.",
    )
    first: Annotated[int | None, whole(1, or_none=True)] = Field(
        None,
        description="Steps until the first occasion, with steps; epochs, with epochs. Default: as many as from one to "
        "the next.",
    )

    @model_validator(mode="after")
    def _is_one_of_three(self) -> Self:
        if sum(value is not None for value in (self.steps, self.epochs, self.seconds)) != 1:
            raise refusal(RefusedError("must be {steps: n}, {epochs: n} or {seconds: n}"))
        if self.first is not None and self.seconds is not None:
            raise refusal(RefusedError("first goes with steps or epochs, not with seconds; leave it out"))
        return self

    @property
    def written(self) -> str:
        """The period as a user writes it."""
        first = "" if self.first is None else f", first: {self.first}"
        return self.by_clock or f"{{{'epochs' if self.epochs else 'steps'}: {self.epochs or self.steps}{first}}}"

    @property
    def by_clock(self) -> str:
        """The period in seconds, as a user writes it; empty without one."""
        return "" if self.seconds is None else f"{{seconds: {SECONDS.exact(self.seconds)}}}"
