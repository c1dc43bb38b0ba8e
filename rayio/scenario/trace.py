"""The section ``trace``: the detail of recorded spans."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from rayio.schema.fields import Flag, Section, choice, without_removed


class Trace(Section):
    """The detail of recorded spans."""

    level: Annotated[
        Literal["none", "step", "batch", "sample", "io"], choice("none", "step", "batch", "sample", "io")
    ] = Field(
        "batch",
        description=(
            "none: the ranks' lives only. step: the ranks' spans. batch: every role's. sample: besides, one span per "
            "sample read. io: besides those of batch, one span per request to storage."
        ),
    )
    resolution: Annotated[Literal["1 ns", "1 us"], choice("1 ns", "1 us")] = Field(
        "1 ns", description="What times in spans are cut down to."
    )
    live: Flag = Field(
        True,
        description=(
            "Whether a run tells how it goes while it goes: to rayio top and, on Ray, as metrics for Prometheus."
        ),
    )

    @model_validator(mode="wrap")
    @classmethod
    def _earlier_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        reason = "rayio no longer has this key (it keeps no spans of Ray tasks); remove it"
        return without_removed(data, {"tasks": ((False,), reason)}, handler)

    @property
    def resolution_ns(self) -> int:
        """Return the resolution of times in spans."""
        return 1 if self.resolution == "1 ns" else 1000

    @property
    def captures(self) -> bool:
        """Return True if spans of other libraries (OpenTelemetry) are kept."""
        return self.level not in ("none", "step")

    @property
    def is_itemised(self) -> bool:
        """Return True if storage reports each of its requests."""
        return self.level in ("sample", "io")
