"""Evaluations and checkpoints of a workload of DLIO as keys of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayio.imports.dlio_reading import Reading
from rayio.imports.dlio_state import TRANSFORMER, is_transformer, put_transformer
from rayio.scenario.dlio_keys import IDLE, KEYS

#: Keys of phases of checkpoints, with DLIO's defaults, which mean nothing.
PHASES: dict[str, Any] = {
    "checkpoint.time_between_checkpoints": -1, "checkpoint.num_checkpoints_write": -1,
    "checkpoint.num_checkpoints_read": -1, "checkpoint.recovery_rank_shift": False,
}  # fmt: skip


def evaluate(reading: Reading) -> None:
    """Map the evaluation."""
    keys = [name for name in reading.given if name.startswith("evaluation.") or name == "reader.batch_size_eval"]
    files = reading.whole("dataset.num_files_eval", 0)
    compute = reading.times("evaluation.eval_time", "evaluation.eval_time_stdev")
    batch = reading.whole("reader.batch_size_eval", 1, 1)
    after, between = _occasions(reading, "evaluation.eval_after_epoch", "evaluation.epochs_between_evals")
    path = reading.out.pop("dataset.eval.path")
    if not reading.flag("workflow.evaluation") or not files:
        why = (
            "there are no files for it (num_files_eval)" if not files else "nothing is evaluated (workflow.evaluation)"
        )
        for name in (*keys, *(["workflow.evaluation"] if reading.flag("workflow.evaluation") else [])):
            reading.unused(name, why)
        if files:
            reading.unused("dataset.num_files_eval", why)
        return
    names = ("evaluation.eval_after_epoch", "evaluation.epochs_between_evals")
    every = _every(reading, after, between, *names, "evaluates")
    if every is None:
        return
    reading.out["dataset.eval.path"] = path
    reading.put("dataset.eval.num_files", files, "dataset.num_files_eval")
    reading.put("train.evaluate.every", every, *names)
    reading.put("train.evaluate.compute", compute, "evaluation.eval_time", "evaluation.eval_time_stdev")
    reading.put("train.evaluate.batch_size", batch, "reader.batch_size_eval")
    if "workflow.evaluation" in reading.given:
        reading.differs("workflow.evaluation", "every sample is read; DLIO leaves out those that fill no batch")


def _occasions(reading: Reading, after: str, between: str) -> tuple[int, int]:
    return reading.whole(after, 1, 1), reading.whole(between, 1, 1)


def _every(
    reading: Reading, after: int, between: int, after_name: str, between_name: str, does: str
) -> Mapping[str, int] | None:
    """Return the period in epochs with DLIO's occasions; None if there are none, or none has them."""
    epochs = reading.whole("train.epochs", 1, 1)
    names = [name for name in (after_name, between_name) if name in reading.given]
    due = range(after, epochs + 1, between)
    if not due:
        for name in names:
            reading.unused(name, f"none falls due in {epochs} epochs")
        return None
    if [*due] != [*range(after, epochs + 1, after)]:
        shown = ", ".join(map(str, [*due][:3])) + (", ..." if len(due) > 3 else "")
        last = after_name.rpartition(".")[2]
        reading.refuse(
            names[-1], f"DLIO {does} after epochs {shown}, rayio after every n; give {last} and it the same number"
        )
        return None
    return {"epochs": after}


def checkpoint(reading: Reading) -> tuple[str, ...]:
    """Map the checkpoint; return the keys that are dealt with."""
    keys = tuple(name for name in reading.given if name.startswith("checkpoint."))
    path = reading.out.pop("checkpoint.path")
    after, between = _occasions(reading, "checkpoint.checkpoint_after_epoch", "checkpoint.epochs_between_checkpoints")
    steps = reading.number("checkpoint.steps_between_checkpoints", -1.0, -1e9)
    writers = reading.choice("checkpoint.type", "rank_zero", ("rank_zero", "all_ranks"))
    fsync = reading.flag("checkpoint.fsync")
    sizes = ("model.model_size_bytes", "model.model_size", "checkpoint.model_size")
    size_name = next((name for name in sizes if name in reading.given), sizes[0])
    size = reading.whole(size_name, 10240)
    of_state = (*TRANSFORMER, "model.type", *sizes)
    if not reading.flag("workflow.checkpoint"):
        for name in (*keys, *of_state):
            reading.unused(name, "nothing is saved (workflow.checkpoint)")
        return keys
    if reading.choice("checkpoint.mode", "default", ("default", "subset")) != "default":
        reading.refuse("checkpoint.mode", KEYS["checkpoint.mode"].why)
    if reading.flag("checkpoint.rank_sync"):
        reading.refuse("checkpoint.rank_sync", KEYS["checkpoint.rank_sync"].why)
    has_layers = is_transformer(reading)
    for name, default in PHASES.items():
        if name in reading.given and reading.given[name] != default:
            reading.refuse(name, KEYS[name].why)
    for name in keys:
        if KEYS[name].fate == IDLE:
            reading.unused(name)
    every: Mapping[str, int] | None
    names = ("checkpoint.checkpoint_after_epoch", "checkpoint.epochs_between_checkpoints")
    if steps >= 0:
        for name in names:
            reading.unused(name, "steps_between_checkpoints is given, and wins as in DLIO")
        often = reading.whole("checkpoint.steps_between_checkpoints", 0)
        every = {"steps": often} if often else None
        if not often:
            reading.unused("checkpoint.steps_between_checkpoints", "no step is number 0, so nothing is saved")
        elif reading.whole("train.epochs", 1, 1) > 1:
            reading.differs("checkpoint.steps_between_checkpoints")
    else:
        every = _every(
            reading,
            after,
            between,
            "checkpoint.checkpoint_after_epoch",
            "checkpoint.epochs_between_checkpoints",
            "saves",
        )
    if every is None or (not size and not has_layers) or reading.refused:
        return tuple(name for name in keys if KEYS[name].fate == IDLE)
    reading.put("checkpoint.every", every, *(("checkpoint.steps_between_checkpoints",) if steps >= 0 else names))
    reading.out["checkpoint.path"] = path
    if has_layers:
        put_transformer(reading)
    else:
        reading.put("checkpoint.model", {"bytes": size}, size_name)
        reading.put("checkpoint.writers", writers, "checkpoint.type")
        if size_name == "model.model_size":
            reading.differs(size_name)
    reading.put("checkpoint.fsync", fsync, "checkpoint.fsync")
    if "checkpoint.fsync" in reading.given and fsync:
        reading.differs("checkpoint.fsync")
    return tuple(name for name in keys if KEYS[name].fate == IDLE)
