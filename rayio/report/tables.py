"""The tables of a report: numbers with their names, each name a link to its definition."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rayio.analyze.stages import shown
from rayio.records.explained import Access, Capacity, Change, Simulated, Verdict
from rayio.records.hosts import Host
from rayio.records.metric_names import SPLIT, STATISTICS
from rayio.records.run_result import RunResult
from rayio.records.scaling import Scaling
from rayio.report.axes import number
from rayio.report.charts import bar
from rayio.report.definitions import term
from rayio.report.markup import code, escape
from rayio.report.text import failures as failures_text
from rayio.report.text import workflow as workflow_text
from rayio.report.text.summary import is_shown, meaning_of, measured_times
from rayio.report.text.terms import WORK_OF_STAGES, can_do, rate, seconds, while_waiting
from rayio.units import format_bytes, format_seconds, format_share

_TAG = re.compile(r"<[^>]*>")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str = "") -> str:
    """Return a table of texts and markup; the first column has names. ``name`` is its class.

    On a phone a row of more than three columns is a card: a line for each cell, with its heading before it.
    """
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    of = [escape(_TAG.sub("", cell)) for cell in head]
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-of="{of[n]}">{escape(cell)}</td>' if n else f'<th data-of="{of[0]}">{escape(cell)}</th>'
            for n, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    name = f"{name} cards".strip() if len(head) > 3 else name
    return f'<div class="scroll"><table class="{name}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def reader_changes(scaling: Scaling) -> str:
    """Return when readers came and went, and why."""
    rows = [
        [seconds(row.at_seconds), f"{row.rank}", f"{row.before} → {row.after}", seconds(row.seconds), row.why]
        for row in scaling.changes
    ]
    listed = f"{len(rows)} of {scaling.num_changes} changes" if scaling.num_changes > len(rows) else "changes"
    return f"<details><summary>{listed}</summary>{table(['at', 'rank', 'workers', 'took', 'why'], rows)}</details>"


def hosts(listed: Sequence[Host]) -> str:
    """Return the hosts of a run, and the file systems of its paths."""
    if not listed:
        return ""
    hardware = [
        [host.name, host.kernel, "unknown" if host.cores is None else f"{host.cores:,}",
         _bytes(host.memory_bytes),
         _bytes(host.memory_limit_bytes) if host.memory_limit_bytes else "",
         ", ".join(f"{link.name}{_speed(link.bits_per_second)}" for link in host.interfaces)]
        for host in listed
    ]  # fmt: skip
    mounts = [
        [host.name, mount.key, mount.type, mount.device, mount.server or "",
         mount.point, _bytes(mount.capacity_bytes), _bytes(mount.free_bytes), mount.options]
        for host in listed
        for mount in host.mounts
    ]  # fmt: skip
    head = ["host", "kernel", "cores", "memory", "limit of memory", "network"]
    below = ["host", "path of", "type", "device", "server", "mounted at", "capacity", "free at the start", "options"]
    return (
        "<h3>hosts</h3>" + table(head, hardware, "worded")
        + ("<h3>file systems</h3>" + table(below, mounts, "worded") if mounts else "")
    )  # fmt: skip


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)


def _speed(bits: int | None) -> str:
    return "" if bits is None else f" ({bits / 1e9:g} Gbit/s)"


def waterfall(verdict: Verdict) -> str:
    """Return the split of the step time: compute, then every cause, each from where the last one ended."""
    rows: list[tuple[str, str, float, float, str]] = [
        ("compute", term("au", "compute"), verdict.au or 0.0, verdict.compute_seconds, "AU: the work itself")
    ]
    rows += [
        (row.cause, term(f"cause-{row.cause}", shown(row.cause)), row.share or 0.0, row.seconds, row.meaning)
        for row in sorted(verdict.table, key=lambda row: -(row.share or 0))
        if row.seconds
    ]
    begin, lines = 0.0, []
    for colour, name, share, spent, meaning in rows:
        lines.append(
            f'<div class="fall" data-cause="{colour}"><span class="name">{name}</span>{bar(begin, share, colour)}'
            f'<span class="n">{format_share(share)}</span><span class="n">{format_seconds(spent)}</span>'
            f'<span class="what">{escape(meaning)}</span></div>'
        )
        begin += share
    steps = f"{verdict.steps:,} step{'s' * (verdict.steps != 1)}"
    total = f'<div class="fall sum"><span class="name">{term("loss", "sum")}</span>{bar(0, 0, "other")}'
    return (
        '<div class="waterfall">' + "".join(lines) + total
        + f'<span class="n">{format_share(begin)}</span><span class="n">{format_seconds(verdict.seconds)}</span>'
        f'<span class="what">{steps} of all ranks</span></div></div>'
    )  # fmt: skip


def time_split(result: RunResult) -> str:
    """Return the ranks' wall time by phase."""
    time, share, what = result.time, result.share, meaning_of(result)
    rows = [
        [term(f"span-{name}", name), bar(0, getattr(share, name) or 0.0, name), format_share(getattr(share, name)),
         seconds(getattr(time, name)), what[name]]
        for name in SPLIT
        if is_shown(result, name) and (getattr(time, name) or name != "checkpoint")
    ]  # fmt: skip
    return table(["phase", "", "share", "time", "meaning"], rows, "bars worded")


def failures(result: RunResult) -> str:
    """Return the failures that a run survived, and their cost; empty without any."""
    if (survived := result.failures) is None:
        return ""
    parts = [[name, time, what] for name, time, what in failures_text.table(survived)]
    listed = "".join(f"<li>{escape(failures_text.attempt_line(restart))}</li>" for restart in survived.attempts)
    shown = f"{len(survived.attempts)} of {survived.restarts:,}"
    return (
        f"<h3>{term('span-restart', 'failures')} <small>"
        f"{escape(failures_text.headline(survived, result.wall_seconds))}</small></h3>"
        + table(["lost time", "of a rank", "meaning"], parts, "worded")
        + f"<details><summary>{shown} restarts</summary><ul>{listed}</ul></details>"
    )


def workflow(result: RunResult) -> str:
    """Return the processes of stages; empty without any."""
    if (stages := result.workflow) is None:
        return ""
    head = f"<h3>stages <small>{escape(workflow_text.headline(stages))}</small></h3>"
    return head + table(
        [*workflow_text.COLUMNS], [[escape(cell) for cell in workflow_text.row(s)] for s in stages.stages]
    )


def percentiles(result: RunResult) -> str:
    """Return how long single operations took."""
    rows = [
        [term("step" if name == "step_time" else f"span-{name}", name), f"{row.count:,}"]
        + [format_seconds(getattr(row, column)) for column in STATISTICS]
        for name, row in measured_times(result)
    ]
    return table(["time of one", "number", *STATISTICS], rows) if rows else ""


def capacities(capacity: Capacity) -> str:
    """Return the capacity of each stage of the workers next to the demand of the ranks."""
    if not capacity.stages:
        return ""
    needed = capacity.demand
    rows = [
        [term("capacity", shown(row.stage)), format_seconds(row.service_seconds), f"{row.parallelism:,}",
         f"{rate(row.capacity)} files/s" if row.stage == "writer" else
         f"{can_do(row.capacity, needed)} batches/s",
         format_share(row.utilisation), WORK_OF_STAGES.get(row.stage, "")]
        for row in capacity.stages
    ]  # fmt: skip
    demand, got = "", rate(capacity.delivered)
    if needed is not None:
        demand = f"Ranks need {rate(needed)} batches/s{while_waiting(capacity, ',')} and got {got}."
    return f"<p>{demand}</p>" + table(["stage", "time of one", "at a time", "can do", "busy", ""], rows, "worded")


def changes(simulated: Simulated) -> str:
    """Return the outcome of the run with one thing changed at a time."""

    def rate_of(row: Change | Simulated) -> str:
        return "" if row.samples_per_second is None else number(row.samples_per_second)

    first = "baseline" if simulated.is_whole_run else f"first {simulated.first_steps:,} steps"
    rows = [[term("counterfactual", first), format_share(simulated.au), rate_of(simulated), "", "", ""]]
    rows += [
        [shown(row.change), "too short" if row.is_short else format_share(row.au),
         "" if row.is_short else rate_of(row), "" if row.time_saved is None else format_share(row.time_saved),
         "" if row.causal_share is None or row.is_short else format_share(row.causal_share),
         code(shown(row.then))]
        for row in simulated.changes
        if row.au is not None
    ]  # fmt: skip
    return table(["change", "AU", "samples/s", "time saved", "loss removed", "next bottleneck"], rows, "worded")


def ranks(result: RunResult) -> str:
    """Return the split of every rank that result.json lists."""
    names = [name for name in SPLIT if any(getattr(row, name) for row in result.ranks)]
    rows = [
        [str(row.rank), format_share(row.au), f"{row.steps:,}", seconds(row.wall)]
        + [seconds(getattr(row, name)) for name in names]
        for row in result.ranks
    ]
    return table(["rank", term("au", "AU"), "steps", "life", *(term(f"span-{n}", n) for n in names)], rows)


def operations(access: Access) -> str:
    """Return the requests to storage, by operation."""
    rows = []
    for name, row in access.operations.items():
        width = row.bytes_per_second
        size = format_bytes(round(row.bytes / row.requests)) if row.bytes and row.requests else ""
        speed = f"{format_bytes(width.p50)}/s" if width else ""
        rows.append([term("requests", name), f"{row.requests:,}", size, format_bytes(row.bytes), speed])
    return table(["operation", "requests", "mean size", "in all", "median bandwidth"], rows)


def access_figures(access: Access) -> str:
    """Return the known shares and ratios of the access pattern."""
    shares = [
        ("time_share", "io-time", "time with a request in flight"),
        ("exposed_share", "io-time", "of it not hidden by compute"),
        ("sequential_share", "sequential", "sequential"),
        ("consecutive_share", "consecutive", "consecutive"),
        ("once_share", "requests", "files opened once"),
    ]
    rows = [
        [term(what, text), format_share(value)]
        for key, what, text in shares
        if (value := getattr(access, key)) is not None
    ]
    numbers = [
        ("read_amplification", "amplification", "bytes read per byte used"),
        ("num_files", "requests", "files"),
        ("opens_per_file", "requests", "opens per file"),
    ]
    rows += [
        [term(what, text), number(value)] for key, what, text in numbers if (value := getattr(access, key)) is not None
    ]
    return table(["access pattern", ""], rows) if rows else ""


def lost_points(result: RunResult) -> str:
    """Return where the AU of imported results lost its points, by DLIO's own formula."""
    if (imported := result.imported) is None:
        return ""
    from rayio.imports import dlio_published
    from rayio.imports.dlio_losses import LOSSES

    if imported.has_no_steps:
        moved_head, moved = dlio_published.transfer_table(imported)
        saved = f"<h3>checkpoints as published</h3>{table(moved_head, moved)}" if moved else ""
        if imported.au is None:
            return saved
        names, epochs = dlio_published.table(imported)
        return f"<h3>{term('au-dlio', 'as published')}</h3>" + table(names, epochs) + saved
    if imported.lost_points is None:
        return ""
    points = {"au": imported.au, **imported.lost_points}
    published = "" if imported.published_au is None else f" Published: {imported.published_au:.2f} %."
    rows = [
        [term("au-dlio", name), f"{points[name]:.2f}", what]
        for name, what in ({"au": "Σ compute / T"} | LOSSES).items()
    ]
    head = f"<h3>{term('au-dlio', 'as DLIO counts')} <small>the parts sum to 100.{published}</small></h3>"
    return head + table(["", "points", ""], rows, "worded")
