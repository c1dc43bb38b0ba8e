"""The base of kinds: what a kind may add to the scenario that chooses it by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from rayio.schema.choice import NoOptions
from rayio.schema.fields import Section

if TYPE_CHECKING:
    from rayio.scenario.change import Change, Run
    from rayio.scenario.model import Scenario


class Kind:
    """A kind that a scenario chooses by name. A kind may have more, or not derive from this class.

    Its options stand flat in the section, next to the name, so no option may have the name of a key of that section.

    >>> [*SHUFFLES["block"].contradictions(load("unet3d-small"))]
    ['loader.shuffle=block: give loader.shuffle_block, a number of samples']
    """

    #: The keys that belong to this kind, with their types, defaults and descriptions.
    options: ClassVar[type[Section]] = NoOptions

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a line for each contradiction when this kind is chosen; it begins with key and value."""
        yield from ()

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield a line for each key that does nothing in this run."""
        yield from ()

    def table(self, scenario: Scenario) -> Mapping[str, float]:
        """Return numbers that follow from the scenario, by name; ``rayio show`` prints them."""
        return {}

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield the changes that this kind offers for a run; see ``change.py``."""
        yield from ()
