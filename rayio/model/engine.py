"""The engines by name, and the interface through which a session runs a plan on one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.sighting import Sighting, each_once, warnings
from rayio.records.running import Live
from rayio.registry import Registry
from rayio.reporter import SILENT, Reporter
from rayio.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

#: Called about once a second during a run, with running sums over the spans (``rayio.trace.progress``) and the seconds
#: since the roles began; None on the virtual clock.
Watch = Callable[[Mapping[str, Any], float | None], None]


@dataclass(frozen=True)
class Site:
    """The place of a run: its id, its folders, its reporter and its cluster."""

    #: Ids of spans are derived from it (``rayio.trace.ids``).
    run_id: str
    #: Address from which the scenario's relative paths start.
    root: str
    #: The directory that spans are written to.
    directory: RunDirectory
    reporter: Reporter = SILENT
    #: The cluster to use, for engines that need one; None leaves the choice to them.
    address: str | None = None
    #: The facts of the run for live displays; None if there are none.
    live: Live | None = None


@dataclass
class Outcome:
    """The results of a run so far; readable at any time, however the run ended."""

    #: The consumed batches of each rank, by rank.
    tallies: list[Tally]
    #: Spans that the roles recorded, of roles that replied.
    recorded: int = 0
    #: Spans of this process that could not be stored.
    unstored: pa.Table | None = None
    #: The engine's entries of run.json.
    info: dict[str, Any] = field(default_factory=dict)
    #: The engine's notes for the result.
    notes: list[str] = field(default_factory=list)
    #: The hosts of workers, ranks and writers before the roles begin, and after, of those that reply.
    before: list[Sighting] = field(default_factory=list)
    after: list[Sighting] = field(default_factory=list)

    def meet(self, sightings: Iterable[Sighting], plan: Plan, site: Site) -> None:
        """Record the hosts, and warn before the run if it would measure memory instead of storage."""
        self.before = each_once(sightings)
        hosts = [sighting.host for sighting in self.before]
        self.info["hosts"] = [host.as_json() for host in hosts]
        for text in warnings(plan, site.root, hosts):
            site.reporter.say(f"warning: {text}")
            self.notes.append(text)

    @classmethod
    def of(cls, plan: Plan) -> Outcome:
        """Return the outcome of ranks that have consumed nothing."""
        return cls(plan.tallies())


class Engine(Protocol):
    """A run of one plan: opened by calling the class, then prepared, run and closed, in this order.

    Errors are raised; ``outcome`` then has the results up to the error.

    >>> engine_named("virtual").is_virtual, engine_named("local").is_virtual
    (True, False)
    """

    #: Whether it runs on the virtual clock; its storage is then always a model.
    is_virtual: ClassVar[bool]
    #: From ``prepare`` on with the bytes of ``loader.max_bytes_in_flight: auto`` on this engine.
    plan: Plan
    outcome: Outcome

    def __init__(self, plan: Plan, site: Site) -> None: ...

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """Return a context in which the runs of a sweep share what takes long to start, such as a local Ray."""

    def prepare(self) -> None:
        """Connect to the cluster, and check that the roles fit; no role exists yet.

        Raises:
            ClusterError: the cluster is out of reach, too small, or has another version.
        """

    def run(self, watch: Watch) -> None:
        """Run every role to its end; call ``watch`` about once a second.

        Raises:
            RayioError: a role failed, or could not be started.
            KeyboardInterrupt: after Ctrl-C.
        """

    def close(self) -> None:
        """Collect the spans of all roles that still reply, and end all that was started; always call it.

        Raises:
            StorageError: spans could not be written.
        """


#: Engines, or their import paths: a run imports only its own engine.
ENGINES: Registry[str | type[Engine]] = Registry(
    "engine",
    {
        "ray": "rayio.engines.ray.engine:RayEngine",
        "local": "rayio.engines.local:LocalEngine",
        "virtual": "rayio.engines.virtual.simulation:VirtualEngine",
    },
)


def engine_named(name: str) -> type[Engine]:
    """Return the engine of a name.

    Raises:
        ScenarioError: there is none of that name.
    """
    engine = ENGINES[name]
    return cast("type[Engine]", pkgutil.resolve_name(engine)) if isinstance(engine, str) else engine
