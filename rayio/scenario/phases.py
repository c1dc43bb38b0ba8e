"""What a scenario says of its phases: how often something is due, and the evaluation with its own dataset."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import model_validator

from rayio.scenario.distribution import BytesDistribution, SecondsDistribution
from rayio.scenario.fields import Natural, NotYetError, Reads, RefusedError, Section, refusal, whole

#: A dataset path with this prefix has no bytes anywhere: the model of storage serves it.
MODELLED = "model://"


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RefusedError("must be a path, not empty")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", value)
    if scheme and scheme[1] in ("s3", "gs", "az"):
        raise NotYetError(value)
    if scheme and scheme[0] != MODELLED:
        raise RefusedError(f"unknown scheme {scheme[0]}; give a path or {MODELLED}<name>")
    return value


Path = Annotated[str, Reads(_path, {"type": "string"})]


class Every(Section):
    """When something is due: after every n steps (counted over epochs) or after every n epochs."""

    keys_not_yet = frozenset({"seconds"})
    steps: Annotated[int | None, whole(1, or_none=True)] = None
    epochs: Annotated[int | None, whole(1, or_none=True)] = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise refusal(RefusedError("must be {steps: n} or {epochs: n}"))
        return self


class EvaluationDataset(Section):
    """The files that an evaluation reads; what is left out is as in the training dataset.

    They are in a folder of their own, ``<dataset.path>-eval`` unless ``path`` says otherwise, and hold other samples.
    """

    num_files: Natural = 0
    path: Path | None = None
    samples_per_file: Annotated[int | None, whole(1, or_none=True)] = None
    sample_bytes: BytesDistribution | None = None


class Evaluate(Section):
    """Training pauses, and every rank goes through its share of ``dataset.eval``, in file order, to the last sample."""

    every: Every = Every(epochs=1)
    #: Seconds per step of an evaluation, drawn per rank.
    compute: SecondsDistribution
    #: Cap on the steps of one evaluation.
    steps: Annotated[int | None, whole(1, or_none=True)] = None
    #: Samples per rank and step; none is as in training.
    batch_size: Annotated[int | None, whole(1, or_none=True)] = None
