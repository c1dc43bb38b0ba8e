"""Presets of storage systems, with the sources of their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayio import kinds
from rayio.registry import Registry
from rayio.storage.stores.opening import GAP_BYTES


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

    def __str__(self) -> str:
        """Return the source of the numbers as one line."""
        reference = f" ({self.url}, retrieved {self.retrieved})" if self.url else ""
        return f"{self.provenance}: {self.source}{reference}"


#: Assumptions and omissions of both Lustre presets.
_LUSTRE = (
    "0.1 ms per request from client read-ahead, so small random requests are too fast; open 1 ms, "
    "20 000 opens/s; stripes are not modelled"
)

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

S3 = Preset(
    first_byte_median=30e-3,
    first_byte_sigma=1.15,
    first_byte_max=2.0,
    connection_bandwidth=55 * 2**20,
    bandwidth=12.5e9,
    requests_per_second=5500,
    scope="node",
    shared_cap=True,
    provenance="published",
    source=(
        "Durner, Leis and Neumann, PVLDB 16(11), 2023: 30 ms to the first byte (p95 200 ms), 55 MiB/s a "
        "connection; AWS: 5500 GET/s a prefix, and the dataset is one prefix; assumed: cut at 2 s, 100 Gb/s a "
        "node, PUT counts as GET"
    ),
    url=(
        "https://www.vldb.org/pvldb/vol16/p2769-durner.pdf "
        "https://docs.aws.amazon.com/AmazonS3/latest/dev/request-rate-perf-considerations.html"
    ),
    retrieved="2026-11-21",
    gap=GAP_BYTES,
)

LUSTRE_THETA = Preset(
    first_byte_median=0.1e-3,
    first_byte_sigma=0.3,
    connection_bandwidth=2.6e9,
    bandwidth=210e9,
    requests_per_second=None,
    opens_per_second=20_000,
    open_median=1e-3,
    open_sigma=0.8,
    scope="cluster",
    provenance="assumed",
    source=(
        "Theta's Lustre, 56 OSTs, 210 GB/s: 2.6 GB/s a client and 256 KB requests at 1.2 GB/s are from I/O "
        f"profiles of deep-learning workloads on Theta; the rest is assumed: {_LUSTRE}"
    ),
)

LUSTRE_CORI = Preset(
    first_byte_median=0.1e-3,
    first_byte_sigma=0.3,
    connection_bandwidth=2e9,
    bandwidth=700e9,
    requests_per_second=None,
    opens_per_second=20_000,
    open_median=1e-3,
    open_sigma=0.8,
    scope="cluster",
    provenance="assumed",
    source=f"Cori's Lustre, 248 OSTs, 700 GB/s, 2 GB/s a client; all assumed: {_LUSTRE}",
)

PRESETS: Registry[Preset] = kinds.STORAGE_MODELS
