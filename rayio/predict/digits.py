"""The digits of learned numbers: no more than a calibration knows."""

from __future__ import annotations

import math
from typing import TypeVar

from pydantic import BaseModel

from rayio.scenario.model import Scenario

#: Significant digits of a learned number. Fits are a percent off at best.
DIGITS = 4

Section = TypeVar("Section", bound=BaseModel)


def with_known_digits(learned: Scenario, before: Scenario) -> Scenario:
    """Return a learned scenario with its costs rounded, and what else was learned; ``before`` is that of the run."""
    storage, loader = learned.storage, learned.loader
    if isinstance(storage.model, BaseModel) and storage.model != before.storage.model:
        storage = storage.model_copy(update={"model": _rounded(storage.model)})
    if isinstance(loader.decode, BaseModel) and loader.decode != before.loader.decode:
        loader = loader.model_copy(update={"decode": _rounded(loader.decode)})
    return learned.model_copy(update={"costs": _rounded(learned.charges), "storage": storage, "loader": loader})


def _rounded(section: Section) -> Section:
    """Return a section with :data:`DIGITS` significant digits of each number that may have a fraction."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    return section.model_copy(update={name: _known(value) for name, value in values.items()})


def _known(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    return _rounded(value) if isinstance(value, BaseModel) else value
