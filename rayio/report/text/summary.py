"""The text of a result on one screen, and its answer to the scenario's expectations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from rayio.analyze.gate import of_result
from rayio.records.hosts import MODEL, Fetched
from rayio.records.metric_names import SPLIT, STATISTICS, TIMES, lookup
from rayio.records.origin import (
    CHARGED,
    IMPORTED,
    MEASURED,
    OWN_WORK,
    PREDICTED,
    RECORDED_BY,
    WATCHED,
    costs_words,
    kind_of,
    storage_words,
)
from rayio.records.run_result import Imported, RunResult, Statistics
from rayio.records.scaling import PoolUse
from rayio.report.text import failures, workflow
from rayio.report.text.between import between_row, between_words
from rayio.report.text.delivered import books_line, of_replica
from rayio.report.text.doubts import warnings
from rayio.report.text.terms import LEAST_SYNC, seconds
from rayio.scenario.expect import Condition
from rayio.units import UNKNOWN, format_bytes, format_mib_rate, format_number, format_seconds, format_share

#: Phases that most runs do not have.
RARE = ("restore", "gap", "device_copy", "bubble", "drain_wait", "evaluate", "restart", "ended")

_WHAT = {
    "startup": "until the first batch was asked for",
    "restore": "reading back checkpoints",
    "gap": "the pause of checkpoint.phases",
    "data_wait": "exposed data loading: waiting for a batch",
    "device_copy": "batches on their way to accelerators",
    "bubble": "pipeline stages without a microbatch",
    "compute": "computing, as requested",
    "sync": "waiting for slower ranks, all-reduce",
    "drain_wait": "waiting until the burst tier is drained",
    "checkpoint": "blocked by checkpoints",
    "evaluate": "evaluating",
    "restart": "lost to failures",
    "other": "rayio's own overhead",
    "ended": "after a rank's end, until the last one's",
}


def check_expectations(expect: Mapping[str, Condition], result: RunResult) -> list[str]:
    """Return each condition that does not hold, one line each: ``au 0.87 is not >= 0.9``."""
    unmet = []
    for name, condition in expect.items():
        value = lookup(result, name)
        if value is None:
            unmet.append(f"{name} is not known, so it is not {condition}")
        elif not condition.holds(value):
            unmet.append(f"{name} {_number(value, condition)} is not {condition}")
    return unmet


def _number(value: float, condition: Condition) -> str:
    """Return a value with as few digits as show that it fails the condition."""
    for digits in range(3, 17):
        text = f"{value:.{digits}g}"
        if not condition.holds(float(text)):
            return text
    return repr(value)


def summary(result: RunResult, *, run: Path | str | None = None) -> str:
    """Return a result as plain text of at most 40 lines, 80 columns but for notes and paths.

    Parts that the result lacks are left out.
    """
    lines = [_title(result), *_origin(result), "", *_numbers(result)]
    lines += ["", *survived] if (survived := failures.lines(result)) else []
    lines += ["", *stages] if (stages := workflow.lines(result)) else []
    lines += ["", *times] if (times := _percentiles(result)) else []
    lines += ["", *points] if (points := dlio_points(result.imported)) else []
    lines += ["", *saved] if (saved := _checkpoints(result.imported)) else []
    lines += ["", *_books(result)]
    lines += warnings(of_result(result))
    lines += [f"  note: {note}" for note in (*result.notes, *_sources(result))]
    if run is not None:
        lines += ["", f"  run directory  {run}"]
    return "\n".join(lines) + "\n"


def _numbers(result: RunResult) -> list[str]:
    """Return the headline and the split of time; for an import without steps the published numbers."""
    if result.imported and result.imported.reduced:
        from rayio.imports import dlio_published  # few results are imported

        return dlio_published.lines(result, result.imported)
    return [*_headline(result), "", *_split(result)]


def _title(result: RunResult) -> str:
    ranks, steps, wall = result.world_size, result.steps or 0, format_seconds(result.wall_seconds or 0.0)
    on = f"{ranks} ranks together" if ranks != 1 else "1 rank"
    if result.imported and result.imported.au is None:
        whole = "a summary" if result.imported.reduced else "results"
        lasted = f", {wall}" if result.wall_seconds is not None else ""
        return f"{result.scenario}, checkpoints imported from {whole} of DLIO: {on}{lasted}"
    if result.imported and result.imported.reduced:
        of = f"{steps} steps of {on}" if result.steps else on
        lasted = f", {wall}" if result.wall_seconds is not None else ""
        return f"{result.scenario}, imported from a summary of DLIO: {of}{lasted}"
    if result.imported:
        return f"{result.scenario}, imported from results of DLIO: {steps} steps of {on}, {wall}"
    kind = _kind(result)
    if kind == WATCHED:
        return f"{result.scenario}, {RECORDED_BY.get(result.engine, kind)}: {steps} steps of {on}, {wall}"
    engine = f"{f', {kind}' if kind else ''} on the {result.engine} engine"
    return f"{result.scenario}{engine}: {steps} steps of {on}, {wall}"


def _origin(result: RunResult) -> list[str]:
    """Return which numbers rest on a model, and on which; nothing for what was measured."""
    if (origin := result.origin) is None:
        return []
    rows = [("storage", *storage_words(origin)), ("costs", *costs_words(origin))]
    lines = [f"  {what:<12}{name:>16}  {remark}" for what, name, remark in rows if name]
    if lines and origin.leaves_out:
        lines += wrap(f"not in it: {', '.join(origin.leaves_out)}", 80, initial_indent="  ", subsequent_indent="    ")
    if lines and origin.kind == MEASURED:
        lines.insert(0, "  measured are ranks, queues and messages; storage is a model")
    return lines


def _sources(result: RunResult) -> list[str]:
    origin, sources = result.origin, []
    if origin and origin.model and origin.model.source and origin.model.provenance != "fitted":
        sources.append(f"storage.model {origin.model.name}: {origin.model.provenance}: {origin.model.source}")
    if origin and origin.costs and origin.costs.date:
        sources.append(f"costs {origin.costs.name}: {origin.costs.source}")
    return sources


def _headline(result: RunResult) -> list[str]:
    low, high = format_share(result.au_min), format_share(result.au_max)
    window = result.window_seconds
    measured = (
        f"measured over {result.window_steps} steps per rank, {format_seconds(window)}"
        if window is not None
        else "no step after the warm-up was completed by every rank"
    )
    if result.ledger and not result.ledger.delivered_samples:
        measured = "no sample was delivered"
    rows = [
        ("AU", format_share(result.au), f"min {low}, max {high} over ranks; {measured}"),
        ("throughput", f"{format_number(result.samples_per_second)} samples/s", of_replica(result)),
        ("read", format_mib_rate(result.mib_per_second), "by all ranks" if result.ranks_of_sample else ""),
        ("data loading", format_share(result.data_wait_share), "of step time, exposed: prefetching did not hide it"),
        (
            "of it loader",
            format_share(result.loader_share),
            "of step time, its messages and copies, as costs charge it",
        ),
        *_sync(result),
        ("overhead", format_share(result.other_share, 2), f"of step time ({whose_overhead(result)})"),
        ("goodput", format_share(result.goodput), "of wall time was compute that counts"),
    ]
    if result.au is not None and result.au_interval_low is not None and result.au_interval_high is not None:
        off = max(result.au - result.au_interval_low, result.au_interval_high - result.au)
        epochs = f"{result.window_epochs} epoch{'s' * (result.window_epochs != 1)}"
        rows.insert(1, ("within", f"± {format_share(off)}", f"in 95 of 100 cases, from these steps of {epochs}"))
    if (between := result.between) is not None and (words := between_words(between)):
        below, interval = between_row(result, between)
        rows.insert(1 + [row[0] for row in rows].index(below), ("between", interval, words))
    if scaling := result.scaling:
        remark = (
            f"on average, {scaling.least} to {scaling.most} at once, {scaling.num_changes} changes; "
            f"{format_number(scaling.reader_seconds)} worker-seconds"
        )
        rows.append(("workers", f"{scaling.mean:.1f}", remark))
        if scaling.pool is not None:
            rows.append(("nodes", f"{scaling.pool.mean:.1f}", _nodes(scaling.pool)))
    rows = [row for row in rows if not row[1].startswith(UNKNOWN)]
    if result.au is None:
        rows.insert(0, ("AU", "not measured", measured))
    if result.fetched is not None:
        rows.insert(0, fetched_row(result.fetched))
    if result.au_dlio is not None:
        rate = format_number(result.samples_per_second_dlio)
        rows.append(("as DLIO", f"{result.au_dlio:.1f} %", f"AU by DLIO's formula, {rate} samples/s"))
    rows += [*transfer_rows(result)]
    if evaluated := result.evaluation:
        low, high, each = (
            format_share(evaluated.au_min),
            format_share(evaluated.au_max),
            seconds(evaluated.mean_seconds),
        )
        shares = f"AU of evaluation, min {low}, max {high} over ranks"
        if evaluated.au is None:
            shares = "AU of evaluation: its steps were not recorded"
        remark = f"{shares}; {evaluated.rounds} of {each} each"
        rows.append(("evaluation", format_share(evaluated.au), remark))
    return [f"  {name:<12}{value:>16}  {remark}".rstrip() for name, value, remark in rows]


def transfer_rows(result: RunResult) -> Iterator[tuple[str, str, str]]:
    """Yield the throughput of checkpoints, written and read back: its name, its value by wall clock, and by rank."""
    for name, moved in (("saving", result.saved), ("restoring", result.restored)):
        if moved is None or moved.mib_per_second is None:
            continue
        low, mean, high = (format_number(rate) for rate in (moved.slowest_rank, moved.mean_rank, moved.fastest_rank))
        number = f"{moved.checkpoints} checkpoint{'s' * (moved.checkpoints != 1)}"
        # an engine may read some of a file twice
        number += (
            f", {format_bytes(moved.bytes)} read" if name == "restoring" else f" of {format_bytes(moved.bytes)} in all"
        )
        of_ranks = "" if low == high else f" a rank {mean}, min {low}, max {high};"
        remark = f"by wall clock;{of_ranks} {number}"
        if (fetched := moved.fetched) is not None and fetched.page_cache_share is not None:
            remark += f", {format_share(fetched.page_cache_share)} from the page cache"
        yield name, f"{format_number(moved.mib_per_second)} MiB/s", remark
    if (drained := result.drained) is not None:
        remark = (
            f"after a checkpoint was in the burst tier, at most {seconds(drained.longest_lag)}; a drain takes "
            f"{seconds(drained.mean_seconds)}; at most {format_bytes(drained.most_bytes)} at a time not drained"
        )
        if drained.end_seconds:
            remark += f"; {seconds(drained.end_seconds)} after the last step"
        yield "draining", seconds(drained.mean_lag), remark


def _nodes(pool: PoolUse) -> str:
    text = (
        f"came and went with workers, on average; {pool.most} at once; {format_number(pool.node_seconds)} node-seconds"
    )
    if pool.spared_seconds is not None:
        text += f", which spared ranks {format_number(pool.spared_seconds)} s of waiting"
    if pool.capacity_seconds is not None:
        text += f"; {seconds(pool.capacity_seconds)} to capacity at most"
    if pool.given_up:
        text += f"; {pool.given_up} workers got none in time"
    return text


def fetched_row(fetched: Fetched) -> tuple[str, str, str]:
    """Return the source of the bytes: other numbers describe storage only as far as bytes came from it."""
    read = f"of {format_bytes(fetched.read_bytes)} read"
    if fetched.source == "memory":
        return "from device", "0 B", f"{read}: the file system is in memory"
    if fetched.source == MODEL:
        share = f"{format_share(fetched.page_cache_share)} from the modelled cache"
        return "from storage", format_bytes(fetched.fetched_bytes or 0), f"{read}; {share}"
    label = f"from {fetched.source}" if fetched.source in ("device", "server", "network") else "from storage"
    if fetched.fetched_bytes is None:
        return label, "unknown", f"{read}: {fetched.how}"
    nbytes = "about " * (fetched.source == "other") + format_bytes(fetched.fetched_bytes)
    if fetched.source == "network" or fetched.page_cache == "direct":
        return label, nbytes, f"{read}, past the page cache"
    return label, nbytes, f"{read}; {format_share(fetched.page_cache_share)} from the page cache"


def fetched_line(fetched: Fetched) -> str:
    """Return a sentence on where the bytes came from that were read."""
    label, nbytes, rest = fetched_row(fetched)
    return f"{label}: {nbytes} {rest}"


def _split(result: RunResult) -> list[str]:
    time, share = result.time, result.share
    names = [name for name in SPLIT if is_shown(result, name)]
    what = meaning_of(result)
    lines = ["  where the ranks' time went (all ranks together)"]
    lines += [
        f"  {name:<12}{seconds(getattr(time, name)):>12}{format_share(getattr(share, name)):>10}  {what[name]}"
        for name in names
    ]
    return lines


def is_shown(result: RunResult, name: str) -> bool:
    """Return True if a part of the ranks' time gets a row: a rare one only if its share is not 0.0 %."""
    return name not in RARE or format_share(getattr(result.share, name)) not in (UNKNOWN, format_share(0.0))


def meaning_of(result: RunResult) -> dict[str, str]:
    """Return the meaning of each part of the ranks' time."""
    others = {IMPORTED: "in no record of the results", PREDICTED: CHARGED, WATCHED: OWN_WORK}
    computed = {"compute": "work on batches"} if _kind(result) == WATCHED else {}
    return _WHAT | computed | ({"other": meaning} if (meaning := others.get(_kind(result))) else {})


def _sync(result: RunResult) -> Iterator[tuple[str, str, str]]:
    """Return a row for waits in which most of the loss to slow data may be: one rank waits for it, the others here."""
    if (result.sync_share or 0.0) >= LEAST_SYNC:
        ended = " (after its end, too)" if (result.share.ended or 0.0) >= LEAST_SYNC else ""
        yield "sync", format_share(result.sync_share), f"of step time: waiting for other ranks{ended}, or all-reduce"


def whose_overhead(result: RunResult) -> str:
    """Return whose overhead a run has, in two or three words."""
    whose = {IMPORTED: "in no record", PREDICTED: "charged by costs", WATCHED: "the loop's own, between steps"}
    return whose.get(_kind(result), "rayio's own")


def _kind(result: RunResult) -> str:
    return result.origin.kind if result.origin else kind_of(result.engine)


def _percentiles(result: RunResult) -> list[str]:
    rows = measured_times(result)
    if not rows:
        return []
    lines = [f"  {'time of one':<12}{'count':>8}" + "".join(f"{column:>11}" for column in STATISTICS)]
    for name, row in rows:
        times = (format_seconds(getattr(row, column)) for column in STATISTICS)
        lines.append(f"  {name:<12}{row.count:>8}" + "".join(f"{time:>11}" for time in times))
    return lines


def measured_times(result: RunResult) -> list[tuple[str, Statistics]]:
    """Return the percentiles of operations that occurred and took time."""
    rows = ((name, getattr(result.percentiles, name)) for name in TIMES)
    return [(name, row) for name, row in rows if row is not None and row.max > 0]


def dlio_points(imported: Imported | None) -> list[str]:
    """Return where the points that AU lacks of 100 went, by DLIO's formula, and what was published.

    ``imported`` is what an imported result has under ``imported``; empty for others.
    """
    if not imported or imported.lost_points is None:
        return []
    published = f"; published {imported.published_au:.2f}" if imported.published_au is not None else ""
    lines = [f"  where DLIO's AU lost its points (the parts sum to 100){published}"]
    from rayio.imports.dlio_losses import LOSSES

    rows = {"au": "Σ compute / T"} | LOSSES
    points = {"au": imported.au, **imported.lost_points}
    return lines + [f"  {name:<16}{points[name]:>8.2f}  {what}" for name, what in rows.items()]


def _checkpoints(imported: Imported | None) -> list[str]:
    """Return the published checkpoints of an import with files of ranks; empty for others."""
    if imported is None or imported.reduced:
        return []
    from rayio.imports import dlio_published

    return dlio_published.transfer_lines(imported)


def own_split(imported: Imported | None) -> list[str]:
    """Return how the benchmark of imported results split their time: lost points, or the published epochs.

    Empty for a run that was not imported.
    """
    if imported is None or not imported.has_no_steps:
        return dlio_points(imported)
    from rayio.imports import dlio_published

    return dlio_published.epochs(imported)


def _books(result: RunResult) -> list[str]:
    lines = []
    if books := result.ledger:
        lines.append(f"  {books_line(books, result.ranks_of_sample)}")
        lines += [f"    {difference}" for difference in books.differences[:3]]
    if trace := result.trace:
        how = "all stored" if trace.recorded == trace.stored else f"{trace.stored} STORED"
        sent = f", {trace.exported} exported" if trace.exported is not None else ""
        sent += f", {trace.not_selected} not selected" if trace.not_selected is not None else ""
        lines.append(f"  trace level {trace.level}: {trace.recorded} spans recorded, {how}{sent}")
    if dropped := result.dropped_samples_per_epoch:
        lines.append(f"  drop_last dropped {dropped} samples per epoch: they fill no whole batch on every rank")
    if capped := result.capped_samples_per_epoch:
        lines.append(f"  train.steps left {capped} samples per epoch unread")
    return lines
