"""A result folder of DLIO without the files of ranks, as most are published: what its summary says, and no more.

``summary.json`` has AU and throughput by epoch as DLIO computed them; ``per_epoch_stats.json``, where it is there, when
rank 0 began and ended each block and checkpoint. No step is in them. What contradicts itself is refused; what is not in
them is not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import DataError
from rayio.imports.dlio_files import STATS, SUMMARY, Configured, configured, few, load, number, section
from rayio.scenario.source import UNREADABLE, plain
from rayio.schema.fields import show
from rayio.units import parse_moment

#: Percentage points by which the published mean may differ from the mean of the epochs.
APART_POINTS = 0.05
#: Percentage points above 100 that clocks may make of an AU.
OVER_POINTS = 1.0
#: Percentage points that a published AU may lie below what the configured steps alone make of an epoch's length.
BELOW_POINTS = 2.0
#: Share by which throughput × time may differ from the samples of the configured steps.
APART_SAMPLES = 0.1

_AU, _RATE = "train_au_percentage", "train_throughput_samples_per_second"
_AU_MEAN, _RATE_MEAN = "train_au_mean_percentage", "train_throughput_mean_samples_per_second"


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch as it was published: AU in percent, samples/s, seconds of its blocks on rank 0; None is not known."""

    au: float | None
    samples_per_second: float | None
    seconds: float | None
    checkpoint_seconds: float | None


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a folder without files of ranks says; times are seconds, None is not known."""

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
        """Samples of a rank's step, as its configuration says."""
        return count(section(self.config, "reader", "data_reader").get("batch_size"))

    @property
    def steps(self) -> int | None:
        """Steps of a rank in an epoch: whole batches of the files, where their number and the batch are known."""
        files, samples = (count(self.summary.get(key)) for key in ("num_files_train", "num_samples_per_file"))
        if files is None or samples is None or self.batch_size is None:
            return None
        whole = files * samples // (self.world_size * self.batch_size)
        most = count(section(self.config, "train").get("total_training_steps"))
        return whole if most is None else min(whole, most)

    @property
    def compute(self) -> float | None:
        """Seconds of a step's compute as configured; None where they vary or are not known."""
        train = section(self.config, "train")
        asked, varies = train.get("computation_time"), lenient(train.get("computation_time_stdev"))
        return None if isinstance(asked, Mapping) or varies else lenient(asked)


def read_reduced(folder: Path) -> Reduced:
    """Read a result folder by its summary, with ``per_epoch_stats.json`` and the configuration where they are there.

    Raises:
        DataError: one line: which file is damaged, lacks what an import needs, or contradicts another.
    """
    summary = load(folder, SUMMARY)
    stats = load(folder, STATS) if (folder / STATS).exists() else None
    found = configured(folder)
    world_size = count(summary.get("num_accelerators"))
    if world_size is None:
        raise DataError(
            f"{SUMMARY}: num_accelerators is {show(summary.get('num_accelerators'))}; expected a whole number of at "
            "least 1"
        )
    metric = summary.get("metric")
    if not isinstance(metric, Mapping):
        raise DataError(f"{SUMMARY}: has no metric: the run broke off before its end; there is no AU to import")
    notes: list[str] = []
    epochs = _epochs(summary, metric, stats, notes)
    mean = _mean(metric, epochs, stats)
    reduced = Reduced(
        folder=folder,
        files=(SUMMARY, *([STATS] if stats is not None else []), *([found.source] if found.source else [])),
        summary=summary | {"num_samples_per_file": summary.get("num_samples_per_file", 1)},
        config=found.workload,
        world_size=world_size,
        au=mean,
        au_stdev=lenient(metric.get("train_au_stdev_percentage")),
        samples_per_second=_published_rate(metric, epochs),
        samples_per_second_stdev=lenient(metric.get("train_throughput_stdev_samples_per_second")),
        epochs=epochs,
        wall_seconds=_wall(summary, stats),
        has_blocks=any(epoch.seconds is not None for epoch in epochs),
        notes=(*notes, *_said(summary, metric, stats, found)),
    )
    _fits(reduced, found)
    return reduced


def lenient(value: object) -> float | None:
    """A finite number, also one that is written as text; None for whatever else a file may hold."""
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)
        except ValueError:
            return None
    return number(value)


def count(value: object) -> int | None:
    """A whole number of at least 1, also one that is written as text or as 7.0; else None."""
    found = lenient(value)
    return int(found) if found is not None and found == int(found) and 1 <= found < 1 << 31 else None


def _numbers(metric: Mapping[str, Any], key: str) -> tuple[float | None, ...] | None:
    """A list of numbers, also one that is written as text; None of an entry that is none, and of no list at all."""
    held = metric.get(key)
    if isinstance(held, str):
        try:
            held = plain(f"[{held.strip().strip('[]')}]") if "," in held else held.strip().strip("[]").split()
        except (yaml.YAMLError, *UNREADABLE):
            return None
    if isinstance(held, (int, float)):
        held = [held]
    return tuple(lenient(one) for one in held) if isinstance(held, list) and held else None


def _epochs(
    summary: Mapping[str, Any], metric: Mapping[str, Any], stats: Mapping[str, Any] | None, notes: list[str]
) -> tuple[Epoch, ...]:
    """Put together what the two files say of each epoch; they must be of the same epochs."""
    au, rates = _numbers(metric, _AU), _numbers(metric, _RATE)
    if au is None and lenient(metric.get(_AU_MEAN)) is None:
        others = [str(key) for key in metric if str(key).startswith(("save_", "load_", "checkpoint", "eval_"))]
        why = f"it has {few(others)}: results of another kind of run" if others else "the run broke off before its end"
        raise DataError(f"{SUMMARY}: metric has no {_AU}: {why}; there is no AU of training to import")
    for place, value in enumerate(au or (), 1):
        if value is not None and not 0 <= value <= 100 + OVER_POINTS:
            raise DataError(f"{SUMMARY}: {_AU} is {value:g} in epoch {place}; expected percent, 0 to 100")
    if stats is not None and {*stats} != {str(place + 1) for place in range(len(stats))}:
        raise DataError(f"{STATS}: has epochs {few(sorted(stats))}; expected them counted from 1")
    said = {
        f"{SUMMARY} says epochs": count(summary.get("epochs")),
        f"{_AU} has": None if au is None else len(au),
        f"{_RATE} has": None if rates is None else len(rates),
        f"{STATS} has": None if stats is None else len(stats),
    }
    known = {what: many for what, many in said.items() if many is not None}
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
    """The seconds of an epoch's blocks, and of its checkpoints, on rank 0."""
    if stats is None:
        return None, None
    if not isinstance(stats, Mapping):
        raise DataError(f"{STATS}: epoch {epoch}: holds {type(stats).__name__}, expected its blocks")
    found: list[float | None] = []
    for wanted in (r"block\d+", r"ckpt\d+"):
        lengths = [_seconds(epoch, str(key), one) for key, one in stats.items() if re.fullmatch(wanted, str(key))]
        known = [length for length in lengths if length is not None]
        found.append(sum(known) if known and len(known) == len(lengths) else None)
    if found[0] is None:
        notes.append(f"{STATS}: epoch {epoch} has no block with start and end: its length is not known")
    return found[0], found[1]


def _seconds(epoch: str, name: str, one: object) -> float | None:
    """How long a block took: from its start to its end, else as its duration says."""
    if not isinstance(one, Mapping):
        raise DataError(f"{STATS}: epoch {epoch} {name}: holds {type(one).__name__}, expected start and end")
    start, end = _moment(one.get("start")), _moment(one.get("end"))
    if start is None or end is None:
        duration = lenient(one.get("duration"))
        return duration if duration is not None and duration > 0 else None
    if end <= start:
        raise DataError(
            f"{STATS}: epoch {epoch} {name}: ends at {show(one['end'])}, not after its start {show(one['start'])}"
        )
    return (end - start) / 1e9


def _moment(text: object) -> int | None:
    try:
        return None if text is None else parse_moment(str(text))
    except ValueError:
        return None


def _mean(metric: Mapping[str, Any], epochs: tuple[Epoch, ...], stats: Mapping[str, Any] | None) -> float:
    """The published mean AU, which must be that of the epochs."""
    known = [epoch.au for epoch in epochs if epoch.au is not None]
    mean, said = sum(known) / len(known) if known else None, lenient(metric.get(_AU_MEAN))
    if said is not None and not 0 <= said <= 100 + OVER_POINTS:
        raise DataError(f"{SUMMARY}: {_AU_MEAN} is {said:g}; expected percent, 0 to 100")
    if said is None and mean is None:
        raise DataError(f"{SUMMARY}: {_AU} has no number, nor is there {_AU_MEAN}: there is no AU to import")
    if said is None or mean is None:
        return mean if said is None and mean is not None else said or 0.0
    if len(known) == len(epochs) and abs(mean - said) > APART_POINTS:
        raise DataError(
            f"{SUMMARY}: {_AU_MEAN} is {said:.2f}, the mean of {_AU} {mean:.2f}: the file was put together of two runs?"
        )
    return said


def _published_rate(metric: Mapping[str, Any], epochs: tuple[Epoch, ...]) -> float | None:
    if (said := lenient(metric.get(_RATE_MEAN))) is not None:
        return said
    known = [epoch.samples_per_second for epoch in epochs if epoch.samples_per_second is not None]
    return sum(known) / len(known) if known and len(known) == len(epochs) else None


def _wall(summary: Mapping[str, Any], stats: Mapping[str, Any] | None) -> float | None:
    """The seconds from the start to the end of the run; of the epochs where the summary lacks one of them."""
    epochs = [one for one in (stats or {}).values() if isinstance(one, Mapping)]
    starts = [_moment(one.get("start")) for one in (summary, *epochs)]
    ends = [_moment(one.get("end")) for one in (summary, *epochs)]
    known = [one for one in starts if one is not None], [one for one in ends if one is not None]
    if not all(known) or max(known[1]) <= min(known[0]):
        return None
    return (max(known[1]) - min(known[0])) / 1e9


def _said(
    summary: Mapping[str, Any], metric: Mapping[str, Any], stats: Mapping[str, Any] | None, found: Configured
) -> list[str]:
    """What else the files say that a reader of the numbers should know."""
    notes = []
    if any(value is None for value in _numbers(metric, _AU) or ()):
        notes.append(f"{_AU} is not a number in every epoch; the mean is the published one, or of those that have one")
    if metric.get("train_au_meet_expectation") not in (None, "success"):
        notes.append(f"DLIO says of it: train_au_meet_expectation is {show(metric['train_au_meet_expectation'])}")
    cached = summary.get("potential_caching")
    if isinstance(cached, list) and (hosts := sum(one == 1 for one in cached if isinstance(one, int))):
        notes.append(
            f"DLIO says that the data of {hosts} of {len(cached)} hosts fits into their memory: part of it may have "
            "come from the page cache"
        )
    if (au := lenient(metric.get("eval_au_mean_percentage"))) is not None and math.isfinite(au) and au > 0:
        notes.append(f"evaluation was published too, and is in no number here: AU {au:.2f} %")
    elif any(isinstance(one, Mapping) and "eval" in one for one in (stats or {}).values()):
        notes.append("what the results say of eval is not imported")
    if found.source and not found.is_whole:
        notes.append(f"there is no config.yaml: of the workload only what {found.source} says is known")
    return notes


def _fits(reduced: Reduced, found: Configured) -> None:
    """Refuse a configuration that cannot be that of these results."""
    steps, compute, batch = reduced.steps, reduced.compute, reduced.batch_size
    for place, epoch in enumerate(reduced.epochs, 1):
        if steps is None or batch is None or epoch.seconds is None:
            continue
        if (rate := epoch.samples_per_second) is not None:
            samples, made = steps * batch * reduced.world_size, rate * epoch.seconds
            if abs(made - samples) > APART_SAMPLES * samples:
                raise DataError(
                    f"epoch {place}: {rate:.1f} samples/s over {epoch.seconds:.1f} s are {made:,.0f} samples; by "
                    f"{SUMMARY} and {found.source} it has {samples:,}: files of different runs?"
                )
        if compute is not None and epoch.au is not None:
            least = min(100 * (steps - 1) * compute / epoch.seconds, 100.0)
            if epoch.au < least - BELOW_POINTS:
                raise DataError(
                    f"epoch {place}: AU is {epoch.au:.2f} %; {steps} steps of {compute:g} s ({found.source}) are at "
                    f"least {least:.2f} % of its {epoch.seconds:.1f} s: a fraction, or files of different runs?"
                )
