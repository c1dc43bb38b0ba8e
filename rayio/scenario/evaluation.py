"""The evaluation as a separate scenario, made of ``train.evaluate`` and ``dataset.eval``, and its limits."""

from __future__ import annotations

from collections.abc import Iterator

from rayio import seeds
from rayio.place import MAX_EPOCHS, MAX_STEPS
from rayio.scenario import derive, shards
from rayio.scenario.address import MODELLED
from rayio.scenario.compute import ByBatchSize
from rayio.scenario.model import Scenario
from rayio.schema.choice import NO_OPTIONS
from rayio.units import format_bytes


def phase_of(scenario: Scenario) -> Scenario | None:
    """Return the evaluation phase as a separate scenario, one epoch an evaluation; None when there is none.

    It has the evaluation dataset, other samples (another seed) and batches, and reads in file order to the last sample
    (``drop_last: false``), batches in turn. Every formula of ``derive`` holds for it as for training.
    """
    wanted, own = scenario.train.evaluate, scenario.dataset.eval
    rounds = num_evaluations(scenario)
    if wanted is None or own.num_files == 0 or rounds == 0:
        return None
    dataset = {
        "path": path_of(scenario),
        "num_files": own.num_files,
        "samples_per_file": own.samples_per_file or scenario.dataset.samples_per_file,
        "sample_bytes": own.sample_bytes or scenario.dataset.sample_bytes,
        "eval": type(own)(),
    }
    loader = {
        "batch_size": wanted.batch_size or scenario.loader.batch_size,
        "shuffle": "none",
        "shuffle_options": NO_OPTIONS,
        "unused_options": (),
        "drop_last": False,
        "assignment": "static" if shards.is_by_file(scenario) else scenario.loader.assignment,
    }
    train = {"epochs": rounds, "steps": wanted.steps, "compute": wanted.compute, "evaluate": None}
    return scenario.model_copy(
        update={
            "seed": seeds.key(scenario.seed, "evaluation"),
            "dataset": scenario.dataset.model_copy(update=dataset),
            "loader": scenario.loader.model_copy(update=loader),
            "train": scenario.train.model_copy(update=train),
            "checkpoint": None,
        }
    )


def path_of(scenario: Scenario) -> str:
    """Return the folder of the evaluation dataset: its own path, or that of the dataset with ``-eval`` at its end."""
    return scenario.dataset.eval.path or f"{scenario.dataset.path.rstrip('/')}-eval"


def num_evaluations(scenario: Scenario) -> int:
    """Return the evaluations of the whole run."""
    wanted = scenario.train.evaluate
    return 0 if wanted is None else derive.schedule(scenario, wanted.every).number


def contradictions(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each pair of values of the evaluation that contradict each other."""
    if scenario.train.evaluate is None:
        return
    if (every := scenario.train.evaluate.every).seconds is not None:
        yield f"not yet: train.evaluate.every={every.by_clock}; give steps or epochs"
        return
    own, ranks = scenario.dataset.eval, derive.world_size(scenario)
    path, phase = path_of(scenario), phase_of(scenario)
    if own.num_files == 0:
        yield "train.evaluate: there is nothing to evaluate on; give dataset.eval.num_files"
    if path.startswith(MODELLED) != scenario.dataset.is_modelled:
        yield f"dataset.eval.path={path}: must be modelled if and only if dataset.path={scenario.dataset.path} is"
    if phase is None:
        return
    if not derive.samples_per_rank(phase)[0]:
        yield f"dataset.eval.num_files={own.num_files}: too few for {ranks} ranks, of which each needs a sample"
    elif (
        derive.num_samples(phase) > derive.MAX_SAMPLES
        or derive.dataset_bytes(phase) > derive.MAX_BYTES
        or derive.steps_per_epoch(phase) > MAX_STEPS
    ):
        yield f"dataset.eval.num_files={own.num_files}: {derive.num_samples(phase)} samples are more than possible"
    if isinstance(phase.train.compute, ByBatchSize):
        size_key = "loader.batch_size" if scenario.train.evaluate.batch_size is None else "train.evaluate.batch_size"
        yield from phase.train.compute.refusals("train.evaluate.compute", size_key, phase.loader.batch_size)
    is_ours = not phase.dataset.external
    if is_ours and phase.dataset.sample_bytes.expected < (least := derive.least_sample_bytes(phase.dataset.options)):
        size = format_bytes(phase.dataset.sample_bytes.expected)
        yield f"dataset.eval.sample_bytes={size}: must be at least {least} B"
    if (number := scenario.train.epochs + phase.train.epochs) > MAX_EPOCHS:
        yield (
            f"train.evaluate.every: {phase.train.epochs} evaluations and train.epochs={scenario.train.epochs} are "
            f"{number}; at most {MAX_EPOCHS} together are possible"
        )


def idle(scenario: Scenario) -> list[str]:
    """Return a line for each key of the evaluation that does nothing in this run."""
    train, steps, own = scenario.train, derive.total_steps(scenario), scenario.dataset.eval
    notes = []
    if not own.num_files:
        given = [key for key in ("path", "samples_per_file", "sample_bytes") if getattr(own, key) is not None]
        is_unread = scenario.dataset.external and train.evaluate is None
        why = (
            "nothing reads these files without train.evaluate"
            if is_unread
            else "there are no such files; give dataset.eval.num_files"
        )
        notes += [f"dataset.eval.{key}: {why}" for key in given]
    if train.evaluate is None and scenario.dataset.eval.num_files:
        notes.append(
            f"dataset.eval.num_files={scenario.dataset.eval.num_files}: nothing reads them without train.evaluate"
        )
    if train.evaluate is not None and not num_evaluations(scenario):
        first = derive.schedule(scenario, train.evaluate.every).until(0)
        notes.append(f"train.evaluate.every: none falls due, the first would be after {first} of {steps} steps")
    phase = phase_of(scenario)
    if phase is not None and phase.train.cap is not None and phase.train.cap > derive.uncapped_steps(phase)[1]:
        notes.append(
            f"train.evaluate.steps={phase.train.cap}: caps nothing, there are {derive.uncapped_steps(phase)[1]} steps"
        )
    return notes


def table(scenario: Scenario) -> dict[str, float]:
    """Return the derived numbers of the evaluation by name; samples and steps count one evaluation."""
    phase = phase_of(scenario)
    return {
        "num_evaluations": num_evaluations(scenario),
        "evaluation_samples": 0 if phase is None else derive.samples_read(phase),
        "evaluation_steps": 0 if phase is None else derive.steps_per_epoch(phase),
        "evaluation_dataset_bytes": 0 if phase is None else derive.dataset_bytes(phase),
    }
