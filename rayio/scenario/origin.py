"""The origin of a run's numbers: measured or predicted, and the models they rest on."""

from __future__ import annotations

from collections.abc import Iterator

from rayio.kinds import COSTS, STORAGE_MODELS
from rayio.records.origin import MEASURED, PREDICTED, ChargedCosts, Origin, StorageModel
from rayio.scenario.layers import layers_of
from rayio.scenario.model import Costs, Scenario
from rayio.scenario.storage import modelled_gap
from rayio.storage.stores.opening import gap_at


def origin_of(scenario: Scenario, *, is_virtual: bool, modelled: bool) -> Origin:
    """Return the origin of a run on a virtual or a wall clock, whose storage was or was not ``modelled``."""
    if not modelled:
        return Origin(kind=MEASURED, storage="real")
    model = _model(scenario)
    unknown = tuple(_unknown(scenario))
    if not is_virtual:
        missing = ("processor time of reading and decoding real bytes", *unknown)
        return Origin(kind=MEASURED, storage="modelled", model=model, leaves_out=missing)
    costs = scenario.charges
    bounded = scenario.cluster.cores is not None and costs.cpu.is_work
    left_out: tuple[str, ...] = (f"contention for {'' if bounded else 'processors, '}memory and links", *unknown)
    if not (bounded and (costs.cpu.sample or costs.cpu.bandwidth)) and _is_service(scenario):
        left_out = (*left_out, "processor time of requests")
    if not costs.of_loader:
        left_out = ("messages and copies of the loader", *left_out)
    if not any((costs.barrier, costs.step)):
        left_out += ("overhead of steps",)
    return Origin(kind=PREDICTED, storage="modelled", model=model, costs=_costs(scenario), leaves_out=left_out)


def _is_service(scenario: Scenario) -> bool:
    """Return True if samples come from an object store, whose every request takes its client processor time."""
    return bool(modelled_gap(scenario) or gap_at(scenario.dataset.path))


def _unknown(scenario: Scenario) -> Iterator[str]:
    layers = layers_of(scenario, modelled=True)
    if not any(layer.keeps for layer in layers):
        yield "page caches"
    failing = [layer.fails for layer in layers if layer.fails]
    yield "failures of storage" + " other than " * bool(failing) + " and ".join(failing)


def _model(scenario: Scenario) -> StorageModel:
    chosen = scenario.storage.model
    layers = [layer.description for layer in layers_of(scenario, modelled=True)]
    if not isinstance(chosen, str):
        source = "; ".join(part for part in (chosen.source, *layers) if part)
        return StorageModel(name="parameters", provenance=chosen.provenance, source=source)
    preset = STORAGE_MODELS[chosen]
    provenance = str(getattr(preset, "provenance", "assumed"))  # a preset of another package may say nothing
    source = "; ".join(part for part in (_one_line(getattr(preset, "source", "")), *layers) if part)
    return StorageModel(name=chosen, provenance=provenance, source=source)


def _costs(scenario: Scenario) -> ChargedCosts:
    chosen = scenario.costs
    if isinstance(chosen, Costs):
        is_something = chosen.model_copy(update={"source": ""}) != Costs()
        return ChargedCosts(name="parameters" if is_something else "none", source=chosen.source)
    known = COSTS[chosen]
    machine, date = (getattr(known, key, "") or None for key in ("machine", "date"))
    return ChargedCosts(name=chosen, source=_one_line(known.source), machine=machine, date=date)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
