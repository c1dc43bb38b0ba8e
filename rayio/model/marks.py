"""Marks: the complete checkpoints of a run, as its ranks report them, in storage and in the burst tier."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from rayio.model.ledger import Tally

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Mark:
    """A complete checkpoint: its number in the run, and the consumption of every rank until then, by rank."""

    number: int
    tallies: tuple[Tally, ...]
    #: Those of its chain that are read from the burst tier, and those that are there alone.
    in_burst: frozenset[int] = NOTHING
    undrained: frozenset[int] = NOTHING

    @property
    def chain(self) -> tuple[int, ...]:
        """The numbers that a restore reads: its own, after those that it is an increment since."""
        return self.tallies[0].chain or (self.number,)


#: Has the resume file of a run name the checkpoint of a number, if all ranks have passed it: at once if that is needed,
#: else when a write is due. Returns the numbers that the file names now; None if it cannot be written.
Book = Callable[[int, bool], Collection[int] | None]


class Saved:
    """The checkpoints of a run, as ranks report them; ``keep`` is called with each complete one.

    ``book`` has the resume file name one; None without such a file.
    """

    def __init__(
        self, world_size: int, keep: Callable[[Mark], None] = lambda mark: None, book: Book | None = None
    ) -> None:
        self.world_size = world_size
        self.keep = keep
        self.book = book
        #: The newest complete checkpoint.
        self.newest: Mark | None = None
        #: By number: the tallies of ranks that have saved a checkpoint which is not complete.
        self._partial: dict[int, dict[int, Tally]] = {}
        #: Those in the burst tier, once there is one.
        self.tier: _Tier | None = None

    def add(self, number: int, tally: Tally | None, in_burst: bool = False) -> None:
        """Record that a rank has passed a checkpoint's step and its part is durable; ``tally`` is a copy.

        ``in_burst``: it is in the burst tier. Without a tally it has left the tier.
        """
        if in_burst:
            self.tier = self.tier or _Tier(self.world_size, self._in_tier)
            if tally is not None:
                self.tier.add(number, tally)
            else:
                self.tier.left = max(self.tier.left, number)
            return
        assert tally is not None
        if self.newest is not None and number <= self.newest.number:
            return
        if tally.chain and tally.chain[-1] != number:  # drained after a restart from a newer one
            known = None if self.tier is None else self.tier.marks.get(number)
            if known is None:
                return
            tally = known.tallies[tally.rank]
        ranks = self._partial.setdefault(number, {})
        ranks[tally.rank] = tally
        if len(ranks) == self.world_size:
            self.newest = Mark(number, tuple(ranks[rank] for rank in sorted(ranks)))
            self._partial = {later: some for later, some in self._partial.items() if later > number}
            if self.tier is not None:
                self.tier.drained(number)
            self.keep(self.newest)

    def _in_tier(self, mark: Mark) -> None:
        """Keep a checkpoint that is complete in the tier, unless storage has it."""
        if (held := self._held()) is not None and held.number == mark.number and held.undrained:
            self.keep(held)

    def forget_partial(self) -> None:
        """Forget checkpoints that an attempt left incomplete."""
        self._partial.clear()
        if self.tier is not None:
            self.tier.forget_partial()

    def resume(self, mark: Mark | None, durable: Mark | None) -> None:
        """Begin with the checkpoint from which a run that broke off goes on, and the newest one in storage."""
        if self.newest is None:
            self.newest = durable
        if self.tier is None and mark is not None and mark.in_burst:
            self.tier = _Tier(self.world_size, self._in_tier)
            self.tier.newest = mark
            self.tier.begin(mark)

    def survivor(self, *, is_tier_lost: bool) -> Mark | None:
        """Return the checkpoint to go on from after a death: of the burst tier, if that has the newest one and lives.

        All else in the tier is gone then: a new attempt begins with an empty one.
        """
        held = None if is_tier_lost else self._held()
        if held is None or self.tier is None:
            self.tier = None
            return self.newest
        self.tier.begin(held)
        return held

    def _held(self) -> Mark | None:
        """Return the newest checkpoint in the burst tier; None if storage has a newer one, or a part is in neither."""
        if self.tier is None or (mark := self.tier.newest) is None:
            return None
        durable, left = -1 if self.newest is None else self.newest.number, self.tier.left
        in_burst = frozenset(number for number in mark.chain if number > left)
        undrained = frozenset(number for number in mark.chain if number > durable)
        if mark.number < durable or mark.number not in in_burst or not undrained <= in_burst:
            return None
        return replace(mark, in_burst=in_burst, undrained=undrained)


class _Tier(Saved):
    """The checkpoints in the burst tier; ``keep`` is called with each that all ranks have there."""

    def __init__(self, world_size: int, keep: Callable[[Mark], None]) -> None:
        super().__init__(world_size, self._add)
        self._complete = keep
        #: The newest one of which a part has left the tier; those before it have left too.
        self.left = -1
        #: Those that are not in storage, by number.
        self.marks: dict[int, Mark] = {}

    def _add(self, mark: Mark) -> None:
        self.marks[mark.number] = mark
        self._complete(mark)

    def drained(self, number: int) -> None:
        """Forget the marks of checkpoints that are in storage now."""
        self.marks = {later: mark for later, mark in self.marks.items() if later > number}

    def begin(self, held: Mark) -> None:
        """Begin an attempt: the tier has nothing but what a restore of ``held`` reads from it."""
        self.left = min(held.in_burst) - 1
        self.marks = {number: mark for number, mark in self.marks.items() if number in held.undrained}
