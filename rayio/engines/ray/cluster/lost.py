"""Nodes that a cluster lost during a run, and nodes that came back."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import ray

from rayio.engines.ray.cluster.control import Control, is_of

#: Seconds for Ray to notice a lost node (it takes 15 s), and between two looks.
NOTICE_SECONDS, LOOK_SECONDS = 60.0, 0.5


def lost_nodes(control: Control, homes: Mapping[str, str]) -> dict[int, str]:
    """Return the Ray nodes whose raylets have ended, by the first emulated node of each, from ``homes`` by number."""
    control.pulse.look()
    closed = [name for name in control.pulse.addresses if name != control.own and control.pulse.is_closed(name)]
    lost: dict[int, str] = {}
    for number, node in homes.items() if closed else ():
        if node not in lost.values() and any(is_of(name, node) for name in closed):
            lost[int(number)] = node
    return lost


def await_loss(control: Control, lost: Collection[str], wanted: int, rejoin: float) -> None:
    """Wait until Ray knows that nodes are lost, then at most ``rejoin`` seconds until ``wanted`` nodes are there again.

    Raises:
        ClusterError: Ray's control process is gone.
    """
    began = time.monotonic()
    while True:
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        waited = time.monotonic() - began
        is_known = waited >= NOTICE_SECONDS or not alive.intersection(lost)
        if is_known and (waited >= rejoin or len(alive) >= wanted):
            return
        time.sleep(LOOK_SECONDS)
        control.knock()
        if control.is_gone:
            control.look()
