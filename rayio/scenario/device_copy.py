"""The section ``train.device_copy``: copies of batches from host memory to accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rayio.kinds import LOADERS
from rayio.scenario.loader import Loader
from rayio.schema.fields import Flag, Rate, Section, quantity
from rayio.units import RATE


class DeviceCopy(Section):
    """The copy of each training batch to its accelerator, which takes its bytes / ``bandwidth``."""

    bandwidth: Rate = Field(description="Bytes per second of a rank's copies, such as 12 GB/s from pinned memory.")
    pageable_bandwidth: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None,
        description="Bytes per second of copies from memory that is not pinned (loader.pin_memory: false), such as "
        "5 GB/s; by default `bandwidth`.",
    )
    overlap: Flag = Field(
        False,
        description="Whether the next batch is taken and copied while a step computes (pinned memory, non_blocking, "
        "another stream). The first batch of an epoch is not.",
    )

    def rate(self, *, pinned: bool) -> float:
        """Return the bytes per second of copies from memory that is pinned or not."""
        return self.bandwidth if pinned or self.pageable_bandwidth is None else self.pageable_bandwidth

    def refusals(self, loader: Loader) -> Iterator[str]:
        """Yield messages about copies that are faster, or that overlap, where they cannot."""
        slow = self.pageable_bandwidth
        if slow is not None and slow > self.bandwidth:
            yield (
                f"train.device_copy.pageable_bandwidth={RATE.exact(slow)}: copies from pinned memory are at least as "
                f"fast, and bandwidth={RATE.exact(self.bandwidth)}; swap them"
            )
        if not self.overlap:
            return
        if slow is not None and not loader.pin_memory:
            yield (
                "train.device_copy.overlap=true: copies overlap with compute from pinned memory alone; use "
                "loader.pin_memory=true, or overlap: false"
            )
        if loader.num_workers == 0:
            yield (
                "train.device_copy.overlap=true: with loader.num_workers=0 the rank reads the next batch itself, after "
                "its compute; use overlap: false, or workers"
            )
        elif not getattr(LOADERS[loader.kind], "has_roles", False):
            yield f"not yet: train.device_copy.overlap=true with loader.kind={loader.kind}; use overlap: false"
