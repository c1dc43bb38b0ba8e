"""Content -> the page: one HTML file with its style and script, without external addresses."""

from __future__ import annotations

import re
from importlib import resources

from rayio.analyze.run_scenario import UNEDITED
from rayio.records.origin import head
from rayio.report import colours, headline, sections, tables
from rayio.report.content import Content
from rayio.report.definitions import definitions, term
from rayio.report.markup import escape, trouble
from rayio.report.sections import section
from rayio.report.text.delivered import books_line
from rayio.units import format_seconds
from rayio.version import __version__

SHORT = {
    "loss": "Losses", "time": "Over time", "timeline-section": "Timeline", "steps": "Steps", "ranks": "Ranks",
    "stages": "What if", "access": "Storage", "records": "Records", "configuration": "Configuration",
    "definitions": "Definitions",
}  # fmt: skip

#: The mark of a report; a sweep's page has another eyebrow.
EYEBROW = '<p class="eyebrow">rayio report</p>'
MARK = re.compile(rb"\A<!doctype html>.*" + EYEBROW.encode(), re.DOTALL)

#: The page may not load anything.
NOTHING_OUTSIDE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(content: Content) -> str:
    """Return the page."""
    result = content.result
    name = result.scenario if result else content.scenario.name if content.scenario else "run"
    times = sections.step_times(content) + (tables.percentiles(result) if result else "")
    parts = [
        section("loss", "Where the step time went", _losses(content)),
        section(
            "time", "Over time", sections.over_time(content) + sections.queue_depth(content) + sections.readers(content)
        ),
        section("timeline-section", "Timeline", sections.timeline(content)),
        section("steps", "Times of single steps", times),
        section("ranks", "Ranks", sections.heat_map(content) + _ranks(content)),
        section("stages", "What each stage can do, and what would change it", _stages(content)),
        section("access", "How storage was used", sections.access(content)),
        section("records", "Records", _records(content)),
        section("configuration", "Configuration and environment", sections.configuration(content)),
        section("definitions", "What colours and numbers mean", colours.key() + definitions()),
    ]
    there = [part[len('<section id="') :].partition('"')[0] for part in parts if part]
    links = "".join(f'<a href="#{anchor}">{SHORT[anchor]}</a>' for anchor in there)
    return document(
        name,
        f"<header>{EYEBROW}<h1>{escape(name)}</h1>{_facts(content)}{_trouble(content)}"
        f"{headline.head(content)}</header>"
        f'<nav aria-label="sections">{links}</nav><main>{"".join(parts)}</main>'
        f"<footer>Written by rayio {__version__} from {escape(content.directory.shown)}</footer>",
    )


def document(name: str, body: str, style: str = "") -> str:
    """Return a body as a self-contained file, with script and style; ``style`` comes after that of reports."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_OUTSIDE}">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(name)} · rayio</title><style>{colours.style()}{_file('style.css')}{style}</style></head>"
        f"<body>{body}"
        f'<div id="tip" hidden></div><script>{_file("script.js")}</script></body></html>\n'
    )


def _file(name: str) -> str:
    return resources.files("rayio.report").joinpath(name).read_text(encoding="utf-8")


def _facts(content: Content) -> str:
    result = content.result
    ranks, wall = (result.world_size, result.wall_seconds) if result else (0, None)
    origin = result.origin if result else None
    is_imported = result is not None and result.imported is not None
    engine = head(origin, "dlio" if is_imported else content.info.get("engine"))
    started = str(content.info.get("started") or "").replace("T", " ").replace("+00:00", " UTC").partition(".")[0]
    facts = [*engine.split("; "), f"{ranks} rank{'s' * (ranks != 1)}", format_seconds(wall) if wall else "", started]
    return '<p class="facts">' + " · ".join(escape(str(fact)) for fact in facts if fact) + "</p>"


def _trouble(content: Content) -> str:
    is_reduced = (
        content.result is not None and content.result.imported is not None and content.result.imported.has_no_steps
    )
    is_mild = (is_reduced and len(content.trouble) == 1) or content.trouble == [UNEDITED]
    mild = "mild" if is_mild else ""  # a reduced import is no failure
    return trouble(content.trouble, mild)


def _losses(content: Content) -> str:
    explained = content.explanation
    waterfall = tables.waterfall(explained.verdict) if explained and explained.verdict.au is not None else ""
    own_split = tables.lost_points(content.result) if content.result else ""  # an import leads with its own
    if own_split and waterfall:
        records = "the same records, over the step time in the window"
        waterfall = f"<h3>{term('au', 'as rayio counts')} <small>{records}</small></h3>{waterfall}"
    return own_split + waterfall


def _ranks(content: Content) -> str:
    result = content.result
    if result is None or result.time.compute is None:
        return ""
    split = f"<h3>{term('split', 'wall time of all ranks')}</h3>{tables.time_split(result)}"
    split += tables.failures(result) + tables.workflow(result)
    if (number := len(result.ranks)) < 2:
        return split
    more = f"{number} of {result.world_size}" if number < result.world_size else f"all {number}"
    return f"{split}<details><summary>{more} ranks one by one</summary>{tables.ranks(result)}</details>"


def _stages(content: Content) -> str:
    explained = content.explanation
    if not explained:
        return ""
    body = tables.capacities(explained.capacity)
    if explained.simulated and explained.simulated.changes:
        body += f"<h3>{term('counterfactual', 'what would change it')}</h3>" + tables.changes(explained.simulated)
    elif body and not content.is_simulated:
        body += '<p class="lead">What would change it takes longer: <code>rayio explain RUN</code> says it.</p>'
    return body


def _records(content: Content) -> str:
    result, rows = content.result, []
    if result and (books := result.ledger):
        rows.append([term("ledger", "ledger"), books_line(books, result.ranks_of_sample)])
    if result and (trace := result.trace):
        counts = f"{trace.recorded:,} recorded, {trace.stored:,} stored; level {trace.level}"
        rows.append([term("stored", "spans"), counts])
    body = tables.table(["", ""], rows, "plain") if rows else ""
    notes = [*(result.notes if result else ()), *(content.explanation["notes"] if content.explanation else ())]
    notes = [note for note in dict.fromkeys(notes) if not any(note.strip(".") in text for text in content.trouble)]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return body + (f'<ul class="notes">{listed}</ul>' if listed else "")
