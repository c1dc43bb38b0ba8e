"""Whether numbers were measured, predicted or imported, and which models they rest on: the record, and its words."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value

MEASURED, PREDICTED, IMPORTED = "measured", "predicted", "imported"

#: What ``other`` is on the virtual clock, which has no overhead of its own.
CHARGED = "charged by costs: barrier, end of a step"

#: What the results of an engine are; imported ones have the benchmark in the engine's place.
_KINDS = {"ray": MEASURED, "local": MEASURED, "virtual": PREDICTED, "dlio": IMPORTED}


def kind_of(engine: str | None) -> str:
    """Say what the results of an engine are; empty of an engine that is not known."""
    return _KINDS.get(engine or "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageModel(Record):
    """The model that stood for storage, and where its numbers come from."""

    name: str = value("the preset's name; parameters where the scenario has numbers of its own")
    provenance: str = value("published, assumed, or fitted to a run")
    source: str = value("what was published, what is assumed, or which run they were fitted to", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedCosts(Record):
    """What was charged for the loader's own messages and copies, and how that was found."""

    name: str = value("none, the name of measured costs, or parameters where the scenario has numbers of its own")
    source: str = value("how the numbers were found", default="")
    machine: str | None = value("what they were measured on", can_be_absent=True)
    date: str | None = value("when they were measured", can_be_absent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(Record):
    """Whether the numbers were measured, predicted or imported, and which of them rest on a model."""

    kind: str = value("measured (a wall clock), predicted (the virtual clock), or imported from another benchmark")
    storage: str = value("real, modelled, or unknown: of imported results, and of runs of version 0.1")
    model: StorageModel | None = value("the model of storage, where it was modelled", can_be_absent=True)
    costs: ChargedCosts | None = value("what a prediction charged for the loader", can_be_absent=True)
    leaves_out: tuple[str, ...] = value("what the numbers do not contain", default=())


def of_old(engine: str) -> Origin:
    """What can be said of a result that was written before results said it."""
    return Origin(kind=kind_of(engine) or MEASURED, storage="modelled" if kind_of(engine) == PREDICTED else "unknown")


def storage_words(origin: Origin) -> tuple[str, str]:
    """Say what stood for storage: its name, and a half sentence on how far to trust it; empty for real storage."""
    if origin.storage != "modelled":
        return "", ""
    if (model := origin.model) is None:
        return "a model", "which one is in the scenario"
    said = model.source if model.provenance == "fitted" and model.source else model.provenance
    return model.name, f"modelled, its numbers are {said}"


def costs_words(origin: Origin) -> tuple[str, str]:
    """Say what a prediction charged for the loader, and how that was found; empty where nothing is predicted."""
    if (costs := origin.costs) is None:
        return "", ""
    if costs.name == "none":
        return "none", "no time for the loader's messages and copies"
    found = f"measured {costs.date}, {costs.machine}" if costs.date else costs.source or "as the scenario has them"
    return costs.name, f"of the loader, {found}"


def head(origin: Origin | None, engine: str | None) -> str:
    """Say in one line what kind of numbers these are, and on which models they rest."""
    kind = origin.kind if origin else kind_of(engine)
    if kind == IMPORTED:
        return "imported from results of DLIO"
    parts = [f"{kind} on the {engine} engine" if kind else f"{engine or 'unknown'} engine"]
    if origin is not None:
        for what, (name, remark) in (("storage", storage_words(origin)), ("costs", costs_words(origin))):
            parts += [f"{what} {name}: {remark}"] if name else []
    return "; ".join(parts)
