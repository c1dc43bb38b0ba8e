"""The folder of a run's burst tier before the run starts, and the choice between it and ``checkpoint.path``."""

from __future__ import annotations

from collections.abc import Collection

from rayio import storage
from rayio.errors import DataError, StorageError
from rayio.model import manifest
from rayio.model.manifest import Manifest, Restored
from rayio.model.plan import Plan
from rayio.model.saving import Checkpointing
from rayio.place import checkpoint_place
from rayio.reporter import Reporter
from rayio.scenario.checkpoint import NEWEST
from rayio.scenario.model import Scenario
from rayio.scenario.saved_bytes import all_checkpoints_bytes
from rayio.session.folders import Checkpoints
from rayio.storage.address import join
from rayio.storage.stores.opening import Store
from rayio.units import format_bytes, format_excess


class BurstFolder(Checkpoints):
    """The folder of the burst tier, as this host has it: of other nodes with a tier each, it knows nothing."""

    key = "checkpoint.burst.path"

    def __init__(self, scenario: Scenario, plan: Plan, base: str) -> None:
        super().__init__(scenario, plan, base)
        assert scenario.checkpoint is not None
        assert scenario.checkpoint.burst is not None
        self.tier = scenario.checkpoint.burst
        self.path = self.tier.path
        self.store = storage.open(join(base, self.path), scenario.stores)
        #: The folders of the checkpoints that are restored from the tier.
        self._kept: Collection[str] = ()

    def chosen(self, durable: Store, wanted: str, saved: Checkpointing) -> tuple[Restored, list[str]]:
        """Return the checkpoint to restore, and notes: the one in the tier, unless storage has a newer one.

        Raises:
            DataError: see :func:`rayio.model.manifest.chosen`.
        """
        held, there = _complete(wanted, self.store, durable), _complete(wanted, durable)
        if held is None or (there is not None and not _is_newer(held, there)):
            return manifest.chosen(durable, wanted, saved.identity, saved.files)
        restored, notes = manifest.chosen(self.store, held.folder, saved.identity, saved.files, durable)
        self._kept = restored.in_burst
        return restored, notes

    def check_space(self) -> str:
        """Refuse a tier with less space than its capacity, or than all checkpoints, if this host has all of it."""
        capacity, free = self.tier.capacity, self.store.free_bytes()
        needed = min(capacity, all_checkpoints_bytes(self.scenario))
        held = sum(sum(self.store.sizes(folder).values()) for folder in self._folders())
        if free is None:
            return f"room for {format_bytes(capacity)}; free space unknown"
        if needed > free + held and (self.tier.scope == "cluster" or self.scenario.cluster.nodes == 1):
            raise StorageError(
                f"{self.key}={self.path}: only {format_bytes(free + held)} are free for a burst tier that takes "
                f"{format_excess(needed, free + held)}; choose another folder, or a smaller checkpoint.burst.capacity"
            )
        return f"room for {format_bytes(capacity)}; {format_bytes(free + held)} are free"

    def prepare(self, reporter: Reporter, kept: Collection[str] | None = None) -> None:
        """Empty the tier, but for what is restored from it, and report its space.

        ``kept`` are the folders from which a run goes on that broke off; None at the begin of a run.
        """
        whose = "earlier runs" if kept is None else "this run's earlier part"
        kept, number = self._kept if kept is None else kept, 0
        for folder in (folder for folder in self._folders() if folder not in kept):
            there = self.store.sizes(folder)
            number += bool(there)
            for name in sorted(there, key=manifest.NAME.__ne__):  # the manifest first
                self.store.remove(f"{folder}/{name}")
            manifest.remove_folder(self.store, folder)
        many = f"; {number} checkpoint{'s' * (number != 1)} of {whose} removed" if number else ""
        reporter.say(f"burst tier {self.store.address}: {self.check_space()}{many}")

    def _folders(self) -> list[str]:
        return [name for name in sorted(self.store.entries()) if checkpoint_place(name) is not None]


def _complete(wanted: str, store: Store, *others: Store) -> Manifest | None:
    """Return the newest complete checkpoint of a store, or the one in a folder; None if there is none.

    What it is an increment since may be in ``others``.
    """
    if wanted == NEWEST:
        return next(iter(manifest.search(store, *others).complete), None)
    try:
        named = manifest.read(store, wanted)
        manifest.spread((store, *others), named)
    except DataError:
        return None
    return named


def _is_newer(held: Manifest, there: Manifest) -> bool:
    """Return True if a checkpoint in the tier is not older than one in storage; drains of a run are in its order."""
    if held.run == there.run:
        return (held.epoch, held.step) >= (there.epoch, there.step)
    return held.saved_ns > there.saved_ns
