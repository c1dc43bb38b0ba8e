"""Rounds: the driver asks the ranks what they are doing, and where one has waited long, everybody else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from rayio.engines.ray.placement import SERVERS, ActorSpec
from rayio.model.plan import Plan
from rayio.model.standing import Standing, Vigil, silence
from rayio.model.wiring import files_of
from rayio.trace.clocks import Anchor

#: Seconds that an actor gets to answer; the deadline's quarter where that is short.
ANSWER_SECONDS = 5.0
#: Seconds after which a rank that waits is a reason to ask everybody.
WAIT_SECONDS = 8.0


class Rounds:
    """Asks the actors of a run now and then; nothing waits for their answers.

    ``actors`` is what run.json says of them, and ``anchor`` the run's clock in this process.
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
        #: The latest that each actor said, and those that did not answer when they were last asked.
        self._known: dict[str, list[Standing]] = {}
        self._unanswered: set[str] = set()
        self._asked: dict[Any, str] = {}
        self._asked_at = time.monotonic()
        self._is_everybody_asked = False

    def look(self) -> None:
        """Take in what was answered; when it is time, judge, and ask again.

        Raises:
            RunError: nothing was heard for too long.
        """
        if self._asked:
            self._take()
        since = time.monotonic() - self._asked_at
        if self._asked and since < self._patience:
            return
        if self._asked:
            self._unanswered |= set(self._asked.values())
            self._asked.clear()
            since = self.vigil.look_seconds
        if since < self.vigil.look_seconds:
            return
        now = self.anchor.ns + time.perf_counter_ns()
        found = silence(self._standings(), now, self._silent(), self._files)
        is_long = found is not None and found.seconds >= min(WAIT_SECONDS, self.vigil.deadline / 4)
        if found is None or not is_long or self._is_everybody_asked:
            self.vigil.hear(found)
        self._ask(everybody=is_long or bool(self._unanswered))

    def _standings(self) -> list[Standing]:
        return [one for name, said in self._known.items() if name in self.handles for one in said]

    def _ask(self, *, everybody: bool) -> None:
        self._is_everybody_asked = everybody
        self._asked_at = time.monotonic()
        for name, handle in self.handles.items():
            kind = self.specs[name].kind if name in self.specs else ""
            if kind == "rank" or everybody:
                is_host = kind not in ("", *SERVERS)
                self._asked[handle.standing.remote() if is_host else handle.ready.remote()] = name

    def _take(self) -> None:
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for reference in answered:
            name = self._asked.pop(reference)
            self._unanswered.discard(name)
            try:
                said = ray.get(reference)
            except RayError:  # one that is being started again: its next answer counts
                said = []
            self._known[name] = said if isinstance(said, list) else []

    def _silent(self) -> dict[str, str]:
        """What is known of those that do not answer: of each role in such an actor, too."""
        about = {actor["name"]: actor for actor in self.actors}
        silent = {}
        for name in sorted(self._unanswered & self.handles.keys()):
            pid = f"pid {about[name]['pid']}" if name in about else ""  # none of one that is starting
            told = f" ({pid})" if pid else ""
            members = self.specs[name].members if name in self.specs else ()
            kind = name.split("-")[0]
            roles = [f"{kind}-{'-'.join(map(str, member))}" for member in members]
            for role in roles or [name]:
                silent[role] = told if role == name or not members else f" ({', '.join(filter(None, (name, pid)))})"
        return silent
