"""The rules of MLPerf Storage for training: size of the dataset, epochs, steps, and the AU that is required."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayio.errors import ScenarioError
from rayio.imports.mlperf_rules import MLPERF, floor_of, record_bytes
from rayio.records.sizing import DatasetSize
from rayio.scenario import derive
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.units import format_bytes

#: Epochs of a run, steps per accelerator and epoch, and size of the dataset over the memory of all hosts.
EPOCHS, STEPS, MEMORY = 5, 500, 5
#: Rules that no single search can meet.
UNCHECKED = (
    "not checked: five runs after a warm-up run, within 5 % of their mean; caches that are dropped between runs "
    "(storage.page_cache=drop does it for files); hosts of one kind; the checkpoint workloads"
)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Files by each of two bounds, of which the larger one holds."""

    by_memory: int
    by_steps: int

    @property
    def files(self) -> int:
        """Return the least files of a dataset."""
        return max(self.by_memory, self.by_steps, 1)

    @property
    def bound(self) -> str:
        """Return the name of the bound that holds."""
        return "memory" if self.by_memory > self.by_steps else "steps"


def sizing(scenario: Scenario, accelerators: int, memory: int) -> Sizing:
    """Return the files that the rules ask for; ``memory`` is that of all hosts in bytes.

    ``5 · memory // (samples per file · record)`` and ``500 · accelerators · batch // samples per file``.
    """
    per_file, batch = scenario.dataset.samples_per_file, scenario.loader.batch_size
    return Sizing(MEMORY * memory // (per_file * record_bytes(scenario)), STEPS * accelerators * batch // per_file)


def rules_in_words(scenario: Scenario, memory: int | None) -> list[str]:
    """Return notes on the rules that a search checks, and on those that it does not."""
    size = "" if memory is None else f", a dataset of at least {MEMORY} × the memory of the hosts"
    checked = (
        f"checked: AU by DLIO's formula (required: {100 * floor_of(scenario):g} %), {EPOCHS} epochs, at least "
        f"{STEPS} steps per accelerator and epoch{size}"
    )
    unknown = [] if memory is not None else ["the hosts' memory is unknown; give it with --host-memory"]
    return [f"--rules {MLPERF}: {text}" for text in (checked, UNCHECKED, *unknown)]


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
        ScenarioError: the scenario or a number is invalid.
    """
    scenario = load(source, overrides)
    accelerators = derive.world_size(scenario) if accelerators is None else accelerators
    hosts = scenario.cluster.nodes if hosts is None else hosts
    for name, number in (("--accelerators", accelerators), ("--hosts", hosts), ("--memory", memory)):
        if number < 1:
            raise ScenarioError(f"{name} {number}: must be at least 1")
    if accelerators < hosts:
        raise ScenarioError(f"--accelerators {accelerators}: fewer than --hosts {hosts}; each host has at least one")
    sizes = sizing(scenario, accelerators, hosts * memory)
    samples = sizes.files * scenario.dataset.samples_per_file
    nbytes = samples * record_bytes(scenario)
    if samples > derive.MAX_SAMPLES or nbytes > derive.MAX_BYTES:
        raise ScenarioError(f"--memory {format_bytes(memory)}: a dataset of {sizes.files} files is more than possible")
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
        steps_per_epoch=samples // (scenario.loader.batch_size * accelerators),
        files_now=derive.num_files(scenario),
    )
