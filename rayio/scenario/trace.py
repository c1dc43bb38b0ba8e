"""The section ``trace``: the detail of recorded spans."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

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

    @model_validator(mode="before")
    @classmethod
    def _earlier_keys(cls, data: Any) -> Any:
        return without_removed(data, {"tasks": ((False,), "is removed: leave it out; spans of Ray tasks are not kept")})

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
