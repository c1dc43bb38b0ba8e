"""Files dealt to workers (``loader.assignment: by_file``): their number, and what workers and ranks end without."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayio.kinds import PARTITIONS
from rayio.scenario.turns import BY_FILE, Turns

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


def is_by_file(scenario: Scenario) -> bool:
    """Return True if workers own files."""
    return scenario.loader.assignment == BY_FILE


def fewest_and_most_files(scenario: Scenario, num_files: int, world_size: int) -> tuple[int, int]:
    """Return the fewest and most files of a rank."""
    if PARTITIONS[scenario.loader.partition].shared:
        return num_files, num_files
    return num_files // world_size, -(-num_files // world_size)


def turns_of(scenario: Scenario, num_files: int) -> Turns:
    """Return the turns of a rank with so many files."""
    loader = scenario.loader
    per_file, workers = scenario.dataset.samples_per_file, max(1, loader.max_workers)
    return Turns.of(num_files, workers, per_file, loader.batch_size, drop_last=loader.drop_last)


def files_for(scenario: Scenario, steps: int) -> int:
    """Return the fewest files of a rank with which its workers have so many steps."""
    turns = turns_of(scenario, 1)
    batches = -(-steps // turns.workers)
    of_worker = -(-batches * turns.batch_size // turns.samples_per_file)
    numbers = range(1, turns.workers * of_worker + 1)
    return numbers[bisect_left(numbers, steps, key=lambda number: turns_of(scenario, number).steps)]


def are_whole(scenario: Scenario) -> bool:
    """Return True if workers own files and read all of them: the last batch of each may be smaller."""
    return is_by_file(scenario) and not scenario.loader.drop_last


def steps_of(scenario: Scenario, num_files: int, world_size: int) -> tuple[int, int]:
    """Return the fewest and most steps of a rank."""
    fewest, most = fewest_and_most_files(scenario, num_files, world_size)
    return turns_of(scenario, fewest).steps, turns_of(scenario, most).steps


def samples_of(scenario: Scenario, num_files: int, world_size: int, steps: int | None = None) -> tuple[int, int]:
    """Return the fewest and most samples of a rank, of at most so many steps."""
    fewest, most = (turns_of(scenario, number) for number in fewest_and_most_files(scenario, num_files, world_size))
    cap = most.steps if steps is None else steps
    return fewest.samples(min(fewest.steps, cap)), most.samples(min(most.steps, cap))


def refusals(scenario: Scenario, num_files: int, world_size: int) -> Iterator[str]:
    """Yield a line if a rank's workers have no whole batch."""
    fewest, _ = fewest_and_most_files(scenario, num_files, world_size)
    turns, loader = turns_of(scenario, fewest), scenario.loader
    if is_by_file(scenario) and not turns.steps and not loader.drop_last:
        yield (
            f"loader.assignment={BY_FILE}: {num_files} files are fewer than {world_size} ranks, and a rank without a "
            f"file has no step; use at most {num_files} ranks, or loader.assignment=static"
        )
    elif is_by_file(scenario) and not turns.steps:
        whole = scenario.dataset.samples_per_file
        files = f"{fewest} files of {whole} sample{'s' * (whole > 1)}"
        yield (
            f"loader.assignment={BY_FILE}: a rank has {files} for {turns.workers} workers, "
            f"and none has a whole batch of {loader.batch_size}; use more files, fewer workers or ranks, or "
            "loader.assignment=static"
        )


def notes(scenario: Scenario, num_files: int, world_size: int, dropped: int) -> Iterator[str]:
    """Yield notes about workers without files and uneven ends."""
    fewest, most = fewest_and_most_files(scenario, num_files, world_size)
    turns, setting = turns_of(scenario, fewest), f"loader.assignment={BY_FILE}"
    if turns.idle:
        yield (
            f"{setting}: {turns.idle} of the {turns.workers} workers of a rank have no file, for it has {fewest}; use "
            f"more files, or loader.num_workers={fewest}"
        )
    if dropped:
        each = f"{_from(fewest, most)} files, their workers {_from(turns.files, -(-most // turns.workers))}"
        yield (
            f"{setting}: {dropped} samples of an epoch are left out, because ranks have {each}, and a worker's last "
            "samples fill no batch, or other ranks have no more"
        )


def _from(fewest: int, most: int) -> str:
    return f"{fewest} or {most}" if most > fewest else f"{fewest}"
