"""What a kind that a scenario chooses by name may add to the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from rayio.schema.choice import NoOptions
from rayio.schema.fields import Section

if TYPE_CHECKING:
    from rayio.scenario.change import Change, Run
    from rayio.scenario.model import Scenario


class Kind:
    """What a scenario can choose by name: what it adds to the scenario. A kind may have more, or not derive from this.

    A section has options flat beside the name, so no option may have the name of a key of that section.

    >>> [*SHUFFLES["block"].contradictions(load("unet3d-small"))]
    ['loader.shuffle=block: give loader.shuffle_block, a number of samples']
    """

    #: The keys that belong to this kind, with their types, defaults and descriptions.
    options: ClassVar[type[Section]] = NoOptions

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Values that cannot be together when this kind is chosen: a line each, which begins with key and value."""
        yield from ()

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Keys that ask for what this run is too short or too simple to do: a line each."""
        yield from ()

    def table(self, scenario: Scenario) -> Mapping[str, float]:
        """Numbers that follow from the scenario when this kind is chosen, by name: ``rayio show`` prints them."""
        return {}

    def changes(self, run: Run) -> Iterator[Change]:
        """What could be different about a run that has this kind; see ``change.py``."""
        yield from ()
