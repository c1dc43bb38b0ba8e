"""Which run answers for a number of accelerators: every accelerator has the same work, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayio.analyze.filled import enough
from rayio.errors import ScenarioError
from rayio.model.engine import engine_named
from rayio.scenario import checks, derive
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.study.sweeps.points import grid

#: Steps per rank that a point on real files has at least, over all its epochs; and in an epoch.
REAL_STEPS, EPOCH_STEPS = 24, 3

#: MLPerf Storage: epochs of a run, steps of an accelerator in each, and times the memory of all hosts.
RULED_EPOCHS, RULED_STEPS, RULED_MEMORY = 5, 500, 5
#: AU that MLPerf Storage v1.0 asks for, where it is not 0.9.
FLOORS = {"cosmoflow": 0.7}
DEFAULT_TARGET = 0.9

MLPERF = "mlperf"


@dataclass(frozen=True)
class Question:
    """How a scenario becomes the run of a point; ``steps`` is None where the files there are decide."""

    source: str | Path
    fixed: Mapping[str, Any]
    over: str
    base: Scenario
    engine: str
    rules: str | None
    steps: int | None
    host_memory: int | None
    _load: Callable[[Mapping[str, Any]], Scenario] = field(repr=False)

    @classmethod
    def of(
        cls,
        source: str | Path,
        overrides: Sequence[str] | Mapping[str, Any],
        over: str,
        engine: str,
        rules: str | None = None,
        host_memory: int | None = None,
    ) -> Question:
        """Read a scenario and the key that is searched.

        Raises:
            ScenarioError: it cannot be, the key is none of whole numbers, or has a value of its own.
        """
        asked = grid(overrides)
        if asked.keys:
            raise ScenarioError(f"{asked.keys[0]} has several values; capacity takes one (rayio sweep tries several)")
        if over in asked.fixed:
            raise ScenarioError(f"{over} is searched, and given as {show(asked.fixed[over])}: leave it out")
        if rules not in (None, MLPERF):
            raise ScenarioError(f"--rules {rules}: there are only those of {MLPERF}")
        ruled = {"train.epochs": RULED_EPOCHS, "train.steps": None} if rules else {}
        fixed = ruled | asked.fixed
        if rules and fixed["train.epochs"] != RULED_EPOCHS:
            raise ScenarioError(f"train.epochs={show(fixed['train.epochs'])}: --rules {rules} asks for {RULED_EPOCHS}")
        load = loading(source)
        base = load(fixed)
        _check_key(base, over)
        grows = engine_named(engine).is_virtual or base.dataset.is_modelled
        steps: int | None = None
        if grows:
            checks.check_simulated(base)
            steps = max(derive.steps_per_epoch(base), RULED_STEPS if rules else enough(derive.window_steps(base)))
            steps = min(steps, base.train.steps or steps)
        return cls(source, fixed, over, base, engine, rules, steps, host_memory, load)

    def scenario(self, value: int) -> Scenario:
        """The scenario of a point.

        Raises:
            ScenarioError: the value cannot be, or the dataset is too small for it.
        """
        overrides = {**self.fixed, self.over: value}
        scenario = self._large_enough(value)
        if self.steps is not None:
            files = files_for(scenario, self.steps)
            if self.rules and self.host_memory is not None:
                memory = RULED_MEMORY * self.host_memory * scenario.cluster.nodes
                sample = int(scenario.dataset.sample_bytes.expected)
                files = max(files, -(-memory // (scenario.dataset.samples_per_file * sample)))
            return self._load(overrides | {"dataset.num_files": files})
        there = derive.steps_per_epoch(scenario)
        least = RULED_STEPS if self.rules else EPOCH_STEPS
        if there < least:
            files = -(-least * derive.samples_per_step(scenario) // scenario.dataset.samples_per_file)
            asked = f"--rules {self.rules} asks for" if self.rules else "it takes"
            raise ScenarioError(
                f"an epoch of {derive.num_files(scenario)} files has {there} steps on {derive.world_size(scenario)} "
                f"accelerators; {asked} {least}: dataset.num_files={files}"
            )
        if self.rules and self.host_memory is not None:
            memory = RULED_MEMORY * self.host_memory
            if (size := derive.dataset_bytes(scenario)) < memory:
                files = int(derive.num_files(scenario) * memory / size) + 1
                raise ScenarioError(
                    f"--rules {self.rules} asks for a dataset of {RULED_MEMORY} times the memory of the hosts "
                    f"({memory / 2**30:.1f} GiB); this one has {size / 2**30:.1f} GiB: dataset.num_files={files}"
                )
        if (total := there * scenario.train.epochs) < REAL_STEPS and not self.rules:
            epochs = -(-REAL_STEPS * scenario.train.epochs // total)
            return self._load(overrides | {"train.epochs": epochs})
        return scenario

    def accelerators(self, value: int) -> int:
        """How many accelerators a value of the key is."""
        return derive.world_size(self._large_enough(value))

    def _large_enough(self, value: int) -> Scenario:
        """The scenario with that value, and where the dataset grows with it, files enough for a step of all its ranks.

        What it has at its own size may be fewer: it would be refused before anybody could say how many it takes.
        """
        overrides = {**self.fixed, self.over: value}
        if self.steps is not None:
            files = -(-value * derive.samples_per_step(self.base) // self.base.dataset.samples_per_file)
            overrides["dataset.num_files"] = max(files, self.base.dataset.num_files)
        return self._load(overrides)

    def is_possible(self, value: int) -> bool:
        """Whether a point can be run at all, as far as its scenario says."""
        return self.refusal(value) is None

    def refusal(self, value: int) -> str | None:
        """Why a point cannot be run; None where it can."""
        try:
            scenario = self.scenario(value)
            if self.steps is not None:
                checks.check_simulated(scenario)
        except ScenarioError as error:
            return str(error)
        return None


def files_for(scenario: Scenario, steps: int) -> int:
    """Files of the dataset that give every rank so many steps an epoch."""
    has_own = derive.is_replicated(scenario) or scenario.loader.scaling == "weak"
    ranks = 1 if has_own else derive.world_size(scenario)
    return -(-steps * scenario.loader.batch_size * ranks // scenario.dataset.samples_per_file)


def _check_key(base: Scenario, over: str) -> None:
    """Refuse a key that a search along whole numbers cannot take."""
    held: Any = base.model_dump()
    for name in over.split("."):
        if not isinstance(held, Mapping) or name not in held:
            raise ScenarioError(
                f"--over {over}: no such key; capacity searches a whole number such as cluster.ranks_per_node, "
                "cluster.nodes"
            )
        held = held[name]
    if isinstance(held, bool) or not isinstance(held, int):
        raise ScenarioError(f"--over {over}: is {show(held)}; capacity searches along whole numbers")


def floor_of(scenario: Scenario, rules: str | None) -> float:
    """The AU that is asked for where nobody says one."""
    if rules != MLPERF:
        return DEFAULT_TARGET
    return next((floor for name, floor in FLOORS.items() if name in scenario.name), DEFAULT_TARGET)
