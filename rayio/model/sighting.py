"""The hosts of a run, before and after its roles: hardware, mounts, bytes received from file servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rayio.machine.counters import sent_by_servers
from rayio.machine.host import describe
from rayio.machine.mounts import mount_of, mounts_here, source_of
from rayio.model.plan import Plan
from rayio.records.hosts import Host
from rayio.storage.address import is_path, join
from rayio.units import format_bytes

#: The least size of a dataset, in multiples of the memory of the workers' hosts, by the rules of MLPerf Storage.
ENOUGH = 5


class Sighting(NamedTuple):
    """A host at one moment."""

    host: Host
    #: Bytes that servers have sent it so far, by mount point, of mounts that count them.
    sent: dict[str, int]

    @property
    def of(self) -> str:
        """The identity of the host: its containers have different names and share its memory."""
        return self.host.boot_id or self.host.name


def addresses(plan: Plan, root: str | Path) -> dict[str, str]:
    """Return the addresses of a run's files by the scenario's keys."""
    paths = {"dataset.path": plan.training_phase.path}
    if plan.evaluation is not None:
        paths["dataset.eval.path"] = plan.evaluation.path
    if plan.checkpointing is not None:
        paths["checkpoint.path"] = plan.checkpointing.path
    return {key: join(str(root), path) for key, path in paths.items()}


def look(plan: Plan, root: str | Path) -> Sighting:
    """Return the host of this process, with the mounts that the run uses."""
    paths = {key: path for key, path in addresses(plan, root).items() if is_path(path)}
    mounts = mounts_here()
    used = {mount.point: mount for path in paths.values() if (mount := mount_of(path, mounts)) is not None}
    return Sighting(describe(paths), sent_by_servers(used.values()))


def each_once(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Return one sighting per host."""
    return [*{sighting.of: sighting for sighting in reversed([*sightings])}.values()][::-1]


def warnings(plan: Plan, root: str | Path, hosts: Sequence[Host]) -> list[str]:
    """Return the reasons why a run would measure memory instead of storage, one line each."""
    page_cache = plan.stores.page_cache
    where = addresses(plan, root)["dataset.path"]
    if not is_path(where) or not hosts:
        return []
    if in_memory := {mount.type for host in hosts for mount in host.mounts if _is_memory(mount.key, mount.type)}:
        text = f"{where} is on {', '.join(sorted(in_memory))}, which is memory: the run measures memory, not storage"
        dropped = ", and storage.page_cache=drop has nothing to drop there" * (page_cache == "drop")
        return [f"{text}{dropped}; choose a dataset.path on the storage that you mean"]
    nbytes, memory = plan.dataset_bytes, sum(host.cache_bytes for host in hosts)
    if page_cache != "use" or nbytes >= memory:
        return []
    where = "memory" if len(hosts) == 1 else f"the memory of {len(hosts)} hosts"
    return [
        f"the dataset ({format_bytes(nbytes)}) fits in {where} ({format_bytes(memory)}), so this run measures the page "
        f"cache, not storage; use storage.page_cache=drop, or at least {format_bytes(ENOUGH * memory)} of data"
    ]


def _is_memory(key: str, type: str) -> bool:
    return key == "dataset.path" and source_of(type) == "memory"
