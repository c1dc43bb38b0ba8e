"""The actors of one run on Ray: placement, start, watch, collection of spans, end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayio.engines.ray.actors import shells
from rayio.engines.ray.actors.birth import Birth
from rayio.engines.ray.actors.collector import Collector
from rayio.engines.ray.actors.deaths import Deaths, first_line, late
from rayio.engines.ray.actors.servers import BarrierActor, LayerServer, StorageServer
from rayio.engines.ray.actors.showing import Showing
from rayio.engines.ray.actors.staff import Team, is_first
from rayio.engines.ray.actors.stages import LIVING, SPENDING, StagesActor
from rayio.engines.ray.actors.survival import Survival
from rayio.engines.ray.actors.writers import CheckpointWriter
from rayio.engines.ray.cluster.connect import Connection
from rayio.engines.ray.cluster.room import room_for
from rayio.engines.ray.cluster.slots import Slots
from rayio.engines.ray.placement import SERVERS, ActorSpec, actors
from rayio.engines.ray.rounds import Rounds, sightings
from rayio.engines.ray.transport.remote import plain
from rayio.errors import ClusterError, RayioError, RunError
from rayio.model.attempts import Death, Resumed
from rayio.model.cpu_account import CpuAccount
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.sighting import Sighting
from rayio.model.standing import Vigil
from rayio.model.workflow import CONDUCTOR, StageTally
from rayio.records.running import Live
from rayio.reporter import SILENT
from rayio.signals import hold, within
from rayio.trace.clocks import Anchor

T = TypeVar("T")

#: Called regularly with the progress, for the live view.
Watch = Callable[[dict[str, Any]], None]
LOOK_SECONDS = 0.5
#: Seconds for actors to send their spans at the end.
FLUSH_SECONDS = 10.0
#: Seconds for the collector to write its spans, and to answer during the run.
FINISH_SECONDS = 120.0
COLLECTOR_SECONDS = 30.0
#: Seconds for it at least, however short the deadline of a silence is.
LEAST_SECONDS = 5.0
#: Seconds beyond a deadline: for Ray to place the run, and to end all.
GRACE_SECONDS = 5.0
KILL_SECONDS = 15.0

CLASSES: dict[str, type] = {
    "storage": StorageServer,
    "layer": LayerServer,
    "reader": shells.Reader,
    "queue": shells.PrefetchQueue,
    "rank": shells.TrainerRank,
    "checkpoint_writer": CheckpointWriter,
}


class ActorGroup:
    """The actors of one run, from start to end."""

    def __init__(
        self,
        plan: Plan,
        connection: Connection,
        directory: str,
        root: str,
        run_id: str,
        vigil: Vigil,
        live: Live | None = None,
        tallies: list[Tally] | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self.plan = plan
        #: The live record before the run begins; None without a live view.
        self.live_record = live
        self.connection = connection
        self.control = connection.control
        self.control.deadline = plan.cluster.stall_deadline
        self.vigil = vigil
        #: Actors that do not answer, and are not waited for at the end.
        self.silent: set[str] = set()
        self.root = root
        self.run_id = run_id
        self.anchor = Anchor.new()
        self.specs = actors(plan)
        self.handles: dict[str, Any] = {}
        self.group: PlacementGroup | None = None
        self.directory = directory
        #: The Ray node of each emulated one, by its number as text.
        self.homes: dict[str, str] = {}
        #: The actors' entries of run.json.
        self.actors: list[dict[str, Any]] = []
        self.deaths = Deaths(self.control, self.actors)
        #: Consumption of ranks that ended or answered; and what stages did.
        self.tallies, self.stage_tallies = list[Tally](), list[StageTally]()
        self.restarts: list[dict[str, Any]] = []
        #: The readers that scale, or None.
        self.team: Team | None = None
        #: Spans recorded by actors that answered.
        self.recorded = 0
        #: CPU time of actors that answered.
        self.cpu = CpuAccount()
        #: Clocks of emulated nodes on other hosts than the driver's.
        self.clocks: dict[int, dict[str, Any]] = {}
        self.survival = Survival(self, plan.tallies() if tallies is None else tallies, resumed)

    def start(self, say: Callable[[str], None]) -> None:
        """Create every actor and wait until all have started.

        Raises:
            ClusterError: some did not start within ``cluster.start_deadline``; the message names them.
        """
        deadline = time.monotonic() + self.plan.cluster.start_deadline
        self._place(deadline)
        self._from_ray(partial(self._create_all, say), deadline)
        self.await_ready(self.handles, say)
        self.control.need({actor["ray_node"] for actor in self.actors if actor["name"].startswith("rank-")})

    def _create_all(self, say: Callable[[str], None]) -> None:
        beside_driver = NodeAffinitySchedulingStrategy(self.connection.driver_node, soft=False)
        self.handles["collector"] = self._actor(
            Collector, "collector", beside_driver, 0, self.directory, self.plan.stores, self.anchor, self._showing(),
            self.plan.world_size, os.getpid(),
        )  # fmt: skip
        if self.plan.has_barrier:
            self._serve(BarrierActor, "barrier", -1)
        if self.plan.workflow:
            self._serve(StagesActor, CONDUCTOR, 0, self.group, self.survival.attempts.stages)
        scaling = self.plan.loader.scaling
        for spec in self.specs:
            if scaling is None or spec.kind != "reader" or is_first(spec, scaling.min):
                self.handles[spec.name] = self.create(spec)
        if scaling is not None:
            pooled, here = self.plan.cluster.has_pool, self.anchor.here()
            slots = Slots(self.plan, self.run_id, here, self._lived) if pooled else None
            self.team = Team(
                self.plan, self.specs, self.handles, self.create, self.actors.append, self.deaths.not_started, slots,
                say,
            )  # fmt: skip

    def _serve(self, cls: type, name: str, retries: int, *args: Any) -> None:
        where, birth, concurrency = self._bundle(0), self._birth(name, 0, ()), shells.MAX_CONCURRENCY
        self.handles[name] = self._actor(cls, name, where, retries, birth, *args, concurrency=concurrency)

    def _lived(self, node: int, requested: int, up: int | None, gone: int) -> None:
        """Report the life of a pool node; a new node of its number begins afresh."""
        self.handles["collector"].lived.remote(node, requested, up, gone)
        for layer in self.plan.layers:
            if layer.sharing == "node":
                self.handles[layer.actor(self.plan.state_of_node(node))].call.remote("clear")

    def _showing(self) -> Callable[[], Showing] | None:
        if self.live_record is None:
            return None
        return partial(Showing, self.live_record, payload=self.plan.payload)

    def _from_ray(self, call: Callable[[], T], deadline: float) -> T:
        """Call a function of Ray that needs its control process."""
        try:
            return within(max(1.0, deadline - time.monotonic()) + GRACE_SECONDS, call, look=self.control.look)
        except RayioError:
            raise
        except Exception as error:  # Ray raises many classes
            what = "no answer" if isinstance(error, TimeoutError) else first_line(error)
            raise ClusterError(
                f"Ray could not place the run: {what}; a node that was lost, or a Ray that is too busy? "
                f"look at its logs in {self.control.logs}, and start the run again"
            ) from None

    def _place(self, deadline: float) -> None:
        seconds = max(1.0, deadline - time.monotonic())
        placed = self._from_ray(partial(room_for, self.plan, self.connection, self.run_id, seconds), deadline)
        self.group, self.homes = placed

    def _bundle(self, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)

    def _actor(self, cls: type, name: str, where: Any, retries: int, *args: Any, concurrency: int | None = None) -> Any:
        """Create an actor that claims no CPU; with ``retries`` -1 Ray restarts it and repeats its calls for ever."""
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
        # A role may block its event loop, so calls for its standing have another.
        remote: Any = ray.remote(concurrency_groups={shells.WATCH: 1})(cls) if concurrency else ray.remote(cls)
        return remote.options(**options).remote(*args)

    def _birth(self, name: str, node: int, members: tuple[tuple[int, ...], ...]) -> Birth:
        return Birth(
            name=name, node=node, members=members, plan=self.plan, root=self.root, anchor=self.anchor,
            namespace=self.run_id, tallies=tuple(self.survival.tallies_of(members)) if name.startswith("rank-") else (),
        )  # fmt: skip

    def create(self, spec: ActorSpec, name: str = "", group: PlacementGroup | None = None) -> Any:
        """Create a role's actor, in the run's group or a separate one; models of future nodes are on the first node."""
        birth = self._birth(spec.name, spec.node, spec.members)
        where = self._bundle(spec.node if spec.node < self.plan.cluster.all_nodes else 0)
        if group is not None:
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        retries = 0 if spec.kind == "rank" else -1
        kind, name = CLASSES[spec.kind], name or spec.name
        return self._actor(kind, name, where, retries, birth, concurrency=shells.MAX_CONCURRENCY)

    def await_ready(self, names: Iterable[str], say: Callable[[str], None]) -> None:
        """Wait until actors have started.

        Raises:
            ClusterError: some did not within ``cluster.start_deadline``; the message names them.
        """
        deadline = time.monotonic() + self.plan.cluster.start_deadline
        names_by_reference = {self.handles[name].ready.remote(): name for name in names}
        waiting, reported = list(names_by_reference), time.monotonic()
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
            self.survival.look()
            for reference in ready:
                try:
                    self.actors.append(ray.get(reference))
                except RayError as error:
                    raise ClusterError(self.deaths.not_started(names_by_reference[reference], error)) from None
            if waiting and time.monotonic() > deadline:
                names = sorted(names_by_reference[reference] for reference in waiting)
                raise ClusterError(late(names, len(names_by_reference), self.plan.cluster.start_deadline))
            if waiting and time.monotonic() - reported > 5:
                reported = time.monotonic()
                say(f"{len(names_by_reference) - len(waiting)} of {len(names_by_reference)} actors have started")

    def sightings(self) -> list[Sighting]:
        """Return host descriptions of those that answer in time; see :func:`rayio.engines.ray.rounds.sightings`."""
        return sightings(self.actors, self.handles, FLUSH_SECONDS)

    def live(self, watch: Watch, say: Callable[[str], None] = SILENT.say) -> None:
        """Run every rank's life to its end, with regular looks, and again after failures.

        Raises:
            RayioError: a role failed, or an actor that cannot be replaced died.
        """
        self.survival.start()
        while (death := self._attempt(watch)) is not None:
            self.survival.restart(death, say)
        hold()  # nothing is left to be stopped or to fail
        with contextlib.suppress(RayioError):
            watch(self._progress())

    def _attempt(self, watch: Watch) -> Death | None:
        """Run an attempt; return the death that ended it, if one did."""
        lives = {handle.run.remote(): name for name, handle in self.handles.items() if name.startswith(LIVING)}
        rounds = Rounds(self.plan, self.specs, self.handles, self.actors, self.anchor.here(), self.vigil)
        try:
            return self._live(lives, rounds, watch)
        except BaseException:
            self.silent |= rounds.silent
            raise

    def _live(self, lives: dict[Any, str], rounds: Rounds, watch: Watch) -> Death | None:
        waiting = list(lives)
        while waiting:
            patience = self.survival.seconds_left(LOOK_SECONDS)
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=patience)
            self.survival.strike()
            for reference in done:
                try:
                    (self.stage_tallies if lives[reference] == CONDUCTOR else self.tallies).extend(ray.get(reference))
                except RayTaskError as error:
                    raise plain(error) from None
                except RayError as end:  # various classes: Ray reports its own kills for memory in another one
                    self.survival.look(is_late=True)
                    if self.survival.is_possible and lives[reference] != CONDUCTOR:
                        return self.survival.death_of(lives[reference])
                    raise RunError(self.deaths.over(lives[reference], end)) from None
            if waiting:
                if (death := self.survival.unseen({lives[reference] for reference in waiting})) is not None:
                    return death
                self.survival.look()
                progress = self._progress()
                if self.team is not None:
                    self._from_ray(partial(self.team.look, progress["wishes"]), time.monotonic() + COLLECTOR_SECONDS)
                watch(progress)
                rounds.look()
        return None

    def _progress(self) -> dict[str, Any]:
        reference = self.handles["collector"].progress.remote()
        patience = min(COLLECTOR_SECONDS, max(LEAST_SECONDS, self.vigil.deadline))
        ends = time.monotonic() + patience
        while not ray.wait([reference], timeout=1.0)[0] and time.monotonic() < ends:
            self.control.look()
        try:
            progress: dict[str, Any] = ray.get(reference, timeout=0)
        except RayTaskError as error:
            raise plain(error) from None
        except GetTimeoutError:
            self.silent.add("collector")
            state = self.deaths.state_of("collector") or "stopped, or waiting for its storage"
            raise RunError(
                f"the collector has not answered for {patience:.0f} s ({state}): spans can no longer be stored; start "
                "the run again"
            ) from None
        except RayError as error:
            self.control.look()
            self.silent.add("collector")
            why = f"the collector died ({self.deaths.why_collector(error)}): spans can no longer be stored"
            raise self.survival.broken_off("collector", 0, f"{why}; start the run again") from None
        self._remember(progress)
        return progress

    def close(self) -> None:
        """Collect spans from actors that answer, then end every actor.

        Every call has a deadline.

        Raises:
            StorageError: spans could not be written.
        """
        try:
            if self.team is not None:
                self.team.close()
            with contextlib.suppress(RayError):
                self._gather_tallies()
            self._flush()
        finally:
            with contextlib.suppress(Exception):
                within(self.control.patience(KILL_SECONDS), self._kill)

    def _kill(self) -> None:
        for handle in reversed(self.handles.values()):  # ranks first, so that they do not call dead actors
            with contextlib.suppress(Exception):
                ray.kill(handle)
        if self.group is not None and not self.connection.is_local:  # a local Ray ends with everything in it
            remove_placement_group(self.group)

    def _gather_tallies(self) -> None:
        known, here = {tally.rank for tally in self.tallies}, self.handles.keys() - self.silent
        references = [
            self.handles[s.name].consumed.remote()
            for s in self.specs
            if s.kind == "rank" and s.name in here and not known.issuperset(rank for (rank,) in s.members)
        ]
        for reference in self.control.answers(references, FLUSH_SECONDS):
            with contextlib.suppress(RayError):
                self.tallies += ray.get(reference)

    def _flush(self) -> None:
        here = set() if "collector" in self.silent else self.handles.keys() - self.silent  # nobody else takes spans
        layers = [spec.name for spec in self.specs if spec.kind == "layer"]
        references = [self.handles[name].spent.remote() for name in (*SPENDING, *layers) if name in here]
        references += [
            self.handles[s.name].flush.remote() for s in self.specs if s.kind not in SERVERS and s.name in here
        ]
        heard, processes = (0, []) if self.team is None else (self.team.sent, [*self.team.cpu])
        for reference in self.control.answers(references, FLUSH_SECONDS):
            with contextlib.suppress(RayError):
                sent, cpu = ray.get(reference)
                heard += sent
                processes.append(cpu)
        self.cpu = CpuAccount.of(cpu for cpu in processes if cpu is not None)
        if "collector" not in self.handles:
            return
        try:
            if "collector" in self.silent:
                raise RunError("the collector could not write all spans: it no longer answers")
            ending = self.handles["collector"].finish.remote()
            if not self.control.answers([ending], FINISH_SECONDS):
                raise RunError("the collector could not write all spans: it no longer answers")
            finished = ray.get(ending)
            self.recorded = max(heard, finished["recorded"])
            self.clocks = finished["clocks"]
            self._remember(finished)
        except RayTaskError as error:
            raise plain(error) from None
        except RayError as error:
            raise RunError(f"the collector could not write all spans: {first_line(error)}") from None

    def _remember(self, progress: dict[str, Any]) -> None:
        self.restarts = progress["restarts"]
        if (error := progress["error"]) is not None:
            raise error
