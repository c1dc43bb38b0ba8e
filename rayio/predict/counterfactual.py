"""What the run would have been without one of its causes: simulated with its own measured times, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.shape import RunShape
from rayio.analyze.stages import OF_LOADER, shown
from rayio.analyze.stalls import Attribution, attribute
from rayio.analyze.stragglers import slow_ranks, typical_of
from rayio.analyze.verdict import BINDS, OF_DATA, bound_of, judge
from rayio.pipeline import simulation
from rayio.pipeline.ledger import Tally
from rayio.pipeline.planning import plan_of, storage_of
from rayio.predict.replay import UNLIMITED, UNLIMITED_STORAGE, Measured, RecordedTimes, Replay, addressed, of_steps
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive, evaluation
from rayio.scenario.distribution import NO_TIME
from rayio.scenario.model import Costs, NoSync, Scenario, StorageParameters
from rayio.seeds import Draws
from rayio.storage.model import REQUESTS_PER_STEP_BITS
from rayio.trace.recorder import Recorder

if TYPE_CHECKING:
    import pyarrow as pa

#: Predicted AU that a change must add to be worth naming.
WORTH = 0.01
#: Workers are doubled at most this often in search of enough of them.
DOUBLINGS = 4


@dataclass(frozen=True)
class Base:
    """A run made ready to be lived again."""

    scenario: Scenario
    measured: Measured
    #: Storage of the run where it was a model; None for real storage, which is replayed as it was.
    modelled: StorageParameters | None
    #: What ``loader.max_bytes_in_flight: auto`` came to.
    bytes_in_flight: int | None
    was_memory_bound: bool
    #: Which ranks are last in most steps.
    slow: NDArray[np.bool_]

    def simulate(self, replay: Replay) -> dict[str, Any]:
        """Live a scenario on the virtual engine, with the times at hand, and judge it."""
        plan = plan_of(replay.scenario, True, self.bytes_in_flight, replay.times)
        recorder, tallies = Recorder(), [Tally(rank) for rank in range(plan.world_size)]
        simulation.simulate(plan, recorder, tallies)
        spans = recorder.drain()
        assert spans is not None
        return judge(attribute(spans), RunShape.of(replay.scenario))


#: Changes what is simulated; the base says what the run measured.
Change = Callable[[Replay, Base], Replay]


def _with(replay: Replay, section: str, **keys: Any) -> Replay:
    changed = getattr(replay.scenario, section).model_copy(update=keys)
    return replace(replay, scenario=replay.scenario.model_copy(update={section: changed}))


def _timed(replay: Replay, **times: Draws) -> Replay:
    return replace(replay, times=replace(replay.times, **times))


def _no_decode(replay: Replay, base: Base) -> Replay:
    return _timed(replay, decode=NO_TIME)


def _unlimited(replay: Replay, base: Base) -> Replay:
    """Modelled storage without limits of bandwidth; its latencies stay."""
    model = storage_of(replay.scenario)
    keys = {"connection_bandwidth": UNLIMITED, "bandwidth": UNLIMITED}
    return _with(replay, "storage", model=model.model_copy(update=keys))


def _limit_gone(**keys: Any) -> Change:
    """Modelled storage without one of its limits; the others stay."""

    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "storage", model=storage_of(replay.scenario).model_copy(update=keys))

    return change


def _no_read(replay: Replay, base: Base) -> Replay:
    """Reads take no time; files that are written take what they took."""
    nothing = addressed(replay.scenario.seed, "first_byte", np.zeros(base.measured.read.shape))
    writes = RecordedTimes(nothing, 1 << REQUESTS_PER_STEP_BITS, base.measured.write)
    unlimited = UNLIMITED_STORAGE.model_copy(update={"scope": storage_of(replay.scenario).scope})
    return _timed(_with(replay, "storage", model=unlimited), first_byte=writes)


def _no_stragglers(replay: Replay, base: Base) -> Replay:
    """Every rank's mean compute is at most that of the (lower) median rank; its jitter stays, in proportion.

    Where some ranks are last in most steps, the median is that of the others: most ranks may be slow.
    """
    compute = base.measured.compute
    known = ~np.isnan(compute)
    mean = np.where(known, compute, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    slow = base.slow if len(base.slow) == len(mean) else np.zeros(len(mean), np.bool_)
    typical = typical_of(mean, slow)
    factor = np.where(mean > typical, typical / np.where(mean > 0, mean, 1), 1.0)
    return _timed(replay, compute=of_steps(replay.scenario.seed, compute * factor[:, None, None]))


def _no_barrier(replay: Replay, base: Base) -> Replay:
    return _with(replay, "train", sync=NoSync())


def _no_checkpoints(replay: Replay, base: Base) -> Replay:
    return replace(replay, scenario=replay.scenario.model_copy(update={"checkpoint": None}))


def _no_evaluations(replay: Replay, base: Base) -> Replay:
    return _with(replay, "train", evaluate=None)


def _no_loader(replay: Replay, base: Base) -> Replay:
    """The loader's messages and copies take no time; those of barrier, step and checkpoint stay."""
    costs = replay.scenario.charges
    kept = Costs(barrier=costs.barrier, step=costs.step, checkpoint=costs.checkpoint)
    return replace(replay, scenario=replay.scenario.model_copy(update={"costs": kept}))


def _unbounded(replay: Replay, base: Base) -> Replay:
    return _with(replay, "loader", max_bytes_in_flight=1 << 60)


def _more_workers(times: float) -> Change:
    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "loader", num_workers=max(1, int(replay.scenario.loader.num_workers * times)))

    return change


def _deeper(replay: Replay, base: Base) -> Replay:
    return _with(replay, "loader", prefetch_factor=2 * replay.scenario.loader.prefetch_factor)


def changes(base: Base) -> dict[str, Change]:
    """The counterfactuals that could matter to a run, by name."""
    scenario, measured = base.scenario, base.measured
    found: dict[str, Change] = {}
    if np.nansum(measured.decode) > 0:
        found["decode = 0"] = _no_decode
    found["read = 0"] = _no_read
    if base.modelled is not None:
        found["bandwidth = ∞"] = _unlimited
        if base.modelled.requests_per_second is not None:
            found["requests/s = ∞"] = _limit_gone(requests_per_second=None)
        if base.modelled.opens_per_second is not None:
            found["opens/s = ∞"] = _limit_gone(opens_per_second=None)
        found["latency = 0"] = _limit_gone(first_byte=NO_TIME, open=NO_TIME)
    if measured.costs.of_loader:
        found["loader = 0"] = _no_loader
    found["workers × 2" if scenario.loader.num_workers else "1 worker"] = _more_workers(2)
    if scenario.loader.num_workers > 1:
        found["workers ÷ 2"] = _more_workers(0.5)
    if scenario.loader.num_workers:
        found["prefetch × 2"] = _deeper
    if base.was_memory_bound:
        found["no bound on bytes"] = _unbounded
    if derive.world_size(scenario) > 1:
        found["no stragglers"] = _no_stragglers
        if scenario.train.sync.meets:
            found["no barrier"] = _no_barrier
    if derive.num_checkpoints(scenario):
        found["no checkpoints"] = _no_checkpoints
    if evaluation.phase_of(scenario) is not None:
        found["no evaluations"] = _no_evaluations
    return found


def counterfactuals(base: Base, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Simulate the run as it was, and without each of its causes; say how much of the loss each takes away.

    ``causal_share`` is the part of the simulated loss (1 − AU) that goes away with the change. The shares need not sum
    to 1: two causes may hide each other.
    """
    replayed = base.measured.replayed(base.scenario, modelled=base.modelled)
    reporter.live("what would change it: the run as it was is simulated")
    as_it_was = base.simulate(replayed)
    loss = as_it_was["loss"]
    rows = []
    wanted = changes(base)
    for number, (name, change) in enumerate(wanted.items()):
        reporter.live(f"what would change it: {number} of {len(wanted)} simulated", number / len(wanted))
        simulated = base.simulate(change(replayed, base))
        gain = None if simulated["au"] is None or as_it_was["au"] is None else simulated["au"] - as_it_was["au"]
        rows.append(
            {
                "change": name,
                "au": simulated["au"],
                "gain": gain,
                "causal_share": gain / loss if gain is not None and loss else None,
                "samples_per_second": simulated["samples_per_second"],
                "time_saved": saved(as_it_was, simulated),
                "then": then(simulated),
            }
        )
    return {
        "au": as_it_was["au"],
        "samples_per_second": as_it_was["samples_per_second"],
        "steps": as_it_was["steps"],
        "is_whole_run": derive.total_steps(replayed.scenario) == derive.total_steps(base.scenario),
        "changes": rows,
        "_replayed": replayed,
    }


def saved(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """The part of the time that a simulated run takes less than another for the same samples; negative where more."""
    old, new = before["samples_per_second"], after["samples_per_second"]
    return 1 - old / new if old and new else None


def then(simulated: Mapping[str, Any]) -> str:
    """Name what binds a simulated run: its largest cause of loss, or compute."""
    return str(simulated["next"])


def prediction(base: Base, verdict: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Say what to change, and simulate that: enough workers for a run that waits for data, else what first helps.

    What helps is what saves time: AU counts a slow rank's extra compute as useful. What saves less than half of what
    another change would is no help. None when nothing that can be simulated is, or nothing is worth removing.
    """
    if verdict["bound"] in (None, "compute"):
        return None
    rows = {row["change"]: row for row in table["changes"] if row["time_saved"] is not None}
    loader = base.scenario.loader
    keys = {
        "workers ÷ 2": f"loader.num_workers={loader.num_workers // 2}",
        "prefetch × 2": f"loader.prefetch_factor={2 * loader.prefetch_factor}",
        "no bound on bytes": "no bound on bytes (loader.max_bytes_in_flight)",
    }
    # "read = 0" measures a loss: what to change about reading is a limit of the storage.
    read = LIMITS if _removal(verdict["cause"]) == "read" and base.modelled is not None else ()
    wanted = {
        # Where no rank is slower than others in the mean, it is jitter, and only fewer barriers would help.
        "straggler": ("no stragglers", "no barrier"),
        "checkpoint": ("no checkpoints",),
        "evaluation": ("no evaluations",),
        "all-reduce": ("no barrier",),
        "input": (*keys, *(read or (f"{verdict['cause']} = 0",))),
        "loader": ("no bound on bytes", "prefetch × 2", "loader = 0"),
    }.get(verdict["bound"], ())
    chosen = [rows[name] for name in wanted if name in rows and name != "read = 0"]
    most = max((row["time_saved"] for row in chosen), default=0.0)
    more = _enough_workers(base, table) if verdict["bound"] in OF_DATA else None
    settings = [row for row in chosen if row["change"] in keys]
    if more and more["time_saved"] >= max((row["time_saved"] for row in settings), default=0.0):
        return more
    # What a key can change comes before what only other storage or code can, unless it saves little beside that; but
    # fewer workers cost nothing.
    for row in sorted(settings, key=lambda row: -row["time_saved"]) + sorted(
        chosen, key=lambda row: -row["time_saved"]
    ):
        free = row["change"] == "workers ÷ 2" or (row["change"] in keys and read)
        if row["time_saved"] >= max(WORTH, 0 if free else most / 2):
            change = keys.get(row["change"], shown(row["change"]))
            return {"change": f"With {change}", **{key: row[key] for key in ("au", "time_saved", "then")}}
    return more


#: Changes that lift one limit of a modelled storage each.
LIMITS = ("bandwidth = ∞", "requests/s = ∞", "opens/s = ∞", "latency = 0")


def _removal(cause: str | None) -> str | None:
    return "read" if cause in ("open", "retry") else cause


def _enough_workers(base: Base, table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Double the workers until exposed data loading is no bottleneck, or more of them do not help."""
    replayed, best, before = table["_replayed"], None, table
    workers = base.scenario.loader.num_workers
    for doubling in range(1, DOUBLINGS + 1):
        number = max(1, workers * 2**doubling) if workers else 2 ** (doubling - 1)
        simulated = base.simulate(_with(replayed, "loader", num_workers=number))
        if (saved(before, simulated) or 0.0) < WORTH:
            break
        before = simulated
        in_all = number * derive.world_size(base.scenario)
        more = f"With {number} worker{'s' * (number != 1)} per rank ({in_all} in all)"
        best = {
            "change": more, "workers": number, "au": simulated["au"], "time_saved": saved(table, simulated),
            "then": then(simulated),
        }  # fmt: skip
        if simulated["data_wait_share"] <= BINDS:
            break
    return best


#: What each simulated removal takes away; of two for the same cause the one that saves more counts.
REMOVALS: dict[str, tuple[str, ...]] = {
    "decode = 0": ("decode",),
    "read = 0": ("read", "open", "retry"),
    "loader = 0": OF_LOADER,
    "no bound on bytes": ("memory_bound",),
    "no stragglers": ("straggler",),
    "no barrier": ("straggler", "allreduce"),
    "no checkpoints": ("checkpoint",),
    "no evaluations": ("evaluate",),
}

#: Causes whose removal saves this part of what the best one does, or more, are said to be alike.
ALIKE = 0.9


def named(verdict: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Name the cause whose removal saves most time, and those that would save as much: what changes in the verdict.

    Nothing changes where the run has no verdict, where it is bound by what no simulation removes, and where no removal
    saves more than :data:`BINDS`.
    """
    if verdict["bound"] in (None, "overhead", "start-up", "outage"):
        return {}
    share = {row["cause"]: row["share"] or 0.0 for row in verdict["table"]}
    saves: dict[str, float] = {}
    for row in table["changes"]:
        causes = [cause for cause in REMOVALS.get(row["change"], ()) if share.get(cause)]
        if row["time_saved"] is not None and causes:
            cause = max(causes, key=lambda cause: share[cause])
            if row["change"] == "no barrier" and share[cause] <= BINDS:
                continue  # without barriers ranks wait for nothing together: that is no small cause's doing
            saves[cause] = max(saves.get(cause, row["time_saved"]), row["time_saved"])
    best = max(saves, key=lambda cause: saves[cause], default=None)
    if best is None or saves[best] <= BINDS:
        return {}
    alike = [c for c in saves if c != best and saves[c] >= ALIKE * saves[best]]
    bound = "loader" if best in OF_LOADER else bound_of(best)
    bounds = sum(
        share[c] for c in (OF_LOADER if bound == "loader" else share) if bound == "loader" or bound_of(c) == bound
    )
    return {
        "bound": bound, "cause": best, "bound_share": bounds, "named_by": "simulation", "ties": alike,
        "saved": saves[best],
    }  # fmt: skip


def ready(scenario: Scenario, info: Mapping[str, Any], charged: Attribution, spans: pa.Table) -> Base | None:
    """Make a run ready to be lived again, from its scenario, ``run.json`` and spans; None without spans of readers."""
    is_virtual = info.get("engine") == "virtual"
    measured = Measured.of(spans, charged, scenario, costs=scenario.charges if is_virtual else None)
    if not measured.has_work:
        return None
    is_modelled = bool(info.get("modelled_storage", is_virtual))
    bound = info.get("max_bytes_in_flight")
    return Base(
        scenario,
        measured,
        storage_of(scenario) if is_modelled else None,
        bound if isinstance(bound, int) else None,
        "memory_bound" in spans.column("name").unique().to_pylist(),
        slow_ranks(charged.steps, len(charged.lives.rank)),
    )
