"""The page of a capacity search: one HTML file that opens without a network."""

from __future__ import annotations

from rayio.records.sizing import CapacityFound, CapacityPoint
from rayio.report import charts, tables
from rayio.report.answer_page import Tile, answer_page, notes, titled
from rayio.report.curves import Dot, curve
from rayio.report.markup import code
from rayio.report.sections import section
from rayio.report.text.sizing import (
    above,
    answer_of,
    bandwidth,
    bottleneck,
    cells,
    command,
    device,
    effect,
    fed,
    half_interval,
    percent,
    remedy,
    with_interval,
)
from rayio.report.text.terms import capitalised, counted
from rayio.units import format_rate

PAGE = "capacity.html"
#: Bytes per second on the axis of a figure, and their unit.
UNITS = (("GiB/s", 2**30), ("MiB/s", 2**20), ("KiB/s", 2**10), ("B/s", 1))

DEFINITIONS = {
    "au": (
        "AU",
        "accelerator utilisation: time of compute / time of steps, in the measured window, mean over ranks; ± is half "
        "its 95 % interval, of all runs of a point",
    ),
    "au-dlio": ("AU as DLIO counts it", "the same without the first step of each epoch, mean over epochs"),
    "keeps": ("keeps it", "the whole interval is at or above the target; undecided: the interval contains the target"),
    "needed": ("needed", "bytes per second of accelerators that never wait, all together"),
    "reached": ("reached", "bytes per second of the samples that were delivered"),
    "change": (
        "what would help",
        "a change of the scenario at the first number that misses the target, simulated. Proposed is what adds at "
        "least one point of AU and saves at least 2 % of the time. Accelerators: how many hold with it, searched again",
    ),
}


def page(capacity: CapacityFound) -> str:
    """Return the page of a capacity search."""
    runs = sum(point.runs for point in capacity.points)
    how = "simulated" if capacity.engine == "virtual" else f"measured, engine {capacity.engine}"
    remedies = remedy(capacity)
    is_advice = bool(command(capacity)) or any(change.accelerators for change in capacity.changes)
    advice = remedies.pop() if is_advice else ""
    more = [*bandwidth(capacity), *device(capacity), *bottleneck(capacity), *remedies]
    parts = [
        section("curve", "AU over the accelerators", _curve(capacity)),
        section("bandwidth", "Bandwidth needed and reached", _bandwidth(capacity)),
        section("points", "Points", _points(capacity)),
        section("changes", "What would help", _changes(capacity)),
        section("notes", "Notes", notes(capacity.notes)),
    ]
    return answer_page(
        "capacity",
        capacity.scenario,
        facts=[
            capacity.storage_in_words or capacity.storage, how, f"searched: {capacity.over}",
            f"{counted(len(capacity.points), 'point')}, {counted(runs, 'run')}",
            "" if capacity.is_finished else "interrupted",
        ],
        answer=capitalised(fed(capacity)),
        todo=advice,
        typed=command(capacity),
        more=more,
        tiles=_tiles(capacity),
        parts=parts,
        definitions=DEFINITIONS,
        colour="met" if capacity.setting else "missed",
        doubts=capacity.doubts,
    )  # fmt: skip


def _tiles(capacity: CapacityFound) -> list[Tile]:
    point, next_one = answer_of(capacity), above(capacity)
    tiles = []
    if point is not None:
        least = "at least" if capacity.is_at_least or not capacity.is_finished else ""
        tiles.append(
            Tile("Accelerators", str(point.accelerators), f"{least} at AU ≥ {100 * capacity.target_au:g} %".strip())
        )
        tiles.append(Tile(f"AU with {point.accelerators}", percent(point.au), half_interval(point.au, point.au_high)))
        if point.bytes_per_second is not None:
            tiles.append(Tile("Reached", format_rate(point.bytes_per_second), f"with {point.accelerators}"))
    if next_one is not None:
        tiles.append(
            Tile(f"AU with {next_one.accelerators}", percent(next_one.au), half_interval(next_one.au, next_one.au_high))
        )
        if point is None and next_one.bytes_per_second is not None:
            tiles.append(Tile("Reached", format_rate(next_one.bytes_per_second), f"with {next_one.accelerators}"))
        if next_one.needed_bytes_per_second is not None and len(tiles) < 4:
            remark = f"by {counted(next_one.accelerators, 'accelerator')} at 100 % AU"
            tiles.append(Tile("Needed", format_rate(next_one.needed_bytes_per_second), remark))
    return tiles


def _places(points: list[CapacityPoint]) -> list[float]:
    first, last = points[0].setting, points[-1].setting
    return [0.5 if first == last else 0.03 + 0.94 * (p.setting - first) / (last - first) for p in points]


def _curve(capacity: CapacityFound) -> str:
    points = [point for point in capacity.points if point.au is not None]
    if not points:
        return ""
    dots = [
        Dot(
            at, str(point.setting), 100 * (point.au or 0.0),
            0.0 if point.au_high is None else 100 * (point.au_high - (point.au or 0.0)),
            f"{counted(point.accelerators, 'accelerator')}\nAU {with_interval(point.au, point.au_high)}",
        )
        for at, point in zip(_places(points), points, strict=True)
    ]  # fmt: skip
    marks = [
        (dot.at, f"{point.setting}: the answer")
        for dot, point in zip(dots, points, strict=True)
        if point.setting == capacity.setting
    ]
    target = 100 * capacity.target_au
    drawn = curve(dots, label="AU over the accelerators", unit="%", colour="au", target=target, marks=marks)
    names = [("au", "AU, with its 95 % interval"), ("limit", f"target: {target:g} %")]
    return charts.legend(names) + titled("AU, %", f"over {capacity.over}", drawn)


def _bandwidth(capacity: CapacityFound) -> str:
    points = [p for p in capacity.points if p.bytes_per_second is not None and p.needed_bytes_per_second is not None]
    if not points:
        return ""
    most = max(p.needed_bytes_per_second or 0.0 for p in points)
    unit, size = next(((name, n) for name, n in UNITS if most >= n), UNITS[-1])

    def tip(point: CapacityPoint) -> str:
        needed, reached = point.needed_bytes_per_second or 0.0, point.bytes_per_second or 0.0
        many = counted(point.accelerators, "accelerator")
        return f"{many}\nneeded {format_rate(needed)}\nreached {format_rate(reached)}"

    placed = [*zip(_places(points), points, strict=True)]
    needed = [Dot(at, str(p.setting), (p.needed_bytes_per_second or 0.0) / size, 0.0, tip(p)) for at, p in placed]
    reached = [Dot(at, str(p.setting), (p.bytes_per_second or 0.0) / size, 0.0, tip(p)) for at, p in placed]
    drawn = curve(reached, label="bandwidth over the accelerators", unit=unit, colour="read", other=needed)
    names = [("read", "reached"), ("limit", "needed at 100 % AU")]
    return charts.legend(names) + titled(f"bandwidth, {unit}", f"over {capacity.over}", drawn)


def _points(capacity: CapacityFound) -> str:
    key = capacity.over.rpartition(".")[2]
    head = [key, "accelerators", "AU", "target", "needed", "reached", "from the device", "runs"]
    has_shares = any(point.page_cache_share is not None for point in capacity.points)
    rows = []
    for point in capacity.points:
        share = "" if point.page_cache_share is None else f"{100 * (1 - point.page_cache_share):.1f} %"
        setting, accelerators, au, verdict, needed, reached, runs = cells(point)
        mark = ", the answer" if point.setting == capacity.setting else ""
        rows.append([setting, accelerators, au, verdict + mark, needed, reached, share, runs])
    if not has_shares:
        head, *rows = ([cell for place, cell in enumerate(row) if place != 6] for row in [head, *rows])
    return tables.table(head, rows)


def _changes(capacity: CapacityFound) -> str:
    if not capacity.changes:
        return ""
    number = "" if capacity.bottleneck is None else f" of {capacity.bottleneck.accelerators}"
    rows = []
    for change in capacity.changes:
        least = "at least " if change.is_at_least else ""
        holds = "" if change.accelerators is None else f"{least}{change.accelerators}"
        verdict = "reaches it" if change.holds else "misses it"
        rows.append([code(change.change), effect(change), verdict, holds])
    return tables.table(["change", f"AU{number}", "target", "accelerators"], rows)
