"""The answer of advise: sentences for the terminal and the page, and the terminal's text."""

from __future__ import annotations

from textwrap import wrap

from rayio.records.doubts import LIMIT, SETTING, Doubt, blocking
from rayio.records.sizing import HOLDS, UNDECIDED, Advised, Setting
from rayio.report.text.doubts import reasons
from rayio.report.text.sizing import note_lines, warning_lines, with_interval
from rayio.report.text.sizing_notes import LONGER
from rayio.report.text.terms import counted, kept, left_out
from rayio.schema.fields import show
from rayio.units import format_bytes, format_rate, format_share

#: Names of keys in a headline, by their last part; the others keep their names.
SHORT = {"num_workers": "worker", "nodes": "node", "ranks_per_node": "rank"}
AS_WORDS = {"prefetch_factor": "prefetch"}


def headline(advised: Advised) -> str:
    """Return the answer in one sentence."""
    target = goal(advised)
    if unsure := blocking(advised.doubts, SETTING):
        return f"no advice which setting reaches {target} ({reasons(unsure)})"
    if advised.advice is not None:
        but, words = f"{shorter(advised)}{_missed(advised)}", in_words(advised, advised.advice)
        if advised.equally_priced == advised.possible > 1:
            return f"{words}: the highest AU of {advised.possible} settings at one price; it reaches {target}{but}"
        return f"{words}: the cheapest setting that reaches {target}{but}"
    if not advised.is_finished:
        return "the search was interrupted before it knew the cheapest setting"
    if unsure := blocking(advised.doubts, LIMIT):
        return f"no advice which setting reaches {target} ({reasons(unsure)})"
    if (best := best_of(advised)) is not None and best.status == UNDECIDED:
        au = with_interval(best.au, best.au_high)
        return f"undecided whether {target} is reached: {in_words(advised, best)}, AU {au}, may reach it; {LONGER}"
    near = ""
    if best is not None:
        near = f"; the nearest is {in_words(advised, best)}, AU {with_interval(best.au, best.au_high)}"
    return f"no setting reaches {target}{near}"


def shorter(advised: Advised) -> str:
    """Return that the setting misses the goal in the scenario's own short epochs; empty if it reaches it there."""
    if (own := advised.as_written) is None or own.au is None or own.reaches:
        return ""
    return (
        f" in epochs of {own.searched_steps} steps; in those of the scenario ({counted(own.steps, 'step')}) AU is only "
        f"{format_share(own.au)}"
    )


def _missed(advised: Advised) -> str:
    """Return that the run of the setting misses the goal; empty if it reaches it, or without a run."""
    if (check := advised.check) is None or check.reaches:
        return ""
    return f", but a run with --engine {check.engine} had AU {format_share(check.au)}"


def best_of(advised: Advised) -> Setting | None:
    """Return the setting with the highest AU, if there are undecided ones that of them; None if none is known."""
    known = [setting for setting in advised.tried if setting.au is not None]
    return max(known, key=lambda setting: (setting.status == UNDECIDED, setting.au or 0.0), default=None)


def nearest(advised: Advised) -> list[str]:
    """Return what keeps the best setting from the goal, if none reaches it."""
    best = best_of(advised)
    if advised.bottleneck is None or best is None:
        return []
    return [f"Bottleneck of {in_words(advised, best)}: {advised.bottleneck.sentence}"]


def lost(advised: Advised) -> list[str]:
    """Return how many samples the advised or nearest setting leaves out; empty if hardly more than now."""
    if advised.advice is not None:
        return left_out(advised.advice.left_out, "The advised setting")
    best = best_of(advised)
    return [] if best is None else left_out(best.left_out, "The nearest setting")


def bandwidth(setting: Setting) -> list[str]:
    """Return the bandwidth that a setting needs and uses; empty if unknown."""
    if setting.bytes_per_second is None or setting.needed_bytes_per_second is None:
        return []
    need, got = format_rate(setting.needed_bytes_per_second), format_rate(setting.bytes_per_second)
    return [f"The ranks at 100 % AU need {need}; at AU {format_share(setting.au)} they used {got}."]


def goal(advised: Advised) -> str:
    """Return the goal in words."""
    return f"{'AU' if advised.goal == 'au' else 'AU as DLIO counts it'} ≥ {100 * advised.target_au:g} %"


def in_words(advised: Advised, setting: Setting) -> str:
    """Return a setting in a few words: ``13 workers × prefetch 5``."""
    parts = []
    for key, value in zip(advised.varied, setting.values, strict=True):
        last = key.rpartition(".")[2]
        if last in SHORT and isinstance(value, int):
            parts.append(counted(value, SHORT[last]))
        else:
            parts.append(f"{AS_WORDS.get(last, last)} {shown(value)}")
    return " × ".join(parts)


def overrides(advised: Advised, setting: Setting) -> str:
    """Return a setting as overrides of a command."""
    return " ".join(f"{key}={shown(value)}" for key, value in zip(advised.varied, setting.values, strict=True))


def searched(advised: Advised) -> str:
    """Return how the settings were searched."""
    dear = ", then ".join(advised.priced_by)
    runs = "in 1 run" if advised.simulations == 1 else f"in {advised.simulations} runs"
    were = "was" if len(advised.tried) == 1 else "were"
    of = counted(advised.possible, "setting")
    text = f"By price, {dear}: of {of} {len(advised.tried)} {were} simulated, {runs}."
    if 1 < advised.equally_priced < advised.possible:
        return f"{text} At the price of the advised setting there are {advised.equally_priced}; its AU is the highest."
    return text


def checked(advised: Advised) -> str:
    """Return the outcome of the run of the advised setting; empty without one."""
    if (check := advised.check) is None:
        return ""
    verdict = "reaches it" if check.reaches else "does not reach it"
    return f"Run once with --engine {check.engine}: AU {format_share(check.au)}, which {verdict} ({check.directory})."


def doubts(advised: Advised) -> tuple[Doubt, ...]:
    """Return the doubts about the search, and about the run of the setting."""
    return (*advised.doubts, *(() if advised.check is None else advised.check.doubts))


def text(advised: Advised, width: int = 100) -> str:
    """Return the advice: the setting, the search, every setting that was simulated, and the check."""
    if not advised.tried:
        return "interrupted before the first setting was over: nothing is known yet"
    lines = wrap(headline(advised), width, break_long_words=False, break_on_hyphens=False)
    if advised.advice is not None:
        lines.append(f"  {overrides(advised, advised.advice)}")
    head, rows = table(advised)
    places = kept([head, *rows], width, "nodes", "memory", "workers")
    head, *rows = ([row[place] for place in places] for row in (head, *rows))
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines += [
        "",
        *("  " + "  ".join(f"{c:>{n}}" for c, n in zip(row, wide, strict=True)).rstrip() for row in [head, *rows]),
    ]
    best = advised.advice or best_of(advised)
    used = [] if best is None else [*lost(advised), *bandwidth(best)]
    sentences = [searched(advised), *used, *nearest(advised), checked(advised)]
    lines += ["", *(line for sentence in sentences for line in wrap(sentence, width, break_long_words=False))]
    lines += warning_lines(doubts(advised), width)
    return "\n".join([*lines, *(line for note in advised.notes for line in note_lines(note, width))])


def table(advised: Advised) -> tuple[list[str], list[list[str]]]:
    """Return the heading and a row for each simulated setting, by price."""
    head = [*(name.rpartition(".")[2] for name in advised.varied), "AU", "", "workers", "memory", "nodes"]
    rows = [
        [
            *map(shown, setting.values), with_interval(setting.au, setting.au_high), verdict(advised, setting),
            f"{setting.price.workers:,}", format_bytes(setting.price.memory), str(setting.price.nodes),
        ]
        for setting in advised.tried
    ]  # fmt: skip
    return head, rows


def verdict(advised: Advised, setting: Setting) -> str:
    """Return whether a setting reaches the goal; the advised one is marked."""
    if setting == advised.advice:
        return "advised"
    return {HOLDS: "reaches it", "fails": "misses it"}.get(setting.status, setting.status)


def shown(value: object) -> str:
    """Return a value of a key as a scenario has it."""
    return value if isinstance(value, str) else show(value)
