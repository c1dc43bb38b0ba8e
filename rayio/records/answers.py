"""What commands print with ``--json``: typed records, and the JSON Schema of each by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from rayio.records.clusters import Doctored, JobsListed
from rayio.records.comparison import Repeated
from rayio.records.derived import DERIVED
from rayio.records.published import PUBLISHED, schema_of
from rayio.records.record import Json, Record, schema, value
from rayio.records.run_result import RunResult
from rayio.records.running import Live
from rayio.records.sizing import Advised, CapacityFound

#: A value of a scenario's key: as it is, or written as YAML where it is a list or a mapping.
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran(Record):
    """One run: what ``run``, ``simulate``, ``report`` and ``import`` print."""

    directory: str = value("path or address of the run directory")
    report: str | None = value("where its page was written; null when there is none", default=None)
    result: RunResult = value("everything in result.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats(Record):
    """Runs of one scenario: what ``run --repeat`` prints."""

    runs: tuple[Ran, ...] = value("the runs in the order in which they were made")
    metrics: tuple[Repeated, ...] = value("the metrics that every one of them has")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Record):
    """A scenario that is fine: what ``validate`` prints; of one that is not there is a line on standard error."""

    source: str = value("the file or name that was asked for")
    name: str = value("name of the scenario")
    ranks: int = value("trainer ranks")
    steps: int = value("steps of the rank with the fewest, over all epochs", "steps")
    most_steps: int = value("steps of the rank with the most, over all epochs", "steps")
    samples: int = value("samples of the dataset", "samples")
    dataset_bytes: float = value("expected size of the dataset", "bytes")
    dropped_samples_per_epoch: int = value("samples that drop_last leaves unread", "samples")
    capped_samples_per_epoch: int = value("samples that train.steps leaves unread", "samples")
    notes: tuple[str, ...] = value("keys that do nothing in this scenario, a sentence each")
    not_simulated: tuple[str, ...] = value("what rayio simulate cannot do of it, a sentence each")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedScenario(Record):
    """A scenario that rayio brings along."""

    name: str = value("its name, which commands take")
    description: str = value("what it is")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedScenarios(Record):
    """What ``scenarios`` prints."""

    scenarios: tuple[PackagedScenario, ...] = value("all that are packaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedDataset(Record):
    """The files of one dataset."""

    path: str = value("its folder or address")
    written_files: int = value("files that were made")
    written_bytes: int = value("size of these", "bytes")
    reused_files: int = value("files that were there")
    reused_bytes: int = value("size of these", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Record):
    """What ``generate`` prints."""

    datasets: tuple[GeneratedDataset, ...] = value("that of evaluations, if any, and that of training")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun(Record):
    """One run of a sweep."""

    point: tuple[Value, ...] = value("values of the swept keys, in their order; lists and mappings as YAML")
    repeat: int = value("which of the repeats of its point, from 0")
    status: str = value("done, unmet (expect:), impossible (values that cannot be together) or failed")
    error: str | None = value("why it is not done", default=None)
    readers: int | None = value("readers of all ranks", default=None)
    window_bytes: float | None = value("expected bytes of all windows when they are full", "bytes", default=None)
    result: RunResult | None = value("its numbers; null when nothing ran", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPoints(Record):
    """What ``sweep`` prints."""

    directory: str = value("directory of the sweep, with sweep.html, sweep.csv and sweep.parquet")
    name: str = value("name of the scenario")
    engine: str = value("ray, local or virtual")
    swept: tuple[str, ...] = value("the swept keys")
    missing: int = value("runs that were asked for and have not ended")
    knee: tuple[Value, ...] | None = value("values after which more of the one swept key brings little AU")
    front: tuple[tuple[Value, ...], ...] = value("values of the points that no other beats in AU, readers and memory")
    runs: tuple[SweptRun, ...] = value("every run that ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile(Record):
    """A file that spans were written to."""

    path: str = value("the file")
    spans: int = value("spans of the run in it")
    roots: int = value("spans that were made to be the roots of traces")
    seconds: float = value("how long it took to write", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTo(Record):
    """A collector that took spans."""

    target: str = value("its address, without credentials")
    spans: int = value("spans of the run that it took")
    roots: int = value("spans that were made to be the roots of traces")
    traces: int = value("traces")
    requests: int = value("requests")
    seconds: float = value("how long it took to send", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Record):
    """What ``export`` prints."""

    recorded: int | None = value("spans that were recorded; null when nobody knows")
    stored: int = value("spans that the run directory holds")
    files: tuple[ExportedFile, ...] = value("files that were written")
    collectors: tuple[ExportedTo, ...] = value("collectors that took all that was chosen")


def _described(record: type[Record]) -> Callable[[], Json]:
    return lambda: schema(record)


def _with_scenario(about: str, more: Mapping[str, Json]) -> Callable[[], Json]:
    """A schema of an object with a scenario in it, which has a schema of its own."""
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

#: The schema of what each command prints, by the name that ``rayio schema`` takes.
SCHEMAS: dict[str, Callable[[], Json]] = {
    **{name: partial(schema_of, name) for name in PUBLISHED},
    "run": _described(Ran),
    "repeats": _described(Repeats),
    "sweep": _described(SweptPoints),
    "validate": _described(Validated),
    "show": _with_scenario(
        "What show prints.",
        {
            "derived": {
                "type": "object",
                "description": "numbers that follow from the scenario: bytes, seconds and bytes/s where a name says so",
                "properties": {name: {**_NUMBER_OR_NULL, "description": about} for name, about in DERIVED.items()},
                "additionalProperties": _NUMBER,
            }
        },
    ),
    "scenarios": _described(PackagedScenarios),
    "generate": _described(Generated),
    "calibrate": _with_scenario(
        "What calibrate prints.",
        {
            "file": {"type": ["string", "null"], "description": "the file that was written; null without --out"},
            "notes": {**_SENTENCES, "description": "what was learned and from which run, a sentence each"},
        },
    ),
    "capacity": _described(CapacityFound),
    "advise": _described(Advised),
    "export": _described(Exported),
    "status": _described(JobsListed),
    "doctor": _described(Doctored),
    "top": _described(Live),
    "query": lambda: {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "description": "What query prints: a row each, its columns by their names in the query.",
        "items": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "array", "object", "null"]},
        },
    },
}


def answer_schema(name: str) -> Json:
    """The JSON Schema (draft 2020-12) of what a command prints, with an ``$id``."""
    described = SCHEMAS[name]()
    first = {"$schema": described.pop("$schema"), "$id": described.pop("$id", f"urn:rayio:{name}:1")}
    return {**first, "title": described.pop("title", f"rayio {name} --json"), **described}
