"""What binds where a search ends, and what one change of the scenario would move it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rayio.errors import RayioError
from rayio.model.planning import storage_of
from rayio.predict.calibrate import calibrate
from rayio.predict.counterfactual import COMES_BACK
from rayio.predict.explain import explain
from rayio.records.sizing import CapacityChange
from rayio.reporter import Reporter
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.schema.distribution import Distribution
from rayio.session.conclude import in_memory
from rayio.session.execute import simulate
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import largest
from rayio.study.sizing.trials import ROUNDING, au_of
from rayio.study.sizing.words import UNKNOWN
from rayio.units import BYTES

#: A scenario with one thing changed.
Change = Callable[[Scenario], Scenario]

#: Rank-steps that are enough to say what binds.
ENOUGH_STEPS = 20_000
#: Windows of prefetching that it keeps at least.
WINDOWS = 12
#: A point that misses its target, by whatever formula, misses this AU: however little costs most, it is named.
MISSED = 1.0
#: AU that a change must add to be worth a line.
WORTH = 0.005


def binding(scenario: Scenario, run: Path | None, reporter: Reporter) -> str | None:
    """Say what keeps a point from its target: of its run directory, else of one that is simulated for it.

    None where nobody can.
    """
    try:
        if run is not None:
            return explain(run, target_au=MISSED, reporter=reporter).sentence
        with TemporaryDirectory(prefix="rayio-") as folder:
            simulate(shortened(scenario), out=Path(folder) / "run", root=folder)
            # what would change it comes after
            return explain(Path(folder) / "run", simulate=False, target_au=MISSED, reporter=reporter).sentence
    except RayioError:
        return None


def learned(scenario: Scenario, run: Path, made: float | None, formula: str) -> Change | str:
    """What gives a scenario the storage, the processors and the costs that a run on a wall clock had.

    A sentence why there is none, where the run's ``scenario``, simulated with them, has not the AU that was ``made``.
    """
    try:
        taught = calibrate(run).scenario
    except RayioError as error:
        return f"{UNKNOWN}: {error}"

    def like(one: Scenario) -> Scenario:
        cluster = one.cluster.model_copy(update={"cores": taught.cluster.cores})
        loader = one.loader.model_copy(update={"decode": taught.loader.decode})
        told = {"storage": taught.storage, "costs": taught.costs, "cluster": cluster, "loader": loader}
        return one.model_copy(update=told)

    au = _au(like(scenario), formula)
    if au is None or made is None or abs(au - made) > COMES_BACK:
        was, is_now = ("unknown" if one is None else f"{100 * one:.1f} %" for one in (made, au))
        return f"{UNKNOWN}: that run had AU {was}, simulated with what it teaches {is_now}"
    return like


def shortened(scenario: Scenario) -> Scenario:
    """The same with fewer epochs, then steps, where it is long: enough to see what it waits for."""
    train, one_epoch = scenario.train, derive.total_rank_steps(scenario) // scenario.train.epochs
    epochs = max(1, min(train.epochs, ENOUGH_STEPS // max(one_epoch, 1)))
    fewest = WINDOWS * derive.window_steps(scenario)
    steps = max(fewest, ENOUGH_STEPS // derive.world_size(scenario)) if one_epoch > ENOUGH_STEPS else train.steps
    return scenario.model_copy(update={"train": train.model_copy(update={"epochs": epochs, "steps": steps})})


def variants(scenario: Scenario) -> Iterator[tuple[str, Change]]:
    """The changes that are tried, in words and as functions: what the loader can first, then what other storage can."""
    loader, model = scenario.loader, storage_of(scenario)
    if loader.max_workers:
        yield (
            f"loader.prefetch_factor={2 * loader.prefetch_factor}",
            _loader(prefetch_factor=2 * loader.prefetch_factor),
        )
    workers = max(1, 2 * loader.max_workers)
    yield f"loader.num_workers={workers}", _loader(num_workers=workers)
    yield "twice the bandwidth of the storage", _storage(bandwidth=2 * model.bandwidth)
    yield "twice the bandwidth of a connection", _storage(connection_bandwidth=2 * model.connection_bandwidth)
    if model.requests_per_second is not None:
        yield "twice the requests per second", _storage(requests_per_second=2 * model.requests_per_second)
    if model.opens_per_second is not None:
        yield "twice the opens per second", _storage(opens_per_second=2 * model.opens_per_second)
    if isinstance(cores := scenario.cluster.cores, int):
        yield "twice the cores", _cores(2 * cores)
    if scenario.storage.throttle is not None:
        prefixes = 2 * scenario.storage.throttle.prefixes
        yield f"storage.throttle.prefixes={prefixes}", _prefixes(prefixes)
    if scenario.storage.cache is not None:
        twice = BYTES.exact(2 * (scenario.storage.cache_bytes or 0))
        yield f"storage.cache=[{{tier: ram, bytes: {twice}}}]", _twice_cached
    yield "half the latency of requests and opens", _storage(first_byte=_half(model.first_byte), open=_half(model.open))


def _loader(**keys: Any) -> Change:
    """Change the loader. Its window is twice as long, and so is the epoch: filling it must not pass for a gain.

    Caches then hold the same part of the dataset.
    """

    def change(one: Scenario) -> Scenario:
        loader = one.loader.model_copy(update=keys)
        steps = None if one.train.steps is None else 2 * one.train.steps
        dataset = one.dataset.model_copy(update={"num_files": 2 * one.dataset.num_files})
        train = one.train.model_copy(update={"steps": steps})
        changed = one.model_copy(update={"loader": loader, "dataset": dataset, "train": train})
        return changed if one.storage.cache is None else _twice_cached(changed)

    return change


def _storage(**keys: Any) -> Change:
    def change(one: Scenario) -> Scenario:
        model = storage_of(one).model_copy(update=keys)
        return one.model_copy(update={"storage": one.storage.model_copy(update={"model": model})})

    return change


def _cores(number: int) -> Change:
    def change(one: Scenario) -> Scenario:
        return one.model_copy(update={"cluster": one.cluster.model_copy(update={"cores": number})})

    return change


def _prefixes(number: int) -> Change:
    def change(one: Scenario) -> Scenario:
        assert one.storage.throttle is not None
        throttle = one.storage.throttle.model_copy(update={"prefixes": number})
        return one.model_copy(update={"storage": one.storage.model_copy(update={"throttle": throttle})})

    return change


def _twice_cached(one: Scenario) -> Scenario:
    """Give each node twice the cache."""
    tiers = tuple(tier.model_copy(update={"bytes": 2 * tier.bytes}) for tier in one.storage.cache or ())
    return one.model_copy(update={"storage": one.storage.model_copy(update={"cache": tiers})})


def _half(times: Distribution) -> Distribution:
    """A distribution of half the times."""
    held = {name: getattr(times, name) for name in times.quantities}
    return times.model_copy(update={name: value / 2 for name, value in held.items() if value is not None})


def changes_at(scenario: Scenario, formula: str, reporter: Reporter) -> list[tuple[str, Change, float]]:
    """Simulate each variant of a point; give those that help with their AU, the most helpful first."""
    found = []
    as_it_is = _au(scenario, formula)
    wanted = [*variants(scenario)]
    for number, (name, change) in enumerate(wanted):
        reporter.live(f"what would move it: {number} of {len(wanted)} changes simulated", number / len(wanted))
        changed = change(scenario)
        try:
            checks.check_simulated(changed)
            au = _au(changed, formula)
        except RayioError:
            continue
        if au is not None and as_it_is is not None and au - as_it_is >= WORTH:
            found.append((name, change, au))
    return sorted(found, key=lambda one: -round(one[2], 3))


def _au(scenario: Scenario, formula: str) -> float | None:
    return au_of(in_memory(shortened(scenario)), formula)


def best_change(
    question: Question,
    found: Sequence[tuple[str, Change, float]],
    fails: int,
    target: float,
    formula: str,
    most: int,
    like: Change,
) -> tuple[CapacityChange, ...]:
    """Write the changes down; of the first that keeps the target, how many accelerators hold with it.

    ``like`` makes what is simulated of the scenario of a point.
    """
    rows = [CapacityChange(change=name, au=au, holds=au >= target - ROUNDING) for name, _, au in found]
    place = next((number for number, row in enumerate(rows) if row.holds), None)
    if place is None:
        return tuple(rows)
    change = found[place][1]

    def holds(value: int) -> bool:
        au = _au(change(like(question.scenario(value))), formula)
        return au is not None and au >= target - ROUNDING

    bracket = largest(holds, most, start=fails)
    accelerators = question.accelerators(max(bracket.holds, fails))
    rows[place] = replace(rows[place], accelerators=accelerators, is_at_least=bracket.fails is None)
    return tuple(rows)
