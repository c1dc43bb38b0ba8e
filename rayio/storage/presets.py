"""Storage systems as numbers, each with where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayio.registry import Registry


@dataclass(frozen=True, slots=True)
class Preset:
    """A modelled storage system: times in seconds, rates in bytes per second.

    A request waits for its first byte (lognormal: median and sigma), then streams at the rate of its connection; all
    connections together share ``bandwidth`` and ``requests_per_second``, first come, first served. ``scope`` says
    whether each node has a device of its own or the whole cluster shares one.
    """

    first_byte_median: float
    first_byte_sigma: float
    connection_bandwidth: float
    bandwidth: float
    requests_per_second: float | None
    scope: Literal["node", "cluster"]
    provenance: Literal["published", "assumed"]
    source: str


PRESETS: Registry[Preset] = Registry(
    "storage model",
    {
        "nvme": Preset(
            first_byte_median=90e-6,
            first_byte_sigma=0.3,
            connection_bandwidth=3e9,
            bandwidth=6e9,
            requests_per_second=700_000,
            scope="node",
            provenance="assumed",
            source="a PCIe 4.0 NVMe drive of a server: 90 us random read, 6 GB/s, 700 000 requests/s",
        ),
    },
)
