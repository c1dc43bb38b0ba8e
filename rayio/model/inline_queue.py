"""A rank that reads its batches itself (``loader.num_workers: 0``)."""

from __future__ import annotations

from rayio.model import roles
from rayio.model.env import Env
from rayio.model.loading import Loading
from rayio.model.pinning import PinThread
from rayio.model.queue import Delivery
from rayio.place import Where


class InlineQueue:
    """No queue: with ``num_workers: 0`` the rank reads its batches itself, during its wait for them."""

    def __init__(self, env: Env, loading: Loading, pinning: PinThread | None = None) -> None:
        self.env = env
        self.loading = loading
        self.pinning = pinning

    async def get(self, at: Where) -> Delivery:
        """Read and return the batch now."""
        delivery = await roles.load_batch(self.env, self.loading, at, worker=0, lane=1)
        if self.pinning is not None:
            await self.pinning.pin(delivery)
        return delivery
