"""A result as one screen of text, and as an answer to what the scenario expects."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rayio.dlio.losses import LOSSES
from rayio.errors import ScenarioError
from rayio.results.metrics import METRICS, SPLIT
from rayio.scenario.expect import Condition
from rayio.units import format_bytes, format_seconds

_WHAT = {
    "startup": "until the first batch was asked for",
    "data_wait": "waiting for a batch",
    "compute": "computing, as requested",
    "sync": "waiting for slower ranks, all-reduce",
    "checkpoint": "blocked by checkpoints",
    "evaluate": "evaluating",
    "restart": "lost to failures",
    "other": "rayio's own overhead",
}


def check_names(expect: Mapping[str, Condition]) -> None:
    """Refuse conditions on metrics that do not exist; to be called before the run.

    Raises:
        ScenarioError: names the metric and the nearest ones there are.
    """
    for name in expect:
        if name not in METRICS:
            near = get_close_matches(name, METRICS, n=3) or METRICS[:3]
            raise ScenarioError(f"expect: no metric named {name!r}; did you mean {', '.join(near)}?")


def check_expectations(expect: Mapping[str, Condition], result: Mapping[str, Any]) -> list[str]:
    """Give one line for each condition that does not hold: ``au 0.87 is not >= 0.9``.

    Raises:
        ScenarioError: a condition names a metric that does not exist.
    """
    check_names(expect)
    unmet = []
    for name, condition in expect.items():
        value = lookup(result, name)
        if value is None:
            unmet.append(f"{name} is not known, so it is not {condition}")
        elif not condition.holds(value):
            unmet.append(f"{name} {_number(value, condition)} is not {condition}")
    return unmet


def lookup(result: Mapping[str, Any], name: str) -> float | None:
    """Give a number by its dotted name (``percentiles.data_wait.p99``); None where the result has none."""
    value: Any = result
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def _number(value: float, condition: Condition) -> str:
    """Write a value with as few digits as show that it fails the condition."""
    for digits in range(3, 17):
        text = f"{value:.{digits}g}"
        if not condition.holds(float(text)):
            return text
    return repr(value)


def summary(
    result: Mapping[str, Any], *, run: Path | str | None = None, dropped_samples: int = 0, capped_samples: int = 0
) -> str:
    """Write a result as plain text of at most 40 lines, 80 columns but for notes and paths.

    ``dropped_samples`` and ``capped_samples`` are per epoch: what ``drop_last`` and ``train.steps`` leave unread. Parts
    that the result lacks are left out.
    """
    lines = [_title(result), "", *_headline(result), "", *_split(result)]
    lines += ["", *times] if (times := _percentiles(result)) else []
    lines += ["", *points] if (points := dlio_points(result.get("imported"))) else []
    lines += ["", *_books(result, dropped_samples, capped_samples)]
    lines += [f"  note: {note}" for note in result.get("notes", ())]
    if run is not None:
        lines += ["", f"  run directory  {run}"]
    return "\n".join(lines) + "\n"


def _title(result: Mapping[str, Any]) -> str:
    ranks = result.get("world_size", 0)
    name, engine = result.get("scenario", "run"), result.get("engine", "unknown")
    wall = format_seconds(result.get("wall_seconds") or 0.0)
    on = f"{ranks} ranks together" if ranks != 1 else "1 rank"
    if result.get("imported"):
        return f"{name}, imported from results of DLIO: {result.get('steps', 0)} steps of {on}, {wall}"
    return f"{name} on the {engine} engine: {result.get('steps', 0)} steps of {on}, {wall}"


def _headline(result: Mapping[str, Any]) -> list[str]:
    low, high = _percent(result.get("au_min")), _percent(result.get("au_max"))
    window = result.get("window_seconds")
    measured = (
        f"measured over {result.get('window_steps')} steps per rank, {format_seconds(window)}"
        if window is not None
        else "no steps to measure over"
    )
    rows = [
        ("AU", _percent(result.get("au")), f"min {low}, max {high} over ranks; {measured}"),
        ("throughput", f"{_decimal(result.get('samples_per_second'))} samples/s", ""),
        ("read", f"{_decimal(result.get('mib_per_second'))} MiB/s", ""),
        ("data wait", _percent(result.get("data_wait_share")), "of step time"),
        (
            "overhead",
            _percent(result.get("other_share"), 2),
            "of step time (in no record)" if result.get("imported") else "of step time (rayio's own)",
        ),
        ("goodput", _percent(result.get("goodput")), "of wall time was compute that counts"),
    ]
    if result.get("au") is None:
        rows[0] = ("AU", "unknown", measured)
    if result.get("au_dlio") is not None:
        rate = _decimal(result.get("samples_per_second_dlio"))
        rows.append(("as DLIO", f"{result['au_dlio']:.1f} %", f"AU by DLIO's formula, {rate} samples/s"))
    if found := result.get("evaluation"):
        low, high, each = _percent(found["au_min"]), _percent(found["au_max"]), _seconds(found["mean_seconds"])
        remark = f"AU of evaluation, min {low}, max {high} over ranks; {found['rounds']} of {each} each"
        rows.append(("evaluation", _percent(found["au"]), remark))
    return [f"  {name:<12}{value:>16}  {remark}".rstrip() for name, value, remark in rows]


def _split(result: Mapping[str, Any]) -> list[str]:
    time, share = result.get("time", {}), result.get("share", {})
    names = [name for name in SPLIT if name not in ("evaluate", "restart") or time.get(name)]
    what = meaning_of(result)
    lines = ["  where the ranks' time went (all ranks together)"]
    return lines + [
        f"  {name:<12}{_seconds(time.get(name)):>12}{_percent(share.get(name)):>10}  {what[name]}" for name in names
    ]


def meaning_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Say what each part of the ranks' time is."""
    return _WHAT | ({"other": "in no record of the results"} if result.get("imported") else {})


def _percentiles(result: Mapping[str, Any]) -> list[str]:
    rows = {name: row for name, row in result.get("percentiles", {}).items() if row and row["max"] > 0}
    if not rows:
        return []
    columns = ("mean", "p50", "p90", "p99", "max")
    lines = [f"  {'time of one':<12}{'count':>8}" + "".join(f"{column:>11}" for column in columns)]
    for name, row in rows.items():
        lines.append(f"  {name:<12}{row['count']:>8}" + "".join(f"{_seconds(row[column]):>11}" for column in columns))
    return lines


def dlio_points(told: Mapping[str, Any] | None) -> list[str]:
    """Say by DLIO's own formula where the points that AU lacks of 100 went, and what was published.

    ``told`` is what an imported result has under ``imported``; nothing is said of others.
    """
    if not told:
        return []
    published = told.get("published_au")
    said = f"; published {published:.2f}" if published is not None else ""
    lines = [f"  where DLIO's AU lost its points (the parts sum to 100){said}"]
    rows = {"au": "Σ compute / T"} | LOSSES
    points = {"au": told["au"], **told["lost_points"]}
    return lines + [f"  {name:<16}{points[name]:>8.2f}  {what}" for name, what in rows.items()]


def _books(result: Mapping[str, Any], dropped_samples: int, capped_samples: int) -> list[str]:
    lines = []
    if ledger := result.get("ledger"):
        state = {True: "even", False: "NOT EVEN", None: "not closed, the run broke off"}[ledger.get("even")]
        lines.append(
            f"  ledger {state}: {ledger.get('delivered_samples')} of {ledger.get('planned_samples')} planned samples"
            f" delivered, {ledger.get('skipped_samples')} skipped, {format_bytes(ledger.get('delivered_bytes') or 0)}"
        )
        lines += [f"    {difference}" for difference in ledger.get("differences", ())[:3]]
    if trace := result.get("trace"):
        recorded, stored = trace["recorded"], trace["stored"]
        how = "all stored" if recorded == stored else f"{stored} STORED"
        sent = f", {trace['exported']} exported" if "exported" in trace else ""
        sent += f", {trace['not_selected']} not selected" if "not_selected" in trace else ""
        lines.append(f"  trace level {trace['level']}: {recorded} spans recorded, {how}{sent}")
    if dropped_samples:
        lines.append(f"  drop_last dropped {dropped_samples} samples per epoch: they fill no whole batch on every rank")
    if capped_samples:
        lines.append(f"  train.steps left {capped_samples} samples per epoch unread")
    return lines


def _percent(share: float | None, digits: int = 1) -> str:
    return "unknown" if share is None else f"{100 * share:.{digits}f} %"


def _decimal(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if value < 1e5 else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else format_seconds(value)
