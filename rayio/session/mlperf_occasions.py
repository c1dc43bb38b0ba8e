"""Evaluations and checkpoints of a run by DLIO's formulas.

Source: ``compute_metrics_eval``, ``end_save_ckpt``, ``end_load_ckpt`` and ``end_run`` of
``dlio_benchmark/utils/statscounter.py`` (argonne-lcf/dlio_benchmark), with its defaults: the first step of an
evaluation is excluded, none at its end. A checkpoint lasts until its last rank is done, as with ``rank_sync`` there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.scenario import derive, evaluation
from rayio.scenario.model import Scenario
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]

GIB = 1 << 30
#: Spans of an asynchronous checkpoint's writers, and those of ranks that wait for one, or read it back.
_WRITTEN, _SAVED, _LOADED = ("write", "fsync", "serialise"), ("checkpoint",), ("restore",)


_COLUMNS = ("rank", "epoch", "step", "start_ns", "duration_ns")
_EVALUATE, _COMPUTE, _WAIT = range(3)
_KINDS = {"evaluate": _EVALUATE, "eval_compute": _COMPUTE, "eval_data_wait": _WAIT}


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations that all ranks finished: AU in percent (mean over ranks) and samples/s (their sum)."""

    au_percent: Floats
    samples_per_second: Floats


def evaluations(slices: Slices, scenario: Scenario) -> Evaluations | None:
    """Return the evaluations of a run; None without any, or if their steps were not recorded.

    For a rank, with ``proc = wait + compute`` of its first step: ``T = duration - proc``, ``AU = 100 · Σ compute / T``
    without that step. Throughput counts all samples and the whole duration. DLIO divides the mean AU by the number of
    ranks once more, and takes the mean of the ranks' throughputs.
    """
    phase = evaluation.phase_of(scenario)
    if phase is None:
        return None
    parts = [*slices.each(_of_evaluations, "name", *_COLUMNS)]
    rows, kinds = (np.concatenate(some, axis=-1) for some in zip(*parts, strict=True))
    is_whole, is_compute = kinds == _EVALUATE, kinds == _COMPUTE
    shape = RunShape.of(phase)
    done: dict[tuple[int, int], tuple[float, float]] = {}
    for rank in range(shape.world_size):
        own = rows[0] == rank
        _, _, _, starts, lengths = rows[:, own & is_whole][:, np.argsort(rows[3, own & is_whole])]
        inner, computes = rows[:, own & ~is_whole], is_compute[own & ~is_whole]
        within = np.searchsorted(starts, inner[3], side="right") - 1
        for place, length in enumerate(lengths.tolist()):
            _, number, step, _, took = inner[:, mine := within == place]
            if not length or not len(step):
                continue
            is_counted = computes[mine] & (step > 0)
            counted, left = int(took[is_counted].sum()), length - int(took[step == 0].sum())
            steps = step[computes[mine]]
            samples = int(shape.samples(np.full(len(steps), rank), steps).sum())
            done[int(number[0]), rank] = (100 * counted / left if left > 0 else 0.0), samples / (length / 1e9)
    rounds = [
        [done[number, rank] for rank in range(shape.world_size)]
        for number in sorted({number for number, _ in done})
        if all((number, rank) in done for rank in range(shape.world_size))
    ]
    if not rounds:
        return None
    values = np.array(rounds)
    return Evaluations(values[:, :, 0].mean(axis=1), values[:, :, 1].sum(axis=1))


def _of_evaluations(number: int, spans: pa.Table) -> tuple[Ints, Ints]:
    """Return the columns of a slice's evaluations, and the kind of each."""
    kind = np.full(len(spans), -1)
    for name, value in _KINDS.items():
        kind[is_text(spans, "name", name)] = value
    chosen = np.flatnonzero(kind >= 0)
    return np.stack([integers(spans, column, chosen) for column in _COLUMNS]), kind[chosen]


@dataclass(frozen=True, slots=True)
class Moved:
    """Checkpoints that were written, or read back: bytes, seconds until the last rank was done, and those of rank 0."""

    nbytes: Floats
    seconds: Floats
    of_rank_0: Floats

    def fields(self, kind: str) -> dict[str, float]:
        """Return DLIO's fields of ``kind``, which is ``save`` or ``load``."""
        return {
            f"{kind}_checkpoint_io_mean_GB_per_second": float(self.rates.mean()),
            f"{kind}_checkpoint_io_stdev_GB_per_second": float(self.rates.std()),
            f"{kind}_checkpoint_duration_mean_seconds": float(self.seconds.mean()),
            f"{kind}_checkpoint_duration_stdev_seconds": float(self.seconds.std()),
        }

    @property
    def rates(self) -> Floats:
        """Bytes of each over its time, in GiB/s, which DLIO calls GB."""
        rates: Floats = self.nbytes / GIB / self.seconds
        return rates

    def more(self) -> dict[str, Any]:
        """Return what DLIO's fields lack: extremes, and the time of rank 0, which is DLIO's without ``rank_sync``."""
        return {
            "number": len(self.seconds),
            "io_min_GB_per_second": float(self.rates.min()),
            "io_max_GB_per_second": float(self.rates.max()),
            "duration_min_seconds": float(self.seconds.min()),
            "duration_max_seconds": float(self.seconds.max()),
            "duration_of_rank_0_mean_seconds": float(self.of_rank_0.mean()),
        }


def saved(slices: Slices, scenario: Scenario) -> Moved | None:
    """Return the checkpoints that a run wrote; of asynchronous ones, the time of their writers."""
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return None
    names, role = (_WRITTEN, "checkpoint_writer") if checkpoint.asynchronous else (_SAVED, "rank")
    return _moved(slices, names, role)


def loaded(slices: Slices, scenario: Scenario) -> Moved | None:
    """Return the checkpoints that a run read back in ``checkpoint.phases``."""
    return None if derive.phases(scenario) is None else _moved(slices, _LOADED, "rank")


def _moved(slices: Slices, names: tuple[str, ...], role: str) -> Moved | None:
    table = slices.named(*names)
    chosen = np.flatnonzero(
        is_text(table, "name", *names) & is_text(table, "role", role) & is_text(table, "status", "ok")
    )
    if not len(chosen):
        return None
    rank, epoch, step, attempt = (integers(table, column, chosen) for column in ("rank", "epoch", "step", "attempt"))
    start, size = (integers(table, column, chosen) for column in ("start_ns", "bytes"))
    end = start + integers(table, "duration_ns", chosen)
    if names == _LOADED:  # spans without a place: each rank reads them in the same order
        step = _ordinal(rank)
    of = np.unique(np.stack([attempt, epoch, step]), axis=1, return_inverse=True)[1].ravel()
    lasted, first = _lasted(of, start, end), rank == 0
    own = _lasted(of[first], start[first], end[first], len(lasted))
    has_bytes = is_text(table, "name", names[0])[chosen]
    nbytes = np.bincount(of, np.where(has_bytes, size, 0), minlength=len(lasted)).astype(np.float64)
    timed = (lasted > 0) & (nbytes > 0)
    return Moved(nbytes[timed], lasted[timed] / 1e9, own[timed] / 1e9) if timed.any() else None


def _ordinal(rank: Ints) -> Ints:
    """Return the number of each entry among those of its rank."""
    order = np.argsort(rank, kind="stable")
    begins = np.flatnonzero(np.diff(rank[order], prepend=-1))
    number = np.empty(len(rank), np.int64)
    number[order] = np.arange(len(rank)) - np.repeat(begins, np.diff(np.append(begins, len(rank))))
    return number


def _lasted(group: Ints, start: Ints, end: Ints, number: int = 0) -> Ints:
    """Return the time from the first start to the last end of each group (ns); 0 for empty ones."""
    number = number or int(group.max()) + 1
    first, last = np.full(number, np.iinfo(np.int64).max), np.full(number, -1, np.int64)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    lasted: Ints = np.where(last < 0, 0, last - first)
    return lasted
