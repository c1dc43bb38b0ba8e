"""Presets of parallel and network file systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayio.storage.presets import Preset

#: Assumptions and omissions of both Lustre presets.
_LUSTRE = (
    "0.1 ms per request from client read-ahead, 0.5 ms where a request does not continue the one before; open 1 ms, "
    "20 000 opens/s; the bandwidth in equal parts for each OST"
)


def _osts(number: int, bandwidth: float, *, random: float = 0.4e-3, seek: float = 0.0) -> Mapping[str, Any]:
    """Return the object servers of a Lustre with stripes of 1 MiB on one OST, its default; times in seconds."""
    return {
        "number": number, "bandwidth": bandwidth, "stripe_count": 1, "stripe_size": 1 << 20, "seek": seek,
        "random": {"kind": "lognormal", "median": random, "sigma": 0.6},
    }  # fmt: skip


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
    servers=_osts(56, 3.75e9),
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
    source=(
        f"Cori's Lustre, 248 OSTs, 700 GB/s, 2 GB/s a client, stripes of 1 MB on one OST as published; the rest is "
        f"assumed: {_LUSTRE}"
    ),
    servers=_osts(248, 700e9 / 248),
)

LUSTRE_FLASH = Preset(
    first_byte_median=0.05e-3,
    first_byte_sigma=0.3,
    connection_bandwidth=2.5e9,
    bandwidth=5e12,
    requests_per_second=None,
    opens_per_second=100_000,
    open_median=0.5e-3,
    open_sigma=0.6,
    scope="cluster",
    provenance="published",
    source=(
        "Perlmutter's Lustre, all flash: 274 servers, more than 5 TB/s, stripes on one OST; assumed: one OST a server, "
        "2.5 GB/s a client, 0.05 ms per request from read-ahead and 0.4 ms elsewhere, open 0.5 ms, 100 000 opens/s"
    ),
    url="https://docs.nersc.gov/filesystems/perlmutter-scratch/",
    retrieved="2026-11-23",
    servers=_osts(274, 5e12 / 274, random=0.35e-3),
)

LUSTRE_HDD = Preset(
    first_byte_median=0.1e-3,
    first_byte_sigma=0.3,
    connection_bandwidth=1e9,
    bandwidth=32 * 500e6,
    requests_per_second=None,
    opens_per_second=20_000,
    open_median=1e-3,
    open_sigma=0.8,
    scope="cluster",
    provenance="assumed",
    source=(
        "a Lustre on disks: 32 OSTs of 500 MB/s, stripes of 1 MiB on one OST, 8 ms and 0.25 ms of its OST for a "
        "request that does not continue the one before, open 1 ms, 20 000 opens/s; all assumed"
    ),
    servers=_osts(32, 500e6, random=7.9e-3, seek=0.25e-3),
)

NFS = Preset(
    first_byte_median=0.5e-3,
    first_byte_sigma=0.5,
    connection_bandwidth=1.2e9,
    bandwidth=1.25e9,
    requests_per_second=20_000,
    open_median=1e-3,
    open_sigma=0.5,
    scope="cluster",
    provenance="assumed",
    source="an NFS server at 10 Gb/s: 1.25 GB/s, 20 000 requests/s, open 1 ms, 0.5 ms a request; all assumed",
)

FSX_125 = Preset(
    first_byte_median=0.5e-3,
    first_byte_sigma=0.5,
    connection_bandwidth=150e6,
    bandwidth=150e6,
    requests_per_second=None,
    open_median=1e-3,
    open_sigma=0.5,
    scope="cluster",
    provenance="assumed",
    source=(
        "FSx for Lustre of 1.2 TiB at 125 MB/s a TiB without its burst: 150 MB/s in all, as AWS documents the rate; "
        "latencies are assumed"
    ),
)

DAOS = Preset(
    first_byte_median=0.1e-3,
    first_byte_sigma=0.4,
    connection_bandwidth=3e9,
    bandwidth=30e12,
    requests_per_second=None,
    scope="cluster",
    provenance="assumed",
    source="a large DAOS system: 0.1 ms a request, 3 GB/s a client process, 30 TB/s in all; all assumed",
)

BURST_BUFFER = Preset(
    first_byte_median=0.3e-3,
    first_byte_sigma=0.4,
    connection_bandwidth=1.6e9,
    bandwidth=1.7e12,
    requests_per_second=None,
    opens_per_second=100_000,
    open_median=0.5e-3,
    open_sigma=0.6,
    scope="cluster",
    provenance="assumed",
    source=(
        "a shared burst buffer of flash in front of a file system, of the size of Cori's (1.7 TB/s in all); latencies "
        "and 1.6 GB/s a client are assumed"
    ),
)
