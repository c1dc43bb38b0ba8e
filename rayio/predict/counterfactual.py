"""What the run would have been without one of its causes: simulated with its own measured times, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayio.analyze.stages import OF_LOADER, shown
from rayio.analyze.stalls import Attribution
from rayio.analyze.stragglers import slow_ranks
from rayio.analyze.verdict import BINDS, OF_DATA, bound_of
from rayio.errors import StorageError
from rayio.model.planning import storage_of
from rayio.predict.changes import WORTH, Base, Change, changes, further_changes, keys_of, with_workers
from rayio.predict.on_cores import on_cores
from rayio.predict.processors import Worked
from rayio.predict.replay import Measured
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.model import Scenario, StorageParameters
from rayio.scenario.storage import UNKNOWN
from rayio.scenario.workers import Autoscaled
from rayio.trace.slices import Slices

#: A run that is simulated from its own times comes back where its AU is within this of what was measured.
COMES_BACK = 0.05
#: Workers are doubled at most this often in search of enough of them.
DOUBLINGS = 4


def counterfactuals(base: Base, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Simulate the run as it was, and without each of its causes; say how much of the loss each takes away.

    ``causal_share`` is the part of the simulated loss (1 − AU) that goes away with the change. The shares need not sum
    to 1: two causes may hide each other. A change with which the run breaks off has no row, but a line in ``_broken``.

    Raises:
        StorageError: storage refuses the run as it was, simulated, more often than it may ask.
    """
    replayed = base.measured.replayed(base.scenario, modelled=base.modelled)
    reporter.live("what would change it: the run as it was is simulated")
    as_it_was = base.simulate(replayed)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []

    def simulate(name: str, change: Change) -> None:
        try:
            found = base.simulate(change(replayed, base))
            if name == "no barrier" and as_it_was["lasted"] and found["lasted"]:
                # Ranks that do not wait for each other are at different steps when the window begins: it has fewer of
                # their batches. In all they have the same.
                rate = (as_it_was["samples_per_second"] or 0.0) * as_it_was["lasted"] / found["lasted"]
                found["samples_per_second"] = rate or None
            rows.append(_row(name, as_it_was, found))
        except StorageError as error:
            broken.append(f"{name}: simulated, the run breaks off ({error})")

    wanted = [*changes(base).items()]
    for number, (name, change) in enumerate(wanted):
        reporter.live(f"what would change it: {number} of {len(wanted)} simulated", number / len(wanted))
        simulate(name, change)
    for name, change in further_changes(base, {row["change"]: row["time_saved"] or 0.0 for row in rows}).items():
        reporter.live(f"what would change it: {name}", 1.0)
        simulate(name, change)
    return {
        "au": as_it_was["au"],
        "samples_per_second": as_it_was["samples_per_second"],
        "steps": as_it_was["steps"],
        "is_whole_run": derive.total_steps(replayed.scenario) == derive.total_steps(base.scenario),
        "changes": rows,
        "_replayed": replayed,
        "_as_it_was": as_it_was,
        "_broken": broken,
    }


def _row(name: str, as_it_was: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, Any]:
    loss = as_it_was["loss"]
    gain = None if simulated["au"] is None or as_it_was["au"] is None else simulated["au"] - as_it_was["au"]
    return {
        "change": name,
        "au": simulated["au"],
        "gain": gain,
        "causal_share": gain / loss if gain is not None and loss else None,
        "samples_per_second": simulated["samples_per_second"],
        "time_saved": saved(as_it_was, simulated),
        "then": then(simulated),
    }


def comes_back(simulated: Mapping[str, Any], au: float) -> bool:
    """Whether the run as it was, ``simulated``, is the one that was measured: only then are its changes predictions."""
    return simulated["au"] is None or abs(simulated["au"] - au) <= COMES_BACK


def saved(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """The part of the time that a simulated run takes less than another for the same steps; negative where more.

    It is that of all steps, from the first one's begin: in a short run a change may move a wait to before the window.
    """
    old, new = before["lasted"], after["lasted"]
    return 1 - new / old if old and new else None


def then(simulated: Mapping[str, Any]) -> str:
    """Name what binds a simulated run: its largest cause of loss, or compute."""
    return str(simulated["next"])


def prediction(base: Base, verdict: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Say what to change, and simulate that: enough workers for a run that waits for data, else what first helps.

    What helps is what saves time: AU counts a slow rank's extra compute as useful. What saves less than half of what
    another change would is no help. None when nothing that can be simulated is, or nothing is worth removing: how often
    real storage would refuse is not.
    """
    if not verdict["is_worth_removing"] or (base.is_throttled and _removal(verdict["cause"]) == "read"):
        return None
    rows = {row["change"]: row for row in table["changes"] if row["time_saved"] is not None}
    keys = keys_of(base.scenario)
    # "read = 0" measures a loss: what to change about reading is a limit of the storage.
    read = LIMITS if _removal(verdict["cause"]) == "read" and base.modelled is not None else ()
    wanted = {
        # Where no rank is slower than others in the mean, it is jitter, and only fewer barriers would help.
        "straggler": ("no stragglers", "no barrier"),
        "checkpoint": ("checkpoints async", "checkpoints ÷ 2", "no checkpoints"),
        "evaluation": ("no evaluations",),
        "all-reduce": ("no barrier",),
        "input": (*OF_INPUT, *(read or (f"{verdict['cause']} = 0",))),
        "loader": ("no bound on bytes", "prefetch × 2", "reader_nodes × 2", "network = ∞", "loader = 0"),
    }.get(verdict["bound"], ())
    if verdict.get("is_processor_bound"):
        row, cores = rows["cores × 2"], base.scenario.cluster.cores
        each = "" if isinstance(cores, tuple) else f" ({2 * (cores or 1)} on each node)"
        return {"change": f"With twice the cores{each}", **{key: row[key] for key in ("au", "time_saved", "then")}}
    chosen = [rows[name] for name in wanted if name in rows and name != "read = 0"]
    most = max((row["time_saved"] for row in chosen), default=0.0)
    more = _enough_workers(base, table) if verdict["bound"] in OF_DATA and not base.is_throttled else None
    settings = [row for row in chosen if row["change"] in keys]
    if more and more["time_saved"] >= max((row["time_saved"] for row in settings), default=0.0):
        return more
    # What a key can change comes before what only other storage or code can, unless it saves little beside that; but
    # fewer workers cost nothing.
    for row in sorted(settings, key=lambda row: -row["time_saved"]) + sorted(
        chosen, key=lambda row: -row["time_saved"]
    ):
        free = row["change"] == "workers ÷ 2" or (row["change"] in keys and (read or verdict["bound"] == "checkpoint"))
        if row["time_saved"] >= max(WORTH, 0 if free else most / 2):
            change = keys.get(row["change"], shown(row["change"]))
            return {"change": f"With {change}", **{key: row[key] for key in ("au", "time_saved", "then")}}
    return more


#: Changes that lift one limit of a modelled storage each.
LIMITS = ("connections = ∞", "bandwidth = ∞", "requests/s = ∞", "opens/s = ∞", "no throttling", "latency = 0")


#: Keys that may help where ranks wait for data.
OF_INPUT = (
    "workers ÷ 2", "max × 2", "min × 2", "prefetch × 2", "prefixes × 2", "cache × 2", "io_depth × 2", "format npz",
    "format hdf5", "format tfrecord", "chunk × 2", "no bound on bytes",
)  # fmt: skip


def _removal(cause: str | None) -> str | None:
    return "read" if cause in ("open", "retry") else cause


def _enough_workers(base: Base, table: Mapping[str, Any]) -> dict[str, Any] | None:
    """Double the workers until exposed data loading is no bottleneck, or more of them do not help."""
    replayed, best, before = table["_replayed"], None, table["_as_it_was"]
    workers = base.workers
    for doubling in range(1, DOUBLINGS + 1):
        number = max(1, workers * 2**doubling) if workers else 2 ** (doubling - 1)
        try:
            simulated = base.simulate(with_workers(replayed, number))
        except StorageError:  # so many ask for more than storage ever serves
            break
        if (saved(before, simulated) or 0.0) < WORTH:
            break
        before = simulated
        in_all = number * derive.world_size(base.scenario)
        stay = ", throughout" if isinstance(base.scenario.loader.num_workers, Autoscaled) else " in all"
        more = f"With {number} worker{'s' * (number != 1)} per rank ({in_all}{stay})"
        best = {
            "change": more, "workers": number, "au": simulated["au"],
            "time_saved": saved(table["_as_it_was"], simulated), "then": then(simulated),
        }  # fmt: skip
        if simulated["data_wait_share"] <= BINDS:
            break
    return best


#: What each simulated removal takes away; of two for the same cause the one that saves more counts.
REMOVALS: dict[str, tuple[str, ...]] = {
    "decode = 0": ("decode",),
    "read = 0": ("read", "open", "retry"),
    "loader = 0": OF_LOADER,
    "network = ∞": ("transfer",),
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
    if best is None or saves[best] <= verdict["tolerated"]:
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


#: Changes of a setting: a larger machine is worth naming where none of them saves half as much.
OF_SETTINGS = ("workers × 2", "1 worker", *OF_INPUT)


def of_processors(verdict: Mapping[str, Any], table: Mapping[str, Any]) -> bool | None:
    """Whether readers and ranks that wait for batches wait for cores; None where cores are not known."""
    rows = {row["change"]: row["time_saved"] or 0.0 for row in table["changes"]}
    if (saves := rows.get("cores × 2")) is None or verdict["bound"] is None:
        return None
    settings = max((rows[name] for name in rows if name in OF_SETTINGS or name.endswith("throughout")), default=0.0)
    return bool(verdict["bound"] in OF_DATA and saves > max(BINDS, 2 * settings))


def modelled(scenario: Scenario, info: Mapping[str, Any]) -> StorageParameters | None:
    """The storage of a run where it was a model; None of real storage, and of imported results."""
    is_modelled = info.get("modelled_storage", info.get("engine") == "virtual") and not info.get("imported")
    return storage_of(scenario) if is_modelled and scenario.storage.model != UNKNOWN else None


def is_worth(verdict: Mapping[str, Any], table: Mapping[str, Any]) -> bool | None:
    """Say whether what binds is worth removing: not where nothing that was simulated saves more than is tolerated."""
    most = max((row["time_saved"] for row in table["changes"] if row["time_saved"] is not None), default=None)
    is_removable = any(verdict["cause"] in causes for causes in REMOVALS.values())
    if not verdict["is_worth_removing"] or most is None or not is_removable:
        return verdict["is_worth_removing"] if verdict["bound"] is not None else None
    return bool(most > verdict["tolerated"])


def _as_it_ran(scenario: Scenario, info: Mapping[str, Any]) -> Scenario:
    """Take the model of the network away where batches crossed a real one, of which the times are those measured."""
    placement = info.get("placement")
    if not isinstance(placement, Mapping) or placement.get("is_network_modelled", True):
        return scenario
    real = scenario.cluster.model_copy(update={"nic_bandwidth": None, "nic_latency": 0.0})
    return scenario.model_copy(update={"cluster": real})


def ready(
    scenario: Scenario,
    info: Mapping[str, Any],
    charged: Attribution,
    spans: Slices,
    *,
    workers: int | None = None,
    batch_bytes: float | None = None,
    worked: Worked | None = None,
    is_refused: bool = False,
) -> Base | None:
    """Make a run ready to be lived again, from its scenario, ``run.json`` and spans; None without spans of readers.

    ``workers`` is how many readers each rank had, ``batch_bytes`` the mean of a batch; what a run on Ray ``worked`` is
    done again on the cores that it had; ``is_refused`` says that storage refused many of its reads.
    """
    is_virtual = info.get("engine") == "virtual"
    scenario = _as_it_ran(scenario, info)
    measured = Measured.of(spans, charged, scenario, costs=scenario.charges if is_virtual else None)
    if not measured.has_work:
        return None
    bound = info.get("max_bytes_in_flight")
    base = Base(
        scenario,
        measured,
        modelled(scenario, info),
        bound if isinstance(bound, int) else None,
        "memory_bound" in spans.names,
        slow_ranks(charged.steps, len(charged.lives.rank)),
        scenario.loader.max_workers if workers is None else workers,
        batch_bytes,
        is_throttled=is_refused and modelled(scenario, info) is None,
    )
    return base if worked is None or is_virtual else on_cores(base, worked, charged)
