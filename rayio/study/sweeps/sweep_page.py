"""The page of a sweep: one HTML file that opens without a network."""

from __future__ import annotations

from importlib import resources

import yaml

from rayio.files import parse_json, read_regular
from rayio.records.sweeps import FAILED, IMPOSSIBLE
from rayio.report import colours, tables
from rayio.report.figures_page import Figures
from rayio.report.markup import escape
from rayio.report.page import NOTHING_OUTSIDE, document
from rayio.report.sections import section
from rayio.report.text.sweep import conclusions, head, rows_of, short_names
from rayio.report.text.terms import capitalised, counted
from rayio.study.sweeps import choices, sweep_figures
from rayio.study.sweeps.swept import Swept
from rayio.units import format_bytes
from rayio.version import __version__

LISTED_POINTS = 300

_DEFINITIONS = {
    "au": (
        "AU",
        "accelerator utilisation: time of compute / time of steps, in the measured window, mean over ranks; ± is half "
        "the 95 % interval of the mean over repeats (Student's t)",
    ),
    "goodput": (
        "goodput",
        "compute that counts, of the wall time of all planned ranks; a column if runs had failures, which AU does not "
        "show",
    ),
    "knee": (
        "knee",
        "where diminishing returns begin: the point of AU over one numeric key that is highest above the diagonal, "
        "with both axes scaled to 0 to 1 (linear, from the first value to the last and to the highest AU; Kneedle, "
        f"Satopää and others 2011); none if that height is below {100 * choices.LEAST_BEND:.0f} % of the rise, or "
        "AU rises by less than a point",
    ),
    "front": (
        "front",
        "the Pareto front: no other point with as many accelerators has at least the same AU (after failures goodput) "
        "with no more workers, memory and reader nodes",
    ),
    "workers": ("workers", "workers of all ranks: ranks × loader.num_workers"),
    "memory": (
        "memory",
        "expected bytes of the full prefetch windows of all ranks: ranks × workers × "
        "prefetch_factor × batch, at most loader.max_bytes_in_flight on each node",
    ),
    "impossible": ("impossible", "keys of the point contradict each other; its row names them"),
}


def page(sweep: Swept) -> str:
    """Return the page of a sweep as HTML."""
    names, title = short_names(sweep.keys), sweep_figures.TITLES[sweep.metric]
    parts = [
        section("curves", capitalised(f"{title} over the swept keys"), _curves(sweep, names)),
        section("cost", f"What {title} costs", _costs(sweep)),
        section("points", "Points", _points(sweep, names)),
        section("scenario", "What all points share", _shared(sweep)),
        section("definitions", "How each number is defined", _definitions()),
    ]
    runs = len(sweep.rows)
    facts = [
        f"{sweep.engine} engine", f"{counted(len(sweep.points), 'point')}, {counted(runs, 'run')}",
        f"swept: {', '.join(sweep.keys)}", f"{counted(sweep.missing, 'run')} missing" if sweep.missing else "",
    ]  # fmt: skip
    verdicts = "".join(f'<p class="verdict">{escape(line)}</p>' for line in conclusions(sweep.table))
    style = colours.style() + _file("rayio.report", "style.css") + _file("rayio.study.sweeps", "style.css")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_OUTSIDE}">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(sweep.name)} sweep · rayio</title><style>{style}</style></head><body>"
        f'<header><p class="eyebrow">rayio sweep</p><h1>{escape(sweep.name)}</h1>'
        f'<p class="facts">{escape(" · ".join(filter(None, facts)))}</p>{verdicts}</header>'
        f"<main>{''.join(parts)}</main>"
        f"<footer>Written by rayio {__version__} from {escape(str(sweep.path.absolute()))}</footer>"
        f'<div id="tip" hidden></div><script>{_file("rayio.report", "script.js")}</script></body></html>\n'
    )


def drawn(sweep: Swept) -> Figures:
    """Return the figures of a sweep."""
    figures = _curves(sweep, short_names(sweep.keys)) + _costs(sweep)
    return Figures(
        sweep.name, document(sweep.name, f"<main>{figures}</main>", _file("rayio.study.sweeps", "style.css"))
    )


def _file(room: str, name: str) -> str:
    return resources.files(room).joinpath(name).read_text(encoding="utf-8")


def _curves(sweep: Swept, names: list[str]) -> str:
    points, metric = sweep.points, sweep.metric
    title = sweep_figures.TITLES[metric]
    if len(names) == 1:
        has_repeats = any(len(point.rows) > 1 for point in points)
        band = " The band is the 95 % interval of the mean over repeats." if has_repeats else ""
        drawn = [
            _titled(f"{title}, % <small>over {escape(sweep.keys[0])}.{band}</small>",
                    sweep_figures.curve(points, metric, 100, "%", sweep.knee)),
            _titled("throughput, samples/s", sweep_figures.curve(points, "samples_per_second", 1, "samples/s")),
            _titled("exposed data loading, % of step time",
                    sweep_figures.curve(points, "data_wait_share", 100, "%")),
        ]  # fmt: skip
        return "".join(drawn)
    heat = (
        sweep_figures.heat_map(points, names, metric)
        if len(names) == 2 and any(p.mean(metric) is not None for p in points)
        else ""
    )
    curves = "".join(
        _titled(
            f"{title}, % <small>over {escape(key)}: the best of all points with that value</small>",
            sweep_figures.curve(sweep_figures.best_by_value(points, index, metric), metric, 100, "%"),
        )
        for index, key in enumerate(sweep.keys)
    )
    return heat + curves


def _titled(title: str, drawn: str) -> str:
    return f"<h3>{title}</h3>{drawn}" if drawn else ""


def _costs(sweep: Swept) -> str:
    points, metric = sweep.points, sweep.metric
    title = sweep_figures.TITLES[metric]
    workers = sweep_figures.against(
        points, choices.workers, lambda value: f"{value:,.0f}", f"{title} against workers", metric=metric
    )
    memory = sweep_figures.against(points, choices.memory, format_bytes, f"{title} against memory", 1024, metric)
    if not workers and not memory:
        return ""
    has_several = len(set(map(choices.accelerators, points))) > 1
    line = (
        "each line is the Pareto front of one number of accelerators" if has_several else "the line is the Pareto front"
    )
    return (
        f'<p class="lead">Each dot is a point; {line}.</p>'
        + _titled(f"{title} against workers <small>of all ranks</small>", workers)
        + _titled(f"{title} against memory <small>of full prefetch windows, all ranks</small>", memory)
    )


def _points(sweep: Swept, names: list[str]) -> str:
    points = sweep.table.points
    wrong = [point for point in points[LISTED_POINTS:] if point.status in (IMPOSSIBLE, FAILED)]
    listed = [*points[:LISTED_POINTS], *wrong[:LISTED_POINTS]]
    left = len(sweep.points) - len(listed)
    more = f'<p class="lead">{left:,} more points are in sweep.csv.</p>' if left > 0 else ""
    return tables.table([*names, *head(listed)], rows_of(listed), "worded") + more


def _shared(sweep: Swept) -> str:
    definition = parse_json(read_regular(sweep.path / "sweep.json"))
    text = yaml.safe_dump(definition.get("scenario", {}), sort_keys=False, allow_unicode=True, width=100)
    return f"<details><summary>the scenario, without the swept keys</summary><pre>{escape(text)}</pre></details>"


def _definitions() -> str:
    rows = "".join(
        f'<dt id="d-{name}">{escape(title)}</dt><dd>{escape(text)}</dd>' for name, (title, text) in _DEFINITIONS.items()
    )
    return f'<dl class="definitions">{rows}</dl>'
