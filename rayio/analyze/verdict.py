"""What bound a run: the stall table that sums to its whole loss, what each stage could deliver, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.intervals import Lookup
from rayio.analyze.metrics import shares
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import KINDS, OF_LOADER, STAGES, Places, WorkDone, shown
from rayio.analyze.stalls import CAUSES, Attribution, to_the_end
from rayio.analyze.stragglers import slowest
from rayio.analyze.timeline import Ints, integers, texts
from rayio.analyze.window import FEWEST_STEPS, MOST, Window, filling, find_window, first_step_share
from rayio.results.origin import CHARGED
from rayio.units import format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: Share of step time above which waiting for data makes a run input-bound, and any loss binds.
BINDS = 0.05

#: What binds a run that waits for batches: reading and decoding them, or what the loader itself takes.
OF_DATA = ("input", "loader")

#: Share of step time that shows in percentages without decimals.
SEEN = 0.005

#: What a cause makes a run; the stages of a batch make it input-bound.
_BOUNDS = {
    "straggler": "straggler",
    "allreduce": "all-reduce",
    "checkpoint": "checkpoint",
    "evaluate": "evaluation",
    "startup": "start-up",
}


def bound_of(cause: str) -> str:
    """Name what a run is bound by when this cause costs it most."""
    return "input" if cause in STAGES else _BOUNDS.get(cause, "overhead" if cause == "other" else cause)


def judge(charged: Attribution, shape: RunShape) -> dict[str, Any]:
    """Sum up the losses of the whole steps in the window: the table, the AU that it leaves, and what binds.

    Shares are means over ranks, as AU is, so that AU and the shares sum to 1. Without a window every completed step
    counts, and a note says so. All numbers are None when no step was completed.
    """
    window, notes = find_window(charged.lives, charged.steps, shape)
    charged = to_the_end(charged, window, shape)
    steps, lives = charged.steps, charged.lives
    inside = window.whole(steps) if window else np.zeros(steps.number, np.bool_)
    if not inside.any() and steps.number:
        notes.append(f"all {steps.number} completed steps are counted, warm-up too")
        inside = np.ones(steps.number, np.bool_)
    life, parts = steps.life[inside], steps.parts
    ranks = len(lives.rank)
    losses, by_sync = charged.losses[inside], charged.by_sync[inside]
    share = shares(steps, inside, ranks)
    if steps.number and len(np.unique(life)) < ranks:
        notes.append("a rank has no step that counts: shares are of all ranks' time together, not means over ranks")

    table: list[dict[str, Any]] = [
        {
            "cause": name,
            "seconds": int(losses[:, number].sum()) / 1e9,
            "share": share(losses[:, number]),
            "waiting_seconds": int((losses - by_sync)[:, number].sum()) / 1e9,
            "by_sync_seconds": int(by_sync[:, number].sum()) / 1e9,
            "meaning": meaning,
        }
        for number, (name, meaning) in enumerate(CAUSES.items())
    ]
    lost = [row for row in table if row["share"]]
    waited = share(parts["data_wait"][inside])
    bounds: dict[str, float] = {}
    for row in lost:
        bounds[bound_of(row["cause"])] = bounds.get(bound_of(row["cause"]), 0.0) + row["share"]
    top = max(bounds, key=lambda name: bounds[name], default="compute")
    causes = [row for row in lost if bound_of(row["cause"]) == top]
    is_bound = bounds.get(top, 0.0) > BINDS
    fewest = int(np.bincount(life, minlength=ranks).min(initial=steps.number))
    bound = (top if is_bound else "compute") if len(life) else None
    of_loader = [row for row in causes if row["cause"] in OF_LOADER]
    if bound == "input" and sum(row["share"] for row in of_loader) > MOST * bounds[top]:
        bound, causes = "loader", of_loader
    notes += filling(steps, inside) if bound not in OF_DATA else []  # there the sentence says it
    cause = max(causes, key=lambda row: row["share"])["cause"] if is_bound else None
    is_enough = window is not None and fewest >= FEWEST_STEPS
    arrived = window.holds(steps.arrived) if window else inside
    samples = int(shape.samples(lives.rank[steps.life[arrived]], steps.step[arrived]).sum())
    return {
        "samples_per_second": samples / window.seconds if window else None,
        "steps": int(inside.sum()),
        "steps_per_rank": fewest,
        "seconds": int(steps.duration[inside].sum()) / 1e9,
        "compute_seconds": int(parts["compute"][inside].sum()) / 1e9,
        "au": share(parts["compute"][inside]),
        "loss": sum(row["share"] for row in lost) if len(life) else None,
        "data_wait_share": waited,
        "first_step_share": first_step_share(steps, inside),
        "is_input_bound": None if waited is None else waited > BINDS,
        "bound": bound if is_enough else None,
        "bound_share": bounds.get(top) if is_bound and is_enough else None,
        "cause": cause if is_enough else None,
        "next": cause or "compute",
        "bounds": bounds,
        "table": table,
        "notes": notes,
    }


def loader_share(charged: Attribution, shape: RunShape) -> float | None:
    """The part of step time that ranks waited for messages and copies of the loader, directly or for other ranks."""
    found = judge(charged, shape)
    shares = [row["share"] for row in found["table"] if row["cause"] in OF_LOADER]
    return None if found["au"] is None else sum(shares)


def capacities(spans: pa.Table, charged: Attribution, shape: RunShape, readers: int) -> dict[str, Any]:
    """Say what each stage of the workers could deliver, and what the ranks ask for, in batches per second.

    ``readers`` is how many the run had; where it had none, ranks read themselves and are the workers. A stage's
    capacity is that of all workers if they did nothing else; the row ``worker`` is of all stages one after the other,
    which is what they do. Utilisation is the busy time in the window, per worker.
    """
    spans = spans.unify_dictionaries()
    steps = charged.steps
    workers = readers or shape.world_size
    window = find_window(charged.lives, steps, shape)[0] or _everything(steps.start, steps.end)
    leases = np.flatnonzero(texts(spans, "name", ("lease",)) == 0)
    places = Places(spans)
    ready = (integers(spans, "start_ns") + integers(spans, "duration_ns"))[leases]
    work = WorkDone.of(spans, places, Lookup(places.of(leases), ready), ready)
    # Service times are of the batches that were begun in the window, busy times of all that went on in it.
    did = work.did
    _, batch = np.unique(work.place, return_inverse=True)
    begun = np.full(int(batch.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, batch, did.start)
    inside = window.holds(begun)[batch] & (work.place >= 0)
    number = len(np.unique(batch[inside]))
    length = did.end - did.start
    busy = np.maximum(np.minimum(did.end, window.end) - np.maximum(did.start, window.begin), 0)
    computed = steps.parts["compute"][window.whole(steps)]
    demand = len(charged.lives.rank) / (float(computed.mean()) / 1e9) if len(computed) and computed.any() else None
    rows = []
    for stage in (*dict.fromkeys(KINDS), "worker"):
        mine = np.isin(did.kind, [code for code, name in enumerate(KINDS) if stage in (name, "worker")])
        if work_ns := int(length[mine & inside].sum()):
            rows.append(_capacity(stage, work_ns / number, int(busy[mine].sum()), workers, window))
    if row := _writers(spans, window):
        rows.append(row)
    return {
        "demand": demand,
        "delivered": int(window.holds(steps.arrived).sum()) / window.seconds,
        "has_readers": readers > 0,
        "stages": rows,
    }


def _everything(start: Ints, end: Ints) -> Window:
    begin = int(start.min(initial=np.iinfo(np.int64).max)) if len(start) else 0
    return Window(begin, max(int(end.max(initial=0)), begin + 1))


def _capacity(stage: str, service_ns: float, busy_ns: int, parallelism: int, window: Window) -> dict[str, Any]:
    return {
        "stage": stage,
        "service_seconds": service_ns / 1e9,
        "parallelism": parallelism,
        "capacity": parallelism / service_ns * 1e9,
        "utilisation": busy_ns / 1e9 / (parallelism * window.seconds),
    }


def _writers(spans: pa.Table, window: Window) -> dict[str, Any] | None:
    """What checkpoint writers can do and did, per file; None when they wrote nothing."""
    name = texts(spans, "name", ("write", "fsync"))
    is_write = (name >= 0) & (texts(spans, "role", ("checkpoint_writer",)) == 0) & (integers(spans, "lane") == 0)
    chosen = np.flatnonzero(is_write & window.holds(integers(spans, "start_ns")))
    files = int((name[chosen] == 0).sum())
    if not files:
        return None
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in spans.column("index").chunks])
    busy = int(integers(spans, "duration_ns")[chosen].sum())
    return _capacity("writer", busy / files, busy, len(np.unique(codes[chosen])), window) if busy else None


def sentence(
    verdict: Mapping[str, Any],
    capacity: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    prediction: Mapping[str, Any] | None,
) -> str:
    """Say in one paragraph what bound the run, by how much, and what would come of mending it."""
    if verdict["bound"] is None:
        if not verdict["steps"]:
            return "No verdict: no completed step is recorded."
        number = verdict["steps_per_rank"]
        few = f"{number} step{'s' * (number != 1)} per rank"
        return f"No verdict: {few} can be measured, and it takes {FEWEST_STEPS}. Run more epochs, or more samples."
    if verdict["bound"] == "compute":
        said = (
            f"Compute-bound: AU {verdict['au']:.2f}; all losses together are {_percent(verdict['loss'])} of step time."
        )
    else:
        is_known = verdict["bound"] != "overhead" or _other(verdict) in (CAUSES["other"], CHARGED)
        said = f"{verdict['bound'].capitalize()}-bound: " if is_known else "Unexplained: "
        said += f"{_what(verdict)}{slowest(ranks) if verdict['bound'] == 'straggler' else ''}."
        if verdict.get("ties"):
            alike = " or ".join(f"`{shown(cause)}`" for cause in verdict["ties"])
            said += f" Without {alike} as much time would be saved as without `{shown(verdict['cause'])}`: they tie."
        if hidden := _larger(verdict):
            said += f" {hidden}"
    if verdict["bound"] in OF_DATA and (verdict["first_step_share"] or 0) > MOST:
        first = _percent(verdict["first_step_share"])
        said += f" {first} of the wait is at the first step of an epoch, where prefetching starts anew."
    if verdict["bound"] in (*OF_DATA, "compute"):
        said += _supply(verdict, capacity)
    if verdict["is_input_bound"] and verdict["bound"] not in (*OF_DATA, None):
        said += f" It is input-bound too: {_percent(verdict['data_wait_share'])} of step time is exposed data loading."
    if prediction is not None:
        time = prediction.get("time_saved")
        saved = "" if time is None else f" in {_percent(time)} less time"
        said += f" {prediction['change']}, predicted AU {prediction['au']:.2f}{saved}"
        said += f"; the next bottleneck is {_next(prediction)}."
    return said


def _larger(verdict: Mapping[str, Any]) -> str:
    """Say so where another loss is larger than the one named: removing it alone would save less."""
    bounds = verdict["bounds"]
    top = max(bounds, key=lambda name: bounds[name], default=verdict["bound"])
    named = "input" if verdict["bound"] == "loader" else verdict["bound"]
    if verdict.get("named_by") != "simulation" or top == named or bounds[top] <= bounds.get(named, 0.0):
        return ""
    what = {"straggler": "waiting for slower ranks", "input": "exposed data loading"}.get(top, top)
    return f"More of step time is {what} ({_percent(bounds[top])}), but without that alone less time would be saved."


def _supply(verdict: Mapping[str, Any], capacity: Mapping[str, Any]) -> str:
    """Hold what the workers can deliver against what the ranks need."""
    worker = next((row for row in capacity["stages"] if row["stage"] == "worker"), None)
    if worker is None or capacity["demand"] is None:
        return ""
    if not capacity["has_readers"]:
        each = format_seconds(worker["service_seconds"])
        return f" Ranks read for themselves (loader.num_workers=0): {each} per batch, in which they do not compute."
    number = worker["parallelism"]
    can, need = f"{rate(worker['capacity'])} batches/s", rate(capacity["demand"])
    who, ends = (f"The {number} workers", ("are", "keep")) if number != 1 else ("The worker", ("is", "keeps"))
    if worker["capacity"] <= capacity["demand"]:
        return f" {who} {ends[0]} too slow: {can} at most, where ranks need {need}."
    if verdict["bound"] in OF_DATA:
        late = "" if (verdict["first_step_share"] or 0) > MOST else ": single batches come late"
        return f" {who} {ends[0]} fast enough on average ({can}, ranks need {need}){late}."
    return f" {who} {ends[1]} up: {can} at most, where ranks need {need}."


def rate(number: float) -> str:
    """Write a number per second with three digits that count."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _what(verdict: Mapping[str, Any]) -> str:
    share = _percent(verdict["bound_share"])
    if verdict["bound"] in OF_DATA:
        cause = next(row for row in verdict["table"] if row["cause"] == verdict["cause"])
        part = cause["share"] / verdict["bound_share"]
        waits = sum(row["by_sync_seconds"] for row in verdict["table"] if row["cause"] in STAGES)
        how = ", directly or through waiting for other ranks" if waits > SEEN * verdict["seconds"] else ""
        if verdict["bound"] == "loader":
            part = sum(row["share"] for row in verdict["table"] if row["cause"] in OF_LOADER) / verdict["bound_share"]
            most = f"the loader's own cost, most of that in `{shown(verdict['cause'])}`"
            return f"{share} of step time is exposed data loading{how}, {_percent(part)} of it {most}"
        return (
            f"{share} of step time is exposed data loading{how}, {_percent(part)} of it in `{shown(verdict['cause'])}`"
        )
    why = {
        "straggler": "is lost to ranks that compute longer than others",
        "all-reduce": "is the all-reduce",
        "checkpoint": "is lost to checkpoints, waiting for a rank that saves one included",
        "evaluation": "is lost to evaluations, waiting for a rank that still evaluates included",
        "start-up": "is waiting for ranks that began later",
        "outage": "is waiting for the barrier, which had died and was being started again",
        "overhead": f"is {_other(verdict)}",
    }
    return f"{share} of step time {why.get(verdict['bound'], 'is lost to ' + verdict['bound'])}"


def _other(verdict: Mapping[str, Any]) -> str:
    """Say what no name covers: of imported results, and on the virtual clock, it is not rayio's own."""
    return next(str(row["meaning"]) for row in verdict["table"] if row["cause"] == "other")


def _next(prediction: Mapping[str, Any]) -> str:
    others = {"compute": "compute", "straggler": "waiting for the slowest rank of each step"}
    return others.get(prediction["then"], f"`{shown(prediction['then'])}`")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
