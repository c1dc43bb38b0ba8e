"""Decoding of a run -> decoding in a scenario: a time per sample, or CPU seconds per sample and per byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.model.cpu_account import StageCpu
from rayio.place import batch_parts
from rayio.predict.observe import Reads
from rayio.predict.processors import FEWEST_BATCHES, SeenCpu, line_of_sums
from rayio.predict.storage import skewed
from rayio.scenario.decode import Decode, Work
from rayio.scenario.model import Scenario
from rayio.schema.distribution import Distribution

#: Measured decoding replaces the scenario's where it differs by more than this.
DIFFERS = 0.05
#: Fields of decode work that a calibration fits.
FITTED = {"rate": None, "per_sample": 0.0}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoding of one run: its scenario, its reads since it was ``warm`` (ns), and its CPU time, if known."""

    scenario: Scenario
    reads: Reads
    warm: int
    cpu: SeenCpu | None

    @property
    def work(self) -> Work | None:
        """Return the decoding without its fitted numbers, if it is work."""
        decode = self.scenario.loader.decode
        return decode.model_copy(update=FITTED) if isinstance(decode, Work) else None

    @property
    def sums(self) -> dict[str, float]:
        """Return the sums of CPU seconds; without them in run.json, the times of the run's spans."""
        known = {} if self.cpu is None else self.cpu.decodes
        if known.get("batches", 0) >= FEWEST_BATCHES:
            return dict(known)
        sums, (samples, nbytes, seconds) = StageCpu(), self.times()
        seconds = seconds * np.minimum(samples, self.scenario.loader.decode_threads)  # of all its threads
        for batch in zip(samples.tolist(), nbytes.tolist(), seconds.tolist(), strict=True):
            sums.add(*batch)
        return asdict(sums)

    def times(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the samples, bytes and decode seconds of each warm training batch."""
        read = self.reads
        rank, epoch, step = batch_parts(read.batch)
        chosen = (read.decode >= 0) & (read.start >= self.warm) & (epoch < self.scenario.train.epochs)
        size = RunShape.of(self.scenario).samples(rank[chosen], step[chosen])
        return size, read.nbytes[chosen], read.decode[chosen] / 1e9


def learned(runs: Sequence[Decoded]) -> Decode | None:
    """Return the measured decoding of the first run; None if it had none, or if its scenario is right.

    Runs of equal work and other sizes separate the time of a sample from that of a byte. Otherwise work counts per
    byte, and other decoding per sample.
    """
    first = runs[0]
    work = first.work
    if work is None:
        return _time(first)
    sums = [run.sums for run in runs if run.work == work]
    sums = [each for each in sums if each["batches"]]
    if not sums:
        return None
    scale = work.work_per_byte
    nbytes, seconds = (sum(each[key] for each in sums) for key in ("bytes", "seconds"))
    sample, byte = line_of_sums(sums, scale) or (0.0, 0.0)
    if byte <= 0:  # sizes too alike, or times too uneven: work is on bytes
        sample, byte = 0.0, seconds / (nbytes * scale) if nbytes else 0.0
    return work.model_copy(update={"rate": 1 / byte if byte > 0 else None, "per_sample": round(sample, 9)})


def _time(run: Decoded) -> Distribution | None:
    decode = run.scenario.loader.decode
    assert isinstance(decode, Distribution)
    if run.scenario.loader.decode_threads > 1:  # a batch's time is not that of its samples
        return None
    size, _, seconds = run.times()
    if not len(size):
        return None
    mean = float(seconds.sum()) / int(size.sum())
    if abs(mean - decode.expected) <= DIFFERS * decode.expected:
        return None
    deviation = float(((seconds / size - mean) * np.sqrt(size)).std())
    return skewed(mean, deviation)
