"""The hosts of a run and the sources of the bytes read; part of ``result.json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class Mount(Record):
    """The file system of a scenario's path on a host."""

    key: str = value("key of the path, such as dataset.path")
    point: str = value("mount point")
    type: str = value("type of the file system: ext4, nfs4, lustre, tmpfs ...")
    device: str = value("mounted device or server's export")
    server: str | None = value("server; null for a local file system", default=None)
    options: str = value("mount options; possible secrets are hidden", default="")
    capacity_bytes: int | None = value("size of the file system", "bytes", default=None)
    free_bytes: int | None = value("free bytes at the start of the run", "bytes", default=None)


@record
class Interface(Record):
    """An active network interface, except loopback."""

    name: str = value("name")
    bits_per_second: int | None = value("speed; null if unknown", "bit/s", default=None)


@record
class Host(Record):
    """A host of the run."""

    name: str = value("name")
    boot_id: str = value("id of the boot, which distinguishes hosts of one name", default="")
    kernel: str = value("operating system and version", default="")
    cores: int | None = value("processors", "cores", default=None)
    memory_bytes: int | None = value("memory", "bytes", default=None)
    memory_limit_bytes: int | None = value(
        "memory limit of the run, including the page cache; null without", "bytes", default=None
    )
    interfaces: tuple[Interface, ...] = value("network interfaces", default=())
    mounts: tuple[Mount, ...] = value("file systems of the run's paths", default=())

    @property
    def cache_bytes(self) -> int:
        """The memory available to the page cache in bytes; 0 if unknown."""
        limits = [limit for limit in (self.memory_bytes, self.memory_limit_bytes) if limit is not None]
        return min(limits, default=0)


#: Source of bytes that modelled caches did not have.
MODEL = "model"


@record
class Fetched(Record):
    """The sources of the bytes read in the whole run, for training and evaluation."""

    delivered_bytes: int = value("bytes of samples delivered to ranks", "bytes")
    read_bytes: int = value("bytes that workers requested from storage, including metadata of files", "bytes")
    fetched_bytes: int | None = value("bytes from devices, the network or modelled storage; null if unknown", "bytes")
    page_cache_share: float | None = value(
        "share of bytes from memory, real or modelled: 1 - fetched / read, at least 0", "fraction"
    )
    source: str = value(
        "device, server, memory, network, other (a file system without counters), model (modelled storage with "
        "storage.cache) or unknown"
    )
    how: str = value("how it was counted, or why not")
    page_cache: str = value("storage.page_cache of the scenario: use, drop or direct")
    unevicted_bytes: int | None = value(
        "with page_cache drop: bytes that stayed in the page cache; null if unknown", "bytes", default=None
    )

    @property
    def missed(self) -> float:
        """The share of bytes read that modelled caches did not have; 1 without caches."""
        if self.source != MODEL or not self.read_bytes:
            return 1.0
        return (self.fetched_bytes or 0) / self.read_bytes
