"""What the stories in tests/hostile did and what became of it: counted by each, printed at the end of the suite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

#: What a story counts, as the last line names it.
KILLS, STOPS, SIGNALS, PIPES, KEPT = "kills", "processes stopped", "signals sent", "pipes laid", "results kept"


def lines(stats: dict[str, list[Any]]) -> list[str]:
    """Say how many stories ended as they should, by file, and what they did; nothing where none was run.

    ``stats`` has the reports of the suite, by outcome; those of a test's end have all that it counted.
    """
    right: Counter[str] = Counter()
    told: Counter[str] = Counter()
    did: Counter[str] = Counter(dict.fromkeys((KILLS, STOPS, SIGNALS, PIPES, KEPT), 0))
    for outcome in ("passed", "failed", "error", ""):
        for report in stats.get(outcome, []):
            if "/hostile/" not in report.nodeid.split("::")[0]:
                continue
            if report.when == "call":
                name = Path(report.nodeid.split("::")[0]).stem.removeprefix("test_").replace("_", " ")
                told[name] += 1
                right[name] += outcome == "passed"
            elif report.when == "teardown":
                did.update({what: number for what, number in report.user_properties if what in did})
    if not told:
        return []
    by_file = [f"{name}: {right[name]} of {number}" for name, number in sorted(told.items())]
    return [
        *by_file,
        f"in all {right.total()} of {told.total()} stories ended as they should",
        ", ".join(f"{number} {what}" for what, number in did.items()),
    ]
