"""Evaluations and checkpoints of a workload of DLIO as keys of a scenario."""

from __future__ import annotations

from collections.abc import Mapping

from rayio.imports.dlio_reading import Reading
from rayio.imports.dlio_state import FLAT, LAYERED, is_layered, put_layered
from rayio.scenario.checkpoint import NODE
from rayio.scenario.dlio_keys import KEYS

#: Numbers of checkpoints without training.
_WRITES, _READS = "checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"
_SHIFT, _MODE = "checkpoint.recovery_rank_shift", "checkpoint.mode"
_PAUSE = "checkpoint.time_between_checkpoints"
_EVERY = (
    "checkpoint.checkpoint_after_epoch", "checkpoint.epochs_between_checkpoints",
    "checkpoint.steps_between_checkpoints",
)  # fmt: skip


def is_alone(reading: Reading) -> bool:
    """Return True if a workload only writes and reads checkpoints, without training."""
    return reading.flag("workflow.checkpoint") and not reading.flag("workflow.train", default=True)


def evaluate(reading: Reading) -> None:
    """Map the evaluation."""
    keys = [name for name in reading.given if name.startswith("evaluation.") or name == "reader.batch_size_eval"]
    files = reading.whole("dataset.num_files_eval", 0)
    compute = reading.times("evaluation.eval_time", "evaluation.eval_time_stdev")
    batch = reading.whole("reader.batch_size_eval", 1, 1)
    after, between = _occasions(reading, "evaluation.eval_after_epoch", "evaluation.epochs_between_evals")
    path = reading.out.pop("dataset.eval.path")
    if is_alone(reading) or not reading.flag("workflow.evaluation") or not files:
        why = (
            "there are no files for it (num_files_eval)" if not files else "nothing is evaluated (workflow.evaluation)"
        )
        for name in (*keys, *(["workflow.evaluation"] if reading.flag("workflow.evaluation") else [])):
            reading.unused(name, why)
        if files:
            reading.unused("dataset.num_files_eval", why)
        return
    names = ("evaluation.eval_after_epoch", "evaluation.epochs_between_evals")
    every = _every(reading, after, between, *names)
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


def _every(reading: Reading, after: int, between: int, *names: str) -> Mapping[str, int] | None:
    """Return the period in epochs with DLIO's occasions; None if there are none."""
    epochs = reading.whole("train.epochs", 1, 1)
    due = range(after, epochs + 1, between)
    if not due:
        for name in names:
            reading.unused(name, f"none falls due in {epochs} epochs")
        return None
    if [*due] == [*range(after, epochs + 1, after)]:
        return {"epochs": after}
    return {"epochs": between, "first": after}


def checkpoint(reading: Reading) -> tuple[str, ...]:
    """Map the checkpoint; return the keys that are dealt with."""
    keys = tuple(name for name in reading.given if name.startswith("checkpoint."))
    path = reading.out.pop("checkpoint.path")
    steps = reading.number("checkpoint.steps_between_checkpoints", -1.0, -1e9)
    after, between = _occasions(reading, *_EVERY[:2])
    writers = reading.choice("checkpoint.type", "rank_zero", ("rank_zero", "all_ranks"))
    fsync = reading.flag("checkpoint.fsync")
    size_name = next((name for name in FLAT if name in reading.given), FLAT[0])
    size = reading.whole(size_name, 10240)
    for name in FLAT:
        if name != size_name:
            reading.unused(name, f"{size_name} is given")
    if not reading.flag("workflow.checkpoint"):
        for name in (*keys, *LAYERED, "model.type", *FLAT):
            reading.unused(name, "nothing is saved (workflow.checkpoint)")
        return keys
    is_subset = reading.choice(_MODE, "default", ("default", "subset")) == "subset"
    if reading.flag("checkpoint.rank_sync"):
        if is_alone(reading):
            reading.unused("checkpoint.rank_sync", "without training ranks meet before each checkpoint")
        else:
            reading.refuse("checkpoint.rank_sync", KEYS["checkpoint.rank_sync"].why)
    has_layers = is_layered(reading)
    if is_subset and not has_layers:
        reading.refuse(_MODE, "only of a state of layers; give model.num_layers, or leave checkpoint.mode out")
    names: tuple[str, ...] = (_WRITES, _READS, _SHIFT, _PAUSE)
    if is_alone(reading):
        when, due = "checkpoint.phases", _phases(reading)
    else:
        when = "checkpoint.every"
        due, names = _every_checkpoint(reading, after, between, steps)
    if due is None or (not size and not has_layers) or reading.refused:
        return ()
    reading.put(when, due, *names)
    reading.out["checkpoint.path"] = path
    if has_layers:
        put_layered(reading, size, size_name, is_subset=is_subset, trains=not is_alone(reading))
    else:
        reading.put("checkpoint.model", {"bytes": size}, size_name)
        reading.put("checkpoint.writers", writers, "checkpoint.type")
    if size_name == "model.model_size" and {"checkpoint.model", "checkpoint.model.each_rank"} & {*reading.out}:
        reading.differs(size_name)
    reading.put("checkpoint.fsync", fsync, "checkpoint.fsync")
    if "checkpoint.fsync" in reading.given and fsync:
        reading.differs("checkpoint.fsync")
    return ()


def _every_checkpoint(
    reading: Reading, after: int, between: int, steps: float
) -> tuple[Mapping[str, int] | None, tuple[str, ...]]:
    """Return the period of checkpoints while training, None without any, and the keys that it is from."""
    for name in (_WRITES, _READS, _SHIFT, _PAUSE):
        reading.unused(name, "only without training (workflow.train: False)")
    if steps < 0:
        return _every(reading, after, between, *_EVERY[:2]), _EVERY[:2]
    for name in _EVERY[:2]:
        reading.unused(name, "steps_between_checkpoints is given, and wins as in DLIO")
    often = reading.whole(_EVERY[2], 0)
    if not often:
        reading.unused(_EVERY[2], "no step is number 0, so nothing is saved")
    elif reading.whole("train.epochs", 1, 1) > 1:
        reading.differs(_EVERY[2])
    return {"steps": often} if often else None, _EVERY[2:]


def _phases(reading: Reading) -> Mapping[str, float | str] | None:
    """Return the numbers of checkpoints that are written and read without training."""
    for name in _EVERY:
        reading.unused(name, "without training there are no epochs (workflow.train: False)")
    writes, reads = (reading.number(name, -1.0, -1) for name in (_WRITES, _READS))
    name = _WRITES if _WRITES in reading.given else "workflow.train"
    if writes < 1 or writes != int(writes):
        reading.refuse(name, "without training num_checkpoints_write must be a whole number of at least 1")
        return None
    if reads > writes or reads != int(reads):
        reading.refuse(_READS, "must be a whole number, at most num_checkpoints_write")
        return None
    reading.out["loader.scaling"] = ("weak", "not in such files: any number of ranks has samples, which are not read")
    due: dict[str, float | str] = {"writes": int(writes), "reads": max(int(reads), 0)}
    if reading.flag(_SHIFT):
        reading.differs(_SHIFT)
        due["shift"] = NODE
    if pause := reading.number(_PAUSE, 0.0, -1):
        due["pause"] = max(pause, 0.0)
    return due
