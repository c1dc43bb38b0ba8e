"""An explanation as text: the sentence, then the tables, 100 columns at most but for notes."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.analyze.stages import shown
from rayio.records.explained import Access, Capacity, Explained, Simulated, Throttled, Verdict, WaitedFor
from rayio.records.failures import Survived
from rayio.records.origin import head
from rayio.report.text.doubts import warnings
from rayio.report.text.failures import table
from rayio.report.text.summary import fetched_line, own_split
from rayio.report.text.terms import WORK_OF_STAGES, can_do, in_words, rate, while_waiting
from rayio.units import format_bytes, format_seconds, format_share

#: Rows of a table that are shown; the JSON has all.
SHOWN = 8


def text(explained: Explained) -> str:
    """Return the output of ``rayio explain``."""
    blocks = [
        [*_folded(f"{explained.scenario}, {head(explained.origin, explained.engine)}")],
        [*_folded(explained.sentence)],
        warnings(explained.doubts),
        [f"  {fetched_line(explained.fetched)}"] if explained.fetched else [],
        failures(explained.failures),
        own_split(explained.imported),
        _losses(explained.verdict),
        _capacities(explained.capacity),
        _changes(explained.simulated),
        _ranks(explained.ranks),
        _access(explained.access, explained.throttled),
        [f"  note: {note}" for note in explained.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def failures(survived: Survived | None) -> list[str]:
    """Return what failures cost the run; empty without any."""
    if survived is None:
        return []
    share = survived.lost_share
    took = "" if share is None else f" took {format_share(share)} of the wall time"
    number = f"{survived.restarts:,} restart{'s' * (survived.restarts != 1)}"
    lines = [f"  {number} after failures{took}"]
    lines += [f"  {name:<14}{time:>12}  {what}" for name, time, what in table(survived)]
    return [*lines, "  step time and replays leave this out; what stages got and how busy they were includes it"]


def _folded(sentence: str, width: int = 96) -> list[str]:
    lines = [""]
    for word in sentence.split():
        if len(lines[-1]) + len(word) + 1 > width and lines[-1]:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _losses(verdict: Verdict) -> list[str]:
    if verdict.au is None or verdict.loss is None:
        return []
    title = f"where {format_seconds(verdict.seconds)} of step time went ({verdict.steps} steps)"
    title += " (waits for other ranks included)"
    lines = [f"  {title}", f"  {'':<14}{'seconds':>12}{'share':>9}{'directly':>12}{'waiting':>12}"]
    lines.append(_row("compute", verdict.compute_seconds, verdict.au, None, None, "AU"))
    lines += [
        _row(shown(r.cause), r.seconds, r.share or 0.0, r.waiting_seconds, r.by_sync_seconds, r.meaning)
        for r in verdict.table
        if r.seconds
    ]
    lines.append(_row("sum", verdict.seconds, verdict.au + verdict.loss, None, None, ""))
    return lines


def _row(name: str, seconds: float, share: float, own: float | None, by_sync: float | None, remark: str) -> str:
    columns = "".join(f"{'' if value is None else format_seconds(value):>12}" for value in (own, by_sync))
    return f"  {name:<14}{format_seconds(seconds):>12}{format_share(share):>9}{columns}  {remark}".rstrip()


def _capacities(capacity: Capacity) -> list[str]:
    if not capacity.stages:
        return []
    demand = capacity.demand
    needed = "" if demand is None else f"ranks need {rate(demand)} batches/s{while_waiting(capacity, ',')} and "
    lines = [
        f"  what each stage can do ({needed}got {rate(capacity.delivered)})",
        f"  {'':<14}{'service':>12}{'at a time':>12}{'can do':>14}{'busy':>9}",
    ]
    for row in capacity.stages:
        does = f"{rate(row.capacity)} /s" if row.stage == "writer" else f"{can_do(row.capacity, demand)} /s"
        what = WORK_OF_STAGES.get(row.stage, "")
        lines.append(
            f"  {shown(row.stage):<14}{format_seconds(row.service_seconds):>12}{row.parallelism:>12}"
            f"{does:>14}{format_share(row.utilisation):>9}  {what}".rstrip()
        )
    return lines


def _changes(simulated: Simulated | None) -> list[str]:
    if simulated is None or simulated.au is None or not simulated.changes:
        return []
    rate_before = "" if simulated.samples_per_second is None else _rate(simulated.samples_per_second)
    first = "baseline" if simulated.is_whole_run else f"first {simulated.first_steps:,} steps"
    lines = [
        "  what would change it (simulated with this run's times)",
        f"  {'':<19}{'AU':>9}{'samples/s':>12}{'time saved':>12}{'loss removed':>14}  next bottleneck",
        f"  {first:<19}{simulated.au:>9.3f}{rate_before:>12}",
    ]
    for row in simulated.changes:
        if row.au is not None:
            au = "too short" if row.is_short else f"{row.au:.3f}"
            part = "" if row.causal_share is None or row.is_short else format_share(row.causal_share)
            faster = "" if row.samples_per_second is None or row.is_short else _rate(row.samples_per_second)
            saved = "" if row.time_saved is None else format_share(row.time_saved)
            numbers = f"{au:>9}{faster:>12}{saved:>12}{part:>14}"
            lines.append(f"  {shown(row.change):<19}{numbers}  {shown(row.then)}")
    return lines


def _rate(samples: float) -> str:
    return f"{samples:,.1f}" if samples < 1e5 else f"{samples:,.0f}"


def _ranks(ranks: Sequence[WaitedFor]) -> list[str]:
    slow = [row for row in ranks if row.of_typical is not None and (row.of_typical > 1.05 or row.is_slow)]
    if not slow:
        return []
    lines = ["  ranks that compute longer than the others"]
    for row in slow[:SHOWN]:
        compute = format_seconds(row.compute_seconds)
        often = "" if row.last_share is None else f"; last in {format_share(row.last_share)} of steps"
        lines.append(
            f"  rank {row.rank:<9}{compute:>12} a step, {row.of_typical:.2f} × the median of the others{often}"
        )
    return lines


def _access(access: Access, throttled: Throttled | None) -> list[str]:
    if not access.operations:
        return []
    lines = [f"  how storage was used (trace level {access.level})"]
    for name, row in access.operations.items():
        size = f", {format_bytes(round(row.bytes / row.requests))} each" if row.bytes else ""
        number = f"{row.requests:>12,} request{'s' * (row.requests != 1)}"
        moved = f", {format_bytes(row.bytes)} in all" if row.bytes else ""
        lines.append(f"  {name:<14}{number}{size}{moved}")
    if throttled is not None:
        share = "" if throttled.read_share is None else f", {format_share(throttled.read_share)} of the time in reads"
        waited = f"made again after {format_seconds(throttled.waited_seconds)}{share}"
        lines.append(f"  {'refused':<14}{throttled.refused:>12,} ({in_words(throttled.answers)}), {waited}")
    for name, what in _FIGURES.items():
        if (value := getattr(access, name)) is not None:
            lines.append(
                f"  {what:<42}{value:>9.2f}"
                if "amplif" in name or "per_file" in name
                else f"  {what:<42}{format_share(value):>9}"
            )
    for operation, counts in access.sizes.items():
        total = sum(counts.values())
        shown = ", ".join(f"{bin_} {format_share(number / total)}" for bin_, number in counts.items() if number)
        lines.append(f"  sizes of {operation} requests: {shown}")
    return lines


_FIGURES = {
    "time_share": "time with a request in flight",
    "exposed_share": "  of it not hidden by compute (of wall time)",
    "sequential_share": "sequential (at or after the previous end)",
    "consecutive_share": "consecutive (at the previous end)",
    "read_amplification": "bytes read per byte used",
    "opens_per_file": "opens per file",
    "once_share": "files touched once",
}
