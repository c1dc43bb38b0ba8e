"""The answers of capacity and advise, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rayio.records.hosts import Host
from rayio.records.origin import Origin
from rayio.records.sizing import HOLDS, UNDECIDED, Advised, CapacityFound, CapacityPoint, Price, Setting
from rayio.report.text.terms import counted
from rayio.schema.fields import show
from rayio.units import format_bytes, format_rate

RANKS = "cluster.ranks_per_node"
#: Begins a note where a run does not give a model that predicts it.
UNKNOWN = "No prediction"
BAR = 20


def headline(capacity: CapacityFound) -> str:
    """Return the answer in one sentence."""
    target = f"{100 * capacity.target_au:g} %"
    au = "AU" if capacity.formula == "au" else "AU as DLIO counts it"
    how = "simulated" if capacity.engine == "virtual" else f"engine {capacity.engine}"
    what = f"{capacity.storage_in_words or capacity.storage} ({how})"
    if capacity.accelerators is None:
        first = next(iter(capacity.points), None)
        reached = "" if first is None or first.au is None else f": {au} is {100 * first.au:.1f} % with it"
        so_far = "" if capacity.is_finished else " in the points tried so far"
        setting = "one accelerator" if capacity.over == RANKS else f"{capacity.over}=1"
        return f"{what} does not feed {setting} at {target}{so_far}{reached}"
    many = counted(capacity.accelerators, "accelerator")
    least = "at least " * (capacity.is_at_least or not capacity.is_finished)
    searched = "" if capacity.over == RANKS else f" ({capacity.over}={capacity.setting})"
    unsure = [
        str(p.accelerators) for p in capacity.points if p.status == UNDECIDED and p.setting > (capacity.setting or 0)
    ]
    also = f"; {' and '.join(unsure)}: undecided" if unsure else ""
    return f"{what} feeds {least}{many} at {target}{searched}{also}"


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
    rows = [_row(point, capacity.target_au) for point in capacity.points]
    if key == "ranks_per_node" and all(point.setting == point.accelerators for point in capacity.points):
        head, rows = head[1:], [row[1:] for row in rows]
    if sum(max(len(row[place]) for row in (head, *rows)) + 2 for place in range(len(head))) > width:
        head, rows = _without_bar(head), [_without_bar(row) for row in rows]
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    bar = len(head) - 5  # the curve, or what stands in its place
    lines += [_line(row, wide, bar) for row in (head, *rows)]
    lines += ["", *_conclusions(capacity, width)]
    return "\n".join(lines)


def _without_bar(row: list[str]) -> list[str]:
    return [cell for place, cell in enumerate(row) if place != len(row) - 5]


def _line(row: list[str], wide: list[int], bar: int) -> str:
    cells = [
        f"{cell:<{n}}" if place in (bar, bar + 1) else f"{cell:>{n}}"
        for place, (cell, n) in enumerate(zip(row, wide, strict=True))
    ]
    return "  " + "  ".join(cells).rstrip()


def _row(point: CapacityPoint, target: float) -> list[str]:
    au = "unknown" if point.au is None else f"{100 * point.au:.1f}"
    if point.au is not None:
        half = None if point.au_high is None else 100 * (point.au_high - point.au)
        au += " %" if half is None else f" ± {half:.1f} %"
    bar = "" if point.au is None else "█" * round(BAR * min(point.au, 1.0))
    needed, reached = point.needed_bytes_per_second, point.bytes_per_second
    return [
        str(point.setting),
        str(point.accelerators),
        au,
        bar,
        "keeps it" if point.status == HOLDS else "misses it" if point.status == "fails" else point.status,
        "" if needed is None else format_rate(needed),
        "" if reached is None else format_rate(reached),
        str(point.runs),
    ]


def _conclusions(capacity: CapacityFound, width: int) -> list[str]:
    sentences = []
    above = next((p for p in capacity.points if p.status != HOLDS and p.setting > (capacity.setting or 0)), None)
    at = next((point for point in capacity.points if point.setting == capacity.setting), None)
    for point in (at, above):
        if point is None or point.needed_bytes_per_second is None or point.bytes_per_second is None:
            continue
        many = counted(point.accelerators, "accelerator")
        need, get = format_rate(point.needed_bytes_per_second), format_rate(point.bytes_per_second)
        unsure = "; not sure whether that is enough" if point.status == UNDECIDED else ""
        verb, who = ("needs", "it") if point.accelerators == 1 else ("need", "they")
        au = "" if point.au is None else f"at the measured {100 * point.au:.0f} % "
        sentences.append(f"{many} at 100 % AU {verb} {need}; {au}{who} used {get}{unsure}.")
    if cached := [point.page_cache_share for point in capacity.points if point.page_cache_share is not None]:
        most = 100 * max(cached)
        sentences.append(
            f"Of the bytes of a run at least {100 - most:.1f} % came from the device or the server, "
            f"at most {most:.1f} % from the page cache."
        )
    if capacity.binds:
        sentences.append(f"Bottleneck with {above.accelerators if above else 'more'}: {capacity.binds}")
    best = next((change for change in capacity.changes if change.accelerators is not None), None)
    if best is not None:
        least = "at least " if best.is_at_least else ""
        sentences.append(f"With {best.change}: {least}{counted(best.accelerators or 0, 'accelerator')}.")
    elif capacity.changes:
        near = capacity.changes[0]
        sentences.append(
            f"No single change is enough for {above.accelerators if above else 'more'}; "
            f"the best is {near.change}, AU {100 * (near.au or 0):.1f} %."
        )
    elif capacity.binds and capacity.is_finished and not any(UNKNOWN in note for note in capacity.notes):
        sentences.append("No single change helps.")
    lines = [line for sentence in sentences for line in wrap(sentence, width, break_long_words=False)]
    return [*lines, *(line for note in capacity.notes for line in _note(note, width))]


def _note(note: str, width: int) -> list[str]:
    return wrap(f"note: {note}", width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def advice(advised: Advised, width: int = 100) -> str:
    """Return the advice: the setting, the search, every setting that was simulated, and the check."""
    goal = f"{'AU' if advised.goal == 'au' else 'AU as DLIO counts it'} {100 * advised.target_au:g} %"
    tried = f"of {advised.possible} settings {len(advised.tried)} were simulated, in {advised.simulations} runs"
    if advised.advice is not None:
        lead = f"the cheapest setting that reaches {goal}: {_values(advised, advised.advice)}"
    elif advised.is_finished:
        best = max(advised.tried, key=lambda setting: setting.au or 0.0, default=None)
        nearest = "" if best is None or best.au is None else f"; {_values(advised, best)} comes nearest, {_au(best)}"
        lead = f"no setting reaches {goal}{nearest}"
    else:
        lead = "the search was interrupted before it knew the cheapest setting"
    dear = ", then ".join(advised.priced_by)
    lines = [*wrap(lead, width, break_long_words=False), ""]
    names = [name.rpartition(".")[2] for name in advised.varied]
    head = [*names, "AU", "", "readers", "memory", "nodes"]
    rows = [
        [*map(_shown, setting.values), _au(setting), _verdict(setting.status), *_price(setting.price)]
        for setting in advised.tried
    ]
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines += [
        "  " + "  ".join(f"{cell:>{n}}" for cell, n in zip(row, wide, strict=True)).rstrip() for row in (head, *rows)
    ]
    lines += ["", *wrap(f"By price, {dear}: {tried}.", width)]
    if (check := advised.check) is not None:
        au = "unknown" if check.au is None else f"{100 * check.au:.1f} %"
        so = "reaches it" if check.reaches else "does not reach it"
        lines += wrap(f"Run once with --engine {check.engine}: AU {au}, which {so} ({check.directory}).", width)
    return "\n".join([*lines, *(line for note in advised.notes for line in _note(note, width))])


def _values(advised: Advised, setting: Setting) -> str:
    return " ".join(f"{key}={_shown(value)}" for key, value in zip(advised.varied, setting.values, strict=True))


def _shown(value: object) -> str:
    return value if isinstance(value, str) else show(value)


def _au(setting: Setting) -> str:
    if setting.au is None:
        return "unknown"
    return (
        f"{100 * setting.au:.1f} %"
        if setting.au_high is None
        else f"{100 * setting.au:.1f} ± {100 * (setting.au_high - setting.au):.1f} %"
    )


def _verdict(status: str) -> str:
    return {HOLDS: "reaches it", "fails": "misses it"}.get(status, status)


def _price(price: Price) -> list[str]:
    return [f"{price.readers:,}", format_bytes(price.memory), str(price.nodes)]
