"""Numbers and names of all texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rayio.units import format_seconds

if TYPE_CHECKING:
    from rayio.analyze.retries import Retried
    from rayio.records.explained import Capacity

#: A capacity above so many times the need is not shown as a number.
PLENTY = 100

#: Share of step time that shows in percentages without decimals.
SEEN = 0.005
#: The share of step time from which waits for other ranks have a row and a column next to data loading.
LEAST_SYNC = 0.01

#: Meaning of rows that are no stage of a batch.
WORK_OF_STAGES = {
    "storage": "what all workers share",
    "worker": "all stages, one after the other",
    "transfer": "network interfaces of the nodes",
    "writer": "checkpoint files",
    "processors": "CPU time of a batch, on all cores",
}


def can_do(capacity: float, demand: float | None) -> str:
    """Return a capacity; one that is many times the need is shown as "more than".

    >>> can_do(5.868, 24.8), can_do(18_400_493, 500)
    ('5.87', '> 50,000')
    """
    return rate(capacity) if demand is None or capacity <= PLENTY * demand else f"> {rate(PLENTY * demand)}"


def seconds(value: float | None) -> str:
    """Return a time; "unknown" for None."""
    return "unknown" if value is None else format_seconds(value)


def rate(number: float) -> str:
    """Return a number per second with three significant digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def while_waiting(capacity: Capacity, end: str = "") -> str:
    """Return when ranks need as much as they do, with an ``end``; empty if their need does not change."""
    mean = capacity.mean_demand
    return "" if mean is None else f" while they wait, {rate(mean)} on average{end}"


def left_out(share: float | None, what: str = "It") -> list[str]:
    """Return how many samples a change leaves out of each epoch, in a sentence; empty if they are hardly more."""
    if share is None:
        return []
    return [f"{what} leaves {percent(share)} of samples out of each epoch, unless loader.drop_last=false."]


def counted(number: int, name: str) -> str:
    """Return a number with what it counts.

    >>> counted(1, "worker"), counted(4, "worker")
    ('1 worker', '4 workers')
    """
    return f"{number} {name}{'s' * (number != 1)}"


def kept(table: Sequence[Sequence[str]], width: int, *dispensable: str) -> list[int]:
    """Return the places of the columns of a table that fit into ``width``, of which its first row has the titles.

    Columns with ``dispensable`` titles are left out, in that order, until the others fit. Each takes its widest cell
    and two blanks.

    >>> kept([["workers", "AU", "memory"], ["4", "90 %", "28.6 MiB"]], 20, "memory")
    [0, 1]
    """
    places = [*range(len(table[0]))]
    for title in dispensable:
        if sum(2 + max(len(row[place]) for row in table) for place in places) <= width:
            break
        places = [place for place in places if table[0][place] != title]
    return places


def capitalised(text: str) -> str:
    """Return a text with a capital first letter: ``capitalised("AU of 3") == "AU of 3"``."""
    return text[:1].upper() + text[1:]


def in_words(answers: Mapping[str, int]) -> str:
    """Return answers as text, the most frequent first."""
    return ", ".join(sorted(answers, key=lambda why: -answers[why]))


def retries_note(retries: Retried) -> str:
    """Return how many requests were made again, how long that took, and how many storage refused."""
    many = "request to storage was" if retries.number == 1 else "requests to storage were"
    throttled = sum(retries.refused.values())
    answers = f"; storage throttled {throttled} of them ({in_words(retries.refused)})" if throttled else ""
    took = format_seconds(retries.seconds)
    return f"{retries.number} {many} made again after a failure, {took} in all (spans named retry){answers}"


def percent(share: float | None) -> str:
    """Return a share in percent, from 10 % on without decimals; None is 0."""
    share = share or 0.0
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
