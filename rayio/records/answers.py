"""The output of commands with ``--json``: records, and their JSON Schemas by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rayio.records.checked_facts import CheckedFacts
from rayio.records.clusters import Doctored, JobsListed
from rayio.records.comparison import Repeated
from rayio.records.derived import DERIVED
from rayio.records.published import PUBLISHED, schema_of
from rayio.records.record import Json, Record, record, schema, value
from rayio.records.run_result import RunResult
from rayio.records.running import Live
from rayio.records.sizing import Advised, CapacityFound, DatasetSize

#: A value of a scenario's key; a list or a mapping as YAML text.
Value = str | int | float | bool | None


@record
class Ran(Record):
    """A run: the output of ``run``, ``simulate``, ``report`` and ``import``."""

    directory: str = value("path or address of the run directory")
    report: str | None = value("path or address of report.html; null if not written", default=None)
    result: RunResult = value("content of result.json")


@record
class Repeats(Record):
    """Repeated runs of a scenario: the output of ``run --repeat`` and ``simulate --repeat``."""

    runs: tuple[Ran, ...] = value("the runs in their order")
    metrics: tuple[Repeated, ...] = value("metrics that every run has")


@record
class Validated(Record):
    """A valid scenario: the output of ``validate``."""

    source: str = value("file or name of the scenario, as given")
    name: str = value("name of the scenario")
    ranks: int = value("trainer ranks")
    steps: int = value("steps of the rank with the fewest, over all epochs", "steps")
    most_steps: int = value("steps of the rank with the most, over all epochs", "steps")
    samples: int = value("samples of the dataset", "samples")
    dataset_bytes: float = value("expected size of the dataset", "bytes")
    dropped_samples_per_epoch: int = value("samples not read because of drop_last", "samples")
    capped_samples_per_epoch: int = value(
        "samples not read because of train.steps; of unequal epochs their mean", "samples"
    )
    notes: tuple[str, ...] = value("keys without effect, a sentence each")
    not_simulated: tuple[str, ...] = value("reasons why rayio simulate cannot run it, a sentence each")


@record
class PackagedScenario(Record):
    """A packaged scenario."""

    name: str = value("name for commands")
    description: str = value("description")


@record
class PackagedScenarios(Record):
    """The output of ``scenarios``."""

    scenarios: tuple[PackagedScenario, ...] = value("packaged scenarios")


@record
class ImportedWorkload(Record):
    """A workload file of another benchmark as a scenario: the output of ``import dlio``."""

    file: str | None = value("the written file; null without --out")
    name: str = value("name of the scenario")
    scenario: str = value("text of the scenario file")
    differs: tuple[str, ...] = value("keys that act otherwise than in the other benchmark, a line each")
    no_effect: tuple[str, ...] = value("keys without effect, a line each")


@record
class GeneratedDataset(Record):
    """The files of a dataset."""

    path: str = value("folder or address")
    written_files: int = value("files generated now")
    written_bytes: int = value("bytes generated now", "bytes")
    reused_files: int = value("files that existed")
    reused_bytes: int = value("bytes that existed", "bytes")


@record
class Generated(Record):
    """The output of ``generate``."""

    datasets: tuple[GeneratedDataset, ...] = value("datasets of evaluation (if any) and training")


@record
class SweptRun(Record):
    """A run of a sweep."""

    point: tuple[Value, ...] = value("values of the swept keys, in their order; lists and mappings as YAML")
    repeat: int = value("number of the repeat, from 0")
    status: str = value("done, unmet (expect:), impossible (contradictory values) or failed")
    error: str | None = value("error, unless done", default=None)
    workers: int | None = value("workers of all ranks", default=None)
    window_bytes: float | None = value("expected bytes of all full prefetch windows", "bytes", default=None)
    result: RunResult | None = value("result; null if nothing ran", default=None)


@record
class SweptPoints(Record):
    """The output of ``sweep``."""

    directory: str = value("directory of the sweep, with sweep.html, sweep.csv and sweep.parquet")
    name: str = value("name of the scenario")
    engine: str = value("ray, local or virtual")
    swept: tuple[str, ...] = value("the swept keys")
    missing: int = value("runs that have not ended")
    knee: tuple[Value, ...] | None = value("point where diminishing returns of AU begin, with one swept key")
    front: tuple[tuple[Value, ...], ...] = value("points of the Pareto front of AU, workers and memory")
    runs: tuple[SweptRun, ...] = value("finished runs")


@record
class ExportedFile(Record):
    """A file of exported spans."""

    path: str = value("the file")
    spans: int = value("spans of the run in it")
    roots: int = value("root spans added")
    seconds: float = value("time to write it", "s")


@record
class ExportedTo(Record):
    """A collector that accepted spans."""

    target: str = value("address, without credentials; or the exporter of OpenTelemetry's SDK")
    spans: int = value("spans of the run")
    roots: int = value("root spans added")
    traces: int = value("traces")
    requests: int = value("requests")
    seconds: float = value("time to send", "s")


@record
class Exported(Record):
    """The output of ``export``."""

    recorded: int | None = value("spans recorded; null if unknown")
    stored: int = value("spans in the run directory")
    files: tuple[ExportedFile, ...] = value("files written")
    collectors: tuple[ExportedTo, ...] = value("collectors that accepted all selected spans")


def _described(record: type[Record]) -> Callable[[], Json]:
    return lambda: schema(record)


def _with_scenario(about: str, more: Mapping[str, Json]) -> Callable[[], Json]:
    """Return the schema of an object with a scenario, whose schema is separate."""
    scenario = {"type": "object", "description": "the scenario, every key with its unit: see rayio schema scenario"}
    properties = {**more, "scenario": scenario}
    return lambda: {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "description": about,
        "properties": properties,
        "required": [*properties],
    }


_NUMBER: Json = {"type": "number"}
_NUMBER_OR_NULL: Json = {"type": ["number", "null"]}
_SENTENCES: Json = {"type": "array", "items": {"type": "string"}}

SCHEMAS: dict[str, Callable[[], Json]] = {
    **{name: partial(schema_of, name) for name in PUBLISHED},
    "run": _described(Ran),
    "repeats": _described(Repeats),
    "sweep": _described(SweptPoints),
    "validate": _described(Validated),
    "show": _with_scenario(
        "The output of show.",
        {
            "derived": {
                "type": "object",
                "description": "numbers derived from the scenario, with units by name: bytes, seconds, bytes/s",
                "properties": {name: {**_NUMBER_OR_NULL, "description": about} for name, about in DERIVED.items()},
                "additionalProperties": _NUMBER,
            }
        },
    ),
    "scenarios": _described(PackagedScenarios),
    "generate": _described(Generated),
    "calibrate": _with_scenario(
        "The output of calibrate.",
        {
            "file": {"type": ["string", "null"], "description": "the written file; null without --out"},
            "notes": {**_SENTENCES, "description": "fitted values and their runs, a sentence each"},
            "doubts": {
                "type": "array",
                "items": {"type": "object"},
                "description": "reasons not to predict with it: code, numbers, names, invalidates, sentence",
            },
        },
    ),
    "import": _described(ImportedWorkload),
    "capacity": _described(CapacityFound),
    "advise": _described(Advised),
    "datasize": _described(DatasetSize),
    "export": _described(Exported),
    "status": _described(JobsListed),
    "doctor": _described(Doctored),
    "top": _described(Live),
    "check-published": _described(CheckedFacts),
    "query": lambda: {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "description": "The output of query: an object per row, with columns by name.",
        "items": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "array", "object", "null"]},
        },
    },
}


def answer_schema(name: str) -> Json:
    """Return the JSON Schema (draft 2020-12) of a command's output, with an ``$id``."""
    described = SCHEMAS[name]()
    first = {"$schema": described.pop("$schema"), "$id": described.pop("$id", f"urn:rayio:{name}:1")}
    return {**first, "title": described.pop("title", f"rayio {name} --json"), **described}
