"""How often something is due."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rayio.schema.fields import RefusedError, Section, refusal, whole


class Every(Section):
    """When something is due: after every n steps (counted over epochs) or after every n epochs."""

    keys_not_yet = frozenset({"seconds"})
    steps: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Steps from one occasion to the next, counted over epochs. One of steps and epochs is given."
    )
    epochs: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Epochs from one occasion to the next. One of steps and epochs is given."
    )

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise refusal(RefusedError("must be {steps: n} or {epochs: n}"))
        return self
