"""The burst tier of checkpoints: its parameters, a writer's access to it, and the copy of a file to storage."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from threading import Event
from time import perf_counter
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from rayio.errors import DataError
from rayio.model.manifest import NAME, remove_folder
from rayio.place import checkpoint_place
from rayio.scenario.storage import StorageParameters
from rayio.seeds import Draws
from rayio.storage.base import Clock, Requests, Storage
from rayio.storage.model import Arbiter, Behind, Latencies, ModelStorage
from rayio.storage.real import Filled
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Store
from rayio.storage.uploads import sizes_of_writes

#: In place of an epoch in the address of latencies: those of draining.
DRAINING = -1
#: A modelled drain reads a file in so many pieces at most, so that a save waits for one of them, not for all.
PIECES = 16
#: Modelled files are written in the background in so many pieces at most, so that reading goes on in between.
MOST_PIECES = 128
IN_PIECES = Behind(MOST_PIECES, None)


@dataclass(frozen=True)
class BurstTier:
    """The parameters of a run's burst tier; see ``rayio.scenario.burst.Burst``."""

    path: str
    #: The tier as a modelled system, and the distribution of its first-byte latencies.
    storage: StorageParameters
    first_byte: Draws
    #: How many checkpoints fit.
    rooms: Fraction
    drain_rate: float | None
    #: False if the times of drains are measured ones, which include the reading.
    is_read: bool = True

    @property
    def scope(self) -> Literal["node", "cluster"]:
        """The part of the cluster that shares a tier, and loses it together."""
        return self.storage.scope

    @property
    def behind(self) -> Behind:
        """How modelled files are drained."""
        return IN_PIECES._replace(rate=self.drain_rate)

    def share(self, num_bytes: int) -> int:
        """Return the bytes of the tier that a rank may use which saves ``num_bytes`` of a checkpoint."""
        return int(self.rooms * num_bytes)

    def modelled(self, arbiter: Arbiter, clock: Clock, seed: int, *, itemised: bool) -> Tier:
        """Return a writer's access to a modelled tier, whose device is that of ``arbiter``."""
        latencies = Latencies(self.first_byte.draw, seed)
        return Tier(self, ModelStorage(arbiter, self.storage.device, latencies, clock, is_itemised=itemised), None)


class Tier(NamedTuple):
    """A writer's access to the burst tier: its storage, and its store (None if it is modelled)."""

    spec: BurstTier
    storage: Storage
    store: Store | None

    async def read_back(self, writer: int, step: int, num_bytes: int, request_bytes: int) -> None:
        """Wait for the reading of a file that is drained, piece by piece; a real file is read as it is copied."""
        if self.store is not None or not self.spec.is_read:
            return
        sizes = sizes_of_writes(num_bytes, request_bytes)
        for number, piece in enumerate(np.array_split(sizes, min(PIECES, len(sizes)))):
            address = writer, DRAINING, max(step, 0) * PIECES + number
            await self.storage.read(Requests(address, int(number == 0), piece, known_bytes=int(piece.sum())), _nothing)

    def clear(self, kept: Collection[str], names: Collection[str]) -> None:
        """Remove a writer's files, which have some names, from all folders but the ``kept`` ones; manifests first."""
        assert self.store is not None
        for folder in self.store.entries():
            if folder in kept or checkpoint_place(folder) is None or self.store.leads_out(folder):
                continue
            for name in (NAME, *names):
                self.store.remove(f"{folder}/{name}")
            remove_folder(self.store, folder)


def _nothing(opener: object) -> None:
    """A reader of a modelled file."""


@dataclass(frozen=True)
class Copied:
    """The content of a file in storage: a copy of the file in the tier (``rayio.storage.real.Filling``)."""

    store: Store
    #: Most bytes per second; None is no limit.
    rate: float | None
    #: Set once nobody waits for the copy.
    ending: Event

    def __call__(self, file: BinaryIO, path: str, num_bytes: int, request_bytes: int, /) -> Filled:
        """Copy a file, request by request."""
        began, copied = perf_counter(), 0
        with self.store.open(path, Traffic()) as source:
            while content := source.read(request_bytes):
                file.write(content)
                copied += len(content)
                if self.rate is not None and (ahead := copied / self.rate - (perf_counter() - began)) > 0:
                    self.ending.wait(ahead)
        if copied < num_bytes:
            raise DataError(f"{path}: the burst tier has {copied} B of its {num_bytes} B; it was changed meanwhile")
        return Filled(copied)
