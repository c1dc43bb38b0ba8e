"""The ledger of a run: planned against delivered samples, which must agree at the end.

Digests are about content, not messages: the reader sums, modulo 2**64, a hash of (epoch, rank, step, sample id) over
the ids read *from the bytes*; the plan sums the same over the planned ids. A lost, repeated or foreign sample changes
the sum, whatever the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rayio.model.queue import Delivery
from rayio.place import Taken
from rayio.storage.base import Moved

WORD = (1 << 64) - 1


@dataclass(slots=True)
class Tally:
    """The consumption of one rank so far, or its plan."""

    rank: int
    steps: int = 0
    samples: int = 0
    #: The bytes of ``samples``.
    nbytes: int = 0
    digest: int = 0
    #: The part of ``steps`` and ``samples`` in evaluations.
    evaluation_steps: int = 0
    evaluation_samples: int = 0
    attempt: int = 0
    #: Source of the bytes; None for modelled storage without a cache.
    moved: Moved | None = field(default=None, compare=False)
    #: Source of the bytes of restored checkpoints; None without any, or on modelled storage.
    loaded: Moved | None = field(default=None, compare=False)
    #: Samples skipped after errors; not in ``samples``, but in the digest.
    skipped: int = 0
    #: The steps of its epoch; kept only if batches may come early.
    taken: Taken | None = field(default=None, compare=False)
    #: The numbers of the checkpoints that a restore of its last one reads; only with increments.
    chain: tuple[int, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The rank in words, with the attempt unless it is the first."""
        return f"rank {self.rank}" + (f", attempt {self.attempt}" if self.attempt else "")

    def load(self, parts: Iterable[Moved | None]) -> None:
        """Add the files of a restored checkpoint."""
        for moved in parts:
            if moved is not None:
                self.loaded = moved if self.loaded is None else self.loaded + moved

    def plan(self, steps: int, samples: int, digest: int) -> None:
        """Add the planned consumption of an epoch."""
        self.steps += steps
        self.samples += samples
        self.digest = (self.digest + digest) & WORD

    def add(self, delivery: Delivery, *, evaluating: bool = False) -> None:
        """Add one delivered batch."""
        self.steps += 1
        self.samples += delivery.num_samples
        if evaluating:
            self.evaluation_steps += 1
            self.evaluation_samples += delivery.num_samples
        elif self.taken is not None:
            self.taken = self.taken.add(delivery.epoch, delivery.step)
        self.nbytes += delivery.nbytes - delivery.skipped_bytes
        self.skipped += delivery.skipped
        if delivery.moved is not None:
            self.moved = delivery.moved if self.moved is None else self.moved + delivery.moved
        self.digest = (self.digest + delivery.digest) & WORD


@dataclass(frozen=True, slots=True)
class Ledger:
    """Planned against delivered samples, over all ranks."""

    planned_steps: int
    planned_samples: int
    delivered_steps: int
    delivered_samples: int
    delivered_bytes: int
    #: Samples skipped after errors, as the scenario allows: planned = delivered + skipped.
    skipped_samples: int = 0
    differences: tuple[str, ...] = ()

    @property
    def even(self) -> bool:
        """True if every planned sample was delivered or skipped once, on every rank."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger's entry of result.json."""
        entry = {**asdict(self), "differences": list(self.differences[:16]), "even": self.even}
        if not self.skipped_samples:
            del entry["skipped_samples"]
        return entry


def close(planned: Iterable[Tally], delivered: Iterable[Tally]) -> Ledger:
    """Compare plan and consumption of every rank in every attempt, and sum them."""
    got = {(tally.rank, tally.attempt): tally for tally in delivered}
    plan = {(tally.rank, tally.attempt): tally for tally in planned}
    differences = []
    for place, want in plan.items():
        have = got.get(place, Tally(want.rank))
        if (have.steps, have.samples + have.skipped) != (want.steps, want.samples):
            skipped = f", {have.skipped} skipped" if have.skipped else ""
            differences.append(
                f"{want.name}: {want.steps} steps and {want.samples} samples were planned, "
                f"{have.steps} and {have.samples} delivered{skipped}"
            )
        elif have.digest != want.digest:
            differences.append(
                f"{want.name}: the right number of samples, but not the planned ones "
                f"(digest {have.digest:016x}, planned {want.digest:016x})"
            )
    differences += [
        f"{have.name}: {have.steps} steps and {have.samples} samples were delivered, none were planned"
        for have in (got[place] for place in sorted(got.keys() - plan.keys()))
    ]
    return Ledger(
        planned_steps=sum(t.steps for t in plan.values()),
        planned_samples=sum(t.samples for t in plan.values()),
        delivered_steps=sum(t.steps for t in got.values()),
        delivered_samples=sum(t.samples for t in got.values()),
        delivered_bytes=sum(t.nbytes for t in got.values()),
        skipped_samples=sum(t.skipped for t in got.values()),
        differences=tuple(differences),
    )
