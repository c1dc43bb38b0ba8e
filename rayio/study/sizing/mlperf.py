"""The rules of MLPerf Storage for training: size of the dataset, epochs, steps, and the AU that is required."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayio.errors import ScenarioError
from rayio.imports.mlperf_rules import floor_of, record_bytes
from rayio.kinds import FORMATS
from rayio.records.sizing import DatasetSize
from rayio.records.sizing_notes import RulesChecked
from rayio.scenario import derive
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.units import format_bytes

#: Epochs of a run, steps per accelerator and epoch, and size of the dataset over the memory of all hosts.
EPOCHS, STEPS, MEMORY = 5, 500, 5


@dataclass(frozen=True, slots=True)
class Sizing:
    """Files by each of two bounds, of which the larger one holds.

    An epoch has ``shares``; with ``grows`` (``loader.scaling: weak``) ``dataset.num_files`` are those of each share.
    """

    by_memory: int
    by_steps: int
    shares: int
    grows: bool

    @property
    def num_files(self) -> int:
        """Return the least value of ``dataset.num_files``."""
        files = max(self.by_memory, self.by_steps, 1)
        return -(-files // self.shares) if self.grows else files

    @property
    def files(self) -> int:
        """Return the least files of a dataset."""
        return self.num_files * (self.shares if self.grows else 1)

    @property
    def bound(self) -> str:
        """Return the name of the bound that holds."""
        return "memory" if self.by_memory > self.by_steps else "steps"


def sizing(scenario: Scenario, accelerators: int, memory: int) -> Sizing:
    """Return the files that the rules ask for; ``memory`` is that of all hosts in bytes.

    ``5 · memory // (samples per file · record)``, as MLPerf Storage has it, and ``500 · accelerators · batch / samples
    per file``, which it rounds down too: it is rounded up here, or an epoch could have 499 steps.
    """
    per_file, batch = scenario.dataset.samples_per_file, scenario.loader.batch_size
    is_replicated = derive.is_replicated(scenario)
    shares = 1 if is_replicated else max(accelerators // derive.ranks_of_sample(scenario), 1)
    return Sizing(
        by_memory=MEMORY * memory // (per_file * record_bytes(scenario)),
        by_steps=-(-STEPS * shares * batch // per_file),
        shares=shares,
        grows=scenario.loader.scaling == "weak" and not is_replicated,
    )


def _check_read(scenario: Scenario) -> None:
    """Refuse scenarios that read no files."""
    dataset = scenario.dataset
    if derive.phases(scenario) is not None:
        raise ScenarioError(f"checkpoint.phases: {scenario.name} only saves and restores, and reads no dataset")
    if not getattr(FORMATS[dataset.format], "has_files", True):
        raise ScenarioError(f"dataset.format={dataset.format}: {scenario.name} makes its samples, and reads no files")


def _capped(scenario: Scenario, steps: int) -> tuple[str, ...]:
    cap = scenario.train.cap
    if cap is None or cap >= steps:
        return ()
    remedy = f"the rules need {STEPS}; " if cap < STEPS else ""
    return (f"train.steps={cap}: an epoch has no more steps; {remedy}use train.steps=none",)


def rules_checked(scenario: Scenario, memory: int | None) -> RulesChecked:
    """Return the rules that a search checks; without the hosts' ``memory`` the size of the dataset is not."""
    return RulesChecked(floor_of(scenario), EPOCHS, STEPS, None if memory is None else MEMORY)


def datasize(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    memory: int,
    accelerators: int | None = None,
    hosts: int | None = None,
) -> DatasetSize:
    """Return the least dataset of a scenario by the rules of MLPerf Storage.

    >>> rayio.datasize("unet3d-h100", memory=256 << 30, accelerators=8, hosts=2).files
    28000

    Args:
        source: path or packaged name of a scenario, or ``dlio:FILE``.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        memory: bytes of memory of a host.
        accelerators: accelerators of all hosts; None is the ranks of the scenario.
        hosts: None is the nodes of the scenario.

    Raises:
        ScenarioError: the scenario or a number is invalid, or the scenario reads no files.
    """
    scenario = load(source, overrides)
    accelerators = derive.world_size(scenario) if accelerators is None else accelerators
    hosts = scenario.cluster.nodes if hosts is None else hosts
    for name, number in (("--accelerators", accelerators), ("--hosts", hosts), ("--memory", memory)):
        if number < 1:
            raise ScenarioError(f"{name} {number}: must be at least 1")
    if accelerators < hosts:
        raise ScenarioError(f"--accelerators {accelerators}: fewer than --hosts {hosts}; each host has at least one")
    _check_read(scenario)
    sizes = sizing(scenario, accelerators, hosts * memory)
    samples = sizes.files * scenario.dataset.samples_per_file
    nbytes = round(samples * scenario.dataset.sample_bytes.expected)
    steps = samples // (scenario.loader.batch_size * sizes.shares)
    if samples > derive.MAX_SAMPLES or nbytes > derive.MAX_BYTES:
        option = f"--memory {format_bytes(memory)}" if sizes.bound == "memory" else f"--accelerators {accelerators}"
        raise ScenarioError(f"{option}: a dataset of {sizes.files} files is more than possible")
    return DatasetSize(
        scenario=scenario.name,
        accelerators=accelerators,
        hosts=hosts,
        memory_bytes=memory,
        files=sizes.files,
        dataset_bytes=nbytes,
        bound=sizes.bound,
        files_by_memory=sizes.by_memory,
        files_by_steps=sizes.by_steps,
        samples_per_file=scenario.dataset.samples_per_file,
        sample_bytes=record_bytes(scenario),
        batch_size=scenario.loader.batch_size,
        steps_per_epoch=min(steps, scenario.train.cap or steps),
        files_now=scenario.dataset.num_files * (sizes.shares if sizes.grows else 1),
        num_files=sizes.num_files,
        shares=sizes.shares,
        notes=_capped(scenario, steps),
    )
