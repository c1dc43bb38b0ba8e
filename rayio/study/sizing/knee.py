"""The bottleneck at the end of a capacity search, and changes of the scenario that would help."""

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

#: A function that returns a changed scenario.
Change = Callable[[Scenario], Scenario]

#: Rank-steps that suffice to find the bottleneck.
ENOUGH_STEPS = 20_000
#: The fewest prefetch windows of such a run.
WINDOWS = 12
#: Target AU for the explanation: every point misses it, so a bottleneck is always named.
MISSED = 1.0
#: The least AU that a listed change adds.
WORTH = 0.005


def binding(scenario: Scenario, run: Path | None, reporter: Reporter) -> str | None:
    """Return a sentence on what keeps a point from its target; None if unknown.

    It explains the point's run, or a simulated one if ``run`` is None.
    """
    try:
        if run is not None:
            return explain(run, target_au=MISSED, reporter=reporter).sentence
        with TemporaryDirectory(prefix="rayio-") as folder:
            simulate(shortened(scenario), out=Path(folder) / "run", root=folder)
            return explain(Path(folder) / "run", simulate=False, target_au=MISSED, reporter=reporter).sentence
    except RayioError:
        return None


def learned(scenario: Scenario, run: Path, measured: float | None, formula: str) -> Change | str:
    """Return a change that applies a run's calibrated storage, processors and costs; or why there is none.

    There is none if the run's ``scenario``, simulated with them, does not have the ``measured`` AU.
    """
    try:
        fitted = calibrate(run).scenario
    except RayioError as error:
        return f"{UNKNOWN}: {error}"

    def like(scenario: Scenario) -> Scenario:
        cluster = scenario.cluster.model_copy(update={"cores": fitted.cluster.cores})
        loader = scenario.loader.model_copy(update={"decode": fitted.loader.decode})
        parts = {"storage": fitted.storage, "costs": fitted.costs, "cluster": cluster, "loader": loader}
        return scenario.model_copy(update=parts)

    simulated = _au(like(scenario), formula)
    if simulated is None or measured is None or abs(simulated - measured) > COMES_BACK:
        texts = ["unknown" if au is None else f"{100 * au:.1f} %" for au in (simulated, measured)]
        return f"{UNKNOWN}: the calibrated model gives AU {texts[0]}, the run had {texts[1]}"
    return like


def shortened(scenario: Scenario) -> Scenario:
    """Return a scenario with fewer epochs and steps if it is long, but enough to find its bottleneck."""
    train, one_epoch = scenario.train, derive.total_rank_steps(scenario) // scenario.train.epochs
    epochs = max(1, min(train.epochs, ENOUGH_STEPS // max(one_epoch, 1)))
    fewest = WINDOWS * derive.window_steps(scenario)
    steps = max(fewest, ENOUGH_STEPS // derive.world_size(scenario)) if one_epoch > ENOUGH_STEPS else train.steps
    return scenario.model_copy(update={"train": train.model_copy(update={"epochs": epochs, "steps": steps})})


def variants(scenario: Scenario) -> Iterator[tuple[str, Change]]:
    """Iterate over the changes to try, in words and as functions: of the loader, then of the storage."""
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
    """Return a change of the loader, with twice the steps (and caches): a doubled window must not pass for a gain."""

    def change(scenario: Scenario) -> Scenario:
        loader = scenario.loader.model_copy(update=keys)
        steps = None if scenario.train.steps is None else 2 * scenario.train.steps
        dataset = scenario.dataset.model_copy(update={"num_files": 2 * scenario.dataset.num_files})
        train = scenario.train.model_copy(update={"steps": steps})
        changed = scenario.model_copy(update={"loader": loader, "dataset": dataset, "train": train})
        return changed if scenario.storage.cache is None else _twice_cached(changed)

    return change


def _storage(**keys: Any) -> Change:
    def change(scenario: Scenario) -> Scenario:
        model = storage_of(scenario).model_copy(update=keys)
        return scenario.model_copy(update={"storage": scenario.storage.model_copy(update={"model": model})})

    return change


def _cores(number: int) -> Change:
    def change(scenario: Scenario) -> Scenario:
        return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"cores": number})})

    return change


def _prefixes(number: int) -> Change:
    def change(scenario: Scenario) -> Scenario:
        assert scenario.storage.throttle is not None
        throttle = scenario.storage.throttle.model_copy(update={"prefixes": number})
        return scenario.model_copy(update={"storage": scenario.storage.model_copy(update={"throttle": throttle})})

    return change


def _twice_cached(scenario: Scenario) -> Scenario:
    """Return a scenario with twice the cache on each node."""
    tiers = tuple(tier.model_copy(update={"bytes": 2 * tier.bytes}) for tier in scenario.storage.cache or ())
    return scenario.model_copy(update={"storage": scenario.storage.model_copy(update={"cache": tiers})})


def _half(times: Distribution) -> Distribution:
    """Return a distribution of half the times."""
    quantities = {name: getattr(times, name) for name in times.quantities}
    return times.model_copy(update={name: value / 2 for name, value in quantities.items() if value is not None})


def changes_at(scenario: Scenario, formula: str, reporter: Reporter) -> list[tuple[str, Change, float]]:
    """Return the changes that help at a point, with their simulated AU, the best first."""
    helpful = []
    baseline = _au(scenario, formula)
    wanted = [*variants(scenario)]
    for number, (name, change) in enumerate(wanted):
        reporter.live(f"finding what would help: {number} of {len(wanted)} changes simulated", number / len(wanted))
        changed = change(scenario)
        try:
            checks.check_simulated(changed)
            au = _au(changed, formula)
        except RayioError:
            continue
        if au is not None and baseline is not None and au - baseline >= WORTH:
            helpful.append((name, change, au))
    return sorted(helpful, key=lambda entry: -round(entry[2], 3))


def _au(scenario: Scenario, formula: str) -> float | None:
    return au_of(in_memory(shortened(scenario)), formula)


def best_change(
    question: Question,
    changes: Sequence[tuple[str, Change, float]],
    fails: int,
    target: float,
    formula: str,
    most: int,
    like: Change,
) -> tuple[CapacityChange, ...]:
    """Return the changes as records; the first that reaches the target has the accelerators that hold with it.

    ``like`` returns the calibrated scenario of a point.
    """
    rows = [CapacityChange(change=name, au=au, holds=au >= target - ROUNDING) for name, _, au in changes]
    index = next((number for number, row in enumerate(rows) if row.holds), None)
    if index is None:
        return tuple(rows)
    change = changes[index][1]

    def holds(value: int) -> bool:
        au = _au(change(like(question.scenario(value))), formula)
        return au is not None and au >= target - ROUNDING

    bracket = largest(holds, most, start=fails)
    accelerators = question.accelerators(max(bracket.holds, fails))
    rows[index] = replace(rows[index], accelerators=accelerators, is_at_least=bracket.fails is None)
    return tuple(rows)
