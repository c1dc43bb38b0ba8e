"""The section ``costs``: what a real engine adds, so that the virtual one can charge it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayio.scenario.fields import Seconds, Section, quantity
from rayio.units import RATE


class Costs(Section):
    """What a real engine adds to each of these, in seconds per call; the virtual engine charges them."""

    lease: Seconds = Field(
        0.0,
        description="From when the window lets a step begin to when its reader has the lease; a busy reader hides it.",
    )
    put: Seconds = Field(0.0, description="What a lease keeps its reader busy for beyond reading and decoding.")
    take: Seconds = Field(
        0.0, description="From when a reader is done to when its rank has the batch; a rank that computes hides it."
    )
    transfer_latency: Seconds = Field(0.0, description="Time of each batch's way from a reader to its rank.")
    transfer_bandwidth: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None, description="Bytes per second from a reader to its rank; none is free."
    )
    barrier: Seconds = Field(
        0.0, description="From the last announcement of a step to its answer; the compute hides it."
    )
    step: Seconds = Field(
        0.0, description="What every step takes its rank beyond all that is asked for: late wake-ups, messages."
    )
    checkpoint: Seconds = Field(
        0.0, description="What a checkpoint takes its rank beyond what the model of storage says: messages, fsync."
    )
