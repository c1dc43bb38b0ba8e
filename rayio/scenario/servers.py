"""``storage.model.servers``: the object servers of a modelled parallel file system, and how files are striped."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayio.schema.distribution import NO_TIME, SecondsDistribution
from rayio.schema.fields import Bytes, Rate, Seconds, Section, whole

#: The most servers of a file system.
MOST_SERVERS = 1 << 16


class Servers(Section):
    """The object servers (Lustre: OSTs) over which the files of a parallel file system are spread in stripes.

    A file begins on a server drawn at random. Its stripes of ``stripe_size`` bytes follow on the next servers, and
    after ``stripe_count`` of them on the first one again.
    """

    number: Annotated[int, whole(1, MOST_SERVERS)] = Field(description="Number of object servers.")
    bandwidth: Rate = Field(description="Bytes per second of one server.")
    stripe_count: Annotated[int, whole(1, MOST_SERVERS)] = Field(
        1, description="Servers over which one file is striped; storage.stripe_count sets it on a preset."
    )
    stripe_size: Bytes = Field(1 << 20, description="Bytes of a stripe; storage.stripe_size sets it on a preset.")
    random: SecondsDistribution = Field(
        NO_TIME,
        description="Time to the first byte that a request waits longer if it does not continue its worker's last "
        "one to the file, because read-ahead does not help.",
    )
    seek: Seconds = Field(
        0.0, description="Time that such a request also keeps its server busy, as a disk does that moves its head."
    )
    lock: Seconds = Field(
        0.0,
        description="Time that a server is busy to pass a file's lock on, if another node used the file last; none for "
        "reads on Lustre, where they share a lock.",
    )
    cold: Seconds = Field(0.0, description="Time that a server is busy at the first access to a file in the run.")
