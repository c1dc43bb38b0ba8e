"""What is known of the hosts of a run, and where the bytes that its readers read came from; part of ``result.json``."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount(Record):
    """The file system that a path of the scenario is in, as one host mounts it."""

    key: str = value("the key of the scenario that names the path, such as dataset.path")
    point: str = value("where it is mounted")
    type: str = value("type of the file system: ext4, nfs4, lustre, tmpfs ...")
    device: str = value("what is mounted: a device, or a server's export")
    server: str | None = value("the server; null of a file system of the host's own", default=None)
    options: str = value("mount options; values that may be secrets are hidden", default="")
    capacity_bytes: int | None = value("size of the file system", "bytes", default=None)
    free_bytes: int | None = value("free when the run began", "bytes", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface(Record):
    """A network interface that is up; loopback is left out."""

    name: str = value("its name")
    bits_per_second: int | None = value("its speed; null where it says none", "bit/s", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Record):
    """A host of the run."""

    name: str = value("its name")
    boot_id: str = value("tells hosts of one name apart", default="")
    kernel: str = value("operating system and its version", default="")
    cores: int | None = value("processors", "cores", default=None)
    memory_bytes: int | None = value("its memory", "bytes", default=None)
    memory_limit_bytes: int | None = value(
        "what the run may use of it, page cache included; null is all of it", "bytes", default=None
    )
    interfaces: tuple[Interface, ...] = value("network interfaces", default=())
    mounts: tuple[Mount, ...] = value("the file systems of the run's paths", default=())

    @property
    def cache_bytes(self) -> int:
        """Memory that may hold pages of files; 0 where it is not known."""
        limits = [limit for limit in (self.memory_bytes, self.memory_limit_bytes) if limit is not None]
        return min(limits, default=0)


#: Where bytes came from that no modelled cache had.
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Record):
    """Where the bytes came from that readers read in the whole run, for training and evaluation."""

    delivered_bytes: int = value("bytes of the samples that ranks got", "bytes")
    read_bytes: int = value("bytes that readers asked storage for, descriptions of files among them", "bytes")
    fetched_bytes: int | None = value(
        "bytes that came from devices, over the network or from modelled storage for that; null where nobody can know",
        "bytes",
    )
    page_cache_share: float | None = value(
        "share of what was read that came from memory, real or modelled: 1 - fetched / read, at least 0", "fraction"
    )
    source: str = value(
        "device, server, memory, network, other (a file system that counts nothing), model (modelled storage, with "
        "storage.cache in front of it) or unknown"
    )
    how: str = value("how it is known, or why not")
    page_cache: str = value("storage.page_cache of the scenario: use, drop or direct")
    unevicted_bytes: int | None = value(
        "with page_cache drop: bytes that stayed in the page cache; null where nobody can know", "bytes", default=None
    )

    @property
    def missed(self) -> float:
        """The share of what was read that modelled caches had not; all of it where there are none."""
        if self.source != MODEL or not self.read_bytes:
            return 1.0
        return (self.fetched_bytes or 0) / self.read_bytes
