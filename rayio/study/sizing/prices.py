"""Settings by price: all valid ones, and a search for the cheapest that reaches a goal."""

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
from rayio.study.sweeps.points import identity, split, whole_numbers
from rayio.study.sweeps.sweep_rows import window_bytes

#: The most settings of a search; a scenario is made for each.
MOST_SETTINGS = 5_000
#: The parts of a price, in the default order of importance.
DEAR = ("workers", "memory", "nodes")


@dataclass(frozen=True)
class Varied:
    """A key and its values. Of an ordered key, more is assumed not to be worse, so few values are tried."""

    key: str
    values: tuple[Any, ...]
    is_ordered: bool


def varied(text: str) -> tuple[Varied, ...]:
    """Return the varied keys: ``key=1..16`` is ordered, ``key=a|b`` or ``key=a,b`` are alternatives.

    >>> [(key.key, key.values, key.is_ordered) for key in varied("loader.num_workers=1..4,dataset.format=npz|hdf5")]
    [('loader.num_workers', (1, 2, 3, 4), True), ('dataset.format', ('npz', 'hdf5'), False)]

    Raises:
        ScenarioError: the text is invalid.
    """
    texts: dict[str, list[str]] = {}
    key = ""
    for part in split(text):
        name, equals, value = part.partition("=")
        if equals and "{" not in name and "[" not in name:
            key = name.strip()
            if key in texts:
                raise ScenarioError(f"--vary: {key} is given twice; give it once")
            texts[key] = []
        elif not key:
            raise ScenarioError(f"--vary {text}: no '='; write section.key=1..16,section.other=a|b")
        texts[key] += (value if equals else part).split("|") if "{" not in part else [value if equals else part]
    return tuple(_varied_key(name, values) for name, values in texts.items())


def _varied_key(key: str, texts: Sequence[str]) -> Varied:
    if len(texts) == 1 and ".." in texts[0]:
        if (numbers := whole_numbers(texts[0], f"--vary {key}", MOST_SETTINGS)) is None:
            raise ScenarioError(f"--vary {key}={texts[0]}: a range needs whole numbers, such as 1..16")
        return Varied(key, numbers, is_ordered=True)
    values = tuple(parsed(text.strip(), f"--vary {key}") for text in texts)
    if any(not text.strip() for text in texts):
        raise ScenarioError(f"--vary {key}: a value is empty; write {key}=1..16 or {key}=a|b")
    if len({identity(value) for value in values}) < len(values):
        raise ScenarioError(f"--vary {key}: a value is given twice; give each once")
    return Varied(key, values, is_ordered=False)


@dataclass(frozen=True)
class Choice:
    """A setting: the index of each key's value, the values, and its cost by importance."""

    places: tuple[int, ...]
    values: tuple[Any, ...]
    cost: tuple[float, ...]
    price: Price


def price_of(scenario: Scenario) -> Price:
    """Return the price of a scenario."""
    return Price(workers=derive.num_readers(scenario), memory=window_bytes(scenario), nodes=scenario.cluster.all_nodes)


def choices(
    keys: Sequence[Varied], scenario_of: Callable[[tuple[Any, ...]], Scenario], dear: Sequence[str]
) -> tuple[list[Choice], list[str]]:
    """Return every valid setting, and the reasons why others are invalid.

    Raises:
        ScenarioError: there are too many settings, or no valid one, or a value is always invalid.
    """
    many = 1
    for key in keys:
        many *= len(key.values)
    if many > MOST_SETTINGS:
        raise ScenarioError(f"--vary: {many} settings, but at most {MOST_SETTINGS} are allowed; narrow a range")
    valid, refused = [], []
    for places in itertools.product(*(range(len(key.values)) for key in keys)):
        values = tuple(key.values[place] for key, place in zip(keys, places, strict=True))
        try:
            price = price_of(scenario_of(values))
        except ContradictionError as error:
            refused.append(str(error))
            continue
        valid.append(Choice(places, values, tuple(float(price[name]) for name in dear), price))
    if not valid:
        raise ScenarioError(
            f"--vary: {'the setting is' if many == 1 else f'all {many} settings are'} invalid: {refused[0]}"
        )
    return valid, [*dict.fromkeys(refused)]


def cheapest(
    all_of: Sequence[Choice],
    ordered: Sequence[bool],
    reaches: Callable[[Choice], bool],
    gain: Callable[[Choice], float],
    watch: Callable[[int], None] = lambda left: None,
) -> Choice | None:
    """Return the cheapest setting that reaches the goal, or None; assumes that more of an ordered key is not worse.

    It bisects the prices. A price is enough if one of the maximal settings at or below it reaches the goal. Of those
    with the lowest price that is enough, it returns the one with the highest ``gain``, which is called for settings
    that reached the goal. ``watch`` is called before each price with the number of prices left, including this one.
    """
    known: dict[tuple[int, ...], bool] = {}

    def above(a: Choice, b: Choice) -> bool:
        """Return True if a has at least as much of each ordered key as b, and equal values of the others."""
        return all(
            x >= y if is_ordered else x == y for x, y, is_ordered in zip(a.places, b.places, ordered, strict=True)
        )

    by_places = {choice.places: choice for choice in all_of}

    def is_reaching(choice: Choice) -> bool:
        for places, reached in known.items():
            other = by_places[places]
            if (reached and above(choice, other)) or (not reached and above(other, choice)):
                return reached
        known[choice.places] = reaches(choice)
        return known[choice.places]

    prices = sorted({choice.cost for choice in all_of})

    def is_enough(number: int) -> bool:
        affordable = [choice for choice in all_of if choice.cost <= prices[number]]
        return any(is_reaching(choice) for choice in tops(affordable, above))

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
    equal = [choice for choice in all_of if choice.cost == prices[high]]
    for choice in tops(equal, above):
        if is_reaching(choice) and choice.places not in known:  # implied by a setting with less
            known[choice.places] = reaches(choice)
    return max((choice for choice in equal if known.get(choice.places)), key=gain)


def tops(affordable: Iterable[Choice], above: Callable[[Choice, Choice], bool]) -> list[Choice]:
    """Return the maximal settings: those that no other one is above."""
    kept: list[Choice] = []
    for choice in sorted(affordable, key=lambda choice: [-place for place in choice.places]):
        if not any(above(other, choice) for other in kept):
            kept.append(choice)
    return kept


def front(tried: Sequence[tuple[int, tuple[float, ...], float, bool]]) -> set[int]:
    """Return the Pareto front of settings, given as number, cost, AU and whether it is the advised one.

    No other setting has as much AU at no higher cost in any part. Of settings with one cost the advised one counts, or
    the one with the highest AU.

    >>> sorted(front([(0, (3,), 0.8, False), (1, (3,), 0.9, True), (2, (4,), 0.9, False), (3, (5,), 1.0, False)]))
    [1, 3]
    """
    of_cost: dict[tuple[float, ...], tuple[int, float, bool]] = {}
    for number, cost, au, is_advised in tried:
        other = of_cost.get(cost)
        if other is None or (not other[2] and (is_advised or au > other[1])):
            of_cost[cost] = (number, au, is_advised)
    return {
        number
        for cost, (number, au, is_advised) in of_cost.items()
        if is_advised
        or not any(
            more >= au and all(a <= b for a, b in zip(other, cost, strict=True))
            for other, (_, more, _) in of_cost.items()
            if other != cost
        )
    }


def as_overrides(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Return a setting as overrides."""
    return " ".join(
        f"{key}={value if isinstance(value, str) else show(value)}" for key, value in zip(keys, values, strict=True)
    )
