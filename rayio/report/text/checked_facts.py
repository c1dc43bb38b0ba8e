"""Published facts next to simulated ones: the terminal's text, and tables in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
)
from rayio.report.text.folding import fit
from rayio.report.text.terms import counted

#: Verdicts in words.
WORDS = {
    AGREES: "agrees",
    DIFFERS: "differs",
    INPUT: "input",
    ASSUMED: "assumed",
    CONTRADICTS: "source contradicts itself",
    UNEXPLAINED: "differs, unexplained",
    NEEDLESS: "agrees; remove its differs:",
    UNKNOWN: "unknown: the run does not have it",
}
_HEAD = ("fact", "published", "emulated", "difference", "verdict")


def text(checked: CheckedFacts, width: int | None = None) -> str:
    """Return a table for each scenario, reasons below their rows, and the counts of verdicts."""
    lines: list[str] = []
    for scenario in checked.scenarios:
        rows = [_HEAD, *map(_cells, scenario.facts)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines.append(scenario.scenario)
        for number, row in enumerate(rows):
            cells = [f"{row[0]:<{widths[0]}}", *(f"{cell:>{widths[n]}}" for n, cell in enumerate(row[1:4], 1)), row[4]]
            lines.append(f"  {'  '.join(cells)}")
            if number and (reason := scenario.facts[number - 1].reason):
                lines.append(f"      {reason}")
        lines.append("")
    lines.append(summary(checked))
    return fit("\n".join(lines), width)


def summary(checked: CheckedFacts) -> str:
    """Return the counts of verdicts in a sentence."""
    verdicts = Counter(fact.verdict for scenario in checked.scenarios for fact in scenario.facts)
    counts = ", ".join(f"{verdicts[verdict]} {word.partition(':')[0]}" for verdict, word in WORDS.items()
                       if verdicts[verdict])  # fmt: skip
    return f"{counted(verdicts.total(), 'fact')} of {counted(len(checked.scenarios), 'scenario')}: {counts}"


def _cells(fact: CheckedFact) -> tuple[str, ...]:
    return fact.fact, fact.published, fact.emulated or "-", _difference(fact) or "-", WORDS[fact.verdict]


def _difference(fact: CheckedFact) -> str:
    return "" if fact.difference is None else f"{round(100 * fact.difference, 1) + 0.0:+,.1f} %"


def markdown(checked: CheckedFacts) -> str:
    """Return one table of all scenarios in Markdown, and below it a list of the reasons."""
    lines = ["| workload | fact | published | emulated | difference | verdict |", "|---|---|---|---|---|---|"]
    for scenario in checked.scenarios:
        for number, fact in enumerate(scenario.facts):
            name = f"`{scenario.scenario}`" if not number else ""
            verdict = f"**{WORDS[fact.verdict]}**" if fact.verdict in (UNEXPLAINED, NEEDLESS, UNKNOWN) else fact.verdict
            cells = (name, fact.fact, fact.published, fact.emulated, _difference(fact), verdict)
            lines.append(f"| {' | '.join(cell.replace('<', '&lt;') for cell in cells)} |")
    reasons = [*_reasons(checked)]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])


def _reasons(checked: CheckedFacts) -> Iterator[str]:
    from textwrap import wrap

    for scenario in checked.scenarios:
        for fact in scenario.facts:
            if fact.reason:
                sentence = f"**{scenario.scenario}, {fact.fact}** ({fact.verdict}): {fact.reason}"
                yield "\n".join(
                    wrap(sentence, 118, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
                )
