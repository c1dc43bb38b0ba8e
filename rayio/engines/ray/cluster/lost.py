"""Nodes that a cluster lost during a run, and nodes that came back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping

import ray

from rayio.engines.ray.cluster.control import Control, is_of
from rayio.signals import within

#: Seconds for Ray to notice a lost node (it takes 15 s), to answer, and between two looks.
NOTICE_SECONDS, ANSWER_SECONDS, LOOK_SECONDS = 60.0, 5.0, 0.5


def alive_nodes() -> set[str]:
    """Return the nodes that Ray takes for alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def lost_nodes(
    control: Control, homes: Mapping[str, str], *, is_late: bool = False, alive: Callable[[], set[str]] = alive_nodes
) -> dict[int, str]:
    """Return lost Ray nodes, by the first emulated node of each; ``homes`` has the Ray node of each by number.

    A raylet that has ended closes its port, which is known at once. A host that is gone is only silent: Ray decides.
    With ``is_late`` a rank has died, perhaps with its node.
    """
    pulse = control.pulse
    if is_late:
        pulse.look()
    names = [name for name in pulse.addresses if name != control.own]
    gone = {node for node in homes.values() if any(is_of(name, node) and pulse.is_closed(name) for name in names)}
    if is_late or any(pulse.silence(name) for name in names):
        with contextlib.suppress(TimeoutError):
            gone |= {*homes.values()} - within(ANSWER_SECONDS, alive, look=control.look)
    lost: dict[int, str] = {}
    for number, node in homes.items():
        if node in gone and node not in lost.values():
            lost[int(number)] = node
    return lost


def await_loss(control: Control, lost: Collection[str], wanted: int, rejoin: float) -> None:
    """Wait until Ray knows that nodes are lost, then at most ``rejoin`` seconds until ``wanted`` nodes are there again.

    Raises:
        ClusterError: Ray's control process is gone.
    """
    began = time.monotonic()
    while True:
        alive, waited = alive_nodes(), time.monotonic() - began
        is_known = waited >= NOTICE_SECONDS or not alive.intersection(lost)
        if is_known and (waited >= rejoin or len(alive) >= wanted):
            return
        time.sleep(LOOK_SECONDS)
        control.knock()
        if control.is_gone:
            control.look()
