"""The actors of one run on Ray: placed, started, watched, asked for what they recorded, ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayio.cluster import actors as shells
from rayio.cluster.collector import Collector
from rayio.cluster.connect import Connection
from rayio.cluster.placement import ActorSpec, actors, bundles
from rayio.cluster.remote import plain
from rayio.errors import ClusterError, RunError
from rayio.pipeline.ledger import Tally
from rayio.pipeline.plan import Plan
from rayio.trace.clocks import Anchor

#: Called now and then with what has been done so far, for the live view.
Watch = Callable[[dict[str, Any]], None]
#: Seconds between two looks at a run.
LOOK_SECONDS = 0.5
#: Seconds that actors get to hand over their spans at the end.
FLUSH_SECONDS = 10.0
#: Seconds that the collector gets to write what it holds.
FINISH_SECONDS = 120.0

CLASSES: dict[str, type] = {
    "reader": shells.Reader,
    "queue": shells.PrefetchQueue,
    "rank": shells.TrainerRank,
    "checkpoint_writer": shells.CheckpointWriter,
    "storage": shells.StorageServer,
}


class ActorGroup:
    """The actors of one run, from their start to their end."""

    def __init__(self, plan: Plan, connection: Connection, directory: str, root: str, run_id: str) -> None:
        self.plan = plan
        self.connection = connection
        self.root = root
        self.run_id = run_id
        self.anchor = Anchor.new()
        self.specs = actors(plan)
        self.handles: dict[str, Any] = {}
        self.group: PlacementGroup | None = None
        self.directory = directory
        #: What run.json says of the actors.
        self.actors: list[dict[str, Any]] = []
        #: What ranks consumed, of those that are over or could be asked.
        self.tallies: list[Tally] = []
        self.restarts: list[dict[str, Any]] = []
        #: Spans that actors recorded, as far as they could be asked.
        self.recorded = 0
        #: What was found of the clocks of emulated nodes that are not on the driver's host.
        self.clocks: dict[int, dict[str, Any]] = {}

    def start(self, say: Callable[[str], None]) -> None:
        """Create every actor and wait until all have started.

        Raises:
            ClusterError: not all within ``cluster.start_deadline``; the message names what is missing.
        """
        deadline = time.monotonic() + self.plan.cluster.start_deadline
        self._place(deadline)
        beside_driver = NodeAffinitySchedulingStrategy(self.connection.driver_node, soft=False)
        self.handles["collector"] = self._actor(
            Collector, "collector", beside_driver, 0, self.directory, self.plan.stores, self.anchor
        )
        if self.plan.has_barrier:
            self.handles["barrier"] = self._actor(
                shells.BarrierActor, "barrier", self._bundle(0), -1, self.plan, concurrency=shells.MAX_CONCURRENCY
            )
        for spec in self.specs:
            self.handles[spec.name] = self._create(spec)
        self._await_ready(deadline, say)

    def _place(self, deadline: float) -> None:
        nodes = self.plan.cluster.nodes
        strategy = "STRICT_SPREAD" if nodes <= len(self.connection.nodes) else "PACK"
        self.group = placement_group(bundles(self.plan), strategy=strategy, name=self.run_id)
        if not self.group.wait(max(1.0, deadline - time.monotonic())):
            raise ClusterError(
                f"no room for {nodes} bundles ({strategy}) on {len(self.connection.nodes)} Ray nodes within "
                f"{self.plan.cluster.start_deadline:g} s; free some CPU or lower cluster.nodes"
            )

    def _bundle(self, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)

    def _actor(self, cls: type, name: str, where: Any, retries: int, *args: Any, concurrency: int | None = None) -> Any:
        """Create an actor that claims no CPU; ``retries`` -1 has Ray start it again and repeat its calls for ever."""
        options: dict[str, Any] = {
            "name": name,
            "namespace": self.run_id,
            "num_cpus": 0,
            "scheduling_strategy": where,
            "max_restarts": retries,
            "max_task_retries": retries,
        }
        if concurrency is not None:
            options["max_concurrency"] = concurrency
        remote: Any = ray.remote(cls)
        return remote.options(**options).remote(*args)

    def _create(self, spec: ActorSpec) -> Any:
        where = self._bundle(spec.node)
        if spec.kind == "storage":
            return self._actor(shells.StorageServer, spec.name, where, -1, self.plan)
        birth = shells.Birth(
            name=spec.name, node=spec.node, members=spec.members, plan=self.plan, root=self.root, anchor=self.anchor,
            namespace=self.run_id,
        )  # fmt: skip
        retries = 0 if spec.kind == "rank" else -1
        return self._actor(CLASSES[spec.kind], spec.name, where, retries, birth, concurrency=shells.MAX_CONCURRENCY)

    def _await_ready(self, deadline: float, say: Callable[[str], None]) -> None:
        asked = {handle.ready.remote(): name for name, handle in self.handles.items()}
        waiting, said = list(asked), time.monotonic()
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
            for reference in ready:
                try:
                    self.actors.append(ray.get(reference))
                except RayError as error:
                    raise ClusterError(f"{asked[reference]} did not start: {_first_line(plain(error))}") from None
            if waiting and time.monotonic() > deadline:
                names = sorted(asked[reference] for reference in waiting)
                shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                raise ClusterError(
                    f"{len(names)} of {len(asked)} actors have not started within "
                    f"{self.plan.cluster.start_deadline:g} s (cluster.start_deadline): {shown}"
                )
            if waiting and time.monotonic() - said > 5:
                said = time.monotonic()
                say(f"{len(asked) - len(waiting)} of {len(asked)} actors have started")

    def live(self, watch: Watch) -> None:
        """Let every rank live its life to the end, looking in now and then.

        Raises:
            RayioError: a role failed, or an actor that cannot be replaced died.
        """
        lives = {handle.run.remote(0): name for name, handle in self.handles.items() if name.startswith("rank-")}
        waiting = list(lives)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
            for reference in done:
                try:
                    self.tallies += ray.get(reference)
                except RayTaskError as error:
                    raise plain(error) from None
                except RayError as end:  # of several kinds: killed by Ray for its memory is another one than killed
                    raise RunError(
                        f"{lives[reference]} died ({self._why(lives[reference], end)}); a rank is not restarted: "
                        "the run is over, what was recorded is in the run directory"
                    ) from None
            watch(self._progress())

    def _why(self, name: str, error: RayError) -> str:
        """Say what an actor died of, as far as Ray knows: it takes a quarter of a minute to know of a lost node."""
        home = next((actor["ray_node"] for actor in self.actors if actor["name"] == name), None)
        node = next((node for node in ray.nodes() if node["NodeID"] == home), None)
        if node is not None and not node["Alive"]:
            return f"its Ray node on {node['NodeManagerHostname']} was lost"
        if node is not None and isinstance(error, ActorUnavailableError):
            return f"killed, or its Ray node on {node['NodeManagerHostname']} was lost"
        return "killed, or out of memory"

    def _progress(self) -> dict[str, Any]:
        try:
            progress: dict[str, Any] = ray.get(self.handles["collector"].progress.remote(), timeout=30)
        except RayTaskError as error:
            raise plain(error) from None
        except RayError:
            raise RunError(
                "the collector died (killed, or out of memory): spans can no longer be stored; start the run again"
            ) from None
        self._remember(progress)
        return progress

    def close(self) -> None:
        """Gather what is recorded, as far as actors still answer, then end every actor.

        Raises:
            StorageError: spans could not be written.
        """
        try:
            with contextlib.suppress(RayError):
                self._gather_tallies()
            self._flush()
        finally:
            for handle in reversed(self.handles.values()):  # ranks first, so that nobody calls the dead
                with contextlib.suppress(Exception):
                    ray.kill(handle)
            if self.group is not None:
                with contextlib.suppress(Exception):
                    remove_placement_group(self.group)

    def _gather_tallies(self) -> None:
        """Ask ranks that were cut short what they have consumed so far."""
        known = {tally.rank for tally in self.tallies}
        asked = [
            self.handles[s.name].consumed.remote()
            for s in self.specs
            if s.kind == "rank" and s.name in self.handles and not known.issuperset(rank for (rank,) in s.members)
        ]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=FLUSH_SECONDS) if asked else ([], [])
        for reference in ready:
            with contextlib.suppress(RayError):
                self.tallies += ray.get(reference)

    def _flush(self) -> None:
        flushing = [
            self.handles[s.name].flush.remote() for s in self.specs if s.kind != "storage" and s.name in self.handles
        ]
        ready, _ = ray.wait(flushing, num_returns=len(flushing), timeout=FLUSH_SECONDS) if flushing else ([], [])
        heard = 0
        for reference in ready:
            with contextlib.suppress(RayError):
                heard += ray.get(reference)
        if "collector" not in self.handles:
            return
        try:
            finished = ray.get(self.handles["collector"].finish.remote(), timeout=FINISH_SECONDS)
            self.recorded = max(heard, finished["recorded"])
            self.clocks = finished["clocks"]
            self._remember(finished)
        except RayTaskError as error:
            raise plain(error) from None
        except RayError as error:
            raise RunError(f"the collector could not write all spans: {_first_line(error)}") from None

    def _remember(self, progress: dict[str, Any]) -> None:
        self.restarts = progress["restarts"]


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
