"""The Ray engine: every role is in an actor, on the wall clock; storage is real, or modelled by actors."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

from rayio.engines.ray.actors.group import ActorGroup
from rayio.engines.ray.actors.showing import metrics_address
from rayio.engines.ray.cluster import connect, local_ray
from rayio.engines.ray.cluster.slots import check_pool
from rayio.errors import ClusterError
from rayio.model.engine import Outcome, Site, Watch
from rayio.model.plan import Plan
from rayio.model.standing import Vigil
from rayio.model.wiring import check_loader, stalls_of
from rayio.trace.clocks import Anchor, drifts


class RayEngine:
    """An engine that runs a plan on a Ray cluster."""

    is_virtual: ClassVar[bool] = False

    def __init__(self, plan: Plan, site: Site) -> None:
        self.plan = plan
        self.site = site
        self.outcome = Outcome.of(plan)
        self._connection: connect.Connection | None = None
        self._group: ActorGroup | None = None

    @classmethod
    def lasting(cls) -> AbstractContextManager[None]:
        """See ``rayio.model.engine.Engine``; a local Ray that runs start is shared."""
        return local_ray.lasting()

    def prepare(self) -> None:
        """See ``rayio.model.engine.Engine``; starts a local Ray if there is no cluster."""
        check_loader(self.plan)
        say = self.site.reporter.say
        is_there = self.site.address or os.environ.get("RAY_ADDRESS")
        if self.plan.cluster.has_pool and not (is_there or connect.is_connected()):
            raise ClusterError(
                "cluster.reader_pool: a local Ray has no autoscaler, so no node would come; give the --address of a "
                "cluster that has one, or use --engine local or `rayio simulate`, where nodes are modelled"
            )
        say("connecting to Ray" if is_there else "starting a local Ray")
        self._connection = connect.connect(self.site.address, self.site.directory.log)
        connection = self._connection = connect.without_pool(self.plan, self._connection)
        check_pool(self.plan, connection.control.address)
        cluster = self.plan.cluster
        is_packed = connect.grounds_of(self.plan, connection).is_packed
        self.plan.check_memory(connect.free_bytes(self.plan, connection))
        if self.plan.payload:
            self.plan = replace(self.plan, auto_bytes_in_flight=connect.in_flight_bytes(self.plan, connection))
        warnings = connect.preflight(self.plan, connection)
        if not is_packed and (real := [layer for layer in self.plan.layers if layer.is_of_nodes]):
            self.plan = replace(self.plan, layers=tuple(layer for layer in self.plan.layers if layer not in real))
            warnings += [layer.idle_if_real for layer in real]
        for text in warnings:
            say(f"warning: {text}")
        self.outcome.notes += warnings
        nodes = [_described(node) for node in connection.nodes]
        self.outcome.info |= {"ray": connection.nodes[0].ray, "nodes": nodes, "is_our_ray": connection.is_ours}
        self.outcome.info["placement"] = {
            "kind": cluster.placement,
            "nodes": cluster.nodes,
            "reader_nodes": cluster.all_nodes - cluster.nodes,
            "ray_nodes": len(connection.nodes),
            "is_packed": is_packed,
            "is_network_modelled": any(layer.is_of_nodes for layer in self.plan.layers),
        }
        if self.site.live is not None:
            self.outcome.info["metrics"] = metrics_address(connection.driver_node)

    def run(self, watch: Watch) -> None:
        """See ``rayio.model.engine.Engine``."""
        assert self._connection is not None
        site, say = self.site, self.site.reporter.say
        vigil = Vigil(self.plan.cluster.stall_deadline, say, stalls_of(self.plan))
        group = self._group = ActorGroup(
            self.plan, self._connection, site.directory.address, site.root, site.run_id, vigil, site.live,
            self.outcome.tallies, site.resumed,
        )  # fmt: skip
        group.start(say)
        self.outcome.info |= {"actors": group.actors}
        self.outcome.info["placement"]["ray_node_of"] = group.homes
        began, reported = time.monotonic(), 0
        say(f"{len(group.handles)} actors are running")

        def look(progress: Mapping[str, Any]) -> None:
            nonlocal reported
            for restart in group.restarts[reported:]:
                say(_restarted(restart))
            reported = len(group.restarts)
            watch(progress, time.monotonic() - began)

        if not self.plan.modelled:
            self.outcome.meet(group.sightings(), self.plan, site)
        group.live(look, say)
        self.outcome.notes += group.survival.notes()
        vigil.hear(None)  # reports the end of a silence that ended since the last look
        if any(sent for _, sent in self.outcome.before):
            self.outcome.after = group.sightings()

    def close(self) -> None:
        """See ``rayio.model.engine.Engine``."""
        try:
            if self._group is not None:
                self._end(self._group)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _end(self, group: ActorGroup) -> None:
        try:
            group.close()
        finally:
            outcome = self.outcome
            for tally in group.tallies:
                outcome.tallies[tally.rank] = tally
            if any(actor["name"].startswith("rank-") for actor in group.actors):
                outcome.unheard = frozenset(range(self.plan.world_size)) - {tally.rank for tally in group.tallies}
            outcome.recorded, outcome.stages = group.recorded, group.stage_tallies
            outcome.restarts = group.survival.attempts.restarts
            outcome.notes += [*(_restarted(restart) for restart in group.restarts), *drifts(group.clocks)]
            outcome.notes += [*group.vigil.notes, *(() if group.team is None else group.team.notes)]
            same = {"boot_id": Anchor.new().boot_id, "offset_ns": 0, "error_ns": 0}
            clocks = {str(node): group.clocks.get(node, same) for node in range(self.plan.cluster.all_nodes)}
            outcome.info |= {"cpu_seconds": group.cpu.as_json()}
            outcome.info |= {"actors": group.actors, "restarts": group.restarts, "clocks": clocks}


def _described(node: connect.Node) -> dict[str, Any]:
    node_info: dict[str, Any] = {"id": node.node_id, "host": node.host, "python": node.python}
    return node_info | {"object_store_bytes": node.object_store_bytes, "cpus": node.place.cpus}


def _restarted(restart: Mapping[str, Any]) -> str:
    return (
        f"{restart['actor']} died and was started again (pid {restart['pid']}) "
        f"after {restart['silent_seconds']:.1f} s of silence"
    )
