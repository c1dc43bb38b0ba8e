"""Settings by price: what there is to choose from, and which must be tried to know whether a price is enough."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rayio.errors import ContradictionError, ScenarioError
from rayio.records.sizing import Price
from rayio.scenario import derive
from rayio.scenario.load import parsed
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.study.sweeps.points import identity, split
from rayio.study.sweeps.sweep_rows import window_bytes

#: Settings that there may be; their scenarios are all made, not simulated.
MOST_SETTINGS = 5_000
#: What a price is made of, by default in the order in which it is dear.
DEAR = ("readers", "memory", "nodes")


@dataclass(frozen=True)
class Varied:
    """A key and its values. Of an ordered one more is taken not to be worse: of those between, few are tried."""

    key: str
    values: tuple[Any, ...]
    is_ordered: bool


def varied(text: str) -> tuple[Varied, ...]:
    """Read which keys vary: ``key=1..16`` is ordered, ``key=a|b`` or ``key=a,b`` are alternatives.

    >>> [(one.key, one.values, one.is_ordered) for one in varied("loader.num_workers=1..4,dataset.format=npz|hdf5")]
    [('loader.num_workers', (1, 2, 3, 4), True), ('dataset.format', ('npz', 'hdf5'), False)]

    Raises:
        ScenarioError: one line about what is wrong.
    """
    found: dict[str, list[str]] = {}
    key = ""
    for part in split(text):
        name, equals, value = part.partition("=")
        if equals and "{" not in name and "[" not in name:
            key = name.strip()
            if key in found:
                raise ScenarioError(f"--vary: {key} is there twice; give it once")
            found[key] = []
        elif not key:
            raise ScenarioError(f"--vary {text}: no '='; write section.key=1..16,section.other=a|b")
        found[key] += (value if equals else part).split("|") if "{" not in part else [value if equals else part]
    return tuple(_one(name, values) for name, values in found.items())


def _one(key: str, texts: Sequence[str]) -> Varied:
    if len(texts) == 1 and ".." in texts[0]:
        low, _, high = texts[0].partition("..")
        try:
            first, last = int(low), int(high)
        except ValueError:
            raise ScenarioError(f"--vary {key}={texts[0]}: a range is of whole numbers, such as 1..16") from None
        if first >= last or last - first >= MOST_SETTINGS:
            raise ScenarioError(f"--vary {key}={texts[0]}: must go up, by less than {MOST_SETTINGS}, such as 1..16")
        return Varied(key, tuple(range(first, last + 1)), is_ordered=True)
    values = tuple(parsed(text.strip(), f"--vary {key}") for text in texts)
    if any(not text.strip() for text in texts):
        raise ScenarioError(f"--vary {key}: a value is empty; write {key}=1..16 or {key}=a|b")
    if len({identity(value) for value in values}) < len(values):
        raise ScenarioError(f"--vary {key}: a value is there twice")
    return Varied(key, values, is_ordered=False)


@dataclass(frozen=True)
class Choice:
    """One setting: its place in every key's values, what it is, and what it costs, dearest first."""

    places: tuple[int, ...]
    values: tuple[Any, ...]
    cost: tuple[float, ...]
    price: Price


def price_of(scenario: Scenario) -> Price:
    """What a scenario costs."""
    return Price(readers=derive.num_readers(scenario), memory=window_bytes(scenario), nodes=scenario.cluster.nodes)


def choices(
    keys: Sequence[Varied], scenario_of: Callable[[tuple[Any, ...]], Scenario], dear: Sequence[str]
) -> tuple[list[Choice], list[str]]:
    """Every setting that can be, with its price; and why others cannot.

    Raises:
        ScenarioError: there are too many, or a value cannot be whatever the others are.
    """
    many = 1
    for one in keys:
        many *= len(one.values)
    if many > MOST_SETTINGS:
        raise ScenarioError(f"--vary: {many} settings; at most {MOST_SETTINGS}: narrow a range")
    found, refused = [], []
    for places in itertools.product(*(range(len(one.values)) for one in keys)):
        values = tuple(one.values[place] for one, place in zip(keys, places, strict=True))
        try:
            price = price_of(scenario_of(values))
        except ContradictionError as error:
            refused.append(str(error))
            continue
        found.append(Choice(places, values, tuple(float(price[name]) for name in dear), price))
    if not found:
        raise ScenarioError(f"--vary: none of {many} settings can be: {refused[0]}")
    return found, [*dict.fromkeys(refused)]


def cheapest(
    all_of: Sequence[Choice],
    ordered: Sequence[bool],
    reaches: Callable[[Choice], bool],
    watch: Callable[[int], None] = lambda left: None,
) -> Choice | None:
    """Find the cheapest setting that reaches, trying few: more of an ordered key is taken not to be worse.

    ``watch`` is told before each price how many prices are still to be asked, that one included.

    Whether a price is enough is known from the settings of that price or less which no other such one is above: if
    one of them reaches it is, else nothing below does either. So the prices are halved.
    """
    known: dict[tuple[int, ...], bool] = {}

    def above(a: Choice, b: Choice) -> bool:
        """Whether a has at least as much of everything that is ordered, and the same of the rest."""
        return all(
            x >= y if is_ordered else x == y for x, y, is_ordered in zip(a.places, b.places, ordered, strict=True)
        )

    by_places = {one.places: one for one in all_of}

    def ask(one: Choice) -> bool:
        for places, reached in known.items():
            other = by_places[places]
            if (reached and above(one, other)) or (not reached and above(other, one)):
                return reached
        known[one.places] = reaches(one)
        return known[one.places]

    prices = sorted({one.cost for one in all_of})

    def is_enough(number: int) -> bool:
        affordable = [one for one in all_of if one.cost <= prices[number]]
        return any(ask(one) for one in tops(affordable, above))

    low, high = -1, len(prices) - 1
    watch(1 + high.bit_length())
    if not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        watch((high - low - 1).bit_length())
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return next(one for one in all_of if one.cost == prices[high] and ask(one))


def tops(found: Iterable[Choice], above: Callable[[Choice, Choice], bool]) -> list[Choice]:
    """Those that no other one is above."""
    kept: list[Choice] = []
    for one in sorted(found, key=lambda choice: [-place for place in choice.places]):
        if not any(above(other, one) for other in kept):
            kept.append(one)
    return kept


def said(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Write a setting as overrides."""
    return " ".join(
        f"{key}={value if isinstance(value, str) else show(value)}" for key, value in zip(keys, values, strict=True)
    )
