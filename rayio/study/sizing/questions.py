"""The run of a capacity point: every accelerator has the same work, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayio.analyze.filled import enough
from rayio.errors import ScenarioError
from rayio.imports.mlperf_rules import MLPERF
from rayio.model.engine import engine_named
from rayio.records.sizing_notes import FailuresLeftOut, SizingNote
from rayio.report.text.terms import counted
from rayio.scenario import checks, derive, shards
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.study.sizing.mlperf import EPOCHS, MEMORY, STEPS, sizing
from rayio.study.sweeps.points import grid

#: The fewest steps per rank of a point on real files: over all epochs, and in an epoch.
REAL_STEPS, EPOCH_STEPS = 24, 3
#: Values of a key of which one must load storage more than 1 does.
MORE = tuple(1 << power for power in range(1, 11))


#: A function that applies overrides to the files of a scenario.
Load = Callable[[Mapping[str, Any]], Scenario]


@dataclass(frozen=True)
class Question:
    """A capacity search's scenario and key; ``steps`` per rank and epoch is None if the dataset is fixed."""

    source: str | Path
    fixed: Mapping[str, Any]
    over: str
    base: Scenario
    engine: str
    rules: str | None
    steps: int | None
    host_memory: int | None
    #: Notes on the scenario.
    notes: tuple[SizingNote, ...]
    _load: Load = field(repr=False)

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
        """Return the question for a scenario and the key to vary.

        Raises:
            ScenarioError: the scenario is invalid, or the key is not a whole number, or the overrides set it.
        """
        points = grid(overrides)
        if points.keys:
            raise ScenarioError(f"{points.keys[0]} has several values; give one (rayio sweep tries several)")
        if over in points.fixed:
            raise ScenarioError(f"{over} is searched, and also set to {show(points.fixed[over])}; remove one")
        if rules not in (None, MLPERF):
            raise ScenarioError(f"--rules {rules}: must be {MLPERF}")
        ruled = {"train.epochs": EPOCHS, "train.steps": None} if rules else {}
        fixed = ruled | points.fixed
        if rules and fixed["train.epochs"] != EPOCHS:
            raise ScenarioError(f"train.epochs={show(fixed['train.epochs'])}: --rules {rules} needs {EPOCHS}")
        load, base, notes = without_failures(loading(source), fixed)
        _check_key(base, over)
        if base.loader.file_access == "in_memory":
            raise ScenarioError(
                "loader.file_access=in_memory: files are read once, before the steps that AU counts, so AU does not "
                "show what storage gives; use rayio simulate and rayio explain"
            )
        grows = engine_named(engine).is_virtual or base.dataset.is_modelled
        steps: int | None = None
        if grows:
            checks.check_simulated(base)
            steps = max(derive.steps_per_epoch(base), STEPS if rules else enough(derive.window_steps(base)))
            steps = min(steps, base.train.cap or steps)
        question = cls(source, fixed, over, base, engine, rules, steps, host_memory, notes, load)
        question._check_load()
        return question

    def scenario(self, value: int) -> Scenario:
        """Return the scenario of a point.

        Raises:
            ScenarioError: the value is invalid, or the dataset is too small for it.
        """
        overrides = {**self.fixed, self.over: value}
        scenario = self._large_enough(value)
        if self.steps is not None:
            files = files_for(scenario, self.steps)
            if self.rules and self.host_memory is not None:
                ruled = sizing(scenario, derive.world_size(scenario), self.host_memory * scenario.cluster.nodes)
                files = max(files, ruled.num_files)
            return self._load(overrides | {"dataset.num_files": files})
        steps = derive.steps_per_epoch(scenario)
        least = STEPS if self.rules else EPOCH_STEPS
        if steps < least:
            files = files_for(scenario, least)
            source = f"--rules {self.rules} needs" if self.rules else "a point needs"
            raise ScenarioError(
                f"an epoch of {counted(derive.num_files(scenario), 'file')} has {counted(steps, 'step')} on "
                f"{counted(derive.world_size(scenario), 'accelerator')}, but {source} {least}; "
                f"use dataset.num_files={files}"
            )
        if self.rules and self.host_memory is not None:
            ruled = sizing(scenario, derive.world_size(scenario), self.host_memory)
            if derive.num_files(scenario) < ruled.files:
                memory = MEMORY * self.host_memory
                raise ScenarioError(
                    f"the dataset has {derive.dataset_bytes(scenario) / 2**30:.1f} GiB, but --rules {self.rules} needs "
                    f"{MEMORY} times the memory of the hosts ({memory / 2**30:.1f} GiB); use "
                    f"dataset.num_files={ruled.num_files}"
                )
        if (total := steps * scenario.train.epochs) < REAL_STEPS and not self.rules:
            epochs = -(-REAL_STEPS * scenario.train.epochs // total)
            return self._load(overrides | {"train.epochs": epochs, "train.steps": scenario.train.caps(epochs)})
        return scenario

    def _check_load(self) -> None:
        """Check that more of the key loads storage more: else no largest number still reaches the target.

        Raises:
            ScenarioError: it does not.
        """

        def bytes_at_once(value: int) -> float:
            try:
                scenario = self._large_enough(value)
            except ScenarioError:
                return 0.0
            return derive.world_size(scenario) * derive.batch_bytes(scenario)

        least = bytes_at_once(1)
        if not any(bytes_at_once(value) > least for value in MORE):
            raise ScenarioError(
                f"--over {self.over}: it adds no accelerators and no bytes to a batch, so there is no largest number; "
                f"use rayio advise --vary {self.over}=1..16, or rayio sweep"
            )

    def accelerators(self, value: int) -> int:
        """Return the number of accelerators for a value of the key."""
        return derive.world_size(self._large_enough(value))

    def _large_enough(self, value: int) -> Scenario:
        """Return the scenario with this value, and if its dataset grows, with files for at least one step of all ranks.

        With its given number of files it might be refused.
        """
        overrides = {**self.fixed, self.over: value}
        if self.steps is not None:
            per_file = self.base.dataset.samples_per_file
            files = -(-value * derive.samples_per_step(self.base) // per_file)
            if shards.is_by_file(self.base):  # each worker of each rank has a whole batch
                owners = derive.world_size(self.base) * max(1, self.base.loader.max_workers)
                files = value * owners * -(-self.base.loader.batch_size // per_file)
            overrides["dataset.num_files"] = max(files, self.base.dataset.num_files)
        return self._load(overrides)

    def is_possible(self, value: int) -> bool:
        """Return True if a point's scenario is valid."""
        return self.refusal(value) is None

    def refusal(self, value: int) -> str | None:
        """Return why a point's scenario is invalid; None if it is valid."""
        try:
            scenario = self.scenario(value)
            if self.steps is not None:
                checks.check_simulated(scenario)
        except ScenarioError as error:
            return str(error)
        return None


def without_failures(load: Load, fixed: Mapping[str, Any]) -> tuple[Load, Scenario, tuple[SizingNote, ...]]:
    """Return the function that loads a scenario, its base and notes; without failures, of which AU counts nothing.

    Throughput and the work of storage would contain what they cost, and the changes that are simulated would not.

    Raises:
        ScenarioError: the scenario is invalid, or never computes: its AU is 0 with any storage.
    """
    base = load(fixed)
    if not derive.compute_seconds(base):
        raise ScenarioError(
            'train.compute=0: without compute AU is 0 with any storage; give a step\'s, such as train.compute="100 ms"'
        )
    if base.failures is None:
        return load, base, ()
    # Not None, as some checks differ with failures; events may name ranks that a smaller point has not.
    nothing: dict[str, Any] = {"failures": {"events": [], "mtbf": None, "policy": "from_start"}}

    def load_without(overrides: Mapping[str, Any]) -> Scenario:
        others = {key: value for key, value in overrides.items() if key.partition(".")[0] != "failures"}
        return load(others | nothing).model_copy(update={"failures": None})

    return load_without, load_without(fixed), (FailuresLeftOut(),)


def files_for(scenario: Scenario, steps: int) -> int:
    """Return the files of a dataset that give every rank ``steps`` steps per epoch."""
    has_own = derive.is_replicated(scenario) or scenario.loader.scaling == "weak"
    shares = 1 if has_own else derive.num_shares(scenario)
    if shards.is_by_file(scenario):
        return shards.files_for(scenario, steps) * shares
    return -(-steps * scenario.loader.batch_size * shares // scenario.dataset.samples_per_file)


def _check_key(base: Scenario, over: str) -> None:
    value: Any = base.model_dump()
    for name in over.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ScenarioError(
                f"--over {over}: no such key; give one with a whole number, such as cluster.ranks_per_node or "
                "cluster.nodes"
            )
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScenarioError(f"--over {over}: is {show(value)}; give a key with a whole number")
