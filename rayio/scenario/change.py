"""A change: one thing that could be different about a run, as a value.

Changes are offered by the sections of a scenario (``section_changes.py``), by formats and layers of storage (each by a
method ``changes(run)``), and by the simulation. ``OFFERS`` in ``rayio/predict/changes.py`` lists all offers for
``explain``, ``capacity``, reports and docs.

An offer is a generator. It yields only changes that are possible in the given run. An example of a layer::

    def changes(self, run: Run) -> Iterator[Change]:
        yield Change("without faults", kind="removal", to=with_keys("storage", faults=None), removes=("fault",))
        yield Change(
            "cache × 2", kind="setting", to=with_keys("storage", cache=twice), key=f"storage.cache={twice}",
            helps=("input",), tried_by=BOTH,
        )
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from rayio.scenario.costs import Costs
    from rayio.scenario.model import Scenario, StorageParameters

#: What sort of thing is changed: a cause taken away, which only a layer has a key for; a limit of modelled storage
#: lifted; a key of the scenario set; another number of readers (of which ``explain`` looks for enough by doubling);
#: more hardware.
Kind = Literal["removal", "limit", "setting", "workers", "machine"]

Command = Literal["explain", "capacity"]
BOTH: tuple[Command, ...] = ("explain", "capacity")


class Run(Protocol):
    """A run for which changes are offered: one that is explained, or one that was only planned."""

    @property
    def scenario(self) -> Scenario:
        """Its scenario."""

    @property
    def modelled(self) -> StorageParameters | None:
        """Its modelled storage; None for real storage."""

    @property
    def costs(self) -> Costs:
        """The costs of its loader, reading apart."""

    @property
    def workers(self) -> int:
        """Workers of a rank; the mean if their number changed."""

    @property
    def has_cores(self) -> bool:
        """True if the CPU time of its batches and its cores are known."""

    @property
    def was_memory_bound(self) -> bool:
        """True if the bound on bytes in flight closed a window."""

    @property
    def is_throttled(self) -> bool:
        """True if real storage refused so many requests that other numbers of workers cannot be simulated."""


def _always(scenario: Scenario) -> bool:
    return True


@dataclass(frozen=True)
class Change:
    """One thing that could be different about a run.

    >>> Change("io_depth × 2", kind="setting", to=with_keys("loader", io_depth=2), key="loader.io_depth=2").advice
    'loader.io_depth=2'
    """

    #: Unique, such as ``cache × 2``: it names the change in results.
    name: str
    _: KW_ONLY
    kind: Kind
    to: Callable[[Scenario], Scenario]
    #: The override that makes it, such as ``loader.io_depth=2``; None without one.
    key: str | None = None
    #: The change in words, if it has no key and its name does not explain it.
    words: str = ""
    #: The causes that it takes away, as the table of losses has them.
    removes: tuple[str, ...] = ()
    #: The bottlenecks or largest causes for which this change is proposed.
    helps: tuple[str, ...] = ()
    #: It is tried only where one of these changes saves time, and then only where a scenario has a use for it (which
    #: may take a while to find out).
    after: tuple[str, ...] = ()
    is_of_use: Callable[[Scenario], bool] = _always
    #: Of changes that save as much, the one with the least effort is proposed. Below 0, it saves resources, and
    #: is proposed however little it saves.
    effort: int = 0
    #: True if more work is done again after failures: a replay without failures cannot tell the effect.
    risks_work: bool = False
    tried_by: tuple[Command, ...] = ("explain",)

    @property
    def advice(self) -> str:
        """The advice, as part of a sentence."""
        return self.key or self.words or self.name


def with_keys(section: str, **keys: Any) -> Callable[[Scenario], Scenario]:
    """Return a function that sets keys of one section of a scenario."""

    def change(scenario: Scenario) -> Scenario:
        return scenario.model_copy(update={section: getattr(scenario, section).model_copy(update=keys)})

    return change
