"""What the run would have been without one of its causes: simulated with its own measured times, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.metrics import RunShape
from rayio.analyze.stages import shown
from rayio.analyze.stalls import Attribution, attribute
from rayio.analyze.verdict import BINDS, OF_DATA, judge
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


def _no_read(replay: Replay, base: Base) -> Replay:
    """Reads take no time; files that are written take what they took."""
    nothing = addressed(replay.scenario.seed, "first_byte", np.zeros(base.measured.read.shape))
    writes = RecordedTimes(nothing, 1 << REQUESTS_PER_STEP_BITS, base.measured.write)
    unlimited = UNLIMITED_STORAGE.model_copy(update={"scope": storage_of(replay.scenario).scope})
    return _timed(_with(replay, "storage", model=unlimited), first_byte=writes)


def _no_stragglers(replay: Replay, base: Base) -> Replay:
    """Every rank's mean compute is at most that of the (lower) median rank; its jitter stays, in proportion."""
    compute = base.measured.compute
    known = ~np.isnan(compute)
    mean = np.where(known, compute, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    typical = np.sort(mean)[(len(mean) - 1) // 2]
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


def _more_workers(times: int) -> Change:
    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "loader", num_workers=max(1, replay.scenario.loader.num_workers * times))

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
    if measured.costs.of_loader:
        found["loader = 0"] = _no_loader
    found["workers × 2" if scenario.loader.num_workers else "1 worker"] = _more_workers(2)
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
                "then": then(simulated),
            }
        )
    return {
        "au": as_it_was["au"],
        "steps": as_it_was["steps"],
        "is_whole_run": derive.total_steps(replayed.scenario) == derive.total_steps(base.scenario),
        "changes": rows,
        "_replayed": replayed,
    }


def then(simulated: Mapping[str, Any]) -> str:
    """Name what binds a simulated run: its largest cause of loss, or compute."""
    return simulated["cause"] or "compute"


def prediction(base: Base, verdict: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Say what to change, and simulate that: enough workers for a run that waits for data, else what first helps.

    What gains less than half of what another change would is no help. None when nothing that can be simulated is.
    """
    gains = {row["change"]: row for row in table["changes"] if row["gain"] is not None}
    if verdict["bound"] in OF_DATA and (found := _enough_workers(base, table)):
        return found
    wanted = {
        # Where no rank is slower than others in the mean, it is jitter, and only fewer barriers would help.
        "straggler": ("no stragglers", "no barrier"),
        "checkpoint": ("no checkpoints",),
        "evaluation": ("no evaluations",),
        "all-reduce": ("no barrier",),
        # What a key can change comes before what only other storage or code can.
        "input": ("no bound on bytes", "prefetch × 2", f"{verdict['cause']} = 0"),
        "loader": ("no bound on bytes", "prefetch × 2", "loader = 0"),
    }
    names = {
        "no bound on bytes": "no bound on bytes (loader.max_bytes_in_flight)",
        "prefetch × 2": f"loader.prefetch_factor={2 * base.scenario.loader.prefetch_factor}",
    }
    rows = [gains[change] for change in wanted.get(verdict["bound"], ()) if change in gains]
    enough = max(WORTH, *(row["gain"] / 2 for row in rows)) if rows else WORTH
    for row in rows:
        if row["gain"] >= enough:
            change = names.get(row["change"], shown(row["change"]))
            return {"change": f"With {change}", "au": row["au"], "then": row["then"]}
    return None


def _enough_workers(base: Base, table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Double the workers until exposed data loading is no bottleneck, or more of them do not help."""
    replayed, best, au = table["_replayed"], None, table["au"]
    workers = base.scenario.loader.num_workers
    for doubling in range(1, DOUBLINGS + 1):
        number = max(1, workers * 2**doubling) if workers else 2 ** (doubling - 1)
        simulated = base.simulate(_with(replayed, "loader", num_workers=number))
        if simulated["au"] is None or simulated["au"] - au < WORTH:
            break
        au = simulated["au"]
        in_all = number * derive.world_size(base.scenario)
        more = f"With {number} worker{'s' * (number != 1)} per rank ({in_all} in all)"
        best = {"change": more, "workers": number, "au": au, "then": then(simulated)}
        if simulated["data_wait_share"] <= BINDS:
            break
    return best


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
    )
