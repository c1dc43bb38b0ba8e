"""The origin of results (measured, predicted or imported, and the models used): the record, and its text."""

from __future__ import annotations

from rayio.records.record import Record, record, value

MEASURED, PREDICTED, IMPORTED, WATCHED = "measured", "predicted", "imported", "watched"

#: Meaning of ``other`` on the virtual clock, which has no overhead.
CHARGED = "charged by costs: barrier, end of a step"

#: Kinds of results by engine; imported ones have the benchmark as engine.
_KINDS = {
    "ray": MEASURED, "local": MEASURED, "virtual": PREDICTED, "dlio": IMPORTED,
    "watch": WATCHED, "torch-profiler": WATCHED, "dftracer": WATCHED,
}  # fmt: skip

#: How a training loop of another program was recorded, by engine.
RECORDED_BY = {
    "watch": "a training loop, recorded by rayio.watch",
    "torch-profiler": "a training loop, imported from a trace of torch.profiler",
    "dftracer": "a training loop, imported from traces of DFTracer",
}

#: Meaning of ``other`` in a training loop of another program.
OWN_WORK = "the loop's own work between steps"


def kind_of(engine: str | None) -> str:
    """Return the kind of an engine's results; empty for an unknown engine."""
    return _KINDS.get(engine or "", "")


@record
class StorageModel(Record):
    """The model of storage and the source of its numbers."""

    name: str = value("name of the preset; parameters if the scenario has the numbers")
    provenance: str = value("published, assumed, or fitted to a run")
    source: str = value("the publication, the assumption, or the run", default="")


@record
class ChargedCosts(Record):
    """The loader overhead model of a prediction and the source of its numbers."""

    name: str = value("none, the name of measured costs, or parameters if the scenario has the numbers")
    source: str = value("how the numbers were measured or fitted", default="")
    machine: str | None = value("machine of the measurement", can_be_absent=True)
    date: str | None = value("date of the measurement", can_be_absent=True)


@record
class Origin(Record):
    """The origin of results: measured, predicted or imported, and the models used."""

    kind: str = value(
        "measured (wall clock), predicted (virtual clock), imported from another benchmark, or watched: a training "
        "loop of another program"
    )
    storage: str = value("real, modelled, or unknown (imported results, and runs of version 0.1)")
    model: StorageModel | None = value("the model of modelled storage", can_be_absent=True)
    costs: ChargedCosts | None = value("the loader overhead model of a prediction", can_be_absent=True)
    leaves_out: tuple[str, ...] = value("what the numbers exclude", default=())


def of_old(engine: str) -> Origin:
    """Return the origin of a result of version 0.1, which has none."""
    return Origin(kind=kind_of(engine) or MEASURED, storage="modelled" if kind_of(engine) == PREDICTED else "unknown")


def storage_words(origin: Origin) -> tuple[str, str]:
    """Return the name of the storage model and a remark on its numbers; empty for real storage."""
    if origin.storage != "modelled":
        return "", ""
    if (model := origin.model) is None:
        return "a model", "see the scenario"
    source = model.source if model.provenance == "fitted" and model.source else model.provenance
    return model.name, f"modelled, numbers {source}"


def costs_words(origin: Origin) -> tuple[str, str]:
    """Return the name of the loader overhead model and a remark on its numbers; empty without a prediction."""
    if (costs := origin.costs) is None:
        return "", ""
    if costs.name == "none":
        return "none", "loader overhead not modelled"
    source = f"measured {costs.date}, {costs.machine}" if costs.date else costs.source or "from the scenario"
    return costs.name, f"loader overhead, {source}"


def head(origin: Origin | None, engine: str | None) -> str:
    """Return a line on the kind of the numbers and the models used."""
    kind = origin.kind if origin else kind_of(engine)
    if kind == IMPORTED:
        return "imported from results of DLIO"
    if kind == WATCHED:
        return RECORDED_BY.get(engine or "", "a training loop")
    parts = [f"{kind} on the {engine} engine" if kind else f"{engine or 'unknown'} engine"]
    if origin is not None:
        for what, (name, remark) in (("storage", storage_words(origin)), ("costs", costs_words(origin))):
            parts += [f"{what} {name}: {remark}"] if name else []
    return "; ".join(parts)
