"""The answer of capacity: sentences for the terminal and the page, and the terminal's text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap

from rayio.analyze.stages import shown
from rayio.records.doubts import CAPACITY, LIMIT, Doubt, blocking
from rayio.records.hosts import Host
from rayio.records.origin import Origin
from rayio.records.sizing import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Bottleneck,
    CapacityChange,
    CapacityFound,
    CapacityPoint,
)
from rayio.report.text.doubts import reasons
from rayio.report.text.terms import counted, kept
from rayio.units import format_rate, format_share

RANKS = "cluster.ranks_per_node"
BAR = 20
#: Causes that are no limit of the storage, in words.
OTHERS = {
    "straggler": "waiting for slower ranks",
    "evaluate": "evaluations",
    "allreduce": "the all-reduce",
    "bubble": "pipeline bubbles",
    "device_copy": "copies to accelerators",
    "drain_wait": "the draining of checkpoints",
    "decode": "decoding",
    "transfer": "the network",
}


def headline(capacity: CapacityFound) -> str:
    """Return the answer in one sentence."""
    how = "simulated" if capacity.engine == "virtual" else f"engine {capacity.engine}"
    what = f"{capacity.storage_in_words or capacity.storage} ({how})"
    answer = fed(capacity)
    return f"{what}{':' * answer.startswith('no answer')} {answer}"


def fed(capacity: CapacityFound) -> str:
    """Return how many accelerators are fed, as the end of a sentence about the storage."""
    au = "AU" if capacity.formula == "au" else "AU as DLIO counts it"
    target = f"{au} ≥ {100 * capacity.target_au:g} %"
    if doubts := blocking(capacity.doubts, CAPACITY):
        return f"no answer how many accelerators it feeds at {target} ({reasons(doubts)})"
    if capacity.accelerators is None:
        first = next(iter(capacity.points), None)
        least = 1 if first is None else first.accelerators
        number, them = ("one accelerator", "it") if least == 1 else (counted(least, "accelerator"), "them")
        reached = "" if first is None or first.au is None else f": {au} is {percent(first.au)} with {them}"
        if first is not None and first.status == UNDECIDED:
            interval = with_interval(first.au, first.au_high)
            return f"feeds {number} or none at {target}, which is undecided: {au} is {interval} with {them}"
        so_far = "" if capacity.is_finished else " in the points tried so far"
        setting = number if capacity.over == RANKS else f"{capacity.over}=1"
        if doubts := blocking(capacity.doubts, LIMIT):
            return f"no answer whether it feeds {setting} at {target} ({reasons(doubts)})"
        return f"does not feed {setting} at {target}{so_far}{reached}{not_storage(capacity.bottleneck)}"
    is_more = capacity.is_at_least or not capacity.is_finished
    many = "at least " * is_more + counted(capacity.accelerators, "accelerator")
    interrupted = ""
    if not capacity.is_finished:
        interrupted = " (search interrupted)"
        larger = [p for p in capacity.points if p.status == FAILS and p.setting > (capacity.setting or 0)]
        if larger:
            missed = counted(min(point.accelerators for point in larger), "accelerator")
            many = f"at least {capacity.accelerators:,} and fewer than {missed}"
    searched = "" if capacity.over == RANKS else f" ({capacity.over}={capacity.setting})"
    return f"feeds {many} at {target}{searched}{_unsure(capacity)}{interrupted}{not_storage(capacity.bottleneck)}"


def _unsure(capacity: CapacityFound) -> str:
    """Return which larger numbers are undecided, as the end of a sentence; a range where no other lies between."""
    larger = [point for point in capacity.points if point.setting > (capacity.setting or 0)]
    unsure = [point for point in larger if point.status == UNDECIDED]
    if not unsure:
        return ""
    between = [point for point in larger if unsure[0].setting < point.setting < unsure[-1].setting]
    numbers = [str(point.accelerators) for point in unsure]
    if len(numbers) > 2 and all(point.status == UNDECIDED for point in between):
        return f"; {numbers[0]} to {numbers[-1]}: undecided"
    return f"; {' and '.join(numbers)}: undecided"


def not_storage(limit: Bottleneck | None) -> str:
    """Return what limits more accelerators, as the end of a sentence, where that is not the storage."""
    if limit is None or limit.bound in (None, "compute", "checkpoint", "overhead"):
        return ""
    if limit.bound == "input" and limit.cause not in OTHERS:
        return ""
    what = OTHERS.get(limit.cause or "", f"`{shown(limit.cause or '')}`")
    return f"; the limit is {what}, not the storage"


def storage_in_words(origin: Origin, scenario: str, path: str, hosts: Sequence[Host]) -> str:
    """Name what stood for storage: a model by its preset or its source, files by the mount that their folder is in.

    >>> from rayio.records.origin import StorageModel
    >>> def modelled(**told):
    ...     return Origin(kind="predicted", storage="modelled", model=StorageModel(**told))
    >>> storage_in_words(modelled(name="nvme", provenance="assumed"), "unet3d", "data", ())
    'the model nvme'
    >>> storage_in_words(modelled(name="parameters", provenance="assumed"), "array", "data", ())
    'the storage model of array'
    >>> storage_in_words(Origin(kind="measured", storage="real"), "array", "s3://bucket/data", ())
    's3://bucket/data'
    """
    if (model := origin.model) is None:
        points = dict.fromkeys(mount.point for host in hosts for mount in host.mounts if mount.key == "dataset.path")
        if len(points) not in (1, 2):
            return path
        return f"{path} on the mount /" if [*points] == ["/"] else f"the mount {' and '.join(points)}"
    if model.name != "parameters":
        return f"the model {model.name}"
    if model.provenance == "fitted":
        return f"the model {model.source if model.source.startswith('fitted') else f'fitted to {model.source}'}".strip()
    return f"the storage model of {model.source or scenario}"


def text(capacity: CapacityFound, width: int = 100) -> str:
    """Return the answer, the curve as a table, the bottleneck and what would help."""
    if not capacity.points:
        return "interrupted before the first point was over: nothing is known yet"
    lines = [*wrap(headline(capacity), width, break_long_words=False), ""]
    key = capacity.over.rpartition(".")[2]
    head = [key, "accelerators", "AU", "", "", "needed", "reached", "runs"]
    rows = [_row(point) for point in capacity.points]
    if key == "ranks_per_node" and all(point.setting == point.accelerators for point in capacity.points):
        head, rows = head[1:], [row[1:] for row in rows]
    if sum(max(len(row[place]) for row in (head, *rows)) + 2 for place in range(len(head))) > width:
        head, rows = _without_bar(head), [_without_bar(row) for row in rows]
    bar = len(head) - 5  # the curve, or what stands in its place
    places = kept([head, *rows], width, "runs", "needed")
    lines += _lines([[row[place] for place in places] for row in (head, *rows)], bar)
    lines += ["", *_conclusions(capacity, width)]
    return "\n".join(lines)


def half_interval(au: float | None, high: float | None) -> str:
    """Return half the 95 % interval of an AU as a remark, rounded as :func:`with_interval` does."""
    if au is None or high is None:
        return "no interval: too few steps"
    return f"± {100 * (high - au):.1f} % (95 % interval)"


def _without_bar(row: list[str]) -> list[str]:
    return [cell for place, cell in enumerate(row) if place != len(row) - 5]


def _lines(table: list[list[str]], bar: int) -> Iterator[str]:
    wide = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    for row in table:
        cells = [
            f"{cell:<{n}}" if place in (bar, bar + 1) else f"{cell:>{n}}"
            for place, (cell, n) in enumerate(zip(row, wide, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _row(point: CapacityPoint) -> list[str]:
    bar = "" if point.au is None else "█" * round(BAR * min(point.au, 1.0))
    setting, accelerators, au, verdict, needed, reached, runs = cells(point)
    return [setting, accelerators, au, bar, verdict, needed, reached, runs]


def cells(point: CapacityPoint) -> list[str]:
    """Return the cells of a point: setting, accelerators, AU, verdict, bandwidth needed and reached, runs."""
    needed, reached = point.needed_bytes_per_second, point.bytes_per_second
    return [
        str(point.setting),
        str(point.accelerators),
        with_interval(point.au, point.au_high),
        {HOLDS: "keeps it", "fails": "misses it"}.get(point.status, point.status),
        "" if needed is None else format_rate(needed),
        "" if reached is None else format_rate(reached),
        str(point.runs),
    ]


def with_interval(au: float | None, high: float | None) -> str:
    """Return an AU with half its 95 % interval.

    >>> with_interval(0.927, 0.936), with_interval(0.927, None)
    ('92.7 ± 0.9 %', '92.7 %')
    """
    if au is None or high is None:
        return percent(au)
    return f"{100 * au:.1f} ± {100 * (high - au):.1f} %"


def bandwidth(capacity: CapacityFound) -> list[str]:
    """Return the bandwidth needed and used at the answer, and at the next number that was tried."""
    sentences = []
    for point in filter(None, (answer_of(capacity), above(capacity))):
        if point.needed_bytes_per_second is None or point.bytes_per_second is None:
            continue
        many = counted(point.accelerators, "accelerator")
        need, get = format_rate(point.needed_bytes_per_second), format_rate(point.bytes_per_second)
        unsure = "; not sure whether that is enough" if point.status == UNDECIDED else ""
        verb, who = ("needs", "it") if point.accelerators == 1 else ("need", "they")
        au = "" if point.au is None else f"at AU {percent(point.au)} "
        sentences.append(f"{many} at 100 % AU {verb} {need}; {au}{who} used {get}{unsure}.")
    return sentences


def answer_of(capacity: CapacityFound) -> CapacityPoint | None:
    """Return the point of the answer; None if no number holds."""
    return next((point for point in capacity.points if point.setting == capacity.setting), None)


def above(capacity: CapacityFound) -> CapacityPoint | None:
    """Return the first point above the answer that does not hold."""
    points = capacity.points
    return next((point for point in points if point.status != HOLDS and point.setting > (capacity.setting or 0)), None)


def device(capacity: CapacityFound) -> list[str]:
    """Return the share of bytes that came from the device, if it was measured."""
    cached = [point.page_cache_share for point in capacity.points if point.page_cache_share is not None]
    if not cached:
        return []
    most = 100 * max(cached)
    return [
        f"Of the bytes of a run at least {100 - most:.1f} % came from the device or the server, "
        f"at most {most:.1f} % from the page cache."
    ]


def bottleneck(capacity: CapacityFound) -> list[str]:
    """Return what limits more accelerators than the answer."""
    if capacity.bottleneck is None:
        return []
    return [f"Bottleneck with {capacity.bottleneck.accelerators}: {capacity.bottleneck.sentence}"]


def remedy(capacity: CapacityFound) -> list[str]:
    """Return what would feed more accelerators, with its predicted effect; the last sentence is the advice."""
    point = above(capacity)
    many = "more" if point is None else str(point.accelerators)
    best = next((change for change in capacity.changes if change.accelerators is not None), None)
    single = next((change for change in capacity.changes if not change.is_pair), None)
    pair = next((change for change in capacity.changes if change.is_pair), None)
    if best is not None:
        least = "at least " if best.is_at_least else ""
        alone = [f"No single change is enough for {many}."] if best.is_pair else []
        fed_with = f"With {best.change}: {least}{counted(best.accelerators or 0, 'accelerator')}"
        first = " in the first run" if point is not None and point.runs > 1 else ""
        return [*alone, f"{fed_with} (AU of {many}{first}: {effect(best)})."]
    sentences = []
    if single is not None and single.holds:
        sentences.append(f"With {single.change}: AU of {many}: {effect(single)}; not sure whether that is enough.")
    elif single is not None:
        text = f"No single change is enough for {many}; the best is {single.change}, AU {effect(single)}"
        sentences.append(text + ("." if pair is None else f", and the best pair {pair.change}, AU {effect(pair)}."))
    elif capacity.is_tried:
        sentences.append("No simulated change adds a point of AU.")
    if (wide := capacity.combination) is not None and wide.au is not None:
        setting = f"{counted(wide.workers, 'worker')} with {counted(wide.io_depth, 'request')} in flight each"
        if wide.holds:
            sentences.append(f"{setting} reach the target (AU {percent(wide.au)}); find the cheapest setting:")
        else:
            sentences.append(f"Even {setting} reach only AU {percent(wide.au)}.")
    return sentences


def command(capacity: CapacityFound) -> str:
    """Return the command that finds the cheapest sufficient setting; empty where there is none, or none is needed."""
    wide = capacity.combination
    return shlex.join(wide.command) if wide is not None and wide.holds else ""


def effect(change: CapacityChange) -> str:
    """Return the AU without and with a change.

    >>> effect(CapacityChange(change="loader.num_workers=8", au=0.91, au_without=0.6, holds=True))
    '60.0 → 91.0 %'
    """
    before = "" if change.au_without is None else f"{100 * change.au_without:.1f} → "
    return f"{before}{percent(change.au)}"


def percent(share: float | None) -> str:
    """Return an AU in percent, with one decimal wherever it appears."""
    return format_share(share)


def _conclusions(capacity: CapacityFound, width: int) -> list[str]:
    sentences = [*bandwidth(capacity), *device(capacity), *bottleneck(capacity), *remedy(capacity)]
    lines = [line for sentence in sentences for line in wrap(sentence, width, break_long_words=False)]
    lines += [f"  {command(capacity)}"] if command(capacity) else []
    lines += warning_lines(capacity.doubts, width)
    return [*lines, *(line for note in capacity.notes for line in note_lines(note, width))]


def warning_lines(doubts: Sequence[Doubt], width: int) -> list[str]:
    """Return doubts as lines of at most ``width`` columns."""
    return [line for doubt in doubts for line in note_lines(doubt.sentence, width, "warning")]


def note_lines(note: str, width: int, what: str = "note") -> list[str]:
    """Return a note as lines of at most ``width`` columns."""
    return wrap(f"{what}: {note}", width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
