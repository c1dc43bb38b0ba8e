"""Published facts next to simulated ones, and the verdict on each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rayio.errors import ScenarioError
from rayio.records.checked_facts import (
    AGREES,
    ASSUMED,
    CONTRADICTS,
    DIFFERS,
    INPUT,
    NEEDLESS,
    UNEXPLAINED,
    UNKNOWN,
    CheckedFact,
    CheckedFacts,
    CheckedScenario,
)
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks
from rayio.scenario.facts import Observed
from rayio.scenario.load import load, loading, packaged
from rayio.scenario.model import Scenario
from rayio.scenario.published import Fact
from rayio.study.facts.observing import observed


def with_facts() -> list[str]:
    """Return the names of the packaged scenarios that have published facts."""
    return [name for name in packaged() if load(name).published]


def check_published(sources: Sequence[str | Path] = (), *, reporter: Reporter = SILENT) -> CheckedFacts:
    """Simulate scenarios in full, and return their published facts next to the simulated ones.

    >>> checked = rayio.check_published(["bert_mrpc"])
    >>> [(fact.fact, fact.emulated, fact.verdict) for fact in checked.scenarios[0].facts][0]
    ('request_bytes', '200 B', 'input')

    Args:
        sources: paths or packaged names; none is every packaged scenario that has facts.
        reporter: receives progress.

    Raises:
        ScenarioError: a scenario is invalid, or has no published facts.
    """
    chosen = [_Asked.of(source) for source in sources or with_facts()]
    total = sum(len(each.variants) for each in chosen)
    done, checked = 0, []
    for each in chosen:
        began = time.monotonic()
        seen: dict[str, Observed] = {}
        for against, variant in each.variants.items():
            reporter.live(f"{done}/{total} simulations · {each.source} {against}".strip(), done / total)
            seen[against] = observed(variant, requests=each.needs_requests)
            done += 1
        facts = tuple(checked_fact(fact, seen) for fact in each.facts)
        seconds = round(time.monotonic() - began, 3)
        checked.append(CheckedScenario(scenario=str(each.source), seconds=seconds, facts=facts))
    reporter.done()
    return CheckedFacts(scenarios=tuple(checked))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A scenario with facts, and those that it is compared against by their overrides; "" is the scenario itself."""

    source: str | Path
    variants: Mapping[str, Scenario]

    @classmethod
    def of(cls, source: str | Path) -> Self:
        make = loading(source)
        scenario = make(())
        if not scenario.published:
            raise ScenarioError(
                f"{source}: has no published facts to check; write them under published:, such as "
                "[{fact: io_share, value: 7 %}]"
            )
        variants = {fact.against: make(fact.overrides) for fact in scenario.published if fact.against}
        for variant in (scenario, *variants.values()):
            checks.check_simulated(variant)
        return cls(source, {"": scenario, **variants})

    @property
    def facts(self) -> tuple[Fact, ...]:
        return self.variants[""].published

    @property
    def needs_requests(self) -> bool:
        return any(fact.measure.is_of_requests for fact in self.facts)


def checked_fact(fact: Fact, seen: Mapping[str, Observed]) -> CheckedFact:
    """Return a fact with its simulated number and its verdict.

    Args:
        fact: the published fact.
        seen: what was simulated, by overrides (``against``); "" is the scenario itself.
    """
    simulated = fact.measure.of(seen[""], fact.size_bytes)
    if simulated is not None and fact.against:
        other = fact.measure.of(seen[fact.against], fact.size_bytes)
        simulated = simulated / other if other else None
    name = " ".join(part for part in (fact.fact, fact.size, f"against {fact.against}" if fact.against else "") if part)
    return CheckedFact(
        fact=name,
        published=fact.value,
        emulated="" if simulated is None else _written(simulated, fact),
        number=fact.number,
        simulated=simulated,
        difference=None if simulated is None or fact.bound else simulated / fact.number - 1,
        verdict=_verdict(fact, simulated),
        reason=fact.contradicts or fact.differs,
        source=fact.source,
    )


def _verdict(fact: Fact, simulated: float | None) -> str:
    if fact.contradicts:
        return CONTRADICTS
    if fact.kind != "checked":
        return INPUT if fact.kind == "input" else ASSUMED
    if simulated is None:
        return UNKNOWN
    if _is_near(fact, simulated):
        return NEEDLESS if fact.differs else AGREES
    return DIFFERS if fact.differs else UNEXPLAINED


def _is_near(fact: Fact, simulated: float) -> bool:
    """Return True if a number is within the bound, or differs by at most the tolerance."""
    match fact.bound:
        case "<":
            return simulated < fact.number
        case ">":
            return simulated > fact.number
        case _:
            return abs(simulated / fact.number - 1) <= fact.share


def _written(simulated: float, fact: Fact) -> str:
    """Return a number in the unit of the published one, with four digits."""
    number = simulated / fact.worth
    digits = max(0, 3 - math.floor(math.log10(abs(number)))) if number else 0
    text = f"{number:,.{min(digits, 6)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {fact.unit}".strip()
