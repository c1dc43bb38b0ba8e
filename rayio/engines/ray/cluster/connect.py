"""Connections to a Ray cluster, or a local one started here, and checks that it can hold the run."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayio.engines.ray.cluster import tls, token
from rayio.engines.ray.cluster.address import host_port, joined
from rayio.engines.ray.cluster.control import GCS, LAST_SECONDS, Control, raylet
from rayio.engines.ray.cluster.local_ray import (
    SHUTDOWN_SECONDS,
    logs,
    on_loopback,
    own_signals,
    shared,
    shut_down,
    start_own,
    usual_priority,
)
from rayio.engines.ray.cluster.pulse import Pulse
from rayio.engines.ray.placement import ACTOR_BYTES, READERS, TIER, Grounds, Place, grounds, is_tiered, num_processes
from rayio.errors import ClusterError
from rayio.model.plan import IN_FLIGHT_SHARE, Plan
from rayio.signals import uninterrupted
from rayio.units import format_bytes, format_excess
from rayio.version import __version__

#: Memory of a node that stays free when a run's fit is checked.
SPARE_BYTES = 256 << 20
PROBE_SECONDS = 180
KNOCK_SECONDS = 5.0
#: The place of a node that was not probed.
NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the Ray cluster."""

    node_id: str
    host: str
    rayio: str
    ray: str
    python: str
    free_bytes: int
    object_store_bytes: int
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of this process to a Ray cluster."""

    #: True if this process connected (and perhaps started Ray), and so must disconnect.
    is_ours: bool
    nodes: tuple[Node, ...]
    driver_node: str
    #: Restores the destination of Ray's messages.
    restore_log: Callable[[], None] = lambda: None
    control: Control = field(default_factory=lambda: Control("", ""))
    #: True if this process started Ray for this run alone, so that it ends with the run.
    is_local: bool = False
    #: True if it stays for further runs (:func:`lasting`).
    stays: bool = False

    def close(self) -> None:
        """Disconnect if this process connected, which stops a local Ray; the caller's Ray stays.

        Processes that do not end within a deadline are killed.
        """
        if self.is_ours and not self.stays:
            shut_down(self.control.patience(SHUTDOWN_SECONDS), is_local=self.is_local)
        self.control.pulse.close()
        self.restore_log()


def is_connected() -> bool:
    """Return True if this process is already connected to a cluster."""
    return bool(ray.is_initialized())


def connect(address: str | None, log: Path) -> Connection:
    """Connect to the cluster at ``address`` (``auto``: the one on this machine); None starts a local one.

    Raises:
        ClusterError: not reachable, or another version of Ray or Python.
    """
    if address is not None and address.startswith("ray://"):
        raise ClusterError(
            f"--address {address}: a run's driver must be on the cluster; submit it with "
            "`ray job submit -- python -m rayio run ...`"
        )
    if address is not None and "://" in address:
        raise ClusterError(f"--address {address}: must be auto, or the host:port of a cluster's head")
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        _knock(address)
    sharing = shared() if address is None else None
    if sharing is not None and sharing.is_running:
        sharing.check()
    already = is_connected()
    restore_log = _to_log(log)
    try:
        if not already:
            _start(address, log)
            if sharing is not None:
                sharing.is_running = True
        context = ray.get_runtime_context()
        control = _control(context.gcs_address, context.get_node_id())
        stays = sharing is not None and sharing.is_running
        is_local = not already and address is None and not stays
        return Connection(not already or stays, _probe(), context.get_node_id(), restore_log, control, is_local, stays)
    except BaseException:
        if sharing is not None and sharing.is_running:
            sharing.end()
        elif not already:
            shut_down(LAST_SECONDS, is_local=address is None)
        restore_log()
        raise


def _control(gcs: str, own_node: str) -> Control:
    """Return the liveness of the cluster, watched from now on."""
    addresses, own = {GCS: gcs}, ""
    for node in ray.nodes():
        if node["Alive"]:
            name = raylet(node["NodeManagerHostname"], node["NodeID"])
            addresses[name] = joined(node["NodeManagerAddress"], node["NodeManagerPort"])
            own = name if node["NodeID"] == own_node else own
    pulse = Pulse(addresses)
    pulse.start()
    return Control(gcs, logs(), pulse=pulse, own=own)


def _start(address: str | None, log: Path) -> None:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    output: list[str] = []
    try:
        # Ray's core crashes (SIGSEGV) if its start is interrupted.
        with uninterrupted("Ray is still starting, and is ended when it has"):
            if address is None:
                token.forget()
                with own_signals(), usual_priority():
                    start_own(**options)
            else:
                with own_signals(), _found_where_it_listens(address), token.overheard(log) as output:
                    if ":" in (gcs := _plain(address)):
                        tls.check(address, gcs)
                        token.use_that_of(address, gcs)
                    ray.init(address=address, **options)
    except ClusterError:
        raise
    except Exception as error:  # Ray raises many classes
        if address is not None:
            refused = token.refusal(address, " ".join(output), error)
            raise ClusterError(refused or f"cannot reach a Ray cluster at {address}: {_first_line(error)}") from None
        raise ClusterError(
            f"cannot start a local Ray: {_first_line(error)} - is the machine overloaded, or out of memory, disk or "
            f"processes? wait and try again, or use --engine local; Ray's logs are in {logs()}"
        ) from None


def _knock(address: str) -> None:
    """Refuse a ``host:port`` without a listener within seconds; Ray itself would try for minutes."""
    host, port = host_port(_plain(address))
    if port.isdigit() and (error := _refusal(host, int(port))) is not None:
        raise ClusterError(
            f"cannot reach a Ray cluster at {address}: {error.strerror or error}; is `ray start --head` running there?"
        )


def _plain(address: str) -> str:
    """Return the address that ``auto`` means, or an empty text."""
    return ray._private.services.canonicalize_bootstrap_address("auto") or "" if address == "auto" else address


def _refusal(host: str, port: int) -> OSError | None:
    try:
        socket.create_connection((host, port), timeout=KNOCK_SECONDS).close()
    except OSError as error:
        return error
    return None


def _found_where_it_listens(address: str) -> AbstractContextManager[None]:
    """Make Ray look for a cluster on loopback if it listens only there; on the network it would search for ever."""
    host, port = host_port(_plain(address))
    services = ray._private.services
    if not port.isdigit() or services.resolve_ip_for_localhost(host or "localhost") == host:
        return nullcontext()
    return nullcontext() if _refusal(services.get_node_ip_address(), int(port)) is None else on_loopback()


def in_flight_bytes(plan: Plan, connection: Connection) -> int:
    """Return the bytes of ``max_bytes_in_flight: auto`` for a node of ranks: 30 % of its share of the object stores.

    Batches are in the stores of the nodes that read them and, once fetched, in those of their ranks.
    """
    cluster, nodes = plan.cluster, _with_room(connection)

    def share(on: Sequence[Node], emulated: int) -> float:
        return IN_FLIGHT_SHARE * min(node.object_store_bytes for node in on) / -(-emulated // len(on))

    if is_tiered(cluster, [node.place for node in nodes]):
        own = share([node for node in nodes if not node.place.is_for_readers], cluster.nodes)
        reading = share([node for node in nodes if node.place.is_for_readers], cluster.reader_nodes)
    else:
        own = reading = share(nodes, cluster.all_nodes)
    return int(min(own, reading * len(cluster.reading_nodes) / cluster.nodes))


def free_bytes(plan: Plan, connection: Connection) -> int:
    """Return the free memory of an emulated node: its share of the Ray node with the least."""
    nodes = _with_room(connection)
    return min(node.free_bytes for node in nodes) // -(-plan.cluster.all_nodes // len(nodes))


def _with_room(connection: Connection) -> tuple[Node, ...]:
    """Return the nodes that can host emulated nodes; all if none can, so that Ray reports it."""
    return tuple(node for node in connection.nodes if node.place.has_room) or connection.nodes


def preflight(plan: Plan, connection: Connection) -> list[str]:
    """Refuse a run that the cluster cannot hold; return warnings about tight resources.

    Raises:
        ClusterError: versions differ between nodes, or the actors do not fit in memory.
    """
    here = _describe("", 0)
    for node in connection.nodes:
        for what, ours, theirs in (
            ("rayio", here.rayio, node.rayio), ("Ray", here.ray, node.ray), ("Python", here.python, node.python),
        ):  # fmt: skip
            if ours != theirs:
                raise ClusterError(
                    f"node {node.host} has {what} {theirs}, the driver has {ours}; "
                    "install the same version on every node"
                )
    processes = num_processes(plan)
    free = sum(max(0, node.free_bytes - SPARE_BYTES) for node in connection.nodes)
    if processes * ACTOR_BYTES > free:
        raise ClusterError(
            f"{processes} actors of about {format_bytes(ACTOR_BYTES)} each need "
            f"{format_excess(processes * ACTOR_BYTES, free)}, {format_bytes(free)} are free; "
            "raise cluster.roles_per_actor, or lower loader.num_workers or cluster.ranks_per_node"
        )
    return [*_shared(plan, connection), *_tight(plan)]


def _shared(plan: Plan, connection: Connection) -> list[str]:
    cluster, real = plan.cluster, len(_with_room(connection))
    if not grounds_of(plan, connection).is_packed:
        return []
    readers = f" and cluster.reader_nodes={cluster.reader_nodes}" if cluster.has_reader_tier else ""
    own = ["network interface (cluster.nic_bandwidth)", "storage device (storage.model)"]
    own += [layer.own for layer in plan.layers if layer.own and layer.own not in own]
    return [
        f"cluster.nodes={cluster.nodes}{readers} are emulated on {real} Ray node{'s' if real > 1 else ''}. They share "
        "processors, memory and storage, so real I/O competes as it would not on separate nodes; only the model gives "
        f"each a separate {', '.join(own[:-1])} and {own[-1]}"
    ]


def grounds_of(plan: Plan, connection: Connection) -> Grounds:
    """Return the placement of a run's emulated nodes on the nodes of a cluster.

    Raises:
        ClusterError: they do not fit.
    """
    return grounds(plan, [node.place for node in connection.nodes])


def without_pool(plan: Plan, connection: Connection) -> Connection:
    """Return the connection without nodes of ``cluster.reader_pool``, which other actors must not hold.

    Raises:
        ClusterError: there is no other node.
    """
    pool = plan.cluster.reader_pool
    if pool is None:
        return connection
    nodes = tuple(node for node in connection.nodes if pool.resource not in node.place.resources)
    if not nodes:
        raise ClusterError(
            f"cluster.reader_pool.resource={pool.resource}: all {len(connection.nodes)} Ray nodes have it, and ranks "
            "need others; name a resource that only nodes for readers have"
        )
    return replace(connection, nodes=nodes)


def _tight(plan: Plan) -> list[str]:
    bound, window = plan.max_bytes_in_flight, plan.loader.node_window_bytes
    if not plan.payload or bound is None or window <= bound:
        return []
    return [
        f"the windows of one node need {format_bytes(window)}, max_bytes_in_flight is {format_bytes(bound)}: "
        "workers will wait for memory (memory_bound); lower loader.prefetch_factor or raise loader.max_bytes_in_flight"
    ]


def _probe() -> tuple[Node, ...]:
    """Return versions and memory of every node; a cluster of only this node is asked directly."""
    alive = [n for n in ray.nodes() if n["Alive"]]
    stores = {n["NodeID"]: int(n["Resources"].get("object_store_memory", 0)) for n in alive}
    places = {
        n["NodeID"]: Place(
            float(n["Resources"].get("CPU", 0)), n.get("Labels", {}).get(TIER) == READERS, frozenset(n["Resources"])
        )
        for n in alive
    }
    if list(stores) == [ray.get_runtime_context().get_node_id()]:
        (only,) = stores.items()
        return (replace(_describe(*only), place=places[only[0]]),)
    references = {
        node_id: ray.remote(num_cpus=0)(_describe)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
        .remote(node_id, store)
        for node_id, store in stores.items()
    }
    nodes = []
    for node_id, reference in references.items():
        host = next(n["NodeManagerHostname"] for n in alive if n["NodeID"] == node_id)
        try:
            nodes.append(replace(ray.get(reference, timeout=PROBE_SECONDS), place=places[node_id]))
        except Exception as error:
            raise ClusterError(f"node {host} cannot run rayio: {_first_line(error)}; install it there") from None
    return tuple(nodes)


def _describe(node_id: str, store: int) -> Node:
    return Node(
        node_id=node_id,
        host=platform.node(),
        rayio=__version__,
        ray=ray.__version__,
        python=platform.python_version(),
        free_bytes=psutil.virtual_memory().available,
        object_store_bytes=store,
    )


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _to_log(log: Path) -> Callable[[], None]:
    """Send Ray's log and its reports of deaths and retries to the run's log; return a function that undoes it."""

    def report(data: dict[str, Any], ignore_prefix: bool) -> None:
        if log.parent.is_dir():
            with log.open("a") as file:
                file.writelines(f"({data.get('pid')}) {line}\n" for line in data["lines"])

    worker, logger = ray._private.worker, logging.getLogger("ray")
    printing, handlers, propagate = getattr(worker, "print_to_stdstream", None), logger.handlers[:], logger.propagate
    ours = logging.FileHandler(log, delay=True)
    if printing is not None:
        worker.print_to_stdstream = report
    logger.handlers[:] = [ours]
    logger.propagate = False

    def undo() -> None:
        if printing is not None:
            worker.print_to_stdstream = printing
        logger.handlers[:] = handlers
        logger.propagate = propagate
        ours.close()

    return undo
