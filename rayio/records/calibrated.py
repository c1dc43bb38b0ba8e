"""The notes of a calibration: its run, what the run could not show, and how well it is simulated back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """A note of a calibration; its sentence is made in ``rayio/report/text/calibration.py``."""


@dataclass(frozen=True, slots=True)
class Calibrated(Note):
    """The scenario and the run that it was calibrated from."""

    scenario: str
    run: str
    engine: str
    version: str


@dataclass(frozen=True, slots=True)
class Usage(Note):
    """How to use the result."""


@dataclass(frozen=True, slots=True)
class LayerDelays(Note):
    """A layer whose delays are in the fitted storage."""

    layer: str


@dataclass(frozen=True, slots=True)
class OneSize(Note):
    """Every batch had about the same size: bytes are not separated from batches."""

    nbytes: float


@dataclass(frozen=True, slots=True)
class DecodeFitted(Note):
    """Decoding was fitted: to the CPU time of a kind of work, or in place of a stated time of a sample (s)."""

    kind: str = ""
    stated: float | None = None


@dataclass(frozen=True, slots=True)
class StorageFitted(Note):
    """Storage was fitted; whether reads saturated it, whether some were alone, and whether memory served them.

    With ``is_unlimited`` its bandwidth is left without a limit because memory served it; with ``is_unbounded`` because
    reads of a service, or of another program's loop, showed none.
    """

    is_saturated: bool
    is_free: bool
    is_cached: bool
    is_unlimited: bool
    is_unbounded: bool = False


@dataclass(frozen=True, slots=True)
class FewWaits(Note):
    """Ranks waited for few batches only."""

    batches: int


@dataclass(frozen=True, slots=True)
class TakeBounded(Note):
    """``costs.take`` is at most what the way of a batch in busy runs leaves (s)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class OneRank(Note):
    """A node had one rank, so nobody knows what ranks add to each other."""


@dataclass(frozen=True, slots=True)
class PutInTake(Note):
    """``costs.put`` cannot be separated from ``costs.take``."""


@dataclass(frozen=True, slots=True)
class BarrierHidden(Note):
    """Compute hid the barrier."""


@dataclass(frozen=True, slots=True)
class MemoryBound(Note):
    """The bound on bytes in flight closed the window at times."""


@dataclass(frozen=True, slots=True)
class SimulatedBack(Note):
    """The time of a step on so many cores, as simulated and as measured (s)."""

    cores: int
    simulated: float
    measured: float


@dataclass(frozen=True, slots=True)
class NoBusyRun(Note):
    """There is no busy run, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotFull(Note):
    """The busy runs left processors free."""


@dataclass(frozen=True, slots=True)
class OthersWorked(Note):
    """Other programs used this share of the machine's processors, 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class FullBack(Note):
    """Busy runs whose cores were full, and how far their simulated steps are from the measured, as a share."""

    runs: int
    apart: float


@dataclass(frozen=True, slots=True)
class LoneBack(Note):
    """Runs of one rank and one worker, and how far their simulated steps are from the measured, as a share."""

    runs: int
    apart: float


@dataclass(frozen=True, slots=True)
class CheckBack(Note):
    """Runs that nothing was fitted to, and how far their simulated steps are from the measured, as a share."""

    runs: int
    apart: float


@dataclass(frozen=True, slots=True)
class NoCheckpoint(Note):
    """No checkpoint was saved."""


@dataclass(frozen=True, slots=True)
class TierGiven(Note):
    """The model of the burst tier is that of the scenario."""


@dataclass(frozen=True, slots=True)
class OneCheckpoint(Note):
    """One checkpoint was saved: its size and time (s)."""

    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoints(Note):
    """Several checkpoints of a size were saved: their least, most and usual time (s)."""

    number: int
    nbytes: int
    least: float
    most: float
    usual: float
