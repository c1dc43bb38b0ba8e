"""The frame of a page that answers a question: the answer first, numbers, sections, definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayio.records.doubts import Doubt
from rayio.report.headline import marked, warnings
from rayio.report.markup import escape, trouble
from rayio.report.page import document
from rayio.report.sections import section
from rayio.version import __version__


@dataclass(frozen=True, slots=True)
class Tile:
    """A large number: its name, its value and its unit or a remark."""

    name: str
    value: str
    remark: str = ""


def answer_page(
    command: str,
    name: str,
    *,
    facts: Sequence[str],
    answer: str,
    more: Sequence[str] = (),
    todo: str = "",
    typed: str = "",
    tiles: Sequence[Tile] = (),
    parts: Sequence[str],
    definitions: Mapping[str, tuple[str, str]],
    colour: str = "",
    doubts: Sequence[Doubt] = (),
    leads: Sequence[str] = (),
) -> str:
    """Return a page: ``answer`` is its headline, ``todo`` the remedy, ``typed`` the command for it.

    All are plain text but ``parts``; ``leads`` stand above the answer, and ``doubts`` below.
    """
    shown = " · ".join(escape(fact) for fact in facts if fact)
    shell = f"<pre>{escape(typed)}</pre>" if typed else ""
    action = f'<p class="action"><b>To do:</b> {marked(todo)}</p>{shell}' if todo else ""
    rest = "".join(f'<p class="more">{marked(text)}</p>' for text in more)
    verdict = f'<div class="verdict{f" c-{colour}" if colour else ""}"><p>{escape(answer)}</p>{action}{rest}</div>'
    body = "".join([*parts, section("definitions", "How each number is defined", _listed(definitions))])
    return document(
        f"{name} {command}",
        f'<header>{eyebrow(command)}<h1>{escape(name)}</h1><p class="facts">{shown}</p>'
        f"{trouble(leads)}{verdict}{warnings(doubts)}{_tiles(tiles)}</header><main>{body}</main>"
        f"<footer>Written by rayio {__version__}</footer>",
    )


def eyebrow(command: str) -> str:
    """Return the line over the title of a command's page."""
    return f'<p class="eyebrow">rayio {escape(command)}</p>'


def notes(texts: Sequence[str]) -> str:
    """Return notes as a list; nothing without any."""
    listed = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="notes">{listed}</ul>' if listed else ""


def titled(title: str, remark: str, drawn: str) -> str:
    """Return a figure with its title and a remark; nothing without a figure."""
    small = f" <small>{escape(remark)}</small>" if remark else ""
    return f"<h3>{escape(title)}{small}</h3>{drawn}" if drawn else ""


def _tiles(tiles: Sequence[Tile]) -> str:
    drawn = "".join(
        f'<div class="tile"><span class="name">{escape(tile.name)}</span><b>{escape(tile.value)}</b>'
        f'<span class="unit">{escape(tile.remark)}</span></div>'
        for tile in tiles
    )
    return f'<div class="tiles">{drawn}</div>' if drawn else ""


def _listed(definitions: Mapping[str, tuple[str, str]]) -> str:
    rows = "".join(
        f'<dt id="d-{name}">{escape(title)}</dt><dd>{escape(text)}</dd>' for name, (title, text) in definitions.items()
    )
    summary = f"{len(definitions)} definitions"
    return f'<details><summary>{summary}</summary><dl class="definitions">{rows}</dl></details>' if rows else ""
