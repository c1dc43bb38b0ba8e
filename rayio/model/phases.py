"""Training and evaluation: pairs of things, selected by the number of the epoch.

Evaluations are numbered after the training epochs: with E epochs, evaluation n is epoch E + n in every message, span
and draw. So messages need no further mark, and batch numbers are unique.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rayio.model.env import QueuePort
from rayio.model.queue import Delivery
from rayio.place import Where
from rayio.storage.base import Opener, Requests, Served, Storage

T = TypeVar("T")


class Phased(Generic[T]):
    """A pair for training and for evaluation; evaluation begins with epoch number ``first``."""

    def __init__(self, training: T, evaluation: T, first: int) -> None:
        self.training = training
        self.evaluation = evaluation
        self.first = first

    def of(self, epoch: int) -> T:
        """Return the phase of an epoch."""
        return self.training if epoch < self.first else self.evaluation


class PhasedQueue(Phased[QueuePort]):
    """A rank's ends of its two queues."""

    async def get(self, at: Where) -> Delivery:
        """Return the next batch of the caller's phase."""
        return await self.of(at.epoch).get(at)


class PhasedStorage(Phased[Storage]):
    """The folders of the two datasets, as one storage system to read from."""

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read a batch from the folder of its phase."""
        return await self.of(requests.address[1]).read(requests, load)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write to the folder of the training dataset; unused."""
        return await self.training.write(path, num_bytes, request_bytes, fsync=fsync)
