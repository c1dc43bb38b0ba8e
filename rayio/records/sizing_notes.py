"""The notes of a capacity search and of advice, without their words (``rayio/report/text/sizing_notes.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.calibrated import NoBusyRun, NotFull


@dataclass(frozen=True, slots=True)
class SizingNote:
    """A note of a search."""


@dataclass(frozen=True, slots=True)
class FailuresLeftOut(SizingNote):
    """The scenario has failures, and points have none: AU counts nothing of them."""


@dataclass(frozen=True, slots=True)
class StagesRun(SizingNote):
    """The scenario has stages, and every point has them."""


@dataclass(frozen=True, slots=True)
class DatasetGrows(SizingNote):
    """Steps per epoch of every accelerator, so that the dataset grows with their number, and those of the scenario."""

    steps: int
    own: int


@dataclass(frozen=True, slots=True)
class CacheStays(SizingNote):
    """A layer of storage that keeps as much at every point, while the dataset grows."""

    layer: str


@dataclass(frozen=True, slots=True)
class RulesChecked(SizingNote):
    """The rules of MLPerf Storage that a search checks; ``floor`` is the AU they ask for, as a fraction."""

    floor: float
    epochs: int
    steps: int
    #: Size of the dataset over the memory of all hosts; None if that is unknown, and not checked.
    memory: int | None


@dataclass(frozen=True, slots=True)
class LargestValid(SizingNote):
    """All valid values hold; the next one is invalid for a reason."""

    key: str
    value: int
    reason: str


@dataclass(frozen=True, slots=True)
class UndecidedValues(SizingNote):
    """Values whose interval of AU contains the target after this many runs."""

    key: str
    values: tuple[int, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class ValueFailed(SizingNote):
    """A value whose run failed."""

    key: str
    value: int
    error: str


@dataclass(frozen=True, slots=True)
class NotMonotonic(SizingNote):
    """A larger value with more AU than a smaller one, beyond their intervals."""

    key: str
    larger: int
    smaller: int


@dataclass(frozen=True, slots=True)
class NoIntervals(SizingNote):
    """Points with too few steps for an interval of AU."""


@dataclass(frozen=True, slots=True)
class RunRemoved(SizingNote):
    """The run of a value is gone, so nothing is learned from it."""

    key: str
    value: int


@dataclass(frozen=True, slots=True)
class NotLearned(SizingNote):
    """No model was learned from a run; ``error`` is None if there are too few steps to compare its AU."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class CoresUnsure(SizingNote):
    """Changes where processors are full may take this many times the predicted time, at least and at most."""

    note: NoBusyRun | NotFull
    at_least: float
    at_most: float


@dataclass(frozen=True, slots=True)
class InvalidSettings(SizingNote):
    """The number of invalid settings, and the first refusal."""

    number: int
    refusal: str


@dataclass(frozen=True, slots=True)
class StepsSimulated(SizingNote):
    """Steps per rank and epoch of every setting, and those that the scenario has."""

    steps: int
    own: int


@dataclass(frozen=True, slots=True)
class MoreIsNotWorse(SizingNote):
    """Keys of which more is taken to be no worse."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MoreIsWorse(SizingNote):
    """A setting with more AU than another one that has more of each key, both as overrides."""

    better: str
    worse: str


@dataclass(frozen=True, slots=True)
class UndecidedSettings(SizingNote):
    """The number of settings whose interval of AU contains the goal."""

    number: int


@dataclass(frozen=True, slots=True)
class SimulationFailed(SizingNote):
    """The error of a setting's simulation."""

    error: str
