"""``loader.file_access: collective``: some ranks read for the others (``rayio.storage.layers.collective``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from rayio.data.access.per_sample import PerSample
from rayio.kinds import LOADERS
from rayio.scenario import derive
from rayio.schema.fields import Section, whole

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


class CollectiveOptions(Section):
    """Options of collective reads."""

    aggregators: Annotated[int, whole(1)] = Field(
        1, description="Ranks that read from storage; each passes what it read on to an equal number of others."
    )


class Collective(PerSample):
    """The requests of ``per_sample``, made by the first rank of each group; the others get the bytes from it."""

    options = CollectiveOptions

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse groups of unequal size, and ranks that read different samples."""
        yield from super().contradictions(scenario)
        loader, ranks = scenario.loader, derive.world_size(scenario)
        aggregators = getattr(loader.file_access_options, "aggregators", 1)
        if ranks % aggregators:
            able = [number for number in range(1, ranks + 1) if not ranks % number]
            near = sorted(sorted(able, key=lambda number: abs(number - aggregators))[:2])
            yield (
                f"loader.aggregators={aggregators}: does not divide {ranks} ranks; use {' or '.join(map(str, near))}"
            )
        if not derive.is_replicated(scenario):
            yield (
                f"loader.file_access=collective: with loader.partition={loader.partition} ranks read different samples;"
                " use loader.partition=replicated, or loader.file_access=per_sample"
            )
        if not LOADERS[loader.kind].has_roles:
            yield (
                f"loader.file_access=collective: workers of loader.kind={loader.kind} cannot pass bytes on; use "
                "loader.kind=actors"
            )

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Name groups of one rank."""
        loader, ranks = scenario.loader, derive.world_size(scenario)
        if getattr(loader.file_access_options, "aggregators", 1) == ranks:
            yield f"loader.file_access=collective: every one of the {ranks} ranks is an aggregator and reads for itself"
