"""A queue that checks itself after every event, for tests."""

from __future__ import annotations

from rayio.model.queue import Delivery, Lease, QueueState, Take


class CheckedQueue(QueueState):
    """A ``QueueState`` that validates itself after each event and each decision."""

    def rank_advanced(self, take: Take) -> bool:
        is_news = super().rank_advanced(take)
        self.validate()
        return is_news

    def batch_read(self, delivery: Delivery) -> None:
        super().batch_read(delivery)
        self.validate()

    def employ(self, workers: int) -> None:
        super().employ(workers)
        self.validate()

    def grant(self, lump: int = 1) -> list[Lease]:
        leases = super().grant(lump)
        self.validate()
        return leases
