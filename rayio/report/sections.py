"""The sections of a report: HTML each, or nothing where the run has nothing to show."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rayio.analyze.run_scenario import text_of
from rayio.records.scaling import PoolUse
from rayio.report import axes, charts, figures, tables
from rayio.report.bins import Bins
from rayio.report.content import Content
from rayio.report.definitions import term
from rayio.report.figures import Floats
from rayio.report.markup import escape
from rayio.report.text.terms import seconds
from rayio.report.tracks import packed

#: Phases of ranks in the order in which a figure stacks them.
STACK = (
    "compute", "sync", "data_wait", "device_copy", "bubble", "drain_wait", "checkpoint", "evaluate", "restore", "gap",
    "startup", "restart", "other",
)  # fmt: skip

#: Lower ends of the classes of colour of the heat map.
PACES = (0.95, 1.05, 1.15, 1.3, 1.5, 2.0)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6)

#: Entries of the run's environment to show, none of them secret.
ENVIRONMENT = {
    "run_id": "run", "started": "started", "engine": "engine", "rayio": "rayio", "ray": "Ray", "python": "Python",
    "platform": "platform", "cpus": "CPUs of the driver's machine", "payload": "payload",
    "modelled_storage": "modelled storage",
}  # fmt: skip


def section(anchor: str, title: str, body: str, lead: str = "") -> str:
    """Return a section; nothing for an empty body."""
    leading = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{anchor}"><h2>{title}</h2>{leading}{body}</section>' if body else ""


def _tips(bins: Bins, lines: Sequence[str]) -> list[str]:
    width, whole = bins.width / 1e9, bins.seconds
    return [
        f"{axes.seconds_label(at * width, whole)} – {axes.seconds_label((at + 1) * width, whole)}\n{line}"
        for at, line in enumerate(lines)
    ]


def _window_marks(content: Content, bins: Bins) -> list[tuple[float, str]]:
    if content.window is None:
        return []
    span = bins.number * bins.width
    marks = [((content.window.begin - bins.begin) / span, "window begins")]
    return [*marks, (min((content.window.end - bins.begin) / span, 1.0), "ends")]


def over_time(content: Content) -> str:
    """Return figures of AU with the split of the ranks' time, and of throughput."""
    drawn = content.over_time
    if drawn is None:
        return ""
    alive = np.maximum(drawn.alive, 1)
    shares: list[tuple[str, Floats]] = [(name, np.maximum(drawn.split[name], 0) / alive) for name in STACK]
    shares = [(name, values) for name, values in shares if values.max(initial=0.0) > 1e-4]
    split_tips = _tips(
        drawn.bins,
        ["\n".join(f"{n}: {100 * v[at]:.1f} %" for n, v in shares if v[at] > 5e-4) for at in range(drawn.bins.number)],
    )
    marks, axis = _window_marks(content, drawn.bins), axes.time(drawn.bins.seconds)
    split = charts.plot(
        charts.stacked(shares, 1.0), label="share of the ranks' time by phase, over time", x=axis,
        y=[(at, f"{100 * at:.0f} %") for at in (0.0, 0.25, 0.5, 0.75, 1.0)], tips=split_tips, marks=marks, height=190,
    )  # fmt: skip
    has_samples = content.result is not None and content.result.samples_per_second is not None
    unit = "samples/s" if has_samples or content.scenario else "steps/s"
    high = axes.roof(float(drawn.rate.max()))
    tips = _tips(drawn.bins, [f"{axes.number(round(rate, 1))} {unit}" for rate in drawn.rate])
    rate = charts.plot(
        charts.steps(drawn.rate, high, "rate"), label=f"throughput in {unit} over time", x=axis,
        y=axes.linear(high), tips=tips, height=130,
    )  # fmt: skip
    au = term("au-over-time", "AU") + " is the lowest band"
    names = [(name, term(f"span-{name}", name)) for name, _ in shares]
    return (
        f"<h3>share of the ranks' time, by phase <small>{au}</small></h3>{charts.legend(names)}{split}"
        f"<h3>{term('rate', 'throughput')} <small>{unit}</small></h3>{rate}"
    )


def queue_depth(content: Content) -> str:
    """Return a figure of the batches that were being read and ready, per queue."""
    queues = content.queues
    if queues is None:
        return ""
    series = [("ready", queues.depth(queues.ready)), ("reading", queues.depth(queues.reading))]
    loader = content.scenario.loader if content.scenario else None
    limit = loader.max_workers * loader.prefetch_factor if loader else 0
    high = axes.roof(max(float((series[0][1] + series[1][1]).max()), limit) * 1.02)
    tips = _tips(
        queues.bins, [f"ready: {a:.2f}\nbeing read: {b:.2f}" for a, b in zip(*(v for _, v in series), strict=True)]
    )
    shapes = charts.stacked(series, high) + (charts.line_at(limit, high, "limit") if limit else "")
    names = [("ready", "ready"), ("reading", "being read or waiting for a worker")]
    drawn = charts.plot(
        shapes,
        label="batches per queue over time",
        x=axes.time(queues.bins.seconds),
        y=axes.linear(high),
        tips=tips,
        height=150,
    )
    if limit:
        names.append(("limit", f"window: {limit}"))
    mean = f"mean over {queues.queues} queues" if queues.queues > 1 else "of the only queue"
    return f"<h3>{term('queue', 'batches per queue')} <small>{mean}</small></h3>{charts.legend(names)}{drawn}"


def readers(content: Content) -> str:
    """Return figures of the number of readers and AU, where readers came and went, and the reasons."""
    scaling = content.result.scaling if content.result else None
    if scaling is None or not scaling.over_time:
        return ""
    periods = scaling.over_time
    worked = np.array([period.at_work for period in periods])
    paid = np.array([period.paid for period in periods])
    shares = np.array([np.nan if period.au is None else period.au for period in periods])
    bins = Bins.over(0, round(1e9 * sum(period.seconds for period in periods)), len(periods))
    high = axes.roof(float(paid.max()) * 1.02)
    tips = _tips(
        bins,
        [
            f"at work: {a:.2f}\npaid: {b:.2f}\nAU: {'unknown' if np.isnan(c) else f'{100 * c:.1f} %'}"
            for a, b, c in zip(worked, paid, shares, strict=True)
        ],
    )
    shapes = charts.stacked([("ready", worked), ("startup", np.maximum(paid - worked, 0))], high)
    drawn = charts.plot(
        shapes, label="workers over time", x=axes.time(bins.seconds), y=axes.linear(high), tips=tips, height=130
    )
    au = charts.plot(
        charts.steps(shares, 1.0, "rate"), label="AU over time", x=axes.time(bins.seconds),
        y=[(at, f"{100 * at:.0f} %") for at in (0.0, 0.5, 1.0)], tips=tips, height=90,
    )  # fmt: skip
    names = charts.legend([("ready", "at work"), ("startup", "starting, or finishing what they had begun")])
    nodes = np.array([np.nan if period.nodes is None else period.nodes for period in periods])
    of_nodes = ""
    if scaling.pool is not None:
        roof = axes.roof(float(nodes.max()) * 1.02)
        of_nodes = f"<h3>nodes that came for them <small>{_bought(scaling.pool)}</small></h3>" + charts.plot(
            charts.steps(nodes, roof, "rate"), label="nodes over time", x=axes.time(bins.seconds), y=axes.linear(roof),
            tips=_tips(bins, [f"nodes paid: {number:.2f}" for number in nodes]), height=90,
        )  # fmt: skip
    cost = f"{scaling.mean:.1f} on average, {scaling.reader_seconds:.0f} worker-seconds"
    return (
        f"<h3>{term('workers', 'workers of all ranks')} <small>{cost}</small></h3>{names}{drawn}{of_nodes}"
        f"<h3>AU, in the same parts of the run</h3>{au}{tables.reader_changes(scaling)}"
    )


def _bought(pool: PoolUse) -> str:
    text = f"{pool.node_seconds:.0f} node-seconds, {pool.most} at once"
    if pool.spared_seconds is not None and pool.batches is not None:
        text += f"; {pool.batches:,} batches were read there, {pool.spared_seconds:.0f} s of waiting spared"
    if pool.capacity_seconds is not None:
        text += f"; {pool.capacity_seconds:.1f} s to capacity at most"
    if pool.given_up:
        text += f"; {pool.given_up} workers got none in time"
    return text


def step_times(content: Content) -> str:
    """Return a figure of the distribution of step times, with its percentiles."""
    histogram = content.step_times
    if histogram is None:
        return ""
    low, high = float(histogram.edges[0]), float(histogram.edges[-1])

    def place(value: float) -> float:
        value = max(value, low)  # a step may take no time, and a logarithmic axis has no 0
        part = np.log(value / low) / np.log(high / low) if histogram.is_log else (value - low) / (high - low)
        return float(np.clip(part, 0, 1))

    statistics = content.result.percentiles.step_time if content.result else None
    marks = []
    if statistics and statistics.count > 2:
        known = [(n, statistics[n]) for n in ("p50", "p90", "p99") if statistics[n] <= high]
        marks = [(place(value), f"{n} {seconds(value)}") for n, value in known]
    top = axes.roof(float(histogram.counts.max()))
    tips = [
        f"{axes.seconds_label(a, high)} – {axes.seconds_label(b, high)}\n{count:,} steps"
        for a, b, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
    ]
    ticks = axes.logarithmic(low, high) if histogram.is_log else axes.between(low, high)
    drawn = charts.plot(
        charts.columns([("step", histogram.counts.astype(float))], top), label="distribution of step times", x=ticks,
        y=[(at, text) for at, text in axes.linear(top) if "." not in text], tips=tips, marks=marks,
    )  # fmt: skip
    scale = ", logarithmic axis" if histogram.is_log else ""
    head = f"number of steps{scale}, {int(histogram.counts.sum()) + histogram.beyond:,} in all"
    if histogram.beyond:
        head += f"; {histogram.beyond:,} longer than {seconds(high)} are not drawn"
        head += f" (up to {seconds(statistics['max'])})" if statistics else ""
    return f"<h3>{term('step', 'step times')} <small>{head}</small></h3>{drawn}"


def heat_map(content: Content) -> str:
    """Return the ranks side by side: their pace and their waits."""
    heat = content.heat_map
    if heat is None:
        return ""
    views = {
        "pace": ("pace", _heat_view(heat, heat.pace, PACES, "× the median rank", " ×", 1)),
        "data_wait": ("waiting for data", _heat_view(heat, heat.data_wait, SHARES, "% of its time", " %", 100)),
        "sync": ("waiting for other ranks", _heat_view(heat, heat.sync, SHARES, "% of its time", " %", 100)),
    }
    chosen = "".join(
        f'<button type="button" data-show="heat-{key}" aria-pressed="{str(key == "pace").lower()}">{title}</button>'
        for key, (title, _) in views.items()
    )
    drawn = "".join(
        f'<div id="heat-{key}"{"" if key == "pace" else " hidden"}>{view}</div>' for key, (_, view) in views.items()
    )
    few = " A row shows the highest of its ranks." if any(low < high for low, high in heat.ranks) else ""
    lead = f"{term('pace', 'Pace')}: the time of a step without the wait for others, over the median rank's.{few}"
    return f'<p class="lead">{lead}</p><p class="choice">{chosen}</p>{drawn}'


def _heat_view(heat: figures.HeatMap, values: Floats, edges: Sequence[float], unit: str, sign: str, times: int) -> str:
    """Return one number of every rank and bin, multiplied by ``times``."""
    number = len(heat.ranks)
    names = [f"rank {low}" if low == high else f"ranks {low}–{high}" for low, high in heat.ranks]
    every = -(-number // 16)
    rows = "".join(
        f'<span style="top:{100 * (at + 0.5) / number:.2f}%">{names[at].partition(" ")[2]}</span>'
        for at in range(0, number, every)
    )
    digits = 2 if times == 1 else 0
    known = [[None if math.isnan(v) else round(v * times, digits) for v in row] for row in values.tolist()]
    grid = {"rows": names, "values": known, "unit": unit, "width": heat.bins.width / 1e9}
    written = [f"{edge * times:g}{sign}" for edge in edges]
    scale = [(f"heat{at}", text) for at, text in enumerate([f"< {written[0]}", *(f"≥ {text}" for text in written)])]
    return (
        f'{charts.legend(scale)}<div class="plot heat" style="--h:{min(max(16 * number, 48), 420)}px">'
        f'<div class="y">{rows}</div><div class="area" data-grid="{charts.attribute(grid)}">'
        f"{charts.cells(values, edges, 'heat')}</div>"
        f'<div class="x">{charts.labels(axes.time(heat.bins.seconds), "left")}</div></div>'
    )


def timeline(content: Content) -> str:
    """Return the data and the controls of the timeline; a script in the page draws it."""
    tracks = content.timeline
    if tracks is None:
        return ""
    few = f"Shown are {len(tracks.ranks)} of {tracks.num_ranks} ranks, the slowest among them. " if len(
        tracks.ranks) < tracks.num_ranks else ""  # fmt: skip
    coarse = (
        "The whole run is drawn coarsely, by what took most of each moment; the suggested windows are exact. "
        "<code>rayio report RUN --window 12s..15s</code> adds one. " if tracks.is_coarse else ""
    )  # fmt: skip
    data = json.dumps(packed(tracks), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<p class="lead">{few}{coarse}<span class="screen">Drag to look closer, double-click to step back.</span></p>'
        '<div id="timeline"><p class="choice" id="windows"></p><p class="choice"><button type="button" data-move="-1">◀'
        '</button><button type="button" data-move="1">▶</button><button type="button" data-zoom="0.5">closer</button>'
        '<button type="button" data-zoom="2">wider</button><button type="button" data-zoom="0">whole run</button>'
        '<span id="range"></span></p><p class="legend" id="kinds"></p><div class="tracks" id="tracks"></div></div>'
        "<noscript><p>The timeline is drawn by a script in this page.</p></noscript>"
        f'<script type="application/json" id="slices">{data}</script>'
    )


def access(content: Content) -> str:
    """Return the use of storage: sizes of requests, operations, order."""
    used = None if content.explanation is None else content.explanation.access
    if used is None or not used.operations:
        return ""
    drawn = ""
    if sizes := {name: counts for name, counts in used.sizes.items() if sum(counts.values())}:
        names = [*next(iter(sizes.values()))]
        held = [n for n in range(len(names)) if any([*counts.values()][n] for counts in sizes.values())]
        low, high = max(held[0] - 1, 0), min(held[-1] + 2, len(names))
        groups = [(name, np.array([*counts.values()][low:high], float)) for name, counts in sizes.items()]
        top = axes.roof(max(float(values.max()) for _, values in groups))
        x = [((n + 0.5) / (high - low), text) for n, text in enumerate(names[low:high])]
        tips = [
            f"{names[low + n]} bytes\n" + "\n".join(f"{name}: {int(values[n]):,}" for name, values in groups)
            for n in range(high - low)
        ]
        plot = charts.plot(charts.columns(groups, top), label="requests by size", x=x, y=axes.linear(top), tips=tips)
        named = [(name, term("requests", f"{name} requests")) for name, _ in groups]
        drawn = f"<h3>requests by size <small>bytes</small></h3>{charts.legend(named)}{plot}"
    elif used.level != "io":
        drawn = '<p class="lead">From whole batches; requests one by one are recorded at trace.level=io.</p>'
    return drawn + f'<div class="pair">{tables.operations(used)}{tables.access_figures(used)}</div>'


def configuration(content: Content) -> str:
    """Return the configuration of the run and its machines, without passwords in addresses."""
    rows = [[text, _safe(content.info[key])] for key, text in ENVIRONMENT.items() if content.info.get(key) is not None]
    nodes = content.info.get("nodes") or []
    if nodes:
        rows.append(["Ray nodes", f"{len(nodes)}: {', '.join(_safe(node.get('host', '?')) for node in nodes[:8])}"])
    if restarts := content.info.get("restarts"):
        rows.append(["actors restarted", str(len(restarts))])
    hosts = (content.result.hosts if content.result else None) or ()
    text = text_of(content.directory)
    shown = (
        f"<details><summary>scenario.yaml, every key</summary><pre>{escape(_safe(text))}</pre></details>"
        if text
        else ""
    )
    return tables.table(["", ""], rows, "plain") + tables.hosts(hosts) + shown


def _safe(value: Any) -> str:
    return re.sub(r"(://)[^/@\s]+@", r"\1…@", str(value))
