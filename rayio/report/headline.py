"""The head of a report: badges, the verdict, four large numbers, the rest.

The numbers are written as the summary writes them, from the same result: one number is equal wherever it appears.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rayio.analyze.stages import shown
from rayio.analyze.verdict import begins_slowly, bound_of, of_wall_time
from rayio.records.doubts import Doubt
from rayio.records.explained import Explained
from rayio.records.metric_names import lookup
from rayio.records.origin import IMPORTED, storage_words
from rayio.records.run_result import Imported, RunResult
from rayio.report.content import Content
from rayio.report.definitions import term
from rayio.report.markup import Html, escape, trouble
from rayio.report.text.conclusion import largest_loss
from rayio.report.text.delivered import format_done, of_replica
from rayio.report.text.doubts import title as title_of
from rayio.report.text.doubts import worded
from rayio.report.text.summary import fetched_line, fetched_row, transfer_rows, whose_overhead
from rayio.report.text.terms import counted, seconds
from rayio.scenario import derive
from rayio.scenario.expect import Condition
from rayio.units import UNKNOWN, format_mib_rate, format_number, format_seconds, format_share

#: Keys of result.json, by the names of their rows.
_TRANSFERS = {
    "saving": "saved.mib_per_second", "restoring": "restored.mib_per_second", "draining": "drained.mean_lag",
}  # fmt: skip

#: Changes that nobody can make, which tell what limits a run: ``With connections = ∞``.
_UNREAL = re.compile(r"= (∞|0)(?!\S)|\bno (throttling|slow ranks)\b")

#: Of a bottleneck that no simulation names.
BY_SHARE = (
    "Named without simulations, by the share of step time; rayio explain simulates changes, and may name another cause."
)

#: A number: key of result.json (empty without one), term, name, value, unit or remark.
Number = tuple[str, str, str, str, str]


def head(content: Content) -> str:
    """Return the badges, the verdict with its action, and the numbers."""
    large, small = numbers(content)
    verdict = _verdict(content.explanation, is_simulated=content.is_simulated) + warnings(content.doubts)
    return _badges(content) + verdict + _tiles(large, "tiles") + _tiles(small, "tiles small")


def badge(result: RunResult | None, target: Condition | None, *, is_dlio: bool = False) -> tuple[str, str]:
    """Compare the AU of a run with its scenario's ``expect``; return a class (met, missed, none) and words.

    With ``is_dlio`` the target names AU by DLIO's formula, in percent.

    >>> badge(None, None)
    ('none', 'no target AU is set')
    """
    if target is None:
        return "none", "no target AU is set"
    name, unit = ("AU by DLIO's formula", 100) if is_dlio else ("AU", 1)
    wanted = f"{target.operator} {100 * target.value / unit:g} %"
    au = None if result is None else result.au_dlio if is_dlio else result.au
    if au is None:
        return "none", f"{name} is unknown; the target is {wanted}"
    message = f"{name} {format_share(au / unit)}, wanted {wanted}"
    return ("met", f"✓ target met: {message}") if target.holds(au) else ("missed", f"✗ target missed: {message}")


def unfinished(content: Content) -> str:
    """Return how much of an incomplete run was done; empty for a complete one."""
    result, share = content.result, None
    if result is not None and result.ledger is not None:
        if result.ledger.even is not None:
            return ""
        share = result.ledger.share_done
    elif content.has_no_result and result is not None and content.scenario is not None:
        share = (result.steps or 0) / max(derive.total_rank_steps(content.scenario), 1)
    elif result is not None and not content.has_no_result:
        return ""
    how = "interrupted" if result and result.exit_code == 130 else "not complete"
    return how if share is None else f"{how}: {format_done(share)}"


def _badges(content: Content) -> str:
    expected = content.scenario.expect if content.scenario else {}
    is_dlio = "au" not in expected and "au_dlio" in expected
    kind, words = badge(content.result, expected.get("au_dlio" if is_dlio else "au"), is_dlio=is_dlio)
    broke_off = unfinished(content)
    early = f'<span class="badge missed">{escape(broke_off)}</span>' if broke_off else ""
    titles = dict.fromkeys(map(title_of, content.doubts))
    late = "".join(f'<span class="badge missed">{escape(text)}</span>' for text in titles)
    return f'<p class="badges">{early}<span class="badge {kind}">{escape(words)}</span>{late}</p>'


def _verdict(explained: Explained | None, *, is_simulated: bool = True) -> str:
    """Return the first sentence as the verdict, the last as the action, those between small."""
    if explained is None:
        return ""
    sentences = re.split(r"(?<=\.) (?=[A-Z0-9])", explained.sentence)
    has_action = (
        explained.prediction is not None and len(sentences) > 1 and explained.prediction.change in sentences[-1]
    )
    action = sentences.pop() if has_action else ""
    if not is_simulated and explained.verdict.cause is not None:
        sentences.append(BY_SHARE)
    more = f'<p class="more">{marked(" ".join(sentences[1:]))}</p>' if sentences[1:] else ""
    heading = "To do" if explained.prediction is None or not _UNREAL.search(explained.prediction.change) else "Limit"
    todo = f'<p class="action"><b>{heading}:</b> {marked(action)}</p>' if action else ""
    colour = f" c-{explained.verdict.cause}" if explained.verdict.cause else ""
    return f'<div class="verdict{colour}"><p>{marked(sentences[0])}</p>{todo}{more}</div>'


def warnings(doubts: Sequence[Doubt]) -> str:
    """Return doubts with their remedies as a list; nothing without any."""
    return trouble([marked(doubt.sentence) for doubt in worded(doubts)], "doubts")


def marked(text: str) -> Html:
    """Return a text as HTML, with the words between backticks as code."""
    return Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def numbers(content: Content) -> tuple[list[Number], list[Number]]:
    """Return the four numbers that are shown large, and the others."""
    result = content.result
    if result is None:
        return [], []
    if result.imported is not None:
        large, small = _of_import(result)
    else:
        large, small = [_read(result), _au(result), _throughput(result)], []  # measured numbers come first
        large += [lost] if (lost := _lost_most(content.explanation)) else []
    small += _others(result)
    if result.imported is None:  # the tile of AU tells that no step was measured
        large = [row for row in large if row[0] == "au" or lookup(result, row[0]) is not None or row[3] != UNKNOWN]
    if result.imported is None or result.imported.has_no_steps:  # unknown numbers are in the notes, not in tiles
        small = [row for row in small if lookup(result, row[0]) is not None]
    return large, small


def _au(result: RunResult) -> Number:
    if result.au is None and result.imported is None:
        return "au", "au", "AU", "not measured", "no step after the warm-up"
    remark = "of step time"
    if result.au is not None and result.au_interval_low is not None and result.au_interval_high is not None:
        off = max(result.au - result.au_interval_low, result.au_interval_high - result.au)
        remark = f"± {format_share(off)} in 95 of 100 cases"
    if (bounds := result.between) is not None and bounds.au_low is not None:
        remark = f"predicted between {format_share(bounds.au_low)} and {format_share(bounds.au_high)}"
    if result.world_size > 1 and result.au is not None:
        remark += f"; {format_share(result.au_min)} to {format_share(result.au_max)} over ranks"
    return "au", "au", "AU", format_share(result.au), remark


def _throughput(result: RunResult) -> Number:
    value, remark = result.samples_per_second, ": ".join(filter(None, ("samples/s", of_replica(result))))
    if value is None:
        return "samples_per_second", "rate", "throughput", format_number(value), ""
    if (bounds := result.between) is not None and bounds.au_low is None:
        low, high = map(format_number, bounds.rates(value))
        remark = f"samples/s, predicted between {low} and {high}"
    return "samples_per_second", "rate", "throughput", format_number(value), remark


def _read(result: RunResult) -> Number:
    """Return the bytes read a second, and their source: the device, memory, or a model."""
    value = format_mib_rate(result.mib_per_second)
    origin = result.origin
    if result.fetched is not None:
        remark = fetched_line(result.fetched)
    elif origin is not None and origin.storage == "modelled":
        remark = f"from a model of storage, {storage_words(origin)[0]}"
    elif origin is not None and origin.kind == IMPORTED:
        remark = "not in the results"
    else:
        remark = "from storage or the page cache: not recorded"
    return "mib_per_second", "read-rate", "read", value, remark


def _lost_most(explained: Explained | None) -> Number | None:
    """Return what took most time: failures, the wait for first batches, or a cause of loss in the counted steps.

    Causes of one bottleneck count together, as in the verdict.
    """
    if explained is None:
        return None
    verdict, failures = explained.verdict, explained.failures
    bound = max(verdict.bounds, key=lambda name: verdict.bounds[name], default=None)
    share = 0.0 if bound is None else verdict.bounds[bound]
    failed = 0.0 if failures is None else failures.lost_share or 0.0
    first = (verdict.first_batches_share or 0.0) if begins_slowly(verdict) else 0.0
    if failures is not None and failed > max(first, of_wall_time(verdict, share, failed)):
        remark = f"of wall time, in {counted(failures.restarts, 'restart')}"
        return "", "span-restart", "lost most to failures", format_share(failed), remark
    if first > of_wall_time(verdict, share, failed):
        return "", "span-data_wait", "lost most to first batches", format_share(first), "of wall time, before AU counts"
    if bound is None or (largest := largest_loss(verdict)) is None:
        return None
    most, together = largest
    if together is None:
        remark = f"of step time, in all {format_seconds(most.seconds)}: {most.meaning}"
        return "", f"cause-{most.cause}", f"lost most to {shown(most.cause)}", format_share(most.share), remark
    seconds_of_all = sum(row.seconds for row in verdict.table if bound_of(row.cause) == bound)
    remark = f"of step time, in all {format_seconds(seconds_of_all)}: most of it {shown(most.cause)}"
    return "", "exposed", "lost most to data loading", format_share(share), remark


def _of_import(result: RunResult) -> tuple[list[Number], list[Number]]:
    """Return the numbers of an import: its benchmark's large, rayio's for the same records small."""
    from rayio.imports.dlio_losses import largest  # few runs are imported

    imported = result.imported
    assert imported is not None
    if imported.au is None:
        return _of_imported_checkpoints(imported), []
    published = imported.published_au
    has_other = published is not None and not imported.reduced and f"{published:.2f}" != f"{imported.au:.2f}"
    remark = f"by DLIO's formula; published {published:.2f} %" if has_other else "by DLIO's formula, as published"
    large: list[Number] = [("au_dlio", "au-dlio", "AU", f"{imported.au:.2f} %", remark)]
    rate = result.samples_per_second_dlio
    large.append(
        ("samples_per_second_dlio", "au-dlio", "throughput", format_number(rate), "samples/s, as published")
        if rate is not None
        else _throughput(result)
    )
    if not imported.reduced:
        large.append(_read(result))
    if (lost := largest(imported)) is not None:
        name, points, meaning = lost
        large.append(("", "au-dlio", f"lost most to {name}", f"{points:.2f} points", meaning))
    return large, [_au(result), _throughput(result)] if not imported.reduced else []


def _of_imported_checkpoints(imported: Imported) -> list[Number]:
    """Return the published rates of checkpoints without training."""
    large: list[Number] = []
    for name, key, moved in (("saving", "saved", imported.saved), ("restoring", "restored", imported.restored)):
        if moved is not None:
            rate = UNKNOWN if moved.mib_per_second is None else f"{format_number(moved.mib_per_second)} MiB/s"
            remark = "as published" + ("" if moved.seconds is None else f", {format_seconds(moved.seconds)} on rank 0")
            large.append((f"imported.{key}.mib_per_second", name, name, rate, remark))
    return large


def _others(result: RunResult) -> list[Number]:
    others, steps = whose_overhead(result), result.steps or 0
    rows: list[Number] = [
        ("data_wait_share", "exposed", "data loading", format_share(result.data_wait_share), "of step time, exposed"),
        ("sync_share", "share", "sync", format_share(result.sync_share), "of step time"),
        ("other_share", "overhead", "overhead", format_share(result.other_share, 2), f"of step time, {others}"),
        ("goodput", "goodput", "goodput", format_share(result.goodput), "of wall time"),
        ("wall_seconds", "wall", "wall time", seconds(result.wall_seconds), f"{steps:,} step{'s' * (steps != 1)}"),
    ]
    if fetched := result.fetched:
        name, value, rest = fetched_row(fetched)
        rows.insert(0, ("fetched.fetched_bytes", "fetched", name, value, rest))
    if result.au_dlio is not None and result.imported is None:
        rate = format_number(result.samples_per_second_dlio)
        rows.append(("au_dlio", "au-dlio", "as DLIO", f"{result.au_dlio:.1f} %", f"{rate} samples/s"))
    for name, value, rest in transfer_rows(result):
        rows.append((_TRANSFERS[name], name, name, value, rest))
    if rounds := result.evaluation:
        remark = f"{rounds.rounds} evaluation{'s' * (rounds.rounds != 1)}"
        rows.append(("evaluation.au", "eval-au", "evaluation", format_share(rounds.au), remark))
    return rows


def _tiles(rows: list[Number], name: str) -> str:
    """Return numbers as tiles; ``data-key`` names the key of result.json that each shows."""
    if not rows:
        return ""
    tiles = ""
    for key, what, title, value, unit in rows:
        named = f' data-key="{key}"' if key else ""
        tiles += (
            f'<div class="tile"><span class="name">{term(what, title)}</span><b{named}>{escape(value)}</b>'
            f'<span class="unit">{escape(unit)}</span></div>'
        )
    return f'<div class="{name}">{tiles}</div>'
