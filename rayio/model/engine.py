"""What carries out a plan: the engines by name, and what a session can rely on of each of them."""

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

#: Called about once a second while the roles live, with running sums over their spans (``rayio.trace.progress``), and
#: the seconds since they began; None on a clock that jumps.
Watch = Callable[[Mapping[str, Any], float | None], None]


@dataclass(frozen=True)
class Site:
    """Where a run takes place, and who is told how it goes."""

    #: What ids are derived from (``rayio.trace.ids``).
    run_id: str
    #: Address from which the scenario's relative paths start.
    root: str
    #: Where spans go while the run goes.
    directory: RunDirectory
    reporter: Reporter = SILENT
    #: The cluster to use, for engines that need one; None leaves the choice to them.
    address: str | None = None
    #: What is known of the run before it begins, for who is told how it goes; None where nobody is.
    live: Live | None = None


@dataclass
class Outcome:
    """What a run has left behind so far. It can be read at any time, however the run ended."""

    #: What each rank consumed, by rank.
    tallies: list[Tally]
    #: Spans that the roles recorded, as far as they could be asked.
    recorded: int = 0
    #: Spans of this process that could not be stored.
    unstored: pa.Table | None = None
    #: What run.json says of this engine's part.
    info: dict[str, Any] = field(default_factory=dict)
    #: What the result's notes say of it.
    notes: list[str] = field(default_factory=list)
    #: The hosts of readers, ranks and writers before the roles lived, and those that could be asked afterwards.
    before: list[Sighting] = field(default_factory=list)
    after: list[Sighting] = field(default_factory=list)

    def meet(self, sightings: Iterable[Sighting], plan: Plan, site: Site) -> None:
        """Note the hosts, and say before anything is read what the run would not measure there."""
        self.before = each_once(sightings)
        hosts = [sighting.host for sighting in self.before]
        self.info["hosts"] = [host.as_json() for host in hosts]
        for text in warnings(plan, site.root, hosts):
            site.reporter.say(f"warning: {text}")
            self.notes.append(text)

    @classmethod
    def of(cls, plan: Plan) -> Outcome:
        """Start with ranks that have consumed nothing."""
        return cls(plan.tallies())


class Engine(Protocol):
    """One run of one plan: opened by calling the class, then prepared, run and closed, in this order.

    Whatever goes wrong is raised, and only raised; ``outcome`` has what was achieved until then.

    >>> engine_named("virtual").is_virtual, engine_named("local").is_virtual
    (True, False)
    """

    #: Whether its clock jumps to the next timer; its storage is then always a model.
    is_virtual: ClassVar[bool]
    #: From ``prepare`` on with what ``loader.max_bytes_in_flight: auto`` comes to here.
    plan: Plan
    outcome: Outcome

    def __init__(self, plan: Plan, site: Site) -> None: ...

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """A block in which runs share what takes long to start, such as a local Ray: a sweep's, one after the other."""

    def prepare(self) -> None:
        """Reach what the roles will live on, and make sure that they fit; no role exists yet.

        Raises:
            ClusterError: out of reach, too small, or of another version.
        """

    def run(self, watch: Watch) -> None:
        """Live every role's life to its end.

        Raises:
            RayioError: a role failed, or could not be started.
            KeyboardInterrupt: after Ctrl-C.
        """

    def close(self) -> None:
        """Gather what was recorded, as far as roles still answer, and end all that was started; always to be called.

        Raises:
            StorageError: spans could not be written.
        """


#: An engine, or where to find it: nobody who runs on one loads the others.
ENGINES: Registry[str | type[Engine]] = Registry(
    "engine",
    {
        "ray": "rayio.engines.ray.engine:RayEngine",
        "local": "rayio.engines.local:LocalEngine",
        "virtual": "rayio.engines.virtual.simulation:VirtualEngine",
    },
)


def engine_named(name: str) -> type[Engine]:
    """Find an engine.

    Raises:
        ScenarioError: there is none of that name.
    """
    found = ENGINES[name]
    return cast("type[Engine]", pkgutil.resolve_name(found)) if isinstance(found, str) else found
