"""The bytes of all checkpoints of a run: full ones, and increments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayio.scenario import derive

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: The name of the bytes of an increment in ``rayio show``.
INCREMENT = "checkpoint_increment_bytes"


def increment_bytes(scenario: Scenario) -> dict[str, int]:
    """Return the bytes of an increment (``checkpoint.incremental``), of all writers, by name; nothing without any."""
    saved = scenario.checkpoint
    if saved is None or saved.incremental is None:
        return {}
    writers, topology = range(derive.num_writers(scenario)), scenario.saving_topology
    files = (part for writer in writers for part in saved.writers.files(writer, saved.model, topology))
    return {INCREMENT: sum(saved.incremental.changed(part.num_bytes) for part in files)}


def all_checkpoints_bytes(scenario: Scenario) -> int:
    """Return the bytes of all checkpoints of the run."""
    number, full = derive.num_checkpoints(scenario), derive.checkpoint_bytes(scenario)
    if scenario.checkpoint is None or (kind := scenario.checkpoint.incremental) is None:
        return number * full
    fulls = kind.number_full(number)
    return fulls * full + (number - fulls) * increment_bytes(scenario)[INCREMENT]
