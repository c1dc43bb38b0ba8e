"""A result folder of DLIO without the files of ranks, as most are published.

``summary.json`` has AU and throughput by epoch as DLIO computed them; ``per_epoch_stats.json``, if present, has rank
0's start and end of each block and checkpoint. Neither has steps. Contradictions are refused; missing numbers are not
guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayio.errors import DataError
from rayio.imports.dlio_files import SAVED, STATS, SUMMARY, Configured, configured, few, load, section, stats_file
from rayio.imports.dlio_metrics import APART_POINTS, check_metric, lenient, numbers
from rayio.schema.fields import show
from rayio.units import parse_moment

#: Allowed excess of an AU above 100, due to clocks, in percentage points.
OVER_POINTS = 1.0
#: Allowed shortfall of an AU below that of the configured steps' compute, in percentage points.
BELOW_POINTS = 2.0
#: Allowed difference between throughput × time and the samples of the configured steps, as a share.
APART_SAMPLES = 0.1

_AU, _RATE = "train_au_percentage", "train_throughput_samples_per_second"
_AU_MEAN, _RATE_MEAN = "train_au_mean_percentage", "train_throughput_mean_samples_per_second"


@dataclass(frozen=True, slots=True)
class Epoch:
    """A published epoch: AU in percent, samples/s, seconds of its blocks on rank 0; None if unknown."""

    au: float | None
    samples_per_second: float | None
    seconds: float | None
    checkpoint_seconds: float | None


@dataclass(frozen=True, slots=True)
class Reduced:
    """The results of a folder without files of ranks; times in seconds, None if unknown."""

    folder: Path
    files: tuple[str, ...]
    summary: dict[str, Any]
    config: dict[str, Any]
    world_size: int
    au: float
    au_stdev: float | None
    samples_per_second: float | None
    samples_per_second_stdev: float | None
    epochs: tuple[Epoch, ...]
    wall_seconds: float | None
    has_blocks: bool
    notes: tuple[str, ...]

    @property
    def batch_size(self) -> int | None:
        """The configured samples of a rank's step."""
        return count(section(self.config, "reader", "data_reader").get("batch_size"))

    @property
    def steps(self) -> int | None:
        """The steps of a rank in an epoch, in whole batches; None if unknown."""
        files, samples = (count(self.summary.get(key)) for key in ("num_files_train", "num_samples_per_file"))
        if files is None or samples is None or self.batch_size is None:
            return None
        whole = files * samples // (self.world_size * self.batch_size)
        most = count(section(self.config, "train").get("total_training_steps"))
        return whole if most is None else min(whole, most)

    @property
    def compute(self) -> float | None:
        """The configured seconds of a step's compute; None if they vary or are unknown."""
        train = section(self.config, "train")
        seconds, varies = train.get("computation_time"), lenient(train.get("computation_time_stdev"))
        return None if isinstance(seconds, Mapping) or varies else lenient(seconds)


def read_reduced(folder: Path) -> Reduced:
    """Return the results of a folder's summary, and of ``per_epoch_stats.json`` and the configuration if present.

    Raises:
        DataError: a file is damaged, incomplete, or contradicts another.
    """
    summary = load(folder, SUMMARY)
    stats = load(folder, name) if (folder / (name := stats_file(folder))).exists() else None
    config = configured(folder)
    world_size = count(summary.get("num_accelerators"))
    if world_size is None:
        raise DataError(
            f"{SUMMARY}: num_accelerators is {show(summary.get('num_accelerators'))}; expected a whole number of at "
            "least 1"
        )
    metric = summary.get("metric")
    if not isinstance(metric, Mapping):
        raise DataError(f"{SUMMARY}: has no metric, so there is no AU to import: the run failed before its end")
    notes: list[str] = []
    epochs = _epochs(summary, metric, stats, notes)
    mean = _mean(metric, epochs, stats)
    reduced = Reduced(
        folder=folder,
        files=(SUMMARY, *([STATS] if stats is not None else []), *([config.source] if config.source else [])),
        summary=summary | {"num_samples_per_file": summary.get("num_samples_per_file", 1)},
        config=config.workload,
        world_size=world_size,
        au=mean,
        au_stdev=lenient(metric.get("train_au_stdev_percentage")),
        samples_per_second=_published_rate(metric, epochs),
        samples_per_second_stdev=lenient(metric.get("train_throughput_stdev_samples_per_second")),
        epochs=epochs,
        wall_seconds=wall_seconds(summary, stats),
        has_blocks=any(epoch.seconds is not None for epoch in epochs),
        notes=(*notes, *_remarks(summary, metric, stats, config)),
    )
    _fits(reduced, config)
    check_metric(metric, len(epochs))
    return reduced


def count(value: object) -> int | None:
    """Return a whole number of at least 1, also from text or 7.0; else None."""
    finite = lenient(value)
    return int(finite) if finite is not None and finite == int(finite) and 1 <= finite < 1 << 31 else None


def _epochs(
    summary: Mapping[str, Any], metric: Mapping[str, Any], stats: Mapping[str, Any] | None, notes: list[str]
) -> tuple[Epoch, ...]:
    """Return the epochs of both files, which must be the same."""
    au, rates = numbers(metric, _AU), numbers(metric, _RATE)
    if au is None and lenient(metric.get(_AU_MEAN)) is None:
        others = [str(key) for key in metric if str(key).startswith(("save_", "load_", "checkpoint", "eval_"))]
        why = f"it has {few(others)}, of another kind of run" if others else "the run failed before its end"
        raise DataError(f"{SUMMARY}: metric has no {_AU}, so there is no AU of training to import: {why}")
    for epoch, value in enumerate(au or (), 1):
        if value is not None and not 0 <= value <= 100 + OVER_POINTS:
            raise DataError(f"{SUMMARY}: {_AU} is {value:g} in epoch {epoch}; expected percent, 0 to 100")
    if stats is not None and {*stats} != {str(place + 1) for place in range(len(stats))}:
        raise DataError(f"{STATS}: has epochs {few(sorted(stats))}; expected them counted from 1")
    counted = {
        f"{SUMMARY} says epochs": count(summary.get("epochs")),
        f"{_AU} has": None if au is None else len(au),
        f"{_RATE} has": None if rates is None else len(rates),
        f"{STATS} has": None if stats is None else len(stats),
    }
    known = {what: many for what, many in counted.items() if many is not None}
    if len({*known.values()}) > 1:
        raise DataError(f"{', '.join(f'{what} {many}' for what, many in known.items())}: files of different runs?")
    number_of_epochs = next(iter(known.values()), 1)
    lengths = [_lengths(str(place + 1), (stats or {}).get(str(place + 1)), notes) for place in range(number_of_epochs)]
    unknown = (None,) * number_of_epochs
    return tuple(
        Epoch(au=of, samples_per_second=rate, seconds=seconds, checkpoint_seconds=saving)
        for of, rate, (seconds, saving) in zip(au or unknown, rates or unknown, lengths, strict=True)
    )


def _lengths(epoch: str, stats: object, notes: list[str]) -> tuple[float | None, float | None]:
    if stats is None:
        return None, None
    if not isinstance(stats, Mapping):
        raise DataError(f"{STATS}: epoch {epoch}: holds {type(stats).__name__}, expected its blocks")
    totals: list[float | None] = []
    for wanted in (r"block\d+", SAVED):
        lengths = [_seconds(epoch, str(key), entry) for key, entry in stats.items() if re.fullmatch(wanted, str(key))]
        known = [length for length in lengths if length is not None]
        totals.append(sum(known) if known and len(known) == len(lengths) else None)
    if totals[0] is None:
        notes.append(f"{STATS}: the length of epoch {epoch} is unknown: no block has start and end")
    return totals[0], totals[1]


def _seconds(epoch: str, name: str, entry: object) -> float | None:
    """Return the seconds of a block, from its start and end or its duration; None if unknown."""
    if not isinstance(entry, Mapping):
        raise DataError(f"{STATS}: epoch {epoch} {name}: holds {type(entry).__name__}, expected start and end")
    start, end = _moment(entry.get("start")), _moment(entry.get("end"))
    if start is None or end is None:
        duration = lenient(entry.get("duration"))
        return duration if duration is not None and duration > 0 else None
    if end <= start:
        raise DataError(
            f"{STATS}: epoch {epoch} {name}: ends at {show(entry['end'])}, not after its start {show(entry['start'])}"
        )
    return (end - start) / 1e9


def _moment(text: object) -> int | None:
    try:
        return None if text is None else parse_moment(str(text))
    except ValueError:
        return None


def _mean(metric: Mapping[str, Any], epochs: tuple[Epoch, ...], stats: Mapping[str, Any] | None) -> float:
    """Return the published mean AU, which must be that of the epochs."""
    known = [epoch.au for epoch in epochs if epoch.au is not None]
    mean, published = sum(known) / len(known) if known else None, lenient(metric.get(_AU_MEAN))
    if published is not None and not 0 <= published <= 100 + OVER_POINTS:
        raise DataError(f"{SUMMARY}: {_AU_MEAN} is {published:g}; expected percent, 0 to 100")
    if published is None and mean is None:
        raise DataError(f"{SUMMARY}: there is no AU to import: {_AU} has no number, and {_AU_MEAN} is missing")
    if published is None or mean is None:
        return mean if published is None and mean is not None else published or 0.0
    if len(known) == len(epochs) and abs(mean - published) > APART_POINTS:
        raise DataError(
            f"{SUMMARY}: {_AU_MEAN} is {published:.2f}, but the mean of {_AU} is {mean:.2f}: values of different runs?"
        )
    return published


def _published_rate(metric: Mapping[str, Any], epochs: tuple[Epoch, ...]) -> float | None:
    if (published := lenient(metric.get(_RATE_MEAN))) is not None:
        return published
    known = [epoch.samples_per_second for epoch in epochs if epoch.samples_per_second is not None]
    return sum(known) / len(known) if known and len(known) == len(epochs) else None


def wall_seconds(summary: Mapping[str, Any], stats: Mapping[str, Any] | None) -> float | None:
    """Return the seconds of the run, from the times of the summary and the epochs; None if unknown."""
    entries = [summary, *(entry for entry in (stats or {}).values() if isinstance(entry, Mapping))]
    starts = [time for entry in entries if (time := _moment(entry.get("start"))) is not None]
    ends = [time for entry in entries if (time := _moment(entry.get("end"))) is not None]
    if not starts or not ends or max(ends) <= min(starts):
        return None
    return (max(ends) - min(starts)) / 1e9


def _remarks(
    summary: Mapping[str, Any], metric: Mapping[str, Any], stats: Mapping[str, Any] | None, config: Configured
) -> list[str]:
    notes = []
    if any(value is None for value in numbers(metric, _AU) or ()):
        notes.append(f"{_AU} is not a number in every epoch; the mean is as published, or that of the other epochs")
    if metric.get("train_au_meet_expectation") not in (None, "success"):
        notes.append(f"DLIO reports train_au_meet_expectation {show(metric['train_au_meet_expectation'])}")
    cached = summary.get("potential_caching")
    if isinstance(cached, list) and (hosts := sum(flag == 1 for flag in cached if isinstance(flag, int))):
        notes.append(
            f"the result may measure the page cache: DLIO reports that the data of {hosts} of {len(cached)} hosts fit "
            "in their memory"
        )
    if (au := lenient(metric.get("eval_au_mean_percentage"))) is not None and math.isfinite(au) and au > 0:
        notes.append(f"the published evaluation (AU {au:.2f} %) is not imported")
    elif any(isinstance(entry, Mapping) and "eval" in entry for entry in (stats or {}).values()):
        notes.append("eval of the results is not imported")
    if config.source and not config.is_whole:
        notes.append(f"there is no config.yaml, so only the overrides of {config.source} are known")
    return notes


def _fits(reduced: Reduced, config: Configured) -> None:
    steps, compute, batch = reduced.steps, reduced.compute, reduced.batch_size
    for place, epoch in enumerate(reduced.epochs, 1):
        if steps is None or batch is None or epoch.seconds is None:
            continue
        if (rate := epoch.samples_per_second) is not None:
            samples, measured = steps * batch * reduced.world_size, rate * epoch.seconds
            if abs(measured - samples) > APART_SAMPLES * samples:
                raise DataError(
                    f"epoch {place}: {rate:.1f} samples/s over {epoch.seconds:.1f} s are {measured:,.0f} samples; by "
                    f"{SUMMARY} and {config.source} it has {samples:,}: files of different runs?"
                )
        if compute is not None and epoch.au is not None:
            least = min(100 * (steps - 1) * compute / epoch.seconds, 100.0)
            if epoch.au < least - BELOW_POINTS:
                raise DataError(
                    f"epoch {place}: AU is {epoch.au:.2f} %, but {steps} steps of {compute:g} s ({config.source}) "
                    f"are at least {least:.2f} % of its {epoch.seconds:.1f} s: a fraction, or files of different runs?"
                )
