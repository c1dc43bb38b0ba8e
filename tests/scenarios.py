"""Small scenarios for tests, and the three engines as functions that give the same kind of answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayio.engines import local
from rayio.engines.virtual import simulation
from rayio.model import ledger
from rayio.model.ledger import Ledger, Tally
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.place import BEGINNING, Start
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.trace.recorder import Recorder


def latest(*words: str) -> list[str]:
    """Return the words of a command without overrides whose key has another value later."""
    return [*{word.partition("=")[0] if "=" in word else number: word for number, word in enumerate(words)}.values()]


def scenario(**overrides: Any) -> Scenario:
    """Give a scenario of 48 samples for 2 ranks × 2 workers, with dotted keys (``__`` for the dot) changed."""
    data: dict[str, Any] = {
        "name": "small",
        "cluster": {"ranks_per_node": 2},
        "dataset": {"path": "model://small", "num_files": 48, "sample_bytes": "1000 B"},
        "loader": {"batch_size": 2, "num_workers": 2},
        "train": {"epochs": 2, "compute": "10 ms"},
    }
    for key, value in overrides.items():
        *sections, last = key.split("__")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return build(data)


@dataclass(frozen=True)
class Outcome:
    """What an engine gives: the books, the spans, the plan, and what was planned."""

    scenario: Scenario
    plan: Plan
    tallies: list[Tally]
    spans: pa.Table

    @property
    def ledger(self) -> Ledger:
        """Compare planned with delivered."""
        return ledger.close(self.plan.planned(), self.tallies)

    @cached_property
    def all_rows(self) -> list[dict[str, Any]]:
        """Give all spans as dicts, which are made once: a law asks for them again and again."""
        rows: list[dict[str, Any]] = self.spans.to_pylist()
        return rows

    @cached_property
    def _named(self) -> dict[str, list[dict[str, Any]]]:
        named = defaultdict[str, list[dict[str, Any]]](list)
        for row in sorted(self.all_rows, key=lambda row: (row["start_ns"], row["duration_ns"])):
            named[row["name"]].append(row)
        return dict(named)

    def rows(self, name: str, **where: int) -> list[dict[str, Any]]:
        """Give the spans of a name in order of their start, as dicts."""
        return [row for row in self._named.get(name, ()) if all(row[k] == v for k, v in where.items())]

    def delivered(self, rank: int) -> list[int]:
        """Give the numbers of the batches that a rank got, in order."""
        return [row["link"] for row in self.rows("data_wait", rank=rank)]


def simulated(wanted: Scenario | None = None, start: Start = BEGINNING, **overrides: Any) -> Outcome:
    """Run on the virtual clock."""
    wanted = wanted or scenario(**overrides)
    plan = replace(plan_of(wanted, modelled=True), start=start)
    recorder, tallies = Recorder(), plan.tallies()
    simulation.simulate(plan, recorder, tallies)
    table = recorder.drain()
    assert table is not None
    return Outcome(wanted, plan, tallies, table)


def run_locally(wanted: Scenario, root: Path, start: Start = BEGINNING, *, modelled: bool = False) -> Outcome:
    """Run in this process on the wall clock."""
    plan = replace(plan_of(wanted, modelled=modelled), start=start)
    recorder, tallies = Recorder(), plan.tallies()
    local.run(plan, recorder, root, tallies)
    table = recorder.drain()
    assert table is not None
    return Outcome(wanted, plan, tallies, table)


#: Overrides as keyword arguments.
Overrides = Mapping[str, Any]
Engine = Callable[[Scenario], Outcome]
