"""DLIO's results as spans of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayio.imports.dlio_losses import has_barrier
from rayio.imports.dlio_results import Block, Evaluated, Results
from rayio.imports.dlio_saved import LOAD, Checkpoint
from rayio.trace.recorder import Recorder

#: A note on the spans' times.
PLACED = (
    "times of steps within a block are estimated: each step follows the slowest rank's previous one, with unrecorded "
    "time spread evenly between them"
)


def record(results: Results, recorder: Recorder) -> None:
    """Record the spans of every rank: life, start-up, phases of each step, evaluations, checkpoints."""
    begun = min(block.start_ns for block in results.blocks)
    writers = [recorder.register("rank", str(rank), 0) for rank in range(results.world_size)]
    for rank, writer in enumerate(writers):
        recorder.add(writer, "startup", results.start_ns, begun, 0, rank)
    for block in results.blocks:
        _record_block(block, recorder, writers)
    for number, evaluated in enumerate(results.evaluations):
        _record_evaluation(evaluated, results.epochs + number, _last_step(results, evaluated), recorder, writers)
    for made in results.checkpoints:
        record_checkpoint(made, _last_step(results, made), recorder, writers)
    for rank, writer in enumerate(writers):
        recorder.add(writer, "life", results.start_ns, results.end_ns, 1, rank)


def record_checkpoint(made: Checkpoint, step: int, recorder: Recorder, writers: Sequence[int]) -> None:
    """Record a checkpoint of the ranks whose times are known."""
    for rank, (start, end) in enumerate(zip(made.start_ns.tolist(), made.end_ns.tolist(), strict=True)):
        if made.kind == LOAD:
            recorder.add(writers[rank], "restore", start, end, 0, rank)
        else:
            recorder.add(writers[rank], "checkpoint", start, end, 0, rank, made.epoch, step)


def _last_step(results: Results, after: Checkpoint | Evaluated) -> int:
    """Return the last step of an epoch before a checkpoint or an evaluation."""
    start = int(np.min(after.start_ns))
    last = [block.first_step + block.steps - 1 for block in results.of(after.epoch) if block.end_ns <= start]
    return max(last, default=0)


def _record_evaluation(evaluated: Evaluated, epoch: int, step: int, recorder: Recorder, writers: Sequence[int]) -> None:
    """Record an evaluation: each rank's own steps follow each other, and the whole is as long as rank 0's."""
    load, proc, compute = (
        np.rint(column * 1e9).astype(np.int64) for column in (evaluated.load, evaluated.proc, evaluated.compute)
    )
    for rank, writer in enumerate(writers):
        recorder.add(writer, "evaluate", evaluated.start_ns, evaluated.end_ns, 0, rank, evaluated.epoch, step)
        start = evaluated.start_ns
        for number, (wait, busy, computed) in enumerate(
            zip(*(c[rank].tolist() for c in (load, proc, compute)), strict=True)
        ):
            where = (1, rank, epoch, number)
            recorder.add(writer, "eval_data_wait", start, start + wait, *where)
            recorder.add(writer, "eval_compute", start + busy - computed, start + busy, *where)
            start += busy


def _record_block(block: Block, recorder: Recorder, writers: list[int]) -> None:
    """Record a block's spans: with a barrier, step n starts after the slowest rank's step n - 1."""
    load, proc, compute = (np.rint(column * 1e9).astype(np.int64) for column in (block.load, block.proc, block.compute))
    proc = np.maximum(proc, load)
    compute = np.minimum(compute, proc - load)
    whole = np.broadcast_to(proc.max(axis=0), proc.shape) if has_barrier(block) else proc
    spare = np.maximum((block.end_ns - block.start_ns) - whole.sum(axis=1, keepdims=True), 0)
    before = np.cumsum(whole, axis=1) - whole + spare * np.arange(block.steps) // block.steps
    starts = block.start_ns + before
    for rank, writer in enumerate(writers):
        rows = zip(*(column[rank].tolist() for column in (starts, load, proc, compute, whole)), strict=True)
        for step, (start, wait, busy, computed, until) in enumerate(rows, block.first_step):
            where = (0, rank, block.epoch, step)
            link = recorder.batch_id(rank, block.epoch, step)
            recorder.add(writer, "data_wait", start, start + wait, *where, link=link)
            recorder.add(writer, "compute", start + busy - computed, start + busy, *where)
            if until > busy:
                recorder.add(writer, "sync", start + busy, start + until, *where)
