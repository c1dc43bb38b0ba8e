"""How often is `rayio compare` wrong? False positives of identical runs, and power on a true difference of 1.4 %.

120 virtual seeds of one scenario whose ranks wait for batches, and the same seeds with decoding that is 6 % faster,
which makes the run 1.4 % faster. Groups of five runs are drawn from them, 1000 times. Goals: at most 5 % of identical
groups are called different, and at least 80 % of true differences are found with five pairs. Next to it two rules that
people use instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from machine import print_machine

from rayio.analyze.compare import Compared, compare
from rayio.records.comparison import FASTER, SLOWER
from rayio.records.run_result import RunResult
from rayio.scenario.load import load
from rayio.session.conclude import in_memory

SEEDS, GROUP, DRAWS = 120, 5, 1000
#: Mean decoding time of a sample in both scenarios, in seconds.
DECODE = (0.030, 0.0282)
KEYS = {
    "dataset.path": "model://small",
    "dataset.num_files": 336,
    "storage.model": {
        "first_byte": {"kind": "exponential", "mean": 0.030},
        "connection_bandwidth": 90e6,
        "bandwidth": 1e9,
    },
    "train.compute": {"kind": "normal", "mean": 0.100, "stdev": 0.010},
    "loader.num_workers": 3,
    "train.epochs": 2,
    "checkpoint": "none",
}
#: A rule of the left group and the right one: are they different?
Rule = Callable[[Sequence[Compared], Sequence[Compared]], bool]


def runs(decode: float) -> list[RunResult]:
    """Return the results of all seeds with a mean decoding time."""
    keys = KEYS | {"loader.decode": {"kind": "exponential", "mean": decode}}
    return [in_memory(load("unet3d-small", keys | {"seed": seed})) for seed in range(SEEDS)]


def side(name: str, results: Sequence[RunResult], drawn: Sequence[int], seeds: Sequence[int]) -> list[Compared]:
    """Return drawn results as the runs of one group, with the seeds that its scenarios shall have."""
    return [
        Compared(f"{name}{seed}", results[number], {"name": name, "seed": seed}, {"engine": "virtual"})
        for number, seed in zip(drawn, seeds, strict=True)
    ]


def by_compare(a: Sequence[Compared], b: Sequence[Compared]) -> bool:
    return compare([*a, *b]).verdicts[0].outcome in (FASTER, SLOWER)


def rates(group: Sequence[Compared]) -> list[float]:
    return [run.result.samples_per_second or 0.0 for run in group]


def by_one_percent(a: Sequence[Compared], b: Sequence[Compared]) -> bool:
    return abs(fmean(rates(b)) / fmean(rates(a)) - 1) > 0.01


def by_first_run(a: Sequence[Compared], b: Sequence[Compared]) -> bool:
    return abs(rates(b)[0] / rates(a)[0] - 1) > 0.01


RULES: dict[str, Rule] = {"compare": by_compare, "means > 1 %": by_one_percent, "one run each > 1 %": by_first_run}


def share(rule: Rule, groups: Callable[[random.Random], tuple[list[Compared], list[Compared]]]) -> float:
    draw = random.Random(5)
    return sum(rule(*groups(draw)) for _ in range(DRAWS)) / DRAWS


def main() -> None:
    print_machine()
    slow, fast = map(runs, DECODE)
    before, after = ([result.samples_per_second or 0.0 for result in each] for each in (slow, fast))
    change = fmean(after) / fmean(before) - 1
    print(
        f"{SEEDS} seeds: {fmean(before):.1f} samples/s, a run varies by {100 * stdev(before) / fmean(before):.1f} %; "
        f"the other scenario is {100 * change:.2f} % faster"
    )
    first = [*range(GROUP)]

    def identical(draw: random.Random, other: Sequence[int]) -> tuple[list[Compared], list[Compared]]:
        drawn = draw.sample(range(SEEDS), 2 * GROUP)
        return side("a", slow, drawn[:GROUP], first), side("b", slow, drawn[GROUP:], other)

    def different(draw: random.Random, is_paired: bool) -> tuple[list[Compared], list[Compared]]:
        drawn = draw.sample(range(SEEDS), 2 * GROUP)
        of_b = drawn[:GROUP] if is_paired else drawn[GROUP:]
        return side("a", slow, drawn[:GROUP], drawn[:GROUP]), side("b", fast, of_b, of_b)

    apart = [seed + GROUP for seed in first]
    cases = {
        "identical, other seeds": (lambda draw: identical(draw, apart), "<= 5 %"),
        "identical, as pairs": (lambda draw: identical(draw, first), "<= 5 %"),
        f"{100 * change:.1f} % faster, five pairs": (lambda draw: different(draw, True), ">= 80 %"),
        f"{100 * change:.1f} % faster, other seeds": (lambda draw: different(draw, False), ""),
    }
    print("\n| groups of five | goal | " + " | ".join(RULES) + " |\n|---|---|" + "---|" * len(RULES))
    for name, (groups, goal) in cases.items():
        shares = [f"{100 * share(rule, groups):.1f} %" for rule in RULES.values()]
        print(f"| {name} | {goal} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
