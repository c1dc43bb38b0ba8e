"""Rounds: the driver asks the ranks for their activities and, if one has waited long, all actors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from rayio.engines.ray.placement import SERVERS, ActorSpec
from rayio.model.plan import Plan
from rayio.model.sighting import Sighting
from rayio.model.standing import Silence, Standing, Vigil, silence
from rayio.model.wiring import files_of
from rayio.trace.clocks import Anchor

#: Seconds for an actor to answer; at most a quarter of the deadline.
ANSWER_SECONDS = 5.0
#: Seconds between two looks at least.
SHORTEST_SECONDS = 0.2
#: Seconds between two looks at most; a longer time means that this process was stopped.
LONGEST_SECONDS = 2.0
#: Seconds of a rank's wait after which all actors are asked.
WAIT_SECONDS = 8.0


class Rounds:
    """Periodic requests to a run's actors, without waiting for answers.

    ``actors`` are the actors' entries of run.json, ``anchor`` is the run's clock in this process.
    """

    def __init__(
        self,
        plan: Plan,
        specs: Sequence[ActorSpec],
        handles: Mapping[str, Any],
        actors: Sequence[Mapping[str, Any]],
        anchor: Anchor,
        vigil: Vigil,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.handles = handles
        self.actors = actors
        self.anchor = anchor
        self._files = files_of(plan)
        self.vigil = vigil
        self._patience = min(ANSWER_SECONDS, vigil.deadline / 4)
        #: The latest answer of each actor; and the actors that did not answer the last request.
        self._known: dict[str, list[Standing]] = {}
        self._unanswered: set[str] = set()
        self._pending: dict[Any, str] = {}
        self._asked_at = time.monotonic()
        self._is_everybody_asked = False
        #: Seconds of looks so far, without those in which this process was stopped; and as each actor last answered.
        self._awake, self._looked = 0.0, self._asked_at
        self._heard: dict[str, float] = {}
        #: Seconds until the next look: fewer as a silence nears the deadline.
        self._pause = vigil.look_seconds

    @property
    def silent(self) -> set[str]:
        """The actors that did not answer the last request, and shall not be waited for."""
        return set(self._unanswered)

    def look(self) -> None:
        """Process answers; when it is time, judge them and ask again.

        Raises:
            RunError: silence beyond the deadline.
        """
        self._awake += min(LONGEST_SECONDS, time.monotonic() - self._looked)
        self._looked = time.monotonic()
        if self._pending:
            self._take()
        since = time.monotonic() - self._asked_at
        if self._pending and since < self._patience:
            return
        if self._pending:
            self._unanswered |= set(self._pending.values())
            self._pending.clear()
            since = self._pause
        if since < self._pause:
            return
        now = self.anchor.ns + time.perf_counter_ns()
        longest = silence(self._standings(), now, self._silent(), self._files)
        if (mute := self._mute()) is not None and (longest is None or mute.seconds > longest.seconds + WAIT_SECONDS):
            longest = mute
        is_long = longest is not None and longest.seconds >= min(WAIT_SECONDS, self.vigil.deadline / 4)
        if longest is None or not is_long or self._is_everybody_asked:
            self.vigil.hear(longest)
        left = self.vigil.deadline - (0.0 if longest is None else longest.seconds)
        self._pause = max(SHORTEST_SECONDS, min(self.vigil.look_seconds, left))
        self._ask(everybody=is_long or bool(self._unanswered))

    def _mute(self) -> Silence | None:
        """Return the longest silence of the actors that do not answer, such as a rank that never told its activity."""
        seconds = max((self._awake - self._heard.get(name, 0.0) for name in self._unanswered), default=0.0)
        story = ", ".join(f"{name} does not answer{known}" for name, known in self._silent().items())
        return Silence(seconds, story) if self._unanswered else None

    def _standings(self) -> list[Standing]:
        return [standing for name, standings in self._known.items() if name in self.handles for standing in standings]

    def _ask(self, *, everybody: bool) -> None:
        self._is_everybody_asked = everybody
        self._asked_at = time.monotonic()
        for name, handle in self.handles.items():
            kind = self.specs[name].kind if name in self.specs else ""
            if kind == "rank" or everybody:
                is_host = kind not in ("", *SERVERS)
                self._pending[handle.standing.remote() if is_host else handle.ready.remote()] = name

    def _take(self) -> None:
        answered, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for reference in answered:
            name = self._pending.pop(reference)
            self._unanswered.discard(name)
            self._heard[name] = self._awake
            try:
                answer = ray.get(reference)
            except RayError:  # a restarting actor: its next answer counts
                answer = []
            self._known[name] = answer if isinstance(answer, list) else []

    def _silent(self) -> dict[str, str]:
        about = {actor["name"]: actor for actor in self.actors}
        silent = {}
        for name in sorted(self._unanswered & self.handles.keys()):
            pid = f"pid {about[name]['pid']}" if name in about else ""  # no pid while it starts
            note = f" ({pid})" if pid else ""
            members = self.specs[name].members if name in self.specs else ()
            kind = name.split("-")[0]
            roles = [f"{kind}-{'-'.join(map(str, member))}" for member in members]
            for role in roles or [name]:
                silent[role] = note if role == name or not members else f" ({', '.join(filter(None, (name, pid)))})"
        return silent


def sightings(actors: Sequence[Mapping[str, Any]], handles: Mapping[str, Any], seconds: float) -> list[Sighting]:
    """Return host descriptions, by one actor with file access on each Ray node, of those that answer in time.

    ``actors`` are the actors' entries of run.json.
    """
    of_node: dict[str, str] = {}
    for actor in (actor for actor in actors if actor["name"] in handles):  # readers may have left
        if actor["name"].startswith(("reader-", "rank-", "checkpoint_writer-")):
            of_node.setdefault(actor["ray_node"], actor["name"])
    references = [handles[name].sighting.remote() for name in of_node.values()]
    ready, _ = ray.wait(references, num_returns=len(references), timeout=seconds) if references else ([], [])
    answers = []
    for reference in ready:
        with suppress(RayError):
            answers.append(ray.get(reference))
    return [sighting for sighting in answers if sighting is not None]
