"""The output of ``rayio check-published --json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value
from rayio.records.run_result import Number

#: Verdicts that need no action: the fact agrees, or the scenario explains why it cannot or does not.
AGREES, DIFFERS, INPUT, ASSUMED, CONTRADICTS = "agrees", "differs", "input", "assumed", "contradicts"
#: Verdicts that end the command with exit code 3.
UNEXPLAINED, NEEDLESS, UNKNOWN = "unexplained", "needless", "unknown"
UNMET = frozenset({UNEXPLAINED, NEEDLESS, UNKNOWN})


@record
class CheckedFact(Record):
    """A published number next to the simulated one."""

    fact: str = value("the fact's name, with the size of requests_of and the overrides of against")
    published: str = value("the published number, as written")
    emulated: str = value("the simulated number, in the same unit; empty if the run does not have it")
    number: Number = value("the published number in base units (bytes, seconds, bytes/s, 1)")
    simulated: Number = value("the simulated number in base units", default=None)
    difference: Number = value("simulated / published - 1; null for bounds", "fraction", default=None)
    verdict: str = value(
        "agrees, differs (with the reason), input, assumed, contradicts (the source itself), unexplained (differs "
        "without a reason), needless (agrees, with a reason why it should not) or unknown (the run does not have it)"
    )
    reason: str = value("why it differs, or how the source contradicts itself", default="")
    source: str = value("where the number was published, if not as the scenario says", default="")


@record
class CheckedScenario(Record):
    """The facts of a scenario."""

    scenario: str = value("file or name of the scenario")
    seconds: float = value("time of its simulations", "s")
    facts: tuple[CheckedFact, ...] = value("its facts, in their order")


@record
class CheckedFacts(Record):
    """The output of ``check-published``."""

    worded_by = "rayio.report.text.checked_facts:text"

    scenarios: tuple[CheckedScenario, ...] = value("the scenarios, in their order")

    @property
    def unmet(self) -> int:
        """The number of facts with a verdict of ``UNMET``."""
        return sum(fact.verdict in UNMET for each in self.scenarios for fact in each.facts)
