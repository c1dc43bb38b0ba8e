"""What a host of a run says of itself, before its roles live and after: hardware, mounts, what servers sent it."""

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

#: How many times the memory of the readers' hosts a dataset has to be, by the rules of MLPerf Storage.
ENOUGH = 5


class Sighting(NamedTuple):
    """A host at one moment."""

    host: Host
    #: Bytes that servers have sent it so far, by mount point, of mounts that say so.
    sent: dict[str, int]

    @property
    def of(self) -> str:
        """What tells hosts apart: containers of one host have names of their own, and its memory in common."""
        return self.host.boot_id or self.host.name


def addresses(plan: Plan, root: str | Path) -> dict[str, str]:
    """The addresses of a run's files, by the key of the scenario that names each."""
    found = {"dataset.path": plan.training_phase.path}
    if plan.evaluation is not None:
        found["dataset.eval.path"] = plan.evaluation.path
    if plan.checkpointing is not None:
        found["checkpoint.path"] = plan.checkpointing.path
    return {key: join(str(root), path) for key, path in found.items()}


def look(plan: Plan, root: str | Path) -> Sighting:
    """Describe the host that this process is on, as the run has to do with it."""
    paths = {key: path for key, path in addresses(plan, root).items() if is_path(path)}
    mounts = mounts_here()
    used = {mount.point: mount for path in paths.values() if (mount := mount_of(path, mounts)) is not None}
    return Sighting(describe(paths), sent_by_servers(used.values()))


def each_once(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Leave out what other processes of the same host saw."""
    return [*{sighting.of: sighting for sighting in reversed([*sightings])}.values()][::-1]


def warnings(plan: Plan, root: str | Path, hosts: Sequence[Host]) -> list[str]:
    """Say, in a line each, why a run that is about to begin would measure memory and not storage."""
    page_cache = plan.stores.page_cache
    where = addresses(plan, root)["dataset.path"]
    if not is_path(where) or not hosts:
        return []
    if in_memory := {mount.type for host in hosts for mount in host.mounts if _is_memory(mount.key, mount.type)}:
        said = f"{where} is on {', '.join(sorted(in_memory))}, which is memory: the run measures memory, not storage"
        dropped = ", and storage.page_cache=drop has nothing to drop there" * (page_cache == "drop")
        return [f"{said}{dropped}; choose a dataset.path on the storage that you mean"]
    nbytes, memory = plan.dataset_bytes, sum(host.cache_bytes for host in hosts)
    if page_cache != "use" or nbytes >= memory:
        return []
    of = "this machine has" if len(hosts) == 1 else f"the {len(hosts)} hosts have"
    return [
        f"the dataset ({format_bytes(nbytes)}) fits into the memory that {of} ({format_bytes(memory)}): the operating "
        "system keeps what was written or read once, so the run may measure memory, not storage; for numbers of the "
        f"storage give storage.page_cache=drop, or {format_bytes(ENOUGH * memory)} of data ({ENOUGH} × the memory)"
    ]


def _is_memory(key: str, type: str) -> bool:
    return key == "dataset.path" and source_of(type) == "memory"
