"""Engines, which carry out a plan: their registry and their contract with a session."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from rayio.model.attempts import Resumed
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.sighting import Sighting, each_once, warnings
from rayio.model.workflow import StageTally
from rayio.records.failures import Restart
from rayio.records.running import Live
from rayio.registry import Registry
from rayio.reporter import SILENT, Reporter
from rayio.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

#: Called about once a second during a run, with running sums over its spans (``rayio.trace.progress``) and the seconds
#: since its start; None on the virtual clock.
Watch = Callable[[Mapping[str, Any], float | None], None]


@dataclass(frozen=True)
class Site:
    """The place of a run, and its live record."""

    #: Base of derived ids (``rayio.trace.ids``).
    run_id: str
    #: Base address of the scenario's relative paths.
    root: str
    directory: RunDirectory
    reporter: Reporter = SILENT
    #: The cluster, for engines that need one; None leaves the choice to them.
    address: str | None = None
    #: The live record before the run begins; None without a live view.
    live: Live | None = None
    #: The earlier part of a run that broke off; None for a new run.
    resumed: Resumed | None = None


@dataclass
class Outcome:
    """The outcome of a run so far, readable at any time, even after errors."""

    #: Consumption by rank.
    tallies: list[Tally]
    #: Ranks that began and did not answer at the end: their tallies are those with which they began.
    unheard: frozenset[int] = frozenset()
    #: Spans recorded by roles that answered.
    recorded: int = 0
    #: Unwritten spans of this process.
    unstored: pa.Table | None = None
    info: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Restarts of all ranks after failures.
    restarts: list[Restart] = field(default_factory=list)
    #: What the processes of each stage did.
    stages: list[StageTally] = field(default_factory=list)
    #: Warnings that the run will measure memory: notes where it cannot be measured whether it did.
    foretold: list[str] = field(default_factory=list)
    #: Hosts of readers, ranks and writers before the run, and those that answered afterwards.
    before: list[Sighting] = field(default_factory=list)
    after: list[Sighting] = field(default_factory=list)

    def meet(self, sightings: Iterable[Sighting], plan: Plan, site: Site) -> None:
        """Record the hosts, and warn in advance of what the run cannot measure there."""
        self.before = each_once(sightings)
        hosts = [sighting.host for sighting in self.before]
        self.info["hosts"] = [host.as_json() for host in hosts]
        for text in warnings(plan, site.root, hosts):
            site.reporter.warn(text)
            self.foretold.append(text)

    @classmethod
    def of(cls, plan: Plan) -> Outcome:
        """Return an outcome without consumption."""
        return cls(plan.tallies())


class Engine(Protocol):
    """One run of one plan: opened by calling the class, then prepared, run and closed, in this order.

    Every error is raised; ``outcome`` has the results until then.

    >>> engine_named("virtual").is_virtual, engine_named("local").is_virtual
    (True, False)
    """

    #: True on the virtual clock; storage is then always modelled.
    is_virtual: ClassVar[bool]
    #: From ``prepare`` on with the value of ``loader.max_bytes_in_flight: auto``.
    plan: Plan
    outcome: Outcome

    def __init__(self, plan: Plan, site: Site) -> None: ...

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """Return a context in which runs share what starts slowly, such as a local Ray, one after the other."""

    def prepare(self) -> None:
        """Connect to the resources and check that the roles fit; no role exists yet.

        Raises:
            ClusterError: unreachable, too small, or of another version.
        """

    def run(self, watch: Watch) -> None:
        """Run every role to its end.

        Raises:
            RayioError: a role failed, or could not be started.
            KeyboardInterrupt: after Ctrl-C.
        """

    def close(self) -> None:
        """Collect spans from roles that answer, and end all that was started; always to be called.

        Raises:
            StorageError: spans could not be written.
        """


#: An engine class or its location; engines are imported only when used.
ENGINES: Registry[str | type[Engine]] = Registry(
    "engine",
    {
        "ray": "rayio.engines.ray.engine:RayEngine",
        "local": "rayio.engines.local:LocalEngine",
        "virtual": "rayio.engines.virtual.simulation:VirtualEngine",
    },
)


def engine_named(name: str) -> type[Engine]:
    """Return an engine class.

    Raises:
        ScenarioError: no such engine.
    """
    engine = ENGINES[name]
    return cast("type[Engine]", pkgutil.resolve_name(engine)) if isinstance(engine, str) else engine
