"""Presets of storage systems, with the sources of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rayio import kinds
from rayio.registry import Registry


@dataclass(frozen=True, slots=True)
class Preset:
    """A modelled storage system: times in seconds, rates in bytes per second.

    Opening a file takes a lognormal time (median and sigma; 0 for nothing). Each request waits for its first byte
    (lognormal, drawn again above ``first_byte_max``) and then streams at the rate of its connection. All connections
    share ``bandwidth`` and one cap, of requests or of opens per second, first come, first served: calls above the cap
    wait. (S3 answers 503 there and clients retry: ``storage.throttle`` of a scenario.)

    ``scope`` is ``node`` for one device per node, ``cluster`` for a single one. With ``shared_cap`` the cap belongs to
    the cluster and the bandwidth to a node: every node has an equal part of the cap.
    """

    first_byte_median: float
    first_byte_sigma: float
    connection_bandwidth: float
    bandwidth: float
    requests_per_second: float | None
    scope: Literal["node", "cluster"]
    #: ``published`` if the decisive numbers are measurements or documents of others, else ``assumed``.
    provenance: Literal["published", "assumed"]
    source: str
    #: Address of the publication and date of retrieval (ISO); empty for assumed ones.
    url: str = ""
    retrieved: str = ""
    first_byte_max: float | None = None
    opens_per_second: float | None = None
    open_median: float = 0.0
    open_sigma: float = 0.0
    shared_cap: bool = False
    #: Ranges of an object at most this many bytes apart are one request; 0 for files.
    gap: int = 0
    #: Parts of an upload in flight (``storage.model.upload_parts``); 1 for files.
    upload_parts: int = 1
    #: Its object servers, as ``storage.model.servers`` writes them (``rayio/scenario/servers.py``); None is one pipe.
    servers: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        """Return the source of the numbers as one line."""
        reference = f" ({self.url}, retrieved {self.retrieved})" if self.url else ""
        return f"{self.provenance}: {self.source}{reference}"


MEMORY = Preset(
    first_byte_median=2e-6,
    first_byte_sigma=0.0,
    connection_bandwidth=10e9,
    bandwidth=20e9,
    requests_per_second=None,
    scope="node",
    provenance="assumed",
    source="files in memory, as tmpfs or the page cache have them: 2 us, 10 GB/s a thread, 20 GB/s a node",
)

NVME = Preset(
    first_byte_median=90e-6,
    first_byte_sigma=0.3,
    connection_bandwidth=3e9,
    bandwidth=6e9,
    requests_per_second=700_000,
    scope="node",
    provenance="assumed",
    source="a PCIe 4.0 NVMe drive of a server: 90 us random read, 6 GB/s, 700 000 requests/s",
)

EBS_GP3 = Preset(
    first_byte_median=1.5e-3,
    first_byte_sigma=0.4,
    connection_bandwidth=125 * 2**20,
    bandwidth=125 * 2**20,
    requests_per_second=3000,
    scope="node",
    provenance="published",
    source="an EBS gp3 volume per node as it comes: 3000 IOPS and 125 MiB/s; 1.5 ms to the first byte is assumed",
    url="https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html",
    retrieved="2026-11-23",
)

PRESETS: Registry[Preset] = kinds.STORAGE_MODELS
