"""The comparison of runs with its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rayio.analyze.compare import Compared
from rayio.analyze.compare import compare as computed
from rayio.records.comparison import Comparison
from rayio.report.text.comparison import notes_in_words, verdict_in_words
from rayio.report.text.doubts import worded


def compared(runs: Sequence[Compared]) -> Comparison:
    """Return the comparison of runs with its verdicts and notes in words."""
    comparison = computed(runs)
    comparison = replace(comparison, doubts=worded(comparison.doubts))
    verdicts = [replace(each, sentence=verdict_in_words(each, comparison)) for each in comparison.verdicts]
    return replace(comparison, verdicts=tuple(verdicts), notes=tuple(notes_in_words(comparison)))
