"""Presets of object stores."""

from __future__ import annotations

from rayio.storage.presets import Preset
from rayio.storage.stores.opening import GAP_BYTES, PARTS

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
    upload_parts=PARTS,
)

S3_DOCUMENTED = Preset(
    first_byte_median=140e-3,
    first_byte_sigma=0.25,
    connection_bandwidth=87.5e6,
    bandwidth=12.5e9,
    requests_per_second=5500,
    scope="node",
    shared_cap=True,
    provenance="published",
    source=(
        "AWS, performance guidelines: 100 to 200 ms to the first byte of small objects, 85 to 90 MB/s a request, 5500 "
        "GET/s a prefix, and the dataset is one prefix; assumed: lognormal, 100 Gb/s a node, PUT counts as GET"
    ),
    url="https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html",
    retrieved="2026-11-23",
    gap=GAP_BYTES,
    upload_parts=PARTS,
)

S3_EXPRESS = Preset(
    first_byte_median=5e-3,
    first_byte_sigma=0.5,
    first_byte_max=0.2,
    connection_bandwidth=100 * 2**20,
    bandwidth=12.5e9,
    requests_per_second=200_000,
    scope="node",
    shared_cap=True,
    provenance="assumed",
    source=(
        "S3 Express One Zone: AWS says milliseconds of one digit and 200 000 reads/s a directory bucket; assumed: 5 "
        "ms, 100 MiB/s a connection, 100 Gb/s a node"
    ),
    gap=GAP_BYTES,
    upload_parts=PARTS,
)

GCS = Preset(
    first_byte_median=40e-3,
    first_byte_sigma=0.9,
    first_byte_max=2.0,
    connection_bandwidth=60 * 2**20,
    bandwidth=12.5e9,
    requests_per_second=5000,
    scope="node",
    shared_cap=True,
    provenance="assumed",
    source=(
        "Google Cloud Storage: about 5000 reads/s a bucket before it scales is documented; assumed: 40 ms, 60 MiB/s a "
        "connection, 100 Gb/s a node, and that writes (documented: 1000/s) count as reads"
    ),
    gap=GAP_BYTES,
    upload_parts=PARTS,
)

AZURE_BLOB = Preset(
    first_byte_median=50e-3,
    first_byte_sigma=0.9,
    first_byte_max=2.0,
    connection_bandwidth=40 * 2**20,
    bandwidth=6.25e9,
    requests_per_second=20_000,
    scope="cluster",
    provenance="assumed",
    source=(
        "Azure Blob Storage, a standard account: 20 000 requests/s and 50 Gb/s out are documented targets; assumed: "
        "50 ms, 40 MiB/s a connection; the target of 500 requests/s for one blob is not modelled"
    ),
    gap=GAP_BYTES,
    upload_parts=PARTS,
)

MINIO_NVME = Preset(
    first_byte_median=3e-3,
    first_byte_sigma=0.7,
    first_byte_max=0.5,
    connection_bandwidth=1e9,
    bandwidth=12.5e9,
    requests_per_second=None,
    scope="node",
    provenance="assumed",
    source="a MinIO cluster on NVMe drives: 3 ms, 1 GB/s a connection, 100 Gb/s a node of clients; all assumed",
    gap=GAP_BYTES,
    upload_parts=PARTS,
)
