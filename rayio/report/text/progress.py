"""The progress of a run: a few lines, or one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rayio.analyze.stages import shown
from rayio.analyze.watching import OF_STEPS
from rayio.records.running import OVER, RUNNING, Live
from rayio.units import format_bytes, format_seconds

_ACTIVITIES = {"data_wait": "data loading", "evaluate": "evaluation", "overshoot": "overhead", "other": "other"}

#: A run that would last longer has no end shown.
_LONGEST_SECONDS = 1e9


def block(live: Live) -> str:
    """Return the state of a run, in a few lines."""
    return "\n".join(_printable(f"  {name:<12}{text}".rstrip() if name else text) for name, text in _lines(live))


def _lines(live: Live) -> Iterator[tuple[str, str]]:
    yield "", f"{live.scenario}  {live.run}  on {live.engine}: {_state(live)}"
    share = f" ({100 * live.steps / live.planned_steps:.0f} %)" if live.planned_steps else ""
    rate = live.recent.steps_per_second if live.recent is not None else None
    left = max(0, live.planned_steps - live.steps)
    is_near = rate is not None and left and rate * _LONGEST_SECONDS > left
    rest = f" · {rate:.3g}/s · about {format_seconds(round(left / rate))} left" if rate and is_near else ""
    yield "steps", f"{live.steps}/{live.planned_steps} rank-steps{share}{rest}"
    recent = live.recent
    if recent is not None:
        if recent.au is not None:
            yield "AU", f"{recent.au:.3f} {_when(live)}"
        rates = []
        if recent.samples_per_second is not None:
            rates.append(f"{recent.samples_per_second:.4g} samples/s")
        if recent.bytes_per_second is not None:
            rates.append(f"{recent.bytes_per_second / 2**20:.4g} MiB/s")
        if rates:
            yield "throughput", " · ".join(rates)
        if recent.shares:
            yield "time", shares(recent.shares, _ACTIVITIES)
    if live.waits:
        yield "data loading", shares(live.waits, {name: shown(name) for name in live.waits})
    if (queues := live.queues) is not None:
        flight = f" · {format_bytes(queues.in_flight_bytes)} in flight" if queues.in_flight_bytes else ""
        yield "queues", f"{queues.ready} batches ready · {queues.leased} with workers{flight}"
        yield "workers", f"{queues.readers}, {queues.busy_readers} of them busy"
    if live.restarts:
        yield "restarts", str(live.restarts)
    if live.error is not None:
        yield "error", live.error


def line(live: Live) -> str:
    """Return the most important numbers of a run in one line."""
    recent, parts = live.recent, [_state(live), f"{live.steps}/{live.planned_steps} rank-steps"]
    if recent is not None and recent.au is not None:
        parts.append(f"AU {recent.au:.3f}")
    if recent is not None and recent.samples_per_second is not None:
        parts.append(f"{recent.samples_per_second:.4g} samples/s")
    if recent is not None and "data_wait" in recent.shares:
        parts.append(f"data loading {100 * recent.shares['data_wait']:.1f} %")
    if live.queues is not None:
        parts.append(f"{live.queues.ready} batches ready")
        parts.append(f"{live.queues.readers} workers")
    return _printable(f"{live.run}: " + " · ".join(parts) + (f" · {live.error}" if live.error else ""))


def _printable(text: str) -> str:
    """Return a text without control characters: names and errors come from files and jobs."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def shares(times: Mapping[str, float], names: Mapping[str, str]) -> str:
    """Return parts of a whole in percent, the largest first; parts below a tenth of a percent are left out.

    >>> shares({"data_wait": 1.0, "compute": 3.0}, {"data_wait": "data loading"})
    'compute 75.0 % · data loading 25.0 %'
    """
    whole = sum(times.values())
    ordered = sorted(times.items(), key=lambda item: -item[1])
    parts = [(names.get(name, name), 100 * time / whole) for name, time in ordered if whole]
    return " · ".join(f"{name} {percent:.1f} %" for name, percent in parts if percent >= 0.1)


def _state(live: Live) -> str:
    if live.state == RUNNING:
        return f"running for {format_seconds(round(live.seconds))}"
    if live.state == OVER:
        code = f", exit code {live.exit_code}" if live.exit_code else ""
        return f"over after {format_seconds(round(live.seconds, 1))}{code}"
    return live.state


def _when(live: Live) -> str:
    seconds = live.recent.seconds if live.recent is not None else 0.0
    return "in the measured window" if live.state == OVER else f"in the last {seconds:.0f} s"


def progress_line(snapshot: Mapping[str, Any], planned_steps: int, seconds: float | None) -> str:
    """Return one line: steps, shares of the time so far (warm-up included), bytes per second."""
    time = snapshot["time"]
    busy = sum(time.get(name, 0) for name in OF_STEPS) or 1
    names = ("compute", "data_wait", "sync", "checkpoint", "evaluate")
    share = {name: 100 * time.get(name, 0) / busy for name in names}
    pauses = f"checkpoint {share['checkpoint']:.1f} %"
    if time.get("evaluate"):
        pauses += f" · evaluation {share['evaluate']:.1f} %"
    # Without a clock there is no rate; spans come from the first moment on, long before the first step ends.
    rate = (
        f"{snapshot['spans']} spans"
        if seconds is None
        else f"{snapshot['bytes'] / max(seconds, 1e-9) / 2**20:.0f} MiB/s"
    )
    return (
        f"{snapshot['steps']}/{planned_steps} rank-steps · compute {share['compute']:.1f} % · data loading "
        f"{share['data_wait']:.1f} % · sync {share['sync']:.1f} % · {pauses} · {rate}"
    )
