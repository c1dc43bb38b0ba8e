"""The page of an advice: one HTML file that opens without a network."""

from __future__ import annotations

from rayio.records.sizing import Advised, Setting
from rayio.report import axes, charts, tables
from rayio.report.answer_page import Tile, answer_page, notes, titled
from rayio.report.curves import Dot, curve, thin
from rayio.report.sections import section
from rayio.report.text.advice import (
    bandwidth,
    best_of,
    checked,
    doubts,
    goal,
    headline,
    in_words,
    lost,
    nearest,
    overrides,
    searched,
    shorter,
    table,
)
from rayio.report.text.sizing import half_interval, percent, with_interval
from rayio.report.text.terms import capitalised, counted
from rayio.units import format_bytes, format_rate

PAGE = "advice.html"
#: The least distance of two ticks, as a share of an axis.
APART = 0.08

DEFINITIONS = {
    "au": (
        "AU",
        "accelerator utilisation: time of compute / time of steps, in the measured window, mean over ranks; ± is half "
        "its 95 % interval, of all simulations of a setting",
    ),
    "reaches": (
        "reaches it", "the whole interval is at or above the goal; undecided: the interval contains the goal"
    ),
    "price": (
        "price",
        "the parts of --price, the most important first: workers are those of all ranks, memory is the bytes of "
        "their full prefetch windows, nodes are those of the cluster",
    ),
    "front": (
        "Pareto front",
        "settings that no other one matches in AU at no higher price. Of settings with one price the advised one is on "
        "it, or the one with the highest AU",
    ),
}  # fmt: skip


def page(advised: Advised) -> str:
    """Return the page of an advice."""
    advice, best = advised.advice, advised.advice or best_of(advised)
    used = [] if best is None else [*lost(advised), *bandwidth(best)]
    more = [*used, *nearest(advised), checked(advised), searched(advised)]
    return answer_page(
        "advise",
        advised.scenario,
        facts=[
            "simulated", f"varied: {', '.join(advised.varied)}", counted(advised.simulations, "simulation"),
            "" if advised.is_finished else "interrupted",
        ],
        answer=capitalised(headline(advised)),
        todo="" if advice is None else "for longer epochs, set" if shorter(advised) else "set",
        typed="" if advice is None else overrides(advised, advice),
        more=[*filter(None, more)],
        tiles=_tiles(advised, best),
        parts=[
            section("price", "AU against the price", _against(advised)),
            section("settings", "Settings simulated, by price", _settings(advised)),
            section("notes", "Notes", notes(advised.notes)),
        ],
        definitions=DEFINITIONS,
        colour="met" if advised.is_reached else "missed",
        doubts=doubts(advised),
    )  # fmt: skip


def _tiles(advised: Advised, best: Setting | None) -> list[Tile]:
    if best is None:
        return []
    name = "AU" if advised.advice is not None else "AU of the nearest"
    tiles = [Tile(name, percent(best.au), half_interval(best.au, best.au_high))]
    tiles += [
        Tile("Workers", f"{best.price.workers:,}", "of all ranks"),
        Tile("Memory", format_bytes(best.price.memory), "of full prefetch windows"),
    ]
    if best.bytes_per_second is not None and best.needed_bytes_per_second is not None:
        remark = f"of {format_rate(best.needed_bytes_per_second)} needed at 100 % AU"
        tiles.append(Tile("Reached", format_rate(best.bytes_per_second), remark))
    else:
        tiles.append(Tile("Nodes", str(best.price.nodes), "of the cluster"))
    return tiles


def _against(advised: Advised) -> str:
    """Return AU against the part of the price that matters most and differs between the settings."""
    known = [setting for setting in advised.tried if setting.au is not None]
    parts = [part for part in advised.priced_by if len({setting.price[part] for setting in known}) > 1]
    if not parts:
        return ""
    part = parts[0]
    most = max(float(setting.price[part]) for setting in known)

    def place(setting: Setting) -> float:
        return 0.03 + 0.94 * float(setting.price[part]) / most

    dots = [
        Dot(
            place(setting), _cost(setting, part), 100 * (setting.au or 0.0), 0.0,
            f"{in_words(advised, setting)}\nAU {with_interval(setting.au, setting.au_high)}, {_cost(setting, part)}",
        )
        for setting in known
    ]  # fmt: skip
    on_front = [dot for dot, setting in zip(dots, known, strict=True) if setting.is_on_front]
    chosen = [dot for dot, setting in zip(dots, known, strict=True) if setting == advised.advice]
    taken = [(dot.at, dot.tick) for dot in chosen]
    others = {(dot.at, dot.tick) for dot in dots if all(abs(dot.at - at) >= APART for at, _ in taken)}
    ticks: list[axes.Tick] = sorted([*thin(sorted(others), APART), *taken])
    drawn = curve(
        on_front,
        label=f"AU against {part}",
        unit="%",
        colour="au",
        ticks=ticks,
        target=100 * advised.target_au,
        scattered=[dot for dot in dots if dot not in on_front],
        chosen=chosen[0] if chosen else None,
        marks=[(chosen[0].at, "advised")] if chosen else [],
        height=240,
    )
    names = [("au", "Pareto front"), ("other", "other settings"), ("limit", goal(advised))]
    return charts.legend(names) + titled("AU, %", f"against {part}", drawn)


def _cost(setting: Setting, part: str) -> str:
    return format_bytes(setting.price.memory) if part == "memory" else f"{setting.price[part]:,}"


def _settings(advised: Advised) -> str:
    head, rows = table(advised)
    marked = [
        [*row, "Pareto front" if setting.is_on_front else ""] for row, setting in zip(rows, advised.tried, strict=True)
    ]
    place = len(advised.varied) + 1
    head = ["goal" if number == place else name for number, name in enumerate(head)]
    return tables.table([*head, ""], marked, "worded")
