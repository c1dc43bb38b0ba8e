"""The checkpoints of a result folder of DLIO: when each rank wrote or read them, and the published numbers.

Since 2025 every rank has a ``{rank}_per_epoch_stats.json``, with start, end, seconds and GiB/s of ``save_ckpt1``,
``load_ckpt1``, ...; older folders have ``ckpt1`` of rank 0. ``summary.json`` has mean and deviation of rank 0's
seconds and GiB/s: DLIO's GB are 2**30 bytes here.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.imports.dlio_files import STATS, SUMMARY, interval, load, number
from rayio.imports.dlio_metrics import lenient
from rayio.records.run_result import ImportedTransfers

Ints = NDArray[np.int64]

#: What DLIO does with checkpoints, by the beginning of its names.
SAVE, LOAD = "save", "load"
_NAME = re.compile(r"(?:(save|load)_)?ckpt(\d+)")
GIB = 1 << 30
#: Allowed differences: of a duration from its times (s), and of published numbers from the files (as a share).
APART_SECONDS, APART_SHARE = 0.02, 0.005


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that ranks wrote or read: start and end in ns since the Unix epoch, by rank from 0."""

    kind: str
    epoch: int
    number: int
    start_ns: Ints
    end_ns: Ints

    @property
    def seconds(self) -> float:
        """From the first rank's start to the last rank's end."""
        return float(self.end_ns.max() - self.start_ns.min()) / 1e9

    @property
    def seconds_of_rank_0(self) -> float:
        """From rank 0's start to its end."""
        return float(self.end_ns[0] - self.start_ns[0]) / 1e9


def read_checkpoints(
    folder: Path, stats: Mapping[str, Any], world_size: int, metric: Mapping[str, Any]
) -> tuple[tuple[Checkpoint, ...], list[str]]:
    """Return the checkpoints of a folder in time's order, and notes; ``stats`` are rank 0's.

    Raises:
        DataError: a file is damaged, or contradicts another.
    """
    size = lenient(metric.get("checkpoint_size_GB"))
    mine = _times(stats, f"0_{STATS}" if (folder / f"0_{STATS}").exists() else STATS, size)
    notes: list[str] = []
    ranks = [mine]
    missing = [rank for rank in range(1, world_size) if not (folder / _file(rank)).exists()]
    if mine and not missing:
        ranks += [
            _times(load(folder, _file(rank), f" (rank {rank})"), _file(rank), size) for rank in range(1, world_size)
        ]
    elif mine and world_size > 1:
        notes.append(
            f"times of checkpoints are those of rank 0: {len(missing)} of {world_size} ranks have no {_file(0)[1:]}"
        )
    for rank, theirs in enumerate(ranks):
        if [*theirs] != [*mine]:
            here, there = (", ".join(map(_shown, some)) or "none" for some in (theirs, mine))
            raise DataError(f"{_file(rank)} (rank {rank}): has checkpoints {here}; rank 0 has {there}")
        if (other := ranks.index(theirs)) != rank and theirs:
            raise DataError(f"{_file(rank)} (rank {rank}): has exactly the times of {_file(other)}: a copied file?")
    made = [
        Checkpoint(*key, *(np.array([theirs[key][place] for theirs in ranks], np.int64) for place in (0, 1)))
        for key in mine
    ]
    made.sort(key=lambda each: int(each.start_ns[0]))
    for earlier, later in pairwise(made):
        if later.start_ns[0] < earlier.end_ns[0]:
            raise DataError(f"{STATS}: {_shown(_key(later))} begins before {_shown(_key(earlier))} ends")
    return tuple(made), notes


def transfers(metric: Mapping[str, Any], made: Sequence[Checkpoint], kind: str) -> ImportedTransfers | None:
    """Return the published numbers of a kind of checkpoint, and those of the files; None if there are none.

    Raises:
        DataError: a published mean is none, or not that of the files.
    """
    rate, rate_stdev, mean, stdev = (
        _published(metric, f"{kind}_checkpoint_{name}")
        for name in (
            "io_mean_GB_per_second",
            "io_stdev_GB_per_second",
            "duration_mean_seconds",
            "duration_stdev_seconds",
        )
    )
    size = _published(metric, "checkpoint_size_GB")
    mine = [each for each in made if each.kind == kind]
    if mean is None and rate is None and not mine:
        return None
    if size is not None and rate is not None and mean and rate * mean < size * (1 - APART_SHARE):
        raise DataError(
            f"{SUMMARY}: {kind}_checkpoint_io_mean_GB_per_second is {rate:g}, but checkpoint_size_GB {size:g} in "
            f"{mean:g} s is at least {size / mean:g}: values of different runs?"
        )
    own = [each.seconds_of_rank_0 for each in mine]
    if own:
        for name, value, of_files in (
            ("mean", mean, statistics.fmean(own)),
            ("stdev", stdev, statistics.pstdev(own)),
        ):
            allowed = APART_SECONDS + APART_SHARE * statistics.fmean(own)
            if value is not None and abs(value - of_files) > allowed:
                raise DataError(
                    f"{SUMMARY}: {kind}_checkpoint_duration_{name}_seconds is {value:g}, but that of rank 0's times is "
                    f"{of_files:g}: files of different runs?"
                )
    is_whole = bool(mine) and len(mine[0].start_ns) > 1
    return ImportedTransfers(
        number=len(mine) or None,
        seconds=mean if mean is not None else statistics.fmean(own) if own else None,
        seconds_stdev=stdev,
        mib_per_second=None if rate is None else 1024 * rate,
        mib_per_second_stdev=None if rate_stdev is None else 1024 * rate_stdev,
        all_ranks_seconds=statistics.fmean([each.seconds for each in mine]) if is_whole else None,
    )


def is_of_checkpoints(metric: object) -> bool:
    """Return True if a summary has metrics of checkpoints, and none of training."""
    names = [str(name) for name in metric] if isinstance(metric, Mapping) else []
    return not any(name.startswith("train_") for name in names) and any("_checkpoint_" in name for name in names)


def checkpoint_bytes(metric: Mapping[str, Any]) -> float | None:
    """Return the published bytes of a checkpoint of all ranks; None if unknown."""
    size = _published(metric, "checkpoint_size_GB")
    return None if size is None else size * GIB


def _published(metric: Mapping[str, Any], key: str) -> float | None:
    value = lenient(metric.get(key))
    if value is not None and value < 0:
        raise DataError(f"{SUMMARY}: {key} is {value:g}; expected a number of at least 0")
    return value


def _file(rank: int) -> str:
    return f"{rank}_{STATS}"


def _key(made: Checkpoint) -> tuple[str, int, int]:
    return made.kind, made.epoch, made.number


def _shown(key: tuple[str, int, int]) -> str:
    kind, epoch, number_of = key
    return f"{kind}_ckpt{number_of} of epoch {epoch + 1}"


def _times(stats: Mapping[str, Any], file: str, size: float | None) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Return start and end of each checkpoint of a rank's file, by kind, epoch and number."""
    times: dict[tuple[str, int, int], tuple[int, int]] = {}
    for place, epoch in enumerate(sorted(stats, key=lambda name: (len(name), name))):
        if not isinstance(stats[epoch], Mapping):
            raise DataError(f"{file}: epoch {epoch}: holds {type(stats[epoch]).__name__}, expected its checkpoints")
        for name, entry in stats[epoch].items():
            if (match := _NAME.fullmatch(str(name))) is None:
                continue
            start, end = interval(epoch, name, entry, file)
            _check(entry, (end - start) / 1e9, size, f"{file}: epoch {epoch} {name}")
            times[match[1] or SAVE, place, int(match[2])] = start, end
    return times


def _check(entry: Mapping[str, Any], seconds: float, size: float | None, where: str) -> None:
    """Refuse a duration or a rate that is not that of the times."""
    lasted, rate = lenient(entry.get("duration")), number(entry.get("throughput"))
    if lasted is not None and abs(lasted - seconds) > APART_SECONDS:
        raise DataError(f"{where}: duration is {lasted:g} s, but from its start to its end are {seconds:g} s")
    if rate is not None and size is not None and lasted and abs(rate * lasted - size) > APART_SHARE * size + 1e-9:
        raise DataError(
            f"{where}: throughput {rate:g} GiB/s in {lasted:g} s are {rate * lasted:g} GiB, but checkpoint_size_GB is "
            f"{size:g}: files of different runs?"
        )
