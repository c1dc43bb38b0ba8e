"""The section ``train.device_copy``: copies of batches from host memory to accelerators."""

from __future__ import annotations

from pydantic import Field

from rayio.schema.fields import Flag, Rate, Section


class DeviceCopy(Section):
    """The copy of each training batch to its accelerator, which takes its bytes / ``bandwidth``."""

    bandwidth: Rate = Field(description="Bytes per second of a rank's copies, such as 12 GB/s from pinned memory.")
    overlap: Flag = Field(
        False,
        description="Whether the next batch is taken and copied while a step computes (pinned memory, non_blocking, "
        "another stream). The first batch of an epoch is not.",
    )
