"""A result folder of DLIO (or MLPerf Storage) as values: files are read and checked against each other.

``{rank}_output.json`` has, for each epoch and block, three lists with an entry per step, in seconds: ``load`` (from
requesting a batch to having it), ``proc`` (from requesting it to the end of its compute) and ``compute`` (as configured
for the accelerator). ``per_epoch_stats.json`` has rank 0's start and end of each block and checkpoint; ``summary.json``
has the world size and the published numbers. No file has the times of steps within a block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.imports.dlio_files import (
    STATS,
    SUMMARY,
    check_folder,
    configured,
    few,
    interval,
    load,
    moment,
    number,
    rank_files,
    stats_file,
    whole,
)
from rayio.imports.dlio_metrics import check_evaluations, check_metric, check_rate
from rayio.imports.dlio_saved import Checkpoint, read_checkpoints
from rayio.schema.fields import show

Floats = NDArray[np.float64]

#: Lists of each block in a rank's file, with one number per step.
LISTS = ("load", "proc", "compute")

#: Name of an evaluation in the files.
EVALUATION = "eval"

#: Allowed difference between a rank's and rank 0's length of a block: seconds, or share of the block.
APART_SECONDS, APART_SHARE = 1.0, 0.02

#: By how much a step may be shorter than its load and its compute, which is configured, as a share.
SHORT_SHARE = 0.05

#: Allowed difference between the ranks' mean AU and the published one, in percentage points.
APART_POINTS = 0.05


@dataclass(frozen=True, slots=True)
class Block:
    """The steps of an epoch between two checkpoints.

    ``epoch`` counts from 0, ``first_step`` within the epoch. ``start_ns`` and ``end_ns`` are rank 0's, in ns since the
    Unix epoch. ``load``, ``proc`` and ``compute`` are seconds, shape (ranks, steps). ``au`` is each rank's, in percent
    (NaN if unknown).
    """

    epoch: int
    name: str
    first_step: int
    start_ns: int
    end_ns: int
    load: Floats
    proc: Floats
    compute: Floats
    au: Floats
    throughput: Floats

    @property
    def seconds(self) -> float:
        """The length on rank 0 in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def steps(self) -> int:
        """The steps of each rank."""
        return len(self.load[0])


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation after an epoch (from 0), with times as of a :class:`Block`; ``au`` is each rank's, in percent."""

    epoch: int
    start_ns: int
    end_ns: int
    load: Floats
    proc: Floats
    compute: Floats
    au: Floats


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a folder."""

    folder: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    world_size: int
    epochs: int
    start_ns: int
    end_ns: int
    blocks: tuple[Block, ...]
    checkpoints: tuple[Checkpoint, ...]
    evaluations: tuple[Evaluated, ...]
    notes: tuple[str, ...]

    def of(self, epoch: int) -> list[Block]:
        """Return the blocks of an epoch, in order."""
        return [block for block in self.blocks if block.epoch == epoch]

    @property
    def published(self) -> dict[str, Any]:
        """The metrics of ``summary.json``."""
        metric = self.summary.get("metric")
        return metric if isinstance(metric, dict) else {}


def read(folder: Path) -> Results:
    """Return the results of a folder.

    Raises:
        DataError: a file is missing, damaged, or contradicts another.
    """
    check_folder(folder)
    summary = load(folder, SUMMARY)
    stats = load(folder, stats_file(folder))
    config = configured(folder)
    world_size = whole(summary, "num_accelerators")
    epochs = whole(summary, "epochs") if "epochs" in summary else len(stats)
    _ranks(folder, world_size)
    wanted = [str(number + 1) for number in range(len(stats))]
    if epochs != len(stats) or {*wanted} != {*stats}:
        raise DataError(f"{STATS}: has epochs {few(sorted(stats))}; {SUMMARY} says epochs {epochs}, counted from 1")
    outputs = [_output(folder, rank, wanted) for rank in range(world_size)]
    blocks: list[Block] = []
    evaluations: list[Evaluated] = []
    notes: set[str] = set()
    for position, epoch in enumerate(wanted):
        mine = [output[epoch] for output in outputs]
        blocks += _blocks(position, stats[epoch], mine)
        if EVALUATION in stats[epoch] and all(EVALUATION in each for each in mine):
            evaluations.append(_evaluated(position, stats[epoch][EVALUATION], mine))
        for name, entry in sorted(stats[epoch].items()):
            if isinstance(entry, dict) and not re.fullmatch(rf"block\d+|((save|load)_)?ckpt\d+|{EVALUATION}", name):
                notes.add(f"{name} of the results is not imported")
    metric = summary.get("metric")
    checkpoints, remarks = read_checkpoints(folder, stats, world_size, metric if isinstance(metric, dict) else {})
    results = Results(
        folder=folder,
        summary=summary,
        config=config.workload,
        world_size=world_size,
        epochs=epochs,
        start_ns=min([moment(summary, "start", SUMMARY), *(block.start_ns for block in blocks)]),
        end_ns=max([moment(summary, "end", SUMMARY), *(block.end_ns for block in blocks)]),
        blocks=tuple(blocks),
        checkpoints=checkpoints,
        evaluations=tuple(evaluations),
        notes=(*sorted(notes), *remarks),
    )
    _one_run(results)
    return results


def _ranks(folder: Path, world_size: int) -> None:
    ranks = rank_files(folder)
    expected = f"{SUMMARY} says num_accelerators {world_size}, so ranks 0 to {world_size - 1}"
    if strange := sorted(rank for rank in ranks if rank >= world_size):
        raise DataError(f"{folder}/{strange[0]}_output.json: rank {strange[0]} belongs to another run; {expected}")
    if missing := world_size - len(ranks):
        rank = next(rank for rank in range(world_size) if rank not in ranks)
        more = f" (and {missing - 1} more)" if missing > 1 else ""
        raise DataError(
            f"{folder}/{rank}_output.json: no such file: rank {rank} is missing{more}; {expected} "
            "(use --reduced to read only the summary)"
        )


def _output(folder: Path, rank: int, epochs: list[str]) -> dict[str, dict[str, Any]]:
    """Return the blocks of a rank's file by epoch and name, as (lists, au, throughput)."""
    name, whose = f"{rank}_output.json", f" (rank {rank})"
    value = load(folder, name, whose)
    found_epochs = sorted(key for key in value if re.fullmatch(r"[0-9]+", key))
    if found_epochs != sorted(epochs):
        raise DataError(f"{name}{whose}: has epochs {few(found_epochs)}; {STATS} has {few(epochs)}")
    output: dict[str, dict[str, Any]] = {}
    for epoch in epochs:
        entry = value[epoch]
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), dict) for key in LISTS):
            raise DataError(f"{name}{whose}: epoch {epoch}: expected {', '.join(LISTS)}, each by block")
        wanted = {key: [name for name in entry[key] if name.startswith("block") or name == EVALUATION] for key in LISTS}
        names = {key: sorted(name for name in wanted[key] if name != EVALUATION or entry[key][name]) for key in LISTS}
        if not names["load"] == names["proc"] == names["compute"]:
            raise DataError(f"{name}{whose}: epoch {epoch}: load, proc and compute have different blocks")
        output[epoch] = {
            block: _steps(entry, block, f"{name}{whose}: epoch {epoch} {block}") for block in names["load"]
        }
    return output


def _steps(entry: Mapping[str, Any], block: str, where: str) -> tuple[list[Floats], float, float]:
    columns = [_seconds(entry[key][block], f"{where}: {key}") for key in LISTS]
    load, proc, compute = columns
    if not len(load) == len(proc) == len(compute):
        lengths = ", ".join(f"{len(column)} of {key}" for key, column in zip(LISTS, columns, strict=True))
        raise DataError(f"{where}: has {lengths}; expected one of each per step")
    if (short := np.flatnonzero(proc < load - 1e-3)).size:
        step = int(short[0])
        raise DataError(f"{where}: step {step}: proc {proc[step]:g} s is less than its load {load[step]:g} s")
    if (short := np.flatnonzero(proc < (load + compute) * (1 - SHORT_SHARE) - 1e-3)).size:
        step = int(short[0])
        raise DataError(
            f"{where}: step {step}: proc {proc[step]:g} s is less than its load {load[step]:g} s and compute "
            f"{compute[step]:g} s"
        )
    return columns, _optional(entry, "au", block), _optional(entry, "throughput", block)


def _seconds(values: object, where: str) -> Floats:
    if not isinstance(values, list):
        raise DataError(f"{where}: holds {type(values).__name__}, expected a list of seconds")
    for step, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise DataError(f"{where}: step {step} is {show(value)}; expected seconds")
    return np.array(values, np.float64)


def _optional(entry: Mapping[str, Any], key: str, block: str) -> float:
    column = entry.get(key)
    value = number(column.get(block)) if isinstance(column, dict) else None
    return math.nan if value is None else value


def _blocks(number: int, stats: object, ranks: list[dict[str, Any]]) -> list[Block]:
    epoch = str(number + 1)
    if not isinstance(stats, dict):
        raise DataError(f"{STATS}: epoch {epoch}: holds {type(stats).__name__}, expected its blocks")
    names = sorted((name for name in stats if re.fullmatch(r"block\d+", name)), key=lambda name: int(name[5:]))
    if not names:
        raise DataError(f"{STATS}: epoch {epoch}: has no block1; was this run without training?")
    blocks: list[Block] = []
    step = 0
    for rank, mine in enumerate(ranks):
        if {name for name in mine if len(mine[name][0][0])} - {*names, EVALUATION} or {*names} - {*mine}:
            raise DataError(
                f"{rank}_output.json (rank {rank}): epoch {epoch}: has {few(sorted(mine))}; {STATS} has {few(names)}"
            )
    for name in names:
        start_ns, end_ns = interval(epoch, name, stats[name])
        steps = len(ranks[0][name][0][0])
        for rank, mine in enumerate(ranks):
            if (own_steps := len(mine[name][0][0])) != steps:
                raise DataError(
                    f"{rank}_output.json (rank {rank}): epoch {epoch} {name}: has {own_steps} steps, rank 0 {steps}"
                )
        if not steps:
            continue
        load, proc, compute = (np.stack([mine[name][0][column] for mine in ranks]) for column in range(len(LISTS)))
        au, throughput = (np.array([mine[name][place] for mine in ranks]) for place in (1, 2))
        blocks.append(Block(number, name, step, start_ns, end_ns, load, proc, compute, au, throughput))
        step += steps
    if not blocks:
        raise DataError(f"{STATS}: epoch {epoch}: no rank has a step")
    return blocks


def _evaluated(number: int, stats: object, ranks: list[dict[str, Any]]) -> Evaluated:
    start_ns, end_ns = interval(str(number + 1), EVALUATION, stats)
    steps = len(ranks[0][EVALUATION][0][0])
    for rank, mine in enumerate(ranks):
        if (own_steps := len(mine[EVALUATION][0][0])) != steps:
            raise DataError(
                f"{rank}_output.json (rank {rank}): epoch {number + 1} {EVALUATION}: has {own_steps} steps, rank 0 "
                f"{steps}"
            )
    load, proc, compute = (np.stack([mine[EVALUATION][0][column] for mine in ranks]) for column in range(len(LISTS)))
    au = np.array([mine[EVALUATION][1] for mine in ranks])
    return Evaluated(number, start_ns, end_ns, load, proc, compute, au)


def _one_run(results: Results) -> None:
    """Refuse files of different runs, and copies.

    A rank's AU must fit the block's length and the published mean; two ranks must not have equal times.
    """
    first_rank: dict[bytes, int] = {}
    for rank in range(results.world_size):
        times = np.concatenate([column[rank] for block in results.blocks for column in (block.load, block.proc)])
        if (other := first_rank.setdefault(times.tobytes(), rank)) != rank:
            raise DataError(
                f"{rank}_output.json (rank {rank}): has exactly the times of {other}_output.json: a copied file?"
            )
    check_rate(results.published, _rate(results))
    apart = [_apart(block) for block in results.blocks]
    for block, seconds in zip(results.blocks, apart, strict=True):
        rank = int(np.argmax(np.abs(seconds)))
        if abs(seconds[rank]) > max(APART_SECONDS, APART_SHARE * block.seconds):
            raise DataError(
                f"{rank}_output.json (rank {rank}): epoch {block.epoch + 1} {block.name}: its au {block.au[rank]:.2f} "
                f"and times fit a block of {block.seconds + seconds[rank]:.1f} s, {STATS} says "
                f"{block.seconds:.1f} s: files of different runs?"
            )
    check_evaluations(results.published, [each.au for each in results.evaluations])
    published = results.published.get("train_au_percentage")
    if not isinstance(published, list):
        check_metric(results.published, results.epochs)
        return
    if len(published) != results.epochs or any(number(value) is None for value in published):
        raise DataError(f"{SUMMARY}: train_au_percentage is not {results.epochs} numbers, one for each epoch")
    check_metric(results.published, results.epochs)
    for block, seconds in zip(results.blocks, apart, strict=True):
        if len(results.of(block.epoch)) > 1 or np.isnan(block.au).any():
            continue
        mean, expected = float(block.au.mean()), float(published[block.epoch])
        if abs(mean - expected) > APART_POINTS:
            rank = int(np.argmax(np.abs(seconds)))
            raise DataError(
                f"{rank}_output.json (rank {rank}, which differs most): epoch {block.epoch + 1}: the "
                f"ranks' mean au is {mean:.2f}, {SUMMARY} says {expected:.2f}: files of different runs?"
            )


def _rate(results: Results) -> float:
    """Return the sum of the ranks' throughput, in the mean over epochs; NaN if one is unknown."""
    of_epochs = []
    for epoch in range(results.epochs):
        blocks = results.of(epoch)
        weights = [block.steps for block in blocks]
        of_epochs.append(np.average([block.throughput.sum() for block in blocks], weights=weights))
    return float(np.mean(of_epochs))


def _apart(block: Block) -> Floats:
    """Return by how many seconds the block length behind each rank's AU exceeds rank 0's."""
    known = np.isfinite(block.au) & (block.au > 1e-6)
    own = 100 * block.compute[:, 1:].sum(axis=1) / np.where(known, block.au, 1) + block.proc[:, 0]
    return np.where(known, own - block.seconds, 0.0)
